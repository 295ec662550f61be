"""Scenarios about others on the same target: other jobs and sinks, strangers, and another journal of the job's name."""

from __future__ import annotations

from exactsink.contract import Refused
from exactsink.testing.catalogue import Capability, Scenario
from exactsink.testing.context import SINK, Broken, Stage
from exactsink.testing.driver_run import Script
from exactsink.testing.faults import Fault
from exactsink.testing.manual_session import Hand
from exactsink.testing.processes import ask

__all__ = ["SCENARIOS"]

_TOKEN = "abcdef012345"
_COMMIT = f"commit:{SINK}"


def _job_that_sweeps(stage: Stage) -> Script:
    """Play a job whose driver is killed with prepared work, so that its successor has something to abort."""
    script = stage.script([10, 10], [10, 10], [10, 10])
    stage.killed(script, Fault("vote", "after", "kill", 1))
    stage.whole(script)
    return script


def _others_untouched(stage: Stage) -> None:
    """Another job, its name beginning like this one's, and another sink of this job have prepared work, and keep it."""
    others = [
        stage.hand(1, _TOKEN, job=stage.job("other")),
        stage.hand(1, _TOKEN, job=f"{stage.job()}-{SINK}"),
        stage.hand(1, _TOKEN, sink="other"),
        stage.hand(1, _TOKEN, sink=f"{SINK}-{SINK}"),
    ]
    prepared = [hand.prepare(0, stage.rows([3, 3], first=1000 + 6 * n)[0]) for n, hand in enumerate(others)]
    script = _job_that_sweeps(stage)
    for hand, committables in zip(others, prepared, strict=True):
        _still_listed(stage, hand, [committable.ref for committable in committables])
        ask(hand.committing(0, committables))
    stage.check_rows(range(60), range(1000, 1024))
    stage.check_nothing_in_doubt(script)


def _still_listed(stage: Stage, hand: Hand, refs: list[str]) -> None:
    listed = hand.listed()
    if not stage.backend.traits.visible_early and sorted(listed) != sorted(refs):
        raise Broken(f"{hand.ctx.job}.{hand.ctx.sink} has prepared {refs}; the backend lists {listed} as its own")


def _stranger_untouched(stage: Stage) -> None:
    """Something with a name that is no participant's stands where the backend lists its own."""
    ask(lambda: stage.target.foreign(stage.place))
    if not ask(lambda: stage.target.foreign_stands(stage.place)):
        raise Broken("foreign() put nothing there that foreign_stands() sees")
    script = _job_that_sweeps(stage)
    if not ask(lambda: stage.target.foreign_stands(stage.place)):
        raise Broken("the stranger's work was changed or removed")
    stage.check_rows(range(60))
    stage.check_nothing_in_doubt(script)


def _another_journal(stage: Stage) -> None:
    """An id of this job was begun under a claim that this journal does not hold: the start is refused."""
    script = stage.script([10, 10], [10, 10])
    stage.killed(script, Fault("complete", "after", "kill", 0))
    lineage = script.journal.read().lineage
    other = stage.hand(7, _TOKEN, lineage=lineage)
    refs = [committable.ref for committable in other.prepare(1, stage.rows([3, 3], first=1000)[0])]
    for _ in range(2):
        stage.whole(script, code=Refused.exit_code)
        _still_listed(stage, other, refs)
    stage.check_rows(range(20))


def _in_turn(stage: Stage) -> None:
    """Two jobs, one after the other, from their first epoch to their last."""
    for job, first in (("first", 0), ("second", 1000)):
        script = stage.script([10, 10], [10, 10], job=stage.job(job), first=first)
        stage.killed(script, Fault(_COMMIT, "before", "kill", 1))
        stage.whole(script)
    stage.check_rows(range(40), range(1000, 1040))


def _interleaved(stage: Stage) -> None:
    """Each of two jobs stands before its decision, or its commit, while the other one is swept or finished."""
    one = stage.script([10, 10], [10, 10], [10, 10], job=stage.job("first"))
    two = stage.script([10, 10], [10, 10], [10, 10], job=stage.job("second"), first=1000)
    deciding = stage.stopped(one, Fault("decide", "before", "stall", 1))
    committing = stage.stopped(two, Fault(_COMMIT, "before", "stall", 1))
    stage.woken(deciding)
    stage.whole(one)
    if not stage.backend.traits.visible_early:
        stage.check_rows_behind(range(60), range(1000, 1020))
    stage.woken(committing)
    stage.whole(two)
    stage.check_rows(range(60), range(1000, 1060))
    for script in (one, two):
        stage.check_nothing_in_doubt(script)


_SEVERAL: tuple[Capability, ...] = ("several_jobs",)
_HIDDEN: tuple[Capability, ...] = ("hidden_until_decided",)
SCENARIOS = (
    Scenario("others-untouched", "prepared work of other jobs and sinks is left alone", _others_untouched, _SEVERAL),
    Scenario("stranger-untouched", "what is no participant's is left alone", _stranger_untouched, ("foreign",)),
    Scenario(
        "another-journal",
        "another journal's work under this job's name stops the start, and is left in place",
        _another_journal,
        _HIDDEN,
    ),
    Scenario("two-jobs-in-turn", "two jobs feed one target, one after the other", _in_turn, _SEVERAL),
    Scenario("two-jobs-interleaved", "two jobs feed one target at the same time", _interleaved, _SEVERAL),
)
