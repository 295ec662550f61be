"""`exactsink status`: how far a job is, read from its journal and its sinks, changing neither."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from exactsink.cli.opened import Opened
from exactsink.cli.table import print_table
from exactsink.contract import InDoubtError
from exactsink.operate.views import Holding, holdings
from exactsink.protocol.coordinator import State
from exactsink.protocol.journal.log import Log

__all__ = ["status"]

_SHOWN = 20
"""How many participants are listed for people; `--json` lists all."""


def status(path: str, run: str | None, as_json: bool) -> None:
    """Print the job's state. Raises InDoubtError when a decided participant is not committed yet."""
    opened = Opened.of(path, run)
    with closing(opened.operator()) as operator:
        log = operator.read()
        held = holdings(opened.history, opened.sinks, log, operator.whole)
    body = _body(opened, log, opened.history.last_state(), held)
    if as_json:
        print(json.dumps(body, indent=1))
    else:
        _print(body)
    decided = sum(sink["decided_in_doubt"] for sink in body["sinks"].values())
    if decided:
        then = f"exactsink run {path}, or exactsink recover {path}"
        raise InDoubtError(f"{decided} decided participants are not committed yet", next=then)


def _body(opened: Opened, log: Log, state: State | None, held: Sequence[Holding]) -> dict[str, Any]:
    complete = state.complete_epoch if state else None
    sinks = {name: _sink([h for h in held if h.sink == name]) for name in opened.sinks}
    if log.decision and log.decision.epoch != complete:
        for name in log.decision.sinks.keys() - sinks.keys():  # the config lacks it: nobody can ask its store
            sinks[name] = {**_sink([]), "decided_in_doubt": len(log.decision.committables(name))}
    body: dict[str, Any] = {
        "job": opened.config.job.name,
        "query_id": log.query_id,
        "generation": log.last_generation,
        "driver": log.claims[-1].driver if log.claims else None,
        "heartbeat_age_seconds": round(time.time() - state.heartbeat, 1) if state and state.heartbeat else None,
        "driver_ended": bool(state and not state.heartbeat),
        "last_decided_epoch": log.decision.epoch if log.decision else None,
        "last_complete_epoch": complete,
        "sinks": sinks,
    }
    if opened.history.run is not None:
        body |= {"run": opened.history.run, "run_complete": log.is_complete}
    return body


def _sink(held: Sequence[Holding]) -> dict[str, Any]:
    """Count what a sink holds: decided (the next start commits it), undecided (it sweeps it), foreign (it refuses)."""
    counts = {whose: sum(holding.whose == whose for holding in held) for whose in ("decided", "undecided", "foreign")}
    return {
        "decided_in_doubt": counts["decided"],
        "undecided": counts["undecided"],
        "foreign": counts["foreign"],
        "oldest_age_seconds": max((round(h.participant.age_seconds or 0.0, 1) for h in held), default=None),
        "earliest_deadline": min((h.participant.deadline for h in held if h.participant.deadline), default=None),
        "participants": [
            {
                "ref": holding.participant.ref,
                "state": holding.whose,
                "generation": holding.participant.generation,
                "token": holding.participant.token,
                "epoch": holding.participant.epoch,
                "age_seconds": holding.participant.age_seconds,
                "deadline": holding.participant.deadline,
            }
            for holding in held
        ],
    }


def _print(body: Mapping[str, Any]) -> None:
    for name in ("job", "run", "run_complete", "query_id", "generation", "driver"):
        if name in body:
            print(f"{name}: {'-' if body[name] is None else body[name]}")
    age = "-" if body["heartbeat_age_seconds"] is None else f"{body['heartbeat_age_seconds']} s ago"
    print(f"heartbeat: {'none, the driver has ended' if body['driver_ended'] else age}")
    for name in ("last_decided_epoch", "last_complete_epoch"):
        print(f"{name}: {'none' if body[name] is None else body[name]}")
    rows = [
        (name, sink["decided_in_doubt"], sink["undecided"], sink["foreign"], *_times(sink))
        for name, sink in body["sinks"].items()
    ]
    print_table(("sink", "decided, in doubt", "undecided", "foreign", "oldest", "deadline in"), rows, sys.stdout)
    listed = [(name, p) for name, sink in body["sinks"].items() for p in sink["participants"]]
    for name, participant in listed[:_SHOWN]:
        print(f"  {name}: {participant['state']} {participant['ref']}")
    if len(listed) > _SHOWN:
        print(f"  and {len(listed) - _SHOWN} more: --json lists them")


def _times(sink: Mapping[str, Any]) -> tuple[str, str]:
    age, deadline = sink["oldest_age_seconds"], sink["earliest_deadline"]
    left = "-" if deadline is None else f"{deadline - time.time():.0f} s"
    return "-" if age is None else f"{age:.0f} s", left
