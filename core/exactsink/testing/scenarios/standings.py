"""Scenarios about `assess`: it returns what `commit` would, even beside a running commit, and changes nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from exactsink.contract import (
    AlreadyCommitted,
    Committable,
    Committed,
    Lost,
    Outcome,
    Prepared,
    Retryable,
    Standing,
    Unknown,
)
from exactsink.testing.capabilities import Scenario
from exactsink.testing.context import Broken, Context
from exactsink.testing.interrupt import Interrupted, Interruption
from exactsink.testing.processes import ask, ask_fresh_process, start, stopped_or_ended, wake
from exactsink.testing.scenarios.moments import COUNTED, evenly, killed_inside_commits
from exactsink.testing.session import Session

__all__ = ["SCENARIOS", "agree"]

_TOKEN = "abcdef012345"
_KILLS = 4
_STALLS = 5


def _assessed(context: Context) -> None:
    """Assess an epoch before its commit and after it, from several processes, repeatedly."""
    session, committables = _prepared(context, 5, 5, 5)
    for look in (ask, ask_fresh_process):
        found = _looked(context, session, 0, committables, look)
        if set(found) != {Prepared()}:
            raise Broken(f"assess returns {found} for prepared participants that nobody has committed")
    held = ask(session.blocked)
    if not all(isinstance(sentence, str) and sentence for sentence in held):
        raise Broken(f"blocks gives {held}, not sentences")
    context.check_rows(range(15) if context.backend.traits.visible_early else ())
    _check(session, 0, found, ask(partial(session.commit_marked, 0, committables)))
    context.check_rows(range(15))
    for _ in range(2):
        found = _looked(context, session, 0, committables)
        if set(found) != {AlreadyCommitted()} and not _is_marked(session, 0, found):
            raise Broken(f"assess returns {found} for committed participants")
    _check(session, 0, found, ask(partial(session.commit_marked, 0, committables)))
    context.check_rows(range(15))


def _assessed_lost(context: Context) -> None:
    """Assess an epoch after the store has lost one of its participants."""
    session, committables = _prepared(context, 5, 5)
    ask(lambda: context.target.lose_votes(context.place, committables[:1]))
    context.faults.append(f"lost-{committables[0].txn.id}")
    for _ in range(2):
        found = _looked(context, session, 0, committables)
        if isinstance(found[0], Prepared | AlreadyCommitted):
            raise Broken(f"assess returns {found[0]} for a lost participant")
        _check(session, 0, found, ask(partial(session.commit_marked, 0, committables)))


def _assessed_inside(context: Context) -> None:
    """Drivers are killed inside their commits, each at a later moment. The epoch is assessed, then committed."""
    script = context.script(*([5, 5],) * (COUNTED + _KILLS))
    for epoch in killed_inside_commits(context, script, _KILLS):
        committables = context.decided(script)
        session = context.session(99, _TOKEN, lineage=script.journal.read().lineage)
        found = _looked(context, session, epoch, committables)
        wrong = [one for one in found if not isinstance(one, Prepared | AlreadyCommitted)]
        if wrong and not _is_marked(session, epoch, found):
            raise Broken(f"assess returns {wrong} for an epoch that is committed in part")
        shown = context.read()
        whole = all(shown[row] for row in range(10 * epoch, 10 * epoch + 10))
        _check(session, epoch, found, ask(partial(session.commit_marked, epoch, committables)), shown=whole)
        context.check_rows(range(10 * epoch + 10))
    context.whole(script)
    context.check_rows(range(10 * len(script.batches)))
    context.check_nothing_in_doubt(script)


def _assessed_beside(context: Context) -> None:
    """One process stalls while it assesses, each time at a later moment.

    Another one commits, and the first continues.
    """
    session = context.session(1, _TOKEN)
    _bind(session)
    moments: Mapping[int, int] = {}
    for epoch, tables in enumerate(context.rows(*([6, 6],) * (_STALLS + 1))):
        committables = session.prepare(epoch, tables, run=ask)
        stall = Interruption("assess", "stall" if moments else "count", context.folder, moments)
        looking = replace(session, backend=Interrupted(context.backend, stall))
        pid = start(partial(_look, looking, session, epoch, committables))
        stalled = stopped_or_ended(pid) is None
        if stalled != bool(moments):
            raise Broken(f"a process that looks at epoch {epoch} ended, or was stopped, before its time")
        try:
            ask(partial(session.commit_marked, epoch, committables))
        except Retryable as error:
            if not context.target.one_process:
                raise Broken(f"a commit waits for a process that assesses epoch {epoch}: {error}") from error
        else:
            context.faults.append(f"committed-inside-assess-e{epoch}-at-{moments.get(epoch, 'its end')}")
        if stalled:
            wake(pid)
            context.ends(pid, 0, f"a process that looks at epoch {epoch}, which is committed at {moments[epoch]}")
        moments = moments or evenly(range(1, _STALLS + 1), int(stall.mark(0).read_text()))
        ask(partial(session.commit_marked, epoch, committables))
    context.check_rows(range(12 * (_STALLS + 1)))


def _look(looking: Session, session: Session, epoch: int, committables: Sequence[Committable]) -> int:
    found = looking.assess(epoch, committables)
    right = all(isinstance(one, Prepared | AlreadyCommitted) for one in found) or _is_marked(session, epoch, found)
    if not right:
        print(f"assess returns {found} for participants that another process commits", file=sys.stderr)
    return 0 if right else 1


def _prepared(context: Context, *counts: int) -> tuple[Session, list[Committable]]:
    """Bind the target, and prepare an epoch with so many rows in each partition."""
    session = context.session(1, _TOKEN)
    _bind(session)
    return session, session.prepare(0, context.rows(counts)[0], run=ask)


def _bind(session: Session) -> None:
    if session.backend.traits.marks:
        ask(session.put_birth)


def _looked(
    context: Context,
    session: Session,
    epoch: int,
    committables: Sequence[Committable],
    look: Callable[[Callable[[], Any]], Any] = ask,
) -> Sequence[Standing]:
    """Assess, and check that this has changed nothing."""
    before = _state(context, session)
    found: Sequence[Standing] = look(partial(session.assess, epoch, committables))
    if len(found) != len(committables):
        raise Broken(f"of {len(committables)} committables assess gives {len(found)} answers")
    if (after := _state(context, session)) != before:
        raise Broken(f"assess has changed the target: rows, mark and list were {before}, and are {after}")
    return found


def _state(context: Context, session: Session) -> tuple[object, ...]:
    def read() -> tuple[object, ...]:
        mark = session.mark() if session.backend.traits.marks else None
        listed = sorted(participant.ref for participant in session.listed())
        return dict(context.target.applied(context.place)), mark, listed

    return ask(read)


def _check(
    session: Session, epoch: int, found: Sequence[Standing], outcomes: Sequence[Outcome], *, shown: bool = False
) -> None:
    """Compare a commit's outcomes with the assessment before it. `shown` means that all its rows showed by then."""
    inherited = ask(session.inherits_assess)
    for said, outcome in zip(found, outcomes, strict=True):
        late = shown and said == Prepared() and outcome == AlreadyCommitted()
        if late or not (agree(said, outcome) or (inherited and isinstance(said, Unknown))):
            raise Broken(f"assess returns {said} for a participant of epoch {epoch}, and commit returns {outcome}")


