"""`exactsink status`: report from journal and stores how much of the last decision each sink is proven to have."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from exactsink.cli.opened import Opened
from exactsink.cli.options import as_json, command, job_file, run_name, within
from exactsink.cli.plain import plain, print_json
from exactsink.cli.table import print_table
from exactsink.contract import ExactsinkError, Lost, Unknown
from exactsink.job.driver import identity_of
from exactsink.observe.state import LIVE_SECONDS
from exactsink.operate.health import Health, health_of
from exactsink.operate.views import ASKED_SECONDS, SinkView, look, word_of
from exactsink.protocol.coordinator import State
from exactsink.protocol.journal.log import Log
from exactsink.protocol.sinks import check_identity

__all__ = ["status"]

_SHOWN = 20
"""How many participants are listed for people; `--json` lists all."""

_COUNTS = ("committed", "prepared", "lost", "unknown", "not asked")
_HELD = ("undecided", "foreign")


@command()
@job_file
@run_name
@within(ASKED_SECONDS)
@as_json
def status(job: str, run: str | None, within: float, as_json: bool) -> None:
    """Report a job's last epochs, its driver, and the participants that are not proven committed.

    The command changes nothing. Exit code 0: the state is `proven`, `at work` or `no start yet`. If a driver died while
    nothing was in doubt, the exit code is also 0. To notice that, read the heartbeat.
    """
    opened = Opened.of(job, run)
    with closing(opened.operator()) as operator:
        _check_known(opened, operator.read())
        state = opened.history.last_state()
        log, views = look(opened.history, opened.sinks, operator.read, operator.whole, seconds=within)
        checkpoint = operator.checkpoint_problem(within)
    state = opened.history.last_state(state)
    health = health_of(log, views, state, opened.history.commands, checkpoint)
    shown = [view for view in views if view.in_config or view.problem is not None]
    body = _body(opened, log, state, shown, health)
    if as_json:
        print_json(body)
    else:
        _print(body, shown)
    if health.refusal is not None:
        raise health.refusal


def _check_known(opened: Opened, log: Log) -> None:
    """Refuse another job's journal, and a batch run that nobody ever began. Raises LineageError, ConfigError."""
    check_identity(log, identity_of(opened.history))
    if opened.history.run is not None and not log.claims:
        raise opened.unknown_run()


def _body(opened: Opened, log: Log, state: State | None, views: Sequence[SinkView], health: Health) -> dict[str, Any]:
    history, decided = opened.history, log.decision.epoch if log.decision else None
    complete = state.complete_epoch if state else None
    if all(view.is_proven and view.problem is None for view in views):
        complete = decided  # the state file lags behind
    body: dict[str, Any] = {
        "job": opened.config.job.name,
        "state": health.word,
        "checkpoint": str(history.checkpoint),
        "journal": history.journal_place,
        "staging": str(opened.config.staging),
        "query_id": log.query_id,
        "generation": log.last_generation,
        "driver": log.claims[-1].driver if log.claims else None,
        "heartbeat_age_seconds": round(time.time() - state.heartbeat, 1) if state and state.heartbeat else None,
        "driver_ended": bool(state and not state.heartbeat),
        "last_decided_epoch": decided,
        "last_complete_epoch": complete,
        "sinks": {view.name: _sink(view) for view in views if view.in_config},
        "former_sinks": [_sink(view) for view in views if not view.in_config],
        "exit_code": health.refusal.exit_code if health.refusal else 0,
    }
    if history.run is not None:
        body |= {"run": history.run, "run_complete": log.is_complete}
    return body


