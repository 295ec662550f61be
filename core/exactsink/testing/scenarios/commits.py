"""Scenarios about the commit: by another process, by two at once, again, unanswered, interrupted in its middle."""

from __future__ import annotations

import os
from collections.abc import Sequence

from exactsink.contract import (
    AlreadyCommitted,
    Applier,
    Committable,
    Committed,
    Outcome,
    Retryable,
    StagedBackend,
    StagedCommitter,
)
from exactsink.testing.catalogue import Scenario
from exactsink.testing.context import SINK, Broken, Stage
from exactsink.testing.faults import Fault
from exactsink.testing.interrupt import AnswerLost, Interruption
from exactsink.testing.manual_session import Commit, Hand, Slow
from exactsink.testing.processes import KILLED, ask, ask_stranger, ended, start
from exactsink.testing.scenarios.moments import COUNTED, evenly, spread

__all__ = ["SCENARIOS"]

_COMMIT = f"commit:{SINK}"
_TOKEN = "abcdef012345"
_AT_ONCE = 20
_KILLS = 16
_STALLS = 8
_SWEEPS = 6


def _other_process(stage: Stage) -> None:
    """Open, write and commit in interpreters that share nothing, though the backend's module may keep state."""
    hand = stage.hand(1, _TOKEN)
    committables = hand.prepare(0, stage.rows([20])[0], run=ask_stranger)
    _all_stand(ask_stranger(hand.committing(0, committables)))
    stage.check_rows(range(20))
    _all_stand(ask_stranger(hand.committing(0, committables)))
    stage.check_rows(range(20))


def _at_once(stage: Stage) -> None:
    """Two processes that wait for one condition commit the same epoch, round after round."""
    hand = stage.hand(1, _TOKEN)
    for epoch, tables in enumerate(stage.rows(*([6],) * _AT_ONCE)):
        committables = hand.prepare(epoch, tables)
        commit = hand.committing(epoch, committables)
        waiting, opened = os.pipe()
        both = [start(lambda: _after(waiting, opened, commit)) for _ in range(2)]  # noqa: B023 - used in this round
        os.close(waiting)
        os.close(opened)  # the condition: the pipe has no writer any more
        ends = [ended(pid) for pid in both]
        if ends != [0, 0]:
            raise Broken(f"of two processes that commit epoch {epoch} at once, one did not end well: {ends}")
    stage.check_rows(range(6 * _AT_ONCE))
    stage.faults.append(f"two-processes-commit-at-once-{_AT_ONCE}-times")


def _applied_late(stage: Stage) -> None:
    """One process looks at the marker and reads its rows; before it applies them, another commits the epoch."""
    backend, hand = stage.backend, stage.hand(1, _TOKEN)
    assert isinstance(backend, StagedBackend)
    committables = hand.prepare(0, stage.rows([20, 20])[0])
    (said, says), (reported, reports) = os.pipe(), os.pipe()
    slow = start(lambda: _late(hand, committables, Slow(backend.applier(), says, reported)))
    os.close(says)
    if not os.read(said, 1):
        raise Broken("the slow process never came to apply its rows")
    _all_stand(ask(hand.committing(0, committables)))
    stage.check_rows(range(40))
    os.write(reports, b".")
    stage.ends(slow, 0, "the process that applies late")
    stage.faults.append("another-process-commits-between-look-and-apply")
    stage.check_rows(range(40))
    for end in (said, reported, reports):
        os.close(end)


def _late(hand: Hand, committables: Sequence[Committable], applier: Applier) -> int:
    committer = StagedCommitter(hand.ctx, applier)
    outcomes = committer.commit(0, committables)
    committer.close()
    return 0 if all(isinstance(outcome, AlreadyCommitted) for outcome in outcomes) else 1


def _after(waiting: int, opened: int, commit: Commit) -> int:
    os.close(opened)
    os.read(waiting, 1)
    for _ in range(50):
        try:
            _all_stand(commit())
        except Retryable:  # the other one is at it
            continue
        return 0
    return 1


def _replayed(stage: Stage) -> None:
    """One epoch is committed by three drivers, each killed before anybody knows that it was."""
    script = stage.script([10, 10], [10, 10], [10, 10])
    for fault in (Fault(_COMMIT, "after", "kill", 1), Fault(_COMMIT, "after"), Fault("recommit", "after")):
        stage.killed(script, fault)
        stage.check_rows(range(40))
    committables = stage.decided(script)
    lineage = script.journal.read().lineage
    hand = stage.hand(99, _TOKEN, lineage=lineage)
    _all_stand(ask(hand.committing(1, committables, times=3)))
    stage.check_rows(range(40))
    stage.whole(script)
    stage.check_rows(range(60))
    stage.check_nothing_in_doubt(script)


