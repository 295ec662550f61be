"""Scenarios about marks: the target's proof of the journal that feeds it, and of the epoch that it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from exactsink.contract import Mark, Refused
from exactsink.protocol.marks import expected_of, is_at
from exactsink.testing.capabilities import Capability, Scenario
from exactsink.testing.context import SINK, Broken, Context
from exactsink.testing.driver_run import Script
from exactsink.testing.faults import Fault
from exactsink.testing.processes import ask, at_once
from exactsink.testing.scenarios.moments import COUNTED, killed_inside_commits
from exactsink.testing.session import Session

__all__ = ["SCENARIOS"]

_COMMIT = f"commit:{SINK}"
_TOKEN = "abcdef012345"
_TRIES = 50
_ROUNDS = 5
_KILLS = 16


def _births(context: Context) -> None:
    """Two journals bind one target at once, round after round.

    Both find the same birth, and so does every later reader.
    """
    for turn in range(_ROUNDS):
        job = context.job(f"birth{turn}")
        both = [context.session(1, token, job=job) for token in (_TOKEN, _TOKEN[::-1])]
        if (stood := ask(both[0].mark)) is not None:
            raise Broken(f"nobody has put a birth, and the target holds {stood}")
        answers = [context.folder / f"{job}-{n}" for n in range(2)]
        if (ends := at_once(*[partial(_birth, *each) for each in zip(both, answers, strict=True)])) != [0, 0]:
            raise Broken(f"of two journals that bind a target at once, one did not end well: {ends}")
        said = {answer.read_text() for answer in answers}
        if len(said) != 1 or not said <= {session.ctx.lineage for session in both}:
            raise Broken(f"two journals that bind one target at once find {' and '.join(sorted(said))}")
        found = [ask(session.mark) for session in both] + [ask(session.put_birth) for session in both]
        if found != [Mark(said.pop())] * 4:
            raise Broken(f"two journals have bound the target, and later it holds {found}")
    context.faults.append(f"two-journals-bind-at-once-{_ROUNDS}-times")


def _birth(session: Session, answer: Path) -> None:
    answer.write_text(session.put_birth().lineage)


def _second_journal(context: Context) -> None:
    """A job of the same name, with another journal, opens the target."""
    script = context.script([10, 10], [10, 10], [10, 10])
    context.killed(script, Fault("complete", "after", "kill", 1))
    other = replace(script, folder=script.folder / "other", batches=context.rows([10, 10], first=1000))
    other.folder.mkdir()
    for _ in range(2):
        context.whole(other, code=Refused.exit_code)
    context.check_rows(range(40))
    context.whole(script)
    context.check_rows(range(60))


def _follows(context: Context) -> None:
    """The mark is read after each epoch. An epoch without rows does not move it."""
    script = context.script([5, 5], [0, 0], [5, 0], [5, 5])
    for epoch, marked in enumerate([0, 0, 2]):
        context.killed(script, Fault("complete", "after", "kill", epoch))
        _check_mark(context, script, marked)
    context.whole(script)
    _check_mark(context, script, 3)


def _killed_inside_commit(context: Context) -> None:
    """Drivers are killed inside their commits, each at a later moment; a successor finishes the epoch.

    If a row of the epoch shows, and the target keeps marks, the mark must name that epoch.
    """
    script, traits = context.script(*([5, 5],) * (COUNTED + _KILLS)), context.backend.traits
    for epoch in killed_inside_commits(context, script, _KILLS):
        if not traits.marks or traits.visible_early:
            continue
        if context.read().keys().isdisjoint(range(10 * epoch, 10 * epoch + 10)):
            continue
        mark = _settled(_session(context, script), lambda mark: mark is not None and mark.epoch == epoch)  # noqa: B023
        if mark is None or mark.epoch != epoch:
            raise Broken(f"rows of epoch {epoch} show, and the target holds {mark}")
    context.whole(script)
    context.check_rows(range(10 * len(script.batches)))
    context.check_nothing_in_doubt(script)
    if traits.marks:
        _check_mark(context, script, len(script.batches) - 1)


def _kept(context: Context) -> None:
    """An epoch is committed again, at once and after a later epoch. The mark stays."""
    script = context.script([10, 10], [10, 10], [10, 10])
    context.killed(script, Fault(_COMMIT, "after", "kill", 1))
    decided, session = context.decided(script), _session(context, script)
    _check_mark(context, script, 1)
    ask(partial(session.commit, 1, decided, times=2))
    _check_mark(context, script, 1)
    context.whole(script)
    ask(partial(session.commit, 1, decided, times=2))
    _check_mark(context, script, 2)
    context.check_rows(range(60))


def _trimmed(context: Context) -> None:
    """Marks are trimmed repeatedly, even by an outdated driver. The highest mark stays, and no birth comes back."""
    script = context.script([10, 10], [10, 10], [10, 10])
    context.killed(script, Fault("complete", "after", "kill", 1))
    session = _session(context, script)
    for _ in range(2):
        ask(session.trim_marks)
        _check_mark(context, script, 1)
    if (found := ask(session.put_birth)).epoch != 1:
        raise Broken(f"the target held epoch 1, but put_birth() returned {found}")
    context.whole(script)
    ask(session.trim_marks)
    _check_mark(context, script, 2)
    context.check_rows(range(60))


def _session(context: Context, script: Script) -> Session:
    """Return a session of the script's own journal, as the driver of its first claim has it."""
    return context.session(1, _TOKEN, lineage=script.journal.read().lineage)


