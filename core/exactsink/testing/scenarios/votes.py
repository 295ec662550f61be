"""Scenarios about votes: lost ones, ones with an unknown outcome, losers of a retry, ones of earlier releases."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from exactsink.contract import AlreadyCommitted, Committable, Committed, InDoubtError
from exactsink.testing.capabilities import Capability, Scenario
from exactsink.testing.context import SINK, Broken, Context
from exactsink.testing.faults import Fault
from exactsink.testing.processes import ask

__all__ = ["SCENARIOS"]

_COMMIT = f"commit:{SINK}"
_TOKEN = "abcdef012345"


def _losing(which: slice) -> Callable[[Context], None]:
    def play(context: Context) -> None:
        script = context.script([10, 10], [10, 10], [10, 10])
        context.killed(script, Fault(_COMMIT, "before", "kill", 1))
        lost = context.decided(script)[which]
        ask(lambda: context.target.lose_votes(context.place, lost))
        context.faults += [f"lost-{committable.txn.id}" for committable in lost]
        context.killed(script, Fault("open_epoch", "before", "kill", 2))  # while that epoch's decision is the last one
        kept = [c.txn.id for c in lost if c in context.decided(script)]
        if kept:
            raise Broken(f"{kept} are still in the decision")
        context.whole(script)
        context.check_rows(range(60))
        context.check_nothing_in_doubt(script)

    return play


def _unproven(edge: str) -> Callable[[Context], None]:
    def play(context: Context) -> None:
        script = context.script([10, 10], [10, 10], [10, 10])
        fault = Fault(_COMMIT, "before", "kill", 1) if edge == "before" else Fault(_COMMIT, "after", "kill", 1)
        context.killed(script, fault)
        decided = context.decided(script)
        ask(lambda: context.target.destroy_evidence(context.place, decided))
        context.faults.append(f"evidence-destroyed-{edge}-commit")
        stood = context.read()
        for _ in range(2):
            context.whole(script, code=InDoubtError.exit_code)
            found = context.read()
            if found != stood:
                raise Broken(f"{(found - stood).total()} rows were applied by a job that had to stop")
        if context.decided(script) != decided:
            raise Broken("participants that can't be proven lost were decided again")

    return play


def _loser_swept(context: Context) -> None:
    """A task is killed after it has prepared, and another attempt wins. The loser is listed, then swept."""
    script = context.script([10, 10], [10, 10], [10, 10])
    pid = context.stopped(script, Fault("pre_commit", "after", "kill", 1), Fault("decide", "before", "stall", 1))
    listed = [participant.ref for participant in ask(context.session(1, _TOKEN).listed)]
    if len(listed) != 3:
        raise Broken(f"two winners and a loser are prepared, and the backend lists {len(listed)}: {listed}")
    context.woken(pid)
    context.check_nothing_in_doubt(script)
    context.check_rows(range(60))
    context.whole(script)
    context.check_rows(range(60))


def _previous(context: Context) -> None:
    """This release commits the participants that earlier releases prepared, and commits them again."""
    committables = ask(lambda: list(context.target.previous(context.place)))
    if not committables:
        raise Broken("previous() gives no committable")
    before = context.read()
    schema = context.rows([1])[0][0].schema
    epochs: dict[tuple[str, str, int], list[Committable]] = {}
    for committable in committables:
        epochs.setdefault((committable.txn.job, committable.txn.sink, committable.txn.epoch), []).append(committable)
    for (job, sink, epoch), decided in epochs.items():
        session = context.session(decided[0].txn.generation, decided[0].txn.token, job=job, sink=sink)
        ask(
            partial(session.open, epoch, schema)
        )  # as the earlier release did before its tasks: the target's own tables exist
        for _ in range(2):
            outcomes = ask(partial(session.commit, epoch, decided))
            if not all(isinstance(outcome, Committed | AlreadyCommitted) for outcome in outcomes):
                raise Broken(f"epoch {epoch} of {job}.{sink}, as an earlier release prepared it: {outcomes}")
        context.faults += [f"prepared-with-version-{version}" for version in sorted({c.version for c in decided})]
    found = context.read()
    found.subtract(before)
    rows = sum(committable.rows for committable in committables)
    if found.total() != rows or any(count not in (0, 1) for count in found.values()):
        raise Broken(f"{rows} rows were prepared, {found.total()} were applied: {dict(found)}")


_EVIDENCE: tuple[Capability, ...] = ("destroy_evidence",)
SCENARIOS = (
    Scenario(
        "all-votes-lost",
        "if a store loses decided rows, the job writes them again",
        "a store's time-out drops all prepared work while the job is down",
        _losing(slice(None)),
        ("can_lose_votes",),
    ),
    Scenario(
        "one-vote-lost",
        "if a store loses the rows of one participant of several, the job writes them again",
        "a store's time-out drops the prepared work of one participant of several",
        _losing(slice(1)),
        ("can_lose_votes",),
    ),
    Scenario(
        "unknown-before-commit",
        "if nobody can prove whether rows were committed, the job stops",
        "somebody removes prepared work, and every trace of it",
        _unproven("before"),
        _EVIDENCE,
    ),
    Scenario(
        "unknown-after-commit",
        "evidence that has expired does not prove a loss",
        "evidence of a commit expires before the job is started again",
        _unproven("after"),
        _EVIDENCE,
    ),
    Scenario(
        "loser-swept",
        "`in_doubt` lists a task attempt that was not decided, and the sweep aborts it",
        "Spark runs a task twice (speculation, a lost executor), and only one of the two attempts is decided",
        _loser_swept,
        ("hidden_until_decided",),
    ),
    Scenario(
        "previous-release",
        "participants that earlier releases prepared are committed",
        "the plugin is upgraded while an epoch of its old release is decided and not committed",
        _previous,
        ("previous",),
    ),
)
