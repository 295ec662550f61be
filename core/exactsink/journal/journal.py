"""Read, claim, append and trim a job's log, under the rules that make a decision final."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from exactsink.errors import ExactsinkError, Fenced, LineageError, Retryable
from exactsink.journal.log import Log, extended
from exactsink.journal.records import Claim, Decide, Note, Record, Redecide, decode, encode
from exactsink.journal.store import JournalStore, SeqTaken

__all__ = ["Journal"]

_ATTEMPTS = 5


class Journal:
    """One driver's handle on a job's log. Not for several threads.

    `keep_epochs` decisions are kept for `history`; claims and notes are never deleted. `wait(attempt)` pauses between
    two tries.
    """

    def __init__(self, store: JournalStore, *, keep_epochs: int = 1000, wait: Callable[[int], None]) -> None:
        self._store = store
        self._keep_epochs = keep_epochs
        self._wait = wait
        self._log = Log()

    @property
    def log(self) -> Log:
        """The log as this handle last read or wrote it."""
        return self._log

    def read(self) -> Log:
        """Read the whole log again. A record that names an absent one is read again, never passed over."""
        for attempt in range(_ATTEMPTS):
            log, absent = Log(), True
            seen: set[int] = set()
            for seq in sorted(self._store.list()):
                data = self._store.read(seq)
                if data is None:  # deleted since it was listed
                    continue
                record = decode(data, seq)
                seen.add(seq)
                log, absent = extended(log, record), not seen.issuperset(record.names)
            if not seen or not absent:
                self._log = log
                return log
            self._wait(attempt)
        raise Retryable(
            "the journal's listing lacks records that its newest entry names",
            why="the store lists stale entries, or records of the last decision were deleted by hand",
            next="start the job again; if this stays, bring back the deleted records",
        )

    def claim(self, query_id: str, driver: str) -> Claim:
        """Become the job's driver: fence every older one. Nothing may be committed or swept before it returns."""
        for attempt in range(_ATTEMPTS * 4):
            log = self.read()
            if log.query_id is not None and log.query_id != query_id:
                raise _other_query(log.query_id, query_id)
            token = uuid.uuid4().hex[:12]
            claim = Claim(log.last_generation + 1, token, driver, query_id, log.lineage or token)
            claim = replace(claim, **self._place(claim, log.last_seq + 1))
            if self._settle(claim).nonce == claim.nonce and self._stands_last(claim):
                self._log = extended(log, claim)
                return claim
            self._wait(attempt)
        raise Retryable("the journal could not be claimed", why="other drivers claim the job again and again")

    def _stands_last(self, claim: Claim) -> bool:
        """List again: a stalled driver's claim can land in a hole that deletion left, and is void there."""
        return max(self._store.list()) == claim.seq

    def decide(self, record: Decide) -> None:
        """Append THE commit point of an epoch. Raises Fenced when another claim came first."""
        self._append(record)

    def redecide(self, record: Redecide) -> None:
        """Append a sink's new set of committables for the last decided epoch. Raises Fenced like `decide`."""
        self._append(record)

    def trim(self) -> None:
        """Delete old epochs' records, in bulk and rarely; never a claim, a note or the last decision's records."""
        epochs = sorted(self._log.epoch_seqs)
        if len(epochs) <= self._keep_epochs + self._keep_epochs // 10:
            return
        old = epochs[: len(epochs) - self._keep_epochs]
        self._store.delete(self._deletable(old))
        kept = {epoch: seqs for epoch, seqs in self._log.epoch_seqs.items() if epoch not in old}
        self._log = replace(self._log, epoch_seqs=kept)

    def _deletable(self, epochs: Iterable[int]) -> frozenset[int]:
        last = self._log.decision.seqs if self._log.decision else ()
        return frozenset(seq for epoch in epochs for seq in self._log.epoch_seqs[epoch]).difference(last)

    def _append(self, record: Decide | Redecide) -> None:
        """Write at my next seq, whatever the answers: success, or a claim that fences me, or stop undone."""
        while True:
            mine = replace(record, **self._place(record, self._log.last_seq + 1))
            stands = self._settle(mine)
            if stands.nonce == mine.nonce:
                self._log = extended(self._log, mine)
                return
            if not isinstance(stands, Note):
                driver = stands.driver if isinstance(stands, Claim) else "another driver"
                raise Fenced(
                    f"journal entry {mine.seq} belongs to {driver}",
                    why="it has claimed the job, and this driver's epoch was not decided",
                    next="leave the job to that driver; `exactsink status` shows it",
                )
            self._log = extended(self._log, stands)

    def _settle(self, record: Record) -> Record:
        """Put a record until it is known what stands at its seq: this one or another's."""
        failure: Exception | None = None
        for attempt in range(_ATTEMPTS):
            try:
                self._store.put(record.seq, encode(record))
                return record
            except SeqTaken:
                pass
            except ExactsinkError:  # the store says for sure that nothing was written
                raise
            except Exception as error:  # any answer but success leaves it open: read the seq
                failure = error
            try:
                data = self._store.read(record.seq)
            except Exception as error:
                failure = error
            else:
                if data is not None:
                    return decode(data, record.seq)
            self._wait(attempt)
        raise Retryable(
            f"journal entry {record.seq} could not be settled",
            why=f"the store gives no clear answer: {failure!r}",
            next="start the job again once the journal's store answers; the next claim settles the epoch",
        )

    def _place(self, record: Record, seq: int) -> dict[str, Any]:
        """Give a record its seq, a nonce to know it by, and the names of the last decision's records."""
        names = self._log.decision.seqs if self._log.decision else ()
        if isinstance(record, Decide):
            names = (seq,)
        elif isinstance(record, Redecide):
            names = (*names, seq)
        return {"seq": seq, "nonce": uuid.uuid4().hex, "names": names}


def _other_query(bound: str, query_id: str) -> LineageError:
    return LineageError(
        f"the journal belongs to query {bound}, but the checkpoint is query {query_id}'s",
        why="the checkpoint was deleted or replaced; going on would skip or repeat epochs",
        next="bring back the checkpoint that the journal stands beside, or give the job a new name and checkpoint",
    )