def _answer_lost(stage: Stage) -> None:
    """The store does the work, and the driver never hears of it: it asks again."""
    script = stage.script([10, 10], [10, 10], [10, 10])
    losing = AnswerLost(stage.backend, script.folder)
    stage.whole(stage.through(script, losing))
    unfired = [epoch for epoch in range(3) if not losing.mark(epoch).exists()]
    if unfired:
        raise Broken(f"the answer of epochs {unfired} was never lost")
    stage.faults += [f"answer-lost-e{epoch}" for epoch in range(3)]
    stage.check_rows(range(60))
    stage.check_nothing_in_doubt(script)


def _killed_inside(stage: Stage) -> None:
    """Driver after driver is killed inside its commit, each a little later in it; its successor finishes."""
    script = stage.script(*([5, 5],) * (COUNTED + _KILLS))
    moments = spread(stage, script, range(COUNTED, COUNTED + _KILLS))
    kills = Interruption("commit", "kill", script.folder, moments)
    for epoch, moment in moments.items():
        stage.ends(stage.interrupted(script, kills), KILLED, f"a driver inside the commit of epoch {epoch}")
        stage.faults.append(f"kill-inside-commit-e{epoch}-at-{moment}")
    stage.whole(script)
    stage.check_rows(range(10 * len(script.batches)))
    stage.check_nothing_in_doubt(script)


def _stalled_inside(stage: Stage) -> None:
    """Drivers stall inside their commit; each wakes when its successor is three epochs on, or waits for its lock."""
    script = stage.script(*([5, 5],) * (COUNTED + 3 * _STALLS))
    moments = spread(stage, script, range(COUNTED, len(script.batches), 3))
    for epoch, moment in moments.items():
        stall = Interruption("commit", "stall", script.folder, {epoch: moment})
        pid = stage.interrupted(script, stall)
        stage.stops(pid, f"stall-inside-commit-e{epoch}-at-{moment}")
        stage.faults.append(f"stall-inside-commit-e{epoch}-at-{moment}")
        last = epoch + 3 == len(script.batches)
        successor = stage.interrupted(script, stall, *[Fault("open_epoch", "before", "kill", epoch + 3)] * (not last))
        code = ended(successor)
        if code not in (0 if last else KILLED, Retryable.exit_code):
            raise Broken(f"the successor of a driver stalled inside the commit of epoch {epoch} ended {code}")
        stage.woken(pid)
    stage.whole(script)
    stage.check_rows(range(10 * len(script.batches)))
    stage.check_nothing_in_doubt(script)


def _killed_inside_sweep(stage: Stage) -> None:
    """Driver after driver is killed inside its sweep, each a little later in it."""
    script = stage.script(*([5, 5],) * (_SWEEPS + 2))
    stage.killed(script, Fault("vote", "after", "kill", 0))
    counting = Interruption("abort", "count", script.folder)
    stage.ends(stage.interrupted(script, counting, Fault("vote", "after", "kill", 1)), KILLED, "a counting life")
    if not counting.mark(0).exists():
        raise Broken("the backend lists nothing of what a killed driver had prepared: there was nothing to sweep")
    moments = evenly(list(range(_SWEEPS)), int(counting.mark(0).read_text()))
    for turn, moment in moments.items():
        folder = script.folder / f"sweep-{turn}"
        folder.mkdir()
        kill = Interruption("abort", "kill", folder, {0: moment})
        stage.ends(stage.interrupted(script, kill), KILLED, f"a driver inside its sweep, at {moment}")
        stage.faults.append(f"kill-inside-sweep-at-{moment}")
        stage.killed(script, Fault("vote", "after", "kill", turn + 2))
    stage.whole(script)
    stage.check_rows(range(10 * len(script.batches)))
    stage.check_nothing_in_doubt(script)


def _all_stand(outcomes: list[Outcome] | tuple[Outcome, ...] | object) -> None:
    assert isinstance(outcomes, list | tuple)
    wrong = [outcome for outcome in outcomes if not isinstance(outcome, Committed | AlreadyCommitted)]
    if wrong or not outcomes:
        raise Broken(f"a commit of what was prepared gave {wrong or 'no outcome'}")


SCENARIOS = (
    Scenario("other-process", "what one process prepares, a stranger to it commits", _other_process),
    Scenario("commits-at-once", "two processes that commit at the same moment apply the rows once", _at_once),
    Scenario(
        "applied-late",
        "a process that has looked and then waited applies nothing that another one has applied meanwhile",
        _applied_late,
        ("applier",),
    ),
    Scenario("commit-replayed", "a commit may be repeated, by its process and by others", _replayed),
    Scenario("answer-lost", "a commit whose answer is lost is made again, and changes nothing", _answer_lost),
    Scenario("killed-inside-commit", "a driver may die at any moment of its commit", _killed_inside),
    Scenario(
        "stalled-inside-commit",
        "a driver that stalled in its commit wakes epochs later, and changes nothing",
        _stalled_inside,
    ),
    Scenario(
        "killed-inside-sweep",
        "a driver may die at any moment of its sweep",
        _killed_inside_sweep,
        ("hidden_until_decided",),
    ),
)
