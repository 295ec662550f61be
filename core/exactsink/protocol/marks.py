"""Compare the marks in the targets with the journal's expected marks. No other module compares them.

If a mark differs, a target, the journal or the checkpoint was restored from an older copy, or belongs to another
history. The job stops with both values, because to continue would double or drop rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from exactsink.contract import Committer, ExactsinkError, InDoubtError, LineageError, Lost, Mark, Unknown
from exactsink.protocol.journal.log import Log
from exactsink.protocol.journal.records import Claim, DecidedSink, Expected
from exactsink.protocol.reach import Reach
from exactsink.protocol.sinks import Sink

__all__ = ["Marks", "difference", "expected_of", "is_at", "is_part"]

T = TypeVar("T")

_READS = 5
_REBASE = (
    "once you know which is right: `exactsink rebase JOB.toml` shows every target's mark, and the command to go on"
)


def expected_of(log: Log, sink: str, target: str) -> Expected | None:
    """Return the mark that the journal expects of a sink in this target, None if it has not bound the target."""
    return next((mark for mark in log.expected if (mark.sink, mark.target) == (sink, target)), None)


@dataclass(frozen=True, slots=True)
class Marks:
    """One claim's view. `log()` is the journal as last read, `wait(attempt)` pauses before a second look.

    `_found` holds marks that no decision names: of sinks that were just bound, and of sinks for which an operator
    resolved the last decision as committed.
    """

    sinks: Mapping[str, Sink]
    committers: Mapping[str, Committer]
    lineage: str
    log: Callable[[], Log]
    wait: Callable[[int], None]
    _found: dict[str, Mark]

    @classmethod
    def of(
        cls,
        sinks: Mapping[str, Sink],
        committers: Mapping[str, Committer],
        log: Callable[[], Log],
        wait: Callable[[int], None],
    ) -> Marks:
        """Make the view of a valid claim."""
        kept = {name: sink for name, sink in sinks.items() if sink.backend.traits.marks}
        return cls(dict(sorted(kept.items())), committers, log().lineage, log, wait, {})

    def check_start(self, reach: Reach | None = None) -> None:
        """Compare before anything is committed or swept: each sink must be at the last decision, or just before it."""
        (reach or Reach()).asked(self.sinks, lambda name: self._hold(name, self._stands(name)))

    def problem(self, name: str, mark: Mark | None) -> ExactsinkError | None:
        """Return the error of `check_start` for a sink with this mark, which the caller has read."""
        expected = self._expected(name)
        fits = self._is_unbound(name, mark) if expected is None else self._stands(name)(mark, expected)
        return None if fits else difference(self.log(), name, mark, expected.now if expected is not None else None)

    def check_committed(
        self, lost: Mapping[str, int], held_back: Collection[str] = (), reach: Reach | None = None
    ) -> None:
        """Compare after the last decision was committed again: each sink is there, except for lost ones.

        Sinks that are held back come after sinks with losses, and may be there or just before.
        """

        def check(name: str) -> None:
            if name in lost:
                self.check_rewrite(name, lost[name])
            else:
                self._hold(name, self._stands(name) if name in held_back else self._whole(name))

        (reach or Reach()).asked(self.sinks, check)

    def check_rewrite(self, name: str, lost: int) -> None:
        """Compare before a sink's lost rows are written again: none of the lost participants may show."""
        decision = self.log().decision
        if decision is not None and (why := self._contradiction(name, lost)):
            votes = len(decision.committables(name))
            raise InDoubtError(
                f"sink {name}: {lost} of {votes} participants of epoch {decision.epoch} were found lost",
                why=f"{why}. Rows that are written again may come twice",
                next=f"look into the target; if the rows are there: exactsink indoubt resolve JOB.toml "
                f"--epoch {decision.epoch} --sink {name} --as committed --reason 'TEXT'",
            )

    def possible(self, name: str, found: Sequence[T]) -> Sequence[T | Unknown]:
        """Return the outcomes of a sink's participants, with losses that the target contradicts turned into Unknown."""
        lost = sum(isinstance(one, Lost) for one in found)
        why = self._contradiction(name, lost) if lost else ""
        return [Unknown(f"{one.evidence}; {why}") if why and isinstance(one, Lost) else one for one in found]

    def _contradiction(self, name: str, lost: int) -> str:
        """Return why so many of a sink's participants can't be lost: more show than are left. Empty if they can.

        Then the journal was restored to a state before a redecide, and lacks the participants that replaced them. A
        target that can't count shows at least one participant.
        """
        decision = self.log().decision
        if name not in self.sinks or decision is None:
            return ""
        mark, left = self._hold(name, self._unfinished(name)), len(decision.committables(name)) - lost
        if mark is None or mark.epoch != decision.epoch:
            return ""
        if (1 if mark.participants is None else mark.participants) <= left:
            return ""
        return f"its target holds {mark}: more participants than the {left} that are not lost"

    def check_commit(self, name: str) -> None:
        """Compare in the session that commits next.

        A higher epoch belongs to a newer driver, which the caller finds in the journal, or to a copy that runs beside
        this job.
        """
        if name in self.sinks:
            self._hold(name, self._unfinished(name))

    def open_epoch(self) -> None:
        """Compare all sinks, with rows or without, and bind the targets that no journal has bound yet. Idempotent.

        Births are written in the order of the sinks' names: if two journals compete for several sinks, one of them gets
        all.
        """
        self._found.clear()
        for name in self.sinks:
            mark = self._hold(name, self._whole(name))
            if mark is None:
                self._found[name] = self._bound(name)
            elif expected_of(self.log(), name, self._target(name)) is None or self._is_resolved(name):
                self._found[name] = mark

    def decided(self, claim: Claim, epoch: int, sinks: Mapping[str, DecidedSink]) -> tuple[Expected, ...]:
        """Return the expected mark of every sink and target that the job has had, once this decision is committed."""
        new = {(mark.sink, mark.target): replace(mark, before=mark.now) for mark in self.log().expected}
        for name in self.sinks:
            key = (name, self._target(name))
            known = new.pop(key, None)  # this target is the sink's latest, so it goes to the end
            before = self._found.get(name) or (known.now if known is not None else None)
            votes, now = sinks[name].committables, before
            if votes:
                now = Mark(self.lineage, epoch, frozenset([claim.token]), len(votes))
            new[key] = Expected(*key, now, before)
        return tuple(new.values())

    def trim(self) -> None:
        """Delete the marks that are no longer needed. Idempotent."""
        for name in self.sinks:
            self.committers[name].trim_marks()

    def _bound(self, name: str) -> Mark:
        """Bind a target without a mark to this journal."""
        mark = self.committers[name].put_birth()
        if mark != Mark(self.lineage):
            raise difference(self.log(), name, mark, Mark(self.lineage))
        return mark

    def _whole(self, name: str) -> Callable[[Mark | None, Expected], bool]:
        """Require the last decision as a whole; or the mark that is there, if an operator resolved it as committed."""
        return self._stands(name) if self._is_resolved(name) else lambda mark, expected: is_at(mark, expected.now)

    def _is_resolved(self, name: str) -> bool:
        return "committed" in self.log().resolved.get(name, {}).values()

    def _stands(self, name: str) -> Callable[[Mark | None, Expected], bool]:
        unfinished = self._unfinished(name)
        return lambda mark, expected: is_at(mark, expected.now) or unfinished(mark, expected)

    def _unfinished(self, name: str) -> Callable[[Mark | None, Expected], bool]:
        """Require a target in the middle of the last decision's commit, or just before it."""
        decision = self.log().decision
        if decision is None or not decision.committables(name):
            return lambda mark, expected: False
        return lambda mark, expected: is_part(mark, expected.now) or is_at(mark, expected.before)

    def _hold(self, name: str, fits: Callable[[Mark | None, Expected], bool]) -> Mark | None:
        """Return the mark that fits. A mark that differs is read again a few times, then raised."""
        expected = self._expected(name)
        for attempt in range(_READS):
            mark = self.committers[name].mark()
            if self._is_unbound(name, mark) if expected is None else fits(mark, expected):
                return mark
            self.wait(attempt)
        raise difference(self.log(), name, mark, expected.now if expected is not None else None)

    def _expected(self, name: str) -> Expected | None:
        """Return the expected mark of a sink, None if no decision and no earlier read gives one."""
        target = self._target(name)
        known = expected_of(self.log(), name, target)
        if known is None and name in self._found:
            return Expected(name, target, self._found[name], self._found[name])
        return known

    def _is_unbound(self, name: str, mark: Mark | None) -> bool:
        """Return whether a target that the journal does not know may be bound, or was moved here with its marks."""
        if mark is None or mark == Mark(self.lineage):
            return True
        latest = [expected.now for expected in self.log().expected if expected.sink == name]
        return bool(latest) and is_at(mark, latest[-1])

    def _target(self, name: str) -> str:
        return self.sinks[name].backend.target


