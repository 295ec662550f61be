"""Scenarios about the commit: in another process, in two at once, repeated, without an answer, interrupted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa

from exactsink.contract import AlreadyCommitted, Committable, Committed, Outcome, Retryable
from exactsink.testing.capabilities import Scenario
from exactsink.testing.context import SINK, Broken, Context
from exactsink.testing.faults import Fault
from exactsink.testing.interrupt import AnswerLost, Interruption
from exactsink.testing.processes import KILLED, ask, ask_fresh_process, at_once, ended, start
from exactsink.testing.scenarios.moments import COUNTED, evenly, spread
from exactsink.testing.session import Session
from exactsink.testing.wrapped import WrappedApplier
from exactsink.toolkit.roads import Applier, Marker, StagedBackend, StagedCommitter

__all__ = ["SCENARIOS"]

_COMMIT = f"commit:{SINK}"
_TOKEN = "abcdef012345"
_AT_ONCE = 10
_STALLS = 8
_SWEEPS = 6


def _other_process(context: Context) -> None:
    """Open, write and commit in interpreters that share no memory, because the backend's module may keep state."""
    session = context.session(1, _TOKEN)
    committables = session.prepare(0, context.rows([20])[0], run=ask_fresh_process)
    _all_stand(ask_fresh_process(partial(session.commit, 0, committables)))
    context.check_rows(range(20))
    _all_stand(ask_fresh_process(partial(session.commit, 0, committables)))
    context.check_rows(range(20))


def _at_once(context: Context) -> None:
    """Two processes that wait for one condition commit the same epoch, round after round."""
    session = context.session(1, _TOKEN)
    for epoch, tables in enumerate(context.rows(*([6],) * _AT_ONCE)):
        commit = partial(session.commit, epoch, session.prepare(epoch, tables, run=ask))
        ends = at_once(*[partial(_commit_all, commit)] * 2)
        if ends != [0, 0]:
            raise Broken(f"of two processes that commit epoch {epoch} at once, one did not end well: {ends}")
    context.check_rows(range(6 * _AT_ONCE))
    context.faults.append(f"two-processes-commit-at-once-{_AT_ONCE}-times")


def _applied_late(context: Context) -> None:
    """One process reads the marker and the rows. Before it applies them, another process commits the epoch."""
    backend, session = context.backend, context.session(1, _TOKEN)
    assert isinstance(backend, StagedBackend)
    committables = session.prepare(0, context.rows([20, 20])[0], run=ask)
    (said, says), (allowed, allows) = os.pipe(), os.pipe()
    slow = start(lambda: _late(session, committables, _SlowApplier(backend.applier(), says, allowed)))
    os.close(says)
    if not os.read(said, 1):
        raise Broken("the slow process never applied its rows")
    _all_stand(ask(partial(session.commit, 0, committables)))
    context.check_rows(range(40))
    os.write(allows, b".")
    context.ends(slow, 0, "the process that applies late")
    context.faults.append("another-process-commits-between-look-and-apply")
    context.check_rows(range(40))
    for end in (said, allowed, allows):
        os.close(end)


class _SlowApplier(WrappedApplier):
    """Reads the marker and the staged rows, and reports that. Applies them once the test allows it."""

    def __init__(self, real: Applier, says: int, may: int) -> None:
        super().__init__(real)
        self._says = says
        self._may = may

    def apply(self, marker: Marker, batches: Iterator[pa.RecordBatch]) -> bool:
        rows = list(batches)
        os.write(self._says, b".")
        os.read(self._may, 1)
        return super().apply(marker, iter(rows))


def _late(session: Session, committables: Sequence[Committable], applier: Applier) -> int:
    committer = StagedCommitter(session.ctx, applier)
    outcomes = committer.commit(0, committables)
    committer.close()
    return 0 if all(isinstance(outcome, AlreadyCommitted) for outcome in outcomes) else 1


def _commit_all(commit: Callable[[], Sequence[Outcome]]) -> None:
    _all_stand(commit())


def _replayed(context: Context) -> None:
    """Three drivers commit one epoch. Each is killed before it can record the commit."""
    script = context.script([10, 10], [10, 10], [10, 10])
    for fault in (Fault(_COMMIT, "after", "kill", 1), Fault(_COMMIT, "after"), Fault("recommit", "after")):
        context.killed(script, fault)
        context.check_rows(range(40))
    committables = context.decided(script)
    lineage = script.journal.read().lineage
    session = context.session(99, _TOKEN, lineage=lineage)
    _all_stand(ask(partial(session.commit, 1, committables, times=3)))
    context.check_rows(range(40))
    context.whole(script)
    context.check_rows(range(60))
    context.check_nothing_in_doubt(script)