def _check_mark(context: Context, script: Script, epoch: int) -> None:
    """Check the target's mark against this epoch, and against the journal."""
    expected = expected_of(script.journal.read(), SINK, context.backend.target)
    wanted = expected.now if expected is not None else None

    def fits(mark: Mark | None) -> bool:
        return mark is not None and mark.epoch == epoch and bool(mark.tokens) and is_at(mark, wanted)

    mark = _settled(_session(context, script), fits)
    if not fits(mark):
        raise Broken(f"epoch {epoch} is the last with rows: the target holds {mark}, the journal expects {wanted}")


def _settled(session: Session, fits: Callable[[Mark | None], bool]) -> Mark | None:
    """Read the mark until it fits, for a while, because a store may show it later than the rows."""
    mark: Mark | None = None
    for _ in range(_TRIES):
        mark = ask(session.mark)
        if fits(mark):
            break
    return mark


_MARKS: tuple[Capability, ...] = ("marks",)
SCENARIOS = (
    Scenario(
        "births-at-once",
        "if two journals try to bind a new target at the same moment, exactly one of them does",
        "a job is started twice by mistake, on two machines, for the first time",
        _births,
        _MARKS,
    ),
    Scenario(
        "second-journal",
        "a second journal of the same job and sink may not use a target that the first one feeds",
        "a job's file is copied, and still names the first job's target",
        _second_journal,
        _MARKS,
    ),
    Scenario(
        "killed-inside-commit",
        "a driver may die at any moment of its commit; with marks, no row is visible before the mark of its epoch",
        "the process is killed between two calls of a commit; or the target is restored from a backup of that moment",
        _killed_inside_commit,
    ),
    Scenario(
        "mark-follows",
        "the mark names the last epoch with rows, and the claim under which these rows were written",
        "an epoch is written again under a newer claim, and the target is restored in between",
        _follows,
        _MARKS,
    ),
    Scenario(
        "mark-kept",
        "a commit that is repeated leaves the mark unchanged",
        "a crash hides the answer of a commit, and the next start repeats the commit",
        _kept,
        _MARKS,
    ),
    Scenario(
        "marks-trimmed",
        "trimming keeps the highest mark",
        "the proofs of old epochs are deleted while the job runs for months",
        _trimmed,
        _MARKS,
    ),
)