def _sink(view: SinkView) -> dict[str, Any]:
    """Count the decided participants by state, and the other participants that the store holds."""
    held = [holding.participant for holding in view.held]
    return {
        "sink": view.name,
        "backend": view.backend,
        "strategy": view.strategy,
        "target": view.target,
        "asked": view.asked,
        **{word.replace(" ", "_"): view.count(word) for word in _COUNTS},
        **{whose: view.holds(whose) for whose in _HELD},
        "held_back_by": list(view.held_back_by),
        "mark": None if view.mark is None else str(view.mark),
        "expected_mark": None if view.expected is None or view.expected.now is None else str(view.expected.now),
        "problem": None if view.problem is None else _error(view.problem),
        "oldest_age_seconds": max((round(p.age_seconds or 0.0, 1) for p in held), default=None),
        "earliest_deadline": min((p.deadline for p in held if p.deadline), default=None),
        "decided": [
            {"ref": committable.ref, "rows": committable.rows, "state": word, "evidence": evidence}
            for committable, word, evidence in _decided(view)
        ],
        "held": [{"state": holding.whose, **plain(holding.participant)} for holding in view.held],
    }


def _decided(view: SinkView) -> Iterator[tuple[Any, str, str | None]]:
    for number, committable in enumerate(view.committables):
        standing = view.standings[number] if view.standings else None
        evidence = standing.evidence if isinstance(standing, Lost | Unknown) else None
        yield committable, word_of(standing), evidence


def _error(error: ExactsinkError) -> Mapping[str, str]:
    return {"what": error.what, "why": error.why, "next": error.next}


def _print(body: Mapping[str, Any], views: Sequence[SinkView]) -> None:
    named = ("job", "run", "run_complete", "checkpoint", "journal", "staging", "query_id", "generation", "driver")
    for name in named:
        if name in body:
            print(f"{name}: {'-' if body[name] is None else body[name]}")
    age = "-" if (seconds := body["heartbeat_age_seconds"]) is None else f"{seconds} s ago"
    if seconds is not None and seconds <= -LIVE_SECONDS:
        age = f"{-seconds} s ahead of this machine's clock"
    print(f"heartbeat: {'none, the driver has ended' if body['driver_ended'] else age}")
    for name in ("last_decided_epoch", "last_complete_epoch"):
        print(f"{name}: {'none' if body[name] is None else body[name]}")
    print("state: " + ("this job has not run yet" if body["state"] == "no start yet" else body["state"]))
    rows = [
        [
            view.name if view.in_config else f"{view.name} (not in the config)",
            *(view.count(word) for word in _COUNTS),
            *(view.holds(whose) for whose in _HELD),
            *_times(view),
        ]
        for view in views
    ]
    print_table(("sink", *_COUNTS, *_HELD, "oldest", "deadline in"), rows, sys.stdout)
    lines = [line for view in views for line in _lines(view)]
    for line in lines[:_SHOWN]:
        print(f"  {line}")
    if len(lines) > _SHOWN:
        print(f"  and {len(lines) - _SHOWN} more: --json lists them")


def _lines(view: SinkView) -> Iterator[str]:
    """Yield the open work in a sink: why it can't be known, or each participant with its evidence."""
    if view.problem is not None:
        indented = str(view.problem).replace("\n", "\n  ")
        yield f"{view.name}: {'' if view.asked else 'not asked: '}{indented}"
    else:
        for committable, word, evidence in _decided(view):
            if word != "committed":
                yield f"{view.name}: {word} {committable.ref}" + ("" if evidence is None else f": {evidence}")
    if view.held_back_by:
        yield f"{view.name}: held back by {', '.join(view.held_back_by)}, which it comes after"
    for holding in view.held:
        if holding.whose != "decided":
            yield f"{view.name}: {holding.whose} {holding.participant.ref}"


def _times(view: SinkView) -> tuple[str, str]:
    ages = [holding.participant.age_seconds or 0.0 for holding in view.held]
    deadlines = [holding.participant.deadline for holding in view.held if holding.participant.deadline]
    left = f"{min(deadlines) - time.time():.0f} s" if deadlines else "-"
    return f"{max(ages):.0f} s" if ages else "-", left