def is_at(mark: Mark | None, expected: Mark | None) -> bool:
    """Return whether a mark is exactly the expected one: same history, epoch and claim, with all participants."""
    if mark is None or expected is None or not is_part(mark, expected):
        return False
    return mark.participants in (None, expected.participants)


def is_part(mark: Mark | None, expected: Mark | None) -> bool:
    """Return whether a mark is of the expected epoch's own set, though participants may be missing."""
    if mark is None or expected is None:
        return False
    same = (mark.lineage, mark.epoch) == (expected.lineage, expected.epoch)
    return same and mark.tokens <= expected.tokens


def difference(log: Log, sink: str, mark: Mark | None, expected: Mark | None) -> ExactsinkError:
    """Explain a mark that does not fit: which side is older, which rows are missing or doubled, and how to continue."""
    stands = "no mark" if mark is None else str(mark)
    what = f"sink {sink}: its target holds {stands}, the journal expects {expected or 'a target without a mark'}"
    fix = f"restore the journal, the checkpoint and the targets from one moment; or, {_REBASE}"
    if mark is None:
        return InDoubtError(what, why="the target was emptied, replaced or restored: its mark is gone", next=fix)
    if expected is None or mark.lineage != expected.lineage:
        mine = log.lineage or "empty"
        why = f"another journal fed this target (this one is {mine}), or this journal lost its records"
        return LineageError(what, why=why, next=f"give this job another name and a new checkpoint; or, {fix}")
    latest = next((other for other in reversed(log.expected) if other.sink == sink), None)
    if latest is not None and latest.now != expected and is_at(mark, latest.now):
        why = f"later epochs went to {latest.target}, which has the same mark: the target has another name again"
        return LineageError(what, why=why, next=f"let [sinks.{sink}] name that one; or, {_REBASE}")
    if expected.epoch is None or (mark.epoch is not None and mark.epoch > expected.epoch):
        why = "the journal went back in time, and would decide epochs again that the target holds"
        return LineageError(what, why=why, next=fix)
    if mark.epoch != expected.epoch:
        lacking = f"epochs {(-1 if mark.epoch is None else mark.epoch) + 1} to {expected.epoch}"
        return InDoubtError(what, why=f"the target is an older copy, and lacks rows of {lacking}", next=fix)
    if not mark.tokens <= expected.tokens:
        why = f"epoch {mark.epoch} was decided twice, in two histories that began as one: a copy was run beside this"
        return LineageError(what, why=why, next=fix)
    return InDoubtError(what, why=f"the target lacks participants of epoch {mark.epoch}: it is an older copy", next=fix)
