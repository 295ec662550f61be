"""Explain one participant in doubt: its driver, its decision, its effects, safe actions, and the next command.

Only reads.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime, timezone

from exactsink.contract import ExactsinkError
from exactsink.job.commands import Commands
from exactsink.job.history import JobHistory
from exactsink.observe.state import is_live, last_heard
from exactsink.operate.indoubt import Doubt
from exactsink.protocol.journal.log import Log
from exactsink.protocol.sinks import Sink, committer_of

__all__ = ["explained", "when"]

Line = tuple[str, str]
"""A label, and a sentence or command."""


def explained(doubt: Doubt, history: JobHistory, sink: Sink | None, whole: Log) -> Sequence[Line]:
    """Explain a participant. `whole` is the log back to its first claim."""
    commands, live = history.commands, _live(history)
    place = f"{sink.kind}, {sink.backend.strategy}, {sink.backend.target}" if sink else "not in the config as it was"
    lines = [("what", f"{doubt.ref} in sink {doubt.sink} ({place})")]
    lines += [("state", doubt.state + (f": {doubt.evidence}" if doubt.evidence else ""))]
    lines += [("whose", _whose(doubt, history, whole)), ("decision", _decision(doubt, whole))]
    lines += [("since", _since(doubt)), ("until", _until(doubt))] if doubt.state != "lost" else []
    lines += [("blocks", text) for text in _blocks(doubt, history, sink, whole)]
    if live:
        lines.append(("driver", live))
    return [*lines, *_advice(doubt, commands, is_live=bool(live))]


def when(at: float) -> str:
    """Return a moment in UTC, in the format of `history`."""
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")


def _whose(doubt: Doubt, history: JobHistory, whole: Log) -> str:
    run = "" if history.run is None else f", batch run {history.run}"
    known = [c for c in whole.claims if (c.generation, c.token) == (doubt.generation, doubt.token)]
    begun = f"generation {doubt.generation}, token {doubt.token}"
    if known:
        return f"job {history.job}{run}; begun by driver {known[0].driver} ({begun}), which started {when(known[0].at)}"
    mine = f"journal {whole.lineage}" if whole.lineage else "the journal, which is empty,"
    return (
        f"it has the name of job {history.job}{run}, but {mine} in {history.folder} has no claim of {begun}: only "
        "the journal with that claim shows whether it was decided"
    )


def _decision(doubt: Doubt, whole: Log) -> str:
    decision = whole.decision
    last = "nothing is decided" if decision is None else f"epoch {decision.epoch} was decided last, {when(decision.at)}"
    if not doubt.is_decided or decision is None:
        of = "" if doubt.epoch is None else f"it was begun for epoch {doubt.epoch}; "
        return f"none of this journal names it: {of}{last}"
    count, rows = len(decision.committables(doubt.sink)), decision.rows[doubt.sink]
    entries = ", ".join(map(str, decision.seqs))
    return f"{last} (journal entry {entries}); rows in this sink: {rows} (participants: {count}), here: {doubt.rows}"


def _since(doubt: Doubt) -> str:
    if doubt.age_seconds is None:
        return "its store reports no age"
    return f"{when(time.time() - doubt.age_seconds)}, {doubt.age_seconds:.0f} s ago"


def _until(doubt: Doubt) -> str:
    if doubt.deadline is None:
        return "somebody ends it: its store drops it at no known deadline"
    left = doubt.deadline - time.time()
    return f"{when(doubt.deadline)}: its store may drop it " + (f"in {left:.0f} s" if left > 0 else "since then")


def _blocks(doubt: Doubt, history: JobHistory, sink: Sink | None, whole: Log) -> Sequence[str]:
    if sink is None or doubt.state in ("lost", "not asked"):
        return ()
    with closing(committer_of(sink, history.job, whole)) as committer:
        try:
            return committer.blocks(doubt.held) or ("nothing, as far as its backend knows",)
        except ExactsinkError as error:
            return (f"its store can't be queried now: {error.what}",)


def _live(history: JobHistory) -> str:
    state = history.last_state()
    if state is None or not is_live(state):
        return ""
    return f"{state.driver} may be at work on it: {last_heard(state)}"


def _advice(doubt: Doubt, commands: Commands, *, is_live: bool) -> Iterator[Line]:
    """Yield the safe and the unsafe actions, and the next command."""
    *lines, (label, then) = (_of_decided if doubt.is_decided else _of_others)(doubt, commands)
    yield from lines
    yield label, f"wait for the driver, which settles this by itself; if it has ended: {then}" if is_live else then


def _of_decided(doubt: Doubt, commands: Commands) -> Iterator[Line]:
    resolve = commands.of("indoubt resolve")
    resolve += f" --epoch {doubt.epoch} --sink {doubt.sink} --ref {doubt.short} --reason 'TEXT' --as {{}}"
    if doubt.state == "prepared":
        yield "safe", "to start the job, or to recover, any number of times: both commit it, and it takes effect once"
        yield "never", "end it by hand: a rollback would lose its rows, and only the job could write them again"
        yield "next", f"{commands.of('recover')} --sink {doubt.sink} --yes"
    elif doubt.state == "lost":
        yield "safe", "to start the job: it writes these rows again, if its source still gives the same batch"
        yield "never", "write the rows by hand: the job would write them a second time"
        yield "or", f"give these rows up permanently: {resolve.format('given-up')}"
        yield "next", commands.start
    elif doubt.went_back:
        yield "safe", "to restore the journal, the checkpoint and the targets from one moment"
        yield "never", "go on as if nothing had happened: epochs would be missing, or doubled"
        yield "or", f"give up its participants that are proven lost (listed first): {resolve.format('given-up')}"
        yield "next", f"`{commands.of('rebase')}` shows every target's mark"
    elif doubt.state == "unknown":
        yield "safe", "to restore the parts that the evidence names; then the job continues by itself"
        yield "never", "guess: taken as committed, rows may be missing; taken as lost, they may be doubled"
        yield "or", f"look into the target, and record the outcome: {resolve.format('committed')} (or --as lost)"
        yield "next", commands.of("recover")
    else:
        yield "safe", "to wait: the decision stays valid"
        then = commands.of("indoubt list")
        yield "next", f"bring its store back, or its sink into the config as it was; then {then}"


def _of_others(doubt: Doubt, commands: Commands) -> Iterator[Line]:
    abort = f"{commands.of('recover')} --ref {doubt.short}"
    if doubt.state == "undecided":
        yield "safe", "to start the job, or to recover: both abort it, because then nobody can decide it"
        yield "never", "commit it by hand: the job writes the same rows again, and they would be doubled"
        yield "next", f"{abort} --yes"
    else:
        yield "safe", "nothing, until you know that no driver with another journal uses this job's name"
        yield "never", "commit or roll it back by hand: rows that were decided elsewhere would be lost, or doubled"
        yield "next", f"{abort} --sweep-token {doubt.token} --reason 'TEXT'"
