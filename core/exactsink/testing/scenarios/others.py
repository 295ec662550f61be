"""Scenarios about others on the same target: other jobs and sinks, foreign work, another journal of the same name."""

from __future__ import annotations

from functools import partial

from exactsink.contract import Refused
from exactsink.testing.capabilities import Capability, Scenario
from exactsink.testing.context import SINK, Broken, Context
from exactsink.testing.driver_run import Script
from exactsink.testing.faults import Fault
from exactsink.testing.processes import ask
from exactsink.testing.session import Session

__all__ = ["SCENARIOS"]

_TOKEN = "abcdef012345"
_COMMIT = f"commit:{SINK}"


def _job_that_sweeps(context: Context) -> Script:
    """Play a job whose driver is killed after it has prepared work, so that its successor has work to abort."""
    script = context.script([10, 10], [10, 10], [10, 10])
    context.killed(script, Fault("vote", "after", "kill", 1))
    context.whole(script)
    return script


def _others_untouched(context: Context) -> None:
    """Another job with a similar name, and another sink of this job, have prepared work, and keep it."""
    others = [
        context.session(1, _TOKEN, job=context.job("other")),
        context.session(1, _TOKEN, job=f"{context.job()}-{SINK}"),
        context.session(1, _TOKEN, sink="other"),
        context.session(1, _TOKEN, sink=f"{SINK}-{SINK}"),
    ]
    prepared = [s.prepare(0, context.rows([3, 3], first=1000 + 6 * n)[0], run=ask) for n, s in enumerate(others)]
    script = _job_that_sweeps(context)
    for session, committables in zip(others, prepared, strict=True):
        _still_listed(context, session, [committable.ref for committable in committables])
        ask(partial(session.commit, 0, committables))
    context.check_rows(range(60), range(1000, 1024))
    context.check_nothing_in_doubt(script)


def _still_listed(context: Context, session: Session, refs: list[str]) -> None:
    listed = [participant.ref for participant in ask(session.listed)]
    if not context.backend.traits.visible_early and sorted(listed) != sorted(refs):
        raise Broken(f"{session.ctx.job}.{session.ctx.sink} has prepared {refs}; the backend lists {listed} as its own")


def _foreign_untouched(context: Context) -> None:
    """Foreign work, whose name is not a participant's, is where the backend lists its own."""
    ask(lambda: context.target.foreign(context.place))
    if not ask(lambda: context.target.foreign_stands(context.place)):
        raise Broken("foreign() put nothing there that foreign_stands() sees")
    script = _job_that_sweeps(context)
    if not ask(lambda: context.target.foreign_stands(context.place)):
        raise Broken("foreign work was changed or removed")
    context.check_rows(range(60))
    context.check_nothing_in_doubt(script)


def _another_journal(context: Context) -> None:
    """An id of this job was begun under a claim that its journal does not have. The start is refused."""
    script = context.script([10, 10], [10, 10])
    context.killed(script, Fault("complete", "after", "kill", 0))
    lineage = script.journal.read().lineage
    other = context.session(7, _TOKEN, lineage=lineage)
    refs = [committable.ref for committable in other.prepare(1, context.rows([3, 3], first=1000)[0], run=ask)]
    for _ in range(2):
        context.whole(script, code=Refused.exit_code)
        _still_listed(context, other, refs)
    context.check_rows(range(20))


def _in_turn(context: Context) -> None:
    """Two jobs run one after the other, each from its first epoch to its last."""
    for job, first in (("first", 0), ("second", 1000)):
        script = context.script([10, 10], [10, 10], job=context.job(job), first=first)
        context.killed(script, Fault(_COMMIT, "before", "kill", 1))
        context.whole(script)
    context.check_rows(range(40), range(1000, 1040))


def _interleaved(context: Context) -> None:
    """Each of two jobs stops before its decision, or its commit, while the other one is swept or finished."""
    one = context.script([10, 10], [10, 10], [10, 10], job=context.job("first"))
    two = context.script([10, 10], [10, 10], [10, 10], job=context.job("second"), first=1000)
    deciding = context.stopped(one, Fault("decide", "before", "stall", 1))
    committing = context.stopped(two, Fault(_COMMIT, "before", "stall", 1))
    context.woken(deciding)
    context.whole(one)
    if not context.backend.traits.visible_early:
        context.check_rows_behind(range(60), range(1000, 1020))
    context.woken(committing)
    context.whole(two)
    context.check_rows(range(60), range(1000, 1060))
    for script in (one, two):
        context.check_nothing_in_doubt(script)


_SEVERAL: tuple[Capability, ...] = ("several_jobs",)
_HIDDEN: tuple[Capability, ...] = ("hidden_until_decided",)
SCENARIOS = (
    Scenario(
        "others-untouched",
        "prepared work of other jobs and sinks is left alone",
        "two jobs, or two sinks, have one store; one of them is cleaned up",
        _others_untouched,
        _SEVERAL,
    ),
    Scenario(
        "foreign-untouched",
        "prepared work of other programs is left alone",
        "another program has prepared work in the same store",
        _foreign_untouched,
        ("foreign",),
    ),
    Scenario(
        "another-journal",
        "another journal's work under this job's name stops the start, and is left in place",
        "a job's checkpoint is deleted, or the job is copied, and it starts under the old name",
        _another_journal,
        _HIDDEN,
    ),
    Scenario(
        "two-jobs-in-turn",
        "two jobs feed one target, one after the other",
        "a table gets a second job when its first has ended",
        _in_turn,
        _SEVERAL,
    ),
    Scenario(
        "two-jobs-interleaved",
        "two jobs feed one target at the same time",
        "two running jobs share a table",
        _interleaved,
        _SEVERAL,
    ),
)
