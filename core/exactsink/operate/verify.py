"""Compare the journal's decisions with the rows that the targets hold now, epoch by epoch, for an auditor.

Only reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Literal

from exactsink.contract import Audit, Committer, ConfigError, ExactsinkError, Mark
from exactsink.job.driver import identity_of
from exactsink.job.history import JobHistory
from exactsink.protocol.journal.log import Log
from exactsink.protocol.journal.records import BoundSink, Decide, DecidedSink, Record, Redecide, Resolve
from exactsink.protocol.marks import difference, expected_of, is_at, is_part
from exactsink.protocol.sinks import Sink, bound_sinks, check_identity, committer_of
from exactsink.protocol.votes import sum_digests
from exactsink.reader.complete import look
from exactsink.toolkit.storage import storage_errors
from exactsink.toolkit.waiting import backoff

__all__ = ["VerifiedEpoch", "VerifiedSink", "Verdict", "Verification", "verify"]

Verdict = Literal["proven", "differs", "unknown"]
_LOOKS = 4
"""How often a mark that differs is read again, because both it and the journal may change beside a driver."""


@dataclass(frozen=True, slots=True)
class VerifiedEpoch:
    """One epoch in one sink: the decided rows and digest, the rows that were found, and the reason."""

    epoch: int
    verdict: Verdict
    decided_rows: int
    found_rows: int | None
    decided_digest: str
    why: str


@dataclass(frozen=True, slots=True)
class VerifiedSink:
    """One sink. `mark` is its mark, `mark_differs` says whether that belongs to another history than the journal's.

    `error` says why the sink could not be queried.
    """

    sink: str
    mark: str = ""
    mark_differs: bool = False
    error: ExactsinkError | None = None
    epochs: tuple[VerifiedEpoch, ...] = ()


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification. `known` are the first and last epoch in the journal, None if it has none.

    `damaged` are the journal's entries that can't be read, so their decisions are compared with nothing.
    """

    complete: int | None
    known: tuple[int, int] | None = None
    sinks: tuple[VerifiedSink, ...] = ()
    damaged: tuple[int, ...] = ()

    def count(self, verdict: Verdict) -> int:
        return sum(checked.verdict == verdict for sink in self.sinks for checked in sink.epochs)

    @property
    def differs(self) -> bool:
        return self.count("differs") > 0 or any(sink.mark_differs for sink in self.sinks)


@dataclass(frozen=True, slots=True)
class _Held:
    """The answer of one sink's target: its mark, and each epoch's audit."""

    mark: str = ""
    highest: int | None = None
    """The mark's epoch, if the mark differs: rows above it are gone; -1 if all rows may be gone."""
    audits: Mapping[int, Audit] = field(default_factory=dict)
    why_none: str = "its target does not record which rows belong to this epoch: see epoch_column"


def verify(
    history: JobHistory, sinks: Mapping[str, Sink], first: int | None, last: int | None, *, deep: bool
) -> Verification:
    """Check the epochs from `first` to `last`. None means the first or last epoch that the journal knows.

    A sink that can't be queried is reported, and does not block others. Raises ConfigError if the journal knows none of
    the epochs, LineageError or Retryable if the journal can't be read.
    """
    what = f"the journal in {history.folder} can't be read"
    with storage_errors(history.folder, what), closing(history.journal(backoff)) as journal:
        entries = list(journal.entries())
    decided = _decided([entry.record for entry in entries if entry.record is not None])
    damaged = tuple(entry.seq for entry in entries if entry.record is None)
    complete, log = look(history)
    check_identity(log, identity_of(history))
    if not decided:
        return Verification(complete, damaged=damaged)
    known = (min(decided), max(decided))
    bounds = (known[0] if first is None else first, known[1] if last is None else last)
    chosen = {epoch: parts for epoch, parts in decided.items() if bounds[0] <= epoch <= bounds[1]}
    if not chosen:
        raise ConfigError(
            f"nothing can be known of epochs {bounds[0]} to {bounds[1]}",
            why=f"the journal has epochs {known[0]} to {known[1]}: it keeps the last 1,000 decisions",
            next="choose --epochs among those",
        )
    open_epoch = log.decision.epoch if log.decision is not None and log.decision.epoch != complete else None
    check = _Check(history, log, chosen, open_epoch, to_the_end=last is None, deep=deep)
    names = dict.fromkeys([*sinks, *(name for parts in chosen.values() for name in parts)])
    return Verification(complete, known, tuple(check.sink(name, sinks.get(name)) for name in names), damaged)