def agree(said: Standing, outcome: Outcome) -> bool:
    """Return whether an outcome agrees with the assessment before it. Another process may have committed in between."""
    if isinstance(said, Prepared):
        return isinstance(outcome, Committed | AlreadyCommitted)
    return type(said) is type(outcome)


def _is_marked(session: Session, epoch: int, found: Sequence[Standing]) -> bool:
    """Return whether the mark proves the participants that an inherited `assess` reports as Unknown."""
    if not session.backend.traits.marks or any(isinstance(one, Lost) for one in found):
        return False
    mark = ask(session.mark)
    return ask(session.inherits_assess) and mark is not None and mark.epoch is not None and mark.epoch >= epoch


SCENARIOS = (
    Scenario(
        "assessed",
        "assess returns the outcome of a commit, and changes nothing",
        "an operator calls `exactsink status JOB.toml`, then `exactsink recover JOB.toml`",
        _assessed,
    ),
    Scenario(
        "assessed-lost",
        "assess returns Lost in each case in which commit would return it",
        "the store has dropped prepared work, and an operator calls `exactsink status JOB.toml` before the next commit",
        _assessed_lost,
        ("can_lose_votes",),
    ),
    Scenario(
        "assessed-inside-commit",
        "assess is right about an epoch that is committed in part",
        "an operator looks after a driver died in the middle of a commit",
        _assessed_inside,
    ),
    Scenario(
        "assessed-beside-commit",
        "assess is right at every moment of another process's commit, and no commit waits for it",
        "an operator calls `exactsink status JOB.toml` while a driver commits",
        _assessed_beside,
    ),
)