def _answer_lost(context: Context) -> None:
    """The store does the work, but the driver never gets the answer, and tries again."""
    script = context.script([10, 10], [10, 10], [10, 10])
    losing = AnswerLost(context.backend, script.folder)
    context.whole(context.through(script, losing))
    unfired = [epoch for epoch in range(3) if not losing.mark(epoch).exists()]
    if unfired:
        raise Broken(f"the answer of epochs {unfired} was never lost")
    context.faults += [f"answer-lost-e{epoch}" for epoch in range(3)]
    context.check_rows(range(60))
    context.check_nothing_in_doubt(script)


def _stalled_inside(context: Context) -> None:
    """Drivers stall inside their commits.

    Each wakes once its successor is three epochs ahead, or waits for its lock.
    """
    script = context.script(*([5, 5],) * (COUNTED + 3 * _STALLS))
    moments = spread(context, script, range(COUNTED, len(script.batches), 3))
    for epoch, moment in moments.items():
        stall = Interruption("commit", "stall", script.folder, {epoch: moment})
        pid = context.interrupted(script, stall)
        context.stops(pid, f"stall-inside-commit-e{epoch}-at-{moment}")
        context.faults.append(f"stall-inside-commit-e{epoch}-at-{moment}")
        last = epoch + 3 == len(script.batches)
        successor = context.interrupted(script, stall, *[Fault("open_epoch", "before", "kill", epoch + 3)] * (not last))
        code = ended(successor)
        if code not in (0 if last else KILLED, Retryable.exit_code):
            raise Broken(f"the successor of a driver stalled inside the commit of epoch {epoch} ended {code}")
        context.woken(pid)
    context.whole(script)
    context.check_rows(range(10 * len(script.batches)))
    context.check_nothing_in_doubt(script)


def _killed_inside_sweep(context: Context) -> None:
    """Drivers are killed inside their sweeps, each at a later moment than the one before."""
    script = context.script(*([5, 5],) * (_SWEEPS + 2))
    context.killed(script, Fault("vote", "after", "kill", 0))
    counting = Interruption("abort", "count", script.folder)
    context.ends(context.interrupted(script, counting, Fault("vote", "after", "kill", 1)), KILLED, "a counting run")
    if not counting.mark(0).exists():
        raise Broken("the backend lists none of a killed driver's prepared participants: there was nothing to sweep")
    moments = evenly(list(range(_SWEEPS)), int(counting.mark(0).read_text()))
    for turn, moment in moments.items():
        folder = script.folder / f"sweep-{turn}"
        folder.mkdir()
        kill = Interruption("abort", "kill", folder, {0: moment})
        context.ends(context.interrupted(script, kill), KILLED, f"a driver inside its sweep, at {moment}")
        context.faults.append(f"kill-inside-sweep-at-{moment}")
        context.killed(script, Fault("vote", "after", "kill", turn + 2))
    context.whole(script)
    context.check_rows(range(10 * len(script.batches)))
    context.check_nothing_in_doubt(script)


def _all_stand(outcomes: list[Outcome] | tuple[Outcome, ...] | object) -> None:
    assert isinstance(outcomes, list | tuple)
    wrong = [outcome for outcome in outcomes if not isinstance(outcome, Committed | AlreadyCommitted)]
    if wrong or not outcomes:
        raise Broken(f"a commit of prepared participants returned {wrong or 'no outcome'}")


SCENARIOS = (
    Scenario(
        "other-process",
        "an unrelated process commits the participants that another one prepared",
        "the driver dies, and another machine's driver commits the participants of its tasks",
        _other_process,
    ),
    Scenario(
        "commits-at-once",
        "two processes that commit at the same moment apply the rows once",
        "a driver that seems dead still runs, and commits the same epoch as its successor",
        _at_once,
    ),
    Scenario(
        "applied-late",
        "a process that has read the marker does not apply an epoch that another process applied meanwhile",
        "a driver is suspended after it has read the marker; its successor applies the epoch; then the first wakes",
        _applied_late,
        ("applier",),
    ),
    Scenario(
        "commit-replayed",
        "a commit may be repeated, by its process and by others",
        "a commit went through, the process died before it knew, and the next start repeats the commit",
        _replayed,
    ),
    Scenario(
        "answer-lost",
        "if the answer of a commit is lost, the commit is repeated, and changes nothing",
        "the network is cut between the store's commit and its answer",
        _answer_lost,
    ),
    Scenario(
        "stalled-inside-commit",
        "a driver that wakes in a commit after its successor has finished more epochs changes nothing",
        "a virtual machine is suspended in a commit, and goes on hours later",
        _stalled_inside,
    ),
    Scenario(
        "killed-inside-sweep",
        "a driver may die at any moment of its sweep",
        "the process is killed between two of the calls that clean up",
        _killed_inside_sweep,
        ("hidden_until_decided",),
    ),
)