@dataclass(frozen=True, slots=True)
class _Check:
    """The state that all sinks are compared with. `open_epoch` is decided, and not known to be complete."""

    history: JobHistory
    log: Log
    decided: Mapping[int, Mapping[str, DecidedSink]]
    open_epoch: int | None
    to_the_end: bool
    deep: bool

    def sink(self, name: str, sink: Sink | None) -> VerifiedSink:
        parts = {epoch: sinks[name] for epoch, sinks in self.decided.items() if name in sinks}
        mine = bound_sinks({name: sink}) if sink is not None else ()
        bound = {epoch: part for epoch, part in parts.items() if _bound(name, part) in mine}
        held, error = _Held(), None
        if sink is not None and (bound or not parts):
            with closing(committer_of(sink, self.history.job, self.log)) as committer:
                try:
                    held = self._held(sink, committer, bound)
                except ExactsinkError as caught:
                    self.history.commands.name(caught)
                    held, error = _Held(why_none="the sink can't be queried now"), caught
        checked = [self._checked(epoch, part, held, bound) for epoch, part in parts.items()]
        checked += self._nobodys(sink, held, parts)
        return VerifiedSink(name, held.mark, held.highest is not None, error, tuple(checked))

    def _held(self, sink: Sink, committer: Committer, bound: Mapping[int, DecidedSink]) -> _Held:
        """Query the target. The mark comes first, and the epochs that it proves are counted afterwards."""
        held = self._marked(sink, committer) if sink.backend.traits.marks else _Held()
        asked = {epoch: part.committables for epoch, part in bound.items() if epoch != self.open_epoch}
        return replace(held, audits=committer.audit(asked, deep=self.deep)) if asked else held

    def _marked(self, sink: Sink, committer: Committer) -> _Held:
        """Compare the sink's mark with the journal as it is now, because both may change meanwhile."""
        for attempt in range(_LOOKS):
            complete, log = look(self.history)
            expected = expected_of(log, sink.name, sink.backend.target)
            if expected is None or expected.now is None:
                return _Held()
            mark, now = committer.mark(), expected.now
            settled = log.decision is not None and log.decision.epoch == complete
            begun = is_at(mark, expected.before) or is_part(mark, now)
            if is_at(mark, now) or (begun and (not settled or sink.name in log.resolved)):
                why = "its mark proves that it was committed once; rows of one epoch can't be counted: see epoch_column"
                return _Held(f"holds {mark}", why_none=why)
            backoff(attempt)
        return _Held(difference(log, sink.name, mark, now).what, _highest(mark, now))

    def _checked(self, epoch: int, part: DecidedSink, held: _Held, bound: Mapping[int, DecidedSink]) -> VerifiedEpoch:
        verdict: Verdict = "unknown"
        audit = held.audits.get(epoch)
        found = audit.rows if audit is not None else None
        if epoch not in bound:
            why = f"the config has no such sink: it was {part.backend} ({part.strategy}) into {part.target}"
        elif epoch == self.open_epoch:
            why = (
                f"it is decided, and not known to be complete in every sink: see `{self.history.commands.of('status')}`"
            )
        elif audit is None or audit.rows is None:
            why = audit.why if audit is not None else held.why_none
            if held.highest is not None and epoch > held.highest and part.committables:
                verdict, why = "differs", held.mark
        else:
            why = audit.why
            if audit.rows == part.rows:
                verdict = "proven"
            elif audit.at_most and audit.rows < part.rows:
                why = f"{audit.why}; later epochs overwrite or delete rows of an earlier one"
            else:
                verdict = "differs"
        digest = sum_digests([committable.digest for committable in part.committables])
        return VerifiedEpoch(epoch, verdict, part.rows, found, f"{digest:016x}", why)

    def _nobodys(self, sink: Sink | None, held: _Held, parts: Mapping[int, DecidedSink]) -> Iterator[VerifiedEpoch]:
        """Find rows of epochs that nobody decided. A driver may have decided, or begun, more since the first read."""
        newest = max(parts, default=-1)
        for epoch, audit in held.audits.items():
            if epoch in parts or not audit.rows or (epoch > newest and not self.to_the_end):
                continue
            if epoch > newest and sink is not None:
                decision = look(self.history)[1].decision
                if sink.backend.traits.visible_early or (decision is not None and epoch <= decision.epoch):
                    continue
            why = f"{audit.why}; the journal has decided no such epoch"
            yield VerifiedEpoch(epoch, "differs", 0, audit.rows, f"{0:016x}", why)


def _decided(records: Iterable[Record]) -> Mapping[int, Mapping[str, DecidedSink]]:
    """Return each epoch's decided sinks, with the sets that replaced lost ones, without given-up participants."""
    found: dict[int, dict[str, DecidedSink]] = {}
    for record in records:
        if isinstance(record, Decide):
            found[record.epoch] = dict(record.sinks)
        elif isinstance(record, Redecide) and record.epoch in found:
            before = found[record.epoch][record.sink]
            found[record.epoch][record.sink] = replace(before, committables=record.committables)
        elif isinstance(record, Resolve) and record.outcome == "given-up" and record.epoch in found:
            before = found[record.epoch][record.sink]
            kept = tuple(c for c in before.committables if c.ref not in record.participants)
            found[record.epoch][record.sink] = replace(before, committables=kept)
    return found


def _bound(name: str, part: DecidedSink) -> BoundSink:
    return BoundSink(name, part.backend, part.strategy, part.target)


def _highest(mark: Mark | None, expected: Mark) -> int:
    """Return the highest epoch that a differing mark proves; -1 if the mark belongs to another history."""
    if mark is None or mark.epoch is None or mark.lineage != expected.lineage:
        return -1
    return min(mark.epoch, expected.epoch or 0) - (mark.epoch == expected.epoch)
