"""Read, claim, append to and trim a job's log, by the rules that make a decision final."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain, takewhile
from typing import Any

from exactsink.contract import ExactsinkError, Fatal, Fenced, LineageError, Retryable
from exactsink.protocol.journal.entries import Entry, entries_of
from exactsink.protocol.journal.log import Log, extended, fenced_by, needed, summed_up
from exactsink.protocol.journal.records import (
    COPY,
    Claim,
    Decide,
    Expected,
    Identity,
    Kept,
    Record,
    Redecide,
    decode,
    sealed,
    sum_in,
)
from exactsink.protocol.journal.stores import JournalStore, SeqTaken

__all__ = ["Journal"]

_ATTEMPTS = 5


class _Absent(Exception):
    """An entry that another one names does not exist, or was deleted."""


class Journal:
    """One driver's handle on a job's log. Not for several threads.

    Decisions are kept for `history`, up to `keep_epochs` records and `keep_bytes`. Claims and notes are never deleted.
    After `most_anchors` claims and notes since the last decision, `sum_up` notes that a start needs no older ones.
    `wait(attempt)` pauses between two tries. Only a handle that holds the newest claim can append.
    """

    def __init__(
        self,
        store: JournalStore,
        *,
        keep_epochs: int = 1000,
        keep_bytes: int = 256 * 2**20,
        most_anchors: int = 100,
        wait: Callable[[int], None],
    ) -> None:
        self._store = store
        self._keep_epochs = keep_epochs
        self._keep_bytes = keep_bytes
        self._most_anchors = most_anchors
        self._wait = wait
        self._log = Log()
        self._claim: Claim | None = None
        self._appended = 0
        """Bytes written since the last check for entries to delete."""
        self._decided = 0
        """Bytes of the last decision, if this handle has written it."""

    @property
    def log(self) -> Log:
        """The log as this handle last read or wrote it."""
        return self._log

    def close(self) -> None:
        """Close the store. Idempotent."""
        self._store.close()

    def read(self) -> Log:
        """Read the journal again: its newest entry, and the entries that this one names.

        A longer journal does not take longer. A named entry that is missing is looked for again, never ignored.
        """
        return self._found(self._read_back)

    def whole(self) -> Log:
        """Read further back, to the first claim. Entries that this handle has read are not read again."""
        return self._found(lambda: self._back_to(0))

    def _found(self, read: Callable[[], Log]) -> Log:
        for attempt in range(_ATTEMPTS):
            try:
                self._log = read()
            except _Absent:
                self._wait(attempt)
            else:
                return self._log
        raise Retryable(
            "the journal lacks records that later ones name",
            why="the store lists stale entries, or records were deleted by hand",
            next=f"start the job again; if this comes back, {COPY}",
        )

    def entries(self) -> Iterator[Entry]:
        """Read every stored entry, even damaged ones, from the oldest on. For people, not for decisions."""
        return entries_of(self._store)

    def _read_back(self) -> Log:
        """Follow the newest entry to the claims and notes before it, and to the last decision. Check every sum."""
        newest = self._store.newest()
        if newest < 0:
            return Log()
        record = self._entry(newest)
        if record.prior_sum and newest - 1 not in (record.before, *record.names):
            self._check_prior(record)  # an entry appended to an older copy does not fit
        own = (record,) if isinstance(record, Claim | Kept) else ()
        read: dict[int, Record] = {a.seq: a for a in needed(chain(own, self._anchors_before(record)), record.names)}
        sums = dict(zip(record.names, record.name_sums, strict=False))
        for seq in record.names:
            read[seq] = record if seq == newest else self._entry(seq, sums.get(seq, ""), newest)
        log = reduce(extended, (read[seq] for seq in sorted(read)), Log())
        return replace(log, last_seq=newest, last_sum=record.sha256)

    def _back_to(self, seq: int) -> Log:
        """Return this handle's log with all anchors from this seq on."""
        log = self._log
        if not log.anchors or log.anchors[0].before < seq:
            return log
        older = takewhile(lambda anchor: anchor.seq >= seq, self._anchors_before(log.anchors[0]))
        return replace(log, anchors=(*reversed(list(older)), *log.anchors))

    def _anchors_before(self, record: Record) -> Iterator[Claim | Kept]:
        """Walk back over claims and notes from a record. Check every sum, even of records that this handle has read."""
        known = {anchor.seq: anchor for anchor in self._log.anchors}
        while record.before >= 0:
            seq = record.before
            anchor = known[seq] if seq in known else self._entry(seq)
            if record.before_sum not in ("", anchor.sha256):
                raise _other_entry(seq, anchor.sha256, record.before_sum, record.seq)
            if not isinstance(anchor, Claim | Kept) or anchor.before >= seq:
                raise Fatal(f"journal entry {seq} is neither a claim nor a note", next=COPY)
            yield anchor
            record = anchor

    def _entry(self, seq: int, named: str = "", by: int = -1) -> Record:
        """Read an entry. `named` is the sum by which entry `by` names it, empty if it names none."""
        data = self._store.read(seq)
        if data is None:
            raise _Absent(seq)
        record = decode(data, seq)
        if named and record.sha256 != named:
            raise _other_entry(seq, record.sha256, named, by)
        return record

    def _check_prior(self, record: Record) -> None:
        """Check that the entry before a record is the one after which it was written."""
        data = self._store.read(record.seq - 1)
        if data is None or sum_in(data) != record.prior_sum:
            self._entry(record.seq - 1, record.prior_sum, record.seq)  # raises with the reason

    def claim(self, query_id: str, driver: str, identity: Identity | None = None) -> Claim:
        """Become the job's driver, and fence every older one. Nothing may be committed or swept before it returns.

        Durable when it returns. Raises LineageError if the journal belongs to another query, and Retryable if other
        drivers claim the job again and again, or the store does not answer.
        """
        for attempt in range(_ATTEMPTS * 4):
            log = self.read()
            if log.query_id and log.query_id != query_id:
                raise other_query(log.query_id, query_id)
            token = uuid.uuid4().hex[:12]
            claim = Claim(log.last_generation + 1, token, driver, query_id, log.lineage or token, identity=identity)
            if log.claims:
                last = log.claims[-1]
                claim = replace(claim, base=last.base, first_epoch=last.first_epoch, succeeds=last.succeeds)
            claim = replace(claim, **self._place(claim, log.last_seq + 1))
            stands = self._settle(claim)
            if isinstance(stands, Claim) and stands.nonce == claim.nonce and self._stands_last(stands):
                self._log, self._claim = extended(log, stands), stands
                return stands
            self._wait(attempt)
        what, why = "the journal could not be claimed", "other drivers claim the job again and again"
        raise Retryable(what, why=why, next="stop all drivers but one: `exactsink history JOB.toml` names them")

    def adopt(self, query_id: str, next_batch: int, driver: str, fingerprint: str = "") -> Claim:
        """Bind the journal to another query, or (empty `query_id`) to the next that claims, from `next_batch` on.

        The next epoch keeps its number, or gets `next_batch` if that is higher: epochs never go back. `fingerprint` is
        that of the batch, if Spark has planned it. If the last decision has the same one, the batch is that epoch, and
        the job skips it. The caller holds the newest claim, and has made sure that the last decision is committed.
        Raises Fenced.
        """
        decision, first = self._log.decision, max(self._log.next_epoch, next_batch)
        if decision is not None and fingerprint and decision.fingerprint == fingerprint:
            first = decision.epoch
        return self.rebase(None, query_id, next_batch, first, driver)

    def rebase(
        self,
        marks: Sequence[Expected] | None,
        query_id: str,
        next_batch: int,
        first: int,
        driver: str,
        keeps: tuple[str, ...] = (),
    ) -> Claim:
        """Append a claim that binds batch `next_batch` of a query to epoch `first`, and expect these marks from now on.

        The last decision keeps only the sinks in `keeps`. Without `marks`, nothing else changes. The caller holds the
        newest claim. Raises Fenced.
        """
        log, rebased = self._log, None if marks is None else tuple(marks)
        last = log.claims[-1]
        others = log.succeeds.union(mark.now.lineage for mark in rebased or () if mark.now) - {log.lineage}
        claim = replace(last, generation=log.last_generation + 1, token=uuid.uuid4().hex[:12], driver=driver)
        claim = replace(claim, query_id=query_id, base=first - next_batch, first_epoch=first, rebased=rebased)
        self._append(replace(claim, keeps=keeps, succeeds=tuple(sorted(others))))
        self._claim = self._log.claims[-1]
        return self._claim

    def keep(self, record: Kept) -> None:
        """Append a record that is kept permanently. Durable when it returns. Raises the errors of `decide`."""
        self._append(record)

    def sum_up(self) -> None:
        """Note that a start needs no entry from before my claim, if there are many since the last decision.

        Since my claim, the caller has checked that its sinks include those of all open claims. Raises Fenced.
        """
        note = summed_up(self._log, self._most_anchors)
        if note is not None:
            self._append(note)

    def _stands_last(self, claim: Claim) -> bool:
        """Read again, because a stalled driver's claim is void if it lands in a hole that a deletion left."""
        return self._store.newest() == claim.seq

    def decide(self, record: Decide) -> None:
        """Append THE commit point of an epoch. Durable when it returns; only the driver with the newest claim can.

        Raises Fenced if another claim came first, and Retryable if the store's answer is unclear: then the next claim
        reads whether the epoch was decided.
        """
        before = self._appended
        self._append(record)
        self._decided = self._appended - before

    @property
    def decided_bytes(self) -> int | None:
        """The size of the last decision, None if another handle has written it."""
        return self._decided or None

    def redecide(self, record: Redecide) -> None:
        """Append a sink's new set of committables for the last decided epoch. Otherwise like `decide`."""
        self._append(record)

    def trim(self) -> None:
        """Delete old epochs' records, many at once; never a claim, a note, or a record of the last decision.

        Idempotent. A crash in the middle leaves a journal that is as valid as before.
        """
        if not self._is_trim_due():
            return
        self._appended = 0
        sizes = self._store.sizes(_unbroken_end(sorted(self._store.list())))
        decided, known = self._log.decision, {anchor.seq for anchor in self._log.anchors}
        most = min(len(sizes.keys() - known), decided.epoch + 1 if decided else 0)
        if most > self._keep_epochs or sum(sizes.values()) > self._keep_bytes:
            self._found(lambda: self._back_to(min(sizes)))
            self._store.delete(sorted(self._deletable(sizes)))  # the oldest first, so that no hole is left behind

    def _is_trim_due(self) -> bool:
        """Return whether a tenth of the kept records may be new.

        It counts epochs, because each may have its own driver.
        """
        decided = self._log.decision
        kept = min(self._keep_epochs, self._keep_bytes // max(self._decided, 1))
        due = decided is not None and decided.epoch % max(kept // 10, 1) == 0
        return due or self._appended > self._keep_bytes // 10

    def _deletable(self, sizes: Mapping[int, int]) -> frozenset[int]:
        """Choose among the entries that this handle knows: a later one may be another driver's claim."""
        known, anchors = self._log.last_seq, {anchor.seq for anchor in self._log.anchors}
        old, count, size = set(), 0, 0
        for seq in sorted((seq for seq in sizes if seq <= known and seq not in anchors), reverse=True):
            count, size = count + 1, size + sizes[seq]
            if count > self._keep_epochs or size > self._keep_bytes:
                old.add(seq)
        last = self._log.decision.seqs if self._log.decision else ()
        return frozenset(old).difference(last, (known - 1, known))  # the newest entry also names the one before it

    def _append(self, record: Record) -> None:
        """Write at my next seq until it is settled: success, a claim that fences me, or an error with the seq open."""
        if self._claim is None:
            raise RuntimeError("a journal is claimed before anything is appended")
        if (fenced := fenced_by(self._log, self._claim)) is not None:  # a newer claim was read since then
            raise fenced
        while True:
            mine = replace(record, **self._place(record, self._log.last_seq + 1))
            stands = self._settle(mine)
            if stands.nonce == mine.nonce:
                self._log = extended(self._log, stands)
                return
            if not isinstance(stands, Kept):
                driver = stands.driver if isinstance(stands, Claim) else "another driver"
                raise Fenced(
                    f"journal entry {mine.seq} belongs to {driver}",
                    why="it has claimed the job, and this driver's epoch was not decided",
                    next="leave the job to that driver; `exactsink status JOB.toml` shows it",
                )
            self._log = extended(self._log, stands)

    def _settle(self, record: Record) -> Record:
        """Put a record until it is certain which record is at its seq: this one or another."""
        failure: Exception | None = None
        record, text = sealed(record)
        self._appended += len(text)
        for attempt in range(_ATTEMPTS):
            try:
                self._store.put(record.seq, text)
                return record
            except SeqTaken:
                pass
            except ExactsinkError:  # the store is certain that it wrote nothing
                raise
            except Exception as error:  # any other answer proves nothing, so read the seq
                failure = error
            try:
                data = self._store.read(record.seq)
            except Exception as error:
                failure = error
            else:
                if data is not None:
                    return decode(data, record.seq)
            self._wait(attempt)
        if isinstance(failure, Fatal):  # the store refuses this driver; a later claim settles the entry
            raise failure
        raise Retryable(
            f"journal entry {record.seq} could not be settled",
            why=f"the store's answer is unclear: {failure!r}",
            next="start the job again once the journal's store answers; the next claim settles the epoch",
        )

    def _place(self, record: Record, seq: int) -> dict[str, Any]:
        """Return a record's place: its seq, its nonce, and the entries that it names, with sums (see `records`)."""
        log = self._log
        names, sums = (log.decision.seqs, log.decision.sums) if log.decision else ((), ())
        if isinstance(record, Decide):
            names, sums = (seq,), ()
        elif isinstance(record, Redecide):
            names = (*names, seq)
        return {
            "seq": seq,
            "nonce": uuid.uuid4().hex,
            "names": names,
            "name_sums": sums,  # all but its own
            "before": log.before,
            "before_sum": log.anchors[-1].sha256 if log.anchors else "",
            "prior_sum": log.last_sum if log.last_seq == seq - 1 else "",
            "at": round(time.time(), 3),
        }


def _unbroken_end(listed: Sequence[int]) -> Sequence[int]:
    """Return the listing's end without holes.

    Deletion goes up to the last hole, so all entries before it are anchors.
    """
    start = len(listed) - 1
    while start > 0 and listed[start - 1] == listed[start] - 1:
        start -= 1
    return listed[max(start, 0) :]


def _other_entry(seq: int, sha256: str, named: str, by: int) -> LineageError:
    return LineageError(
        f"journal entry {seq} is not the record that entry {by} follows",
        why=f"its sha256 is {sha256[:12]}..., entry {by} names {named[:12]}...: an entry was edited, or comes from "
        "another copy of the journal",
        next=COPY,
    )


def other_query(bound: str, query_id: str) -> LineageError:
    return LineageError(
        f"the journal belongs to query {bound}, but the checkpoint is query {query_id}'s",
        why="the checkpoint was deleted or replaced; going on would skip or repeat epochs",
        next="restore the checkpoint that the journal belongs to; or `exactsink adopt JOB.toml`, which continues the "
        "epochs with this checkpoint: rows that its source gives again are doubled in every sink, and rows that it "
        "skips are missing; or give the job a new name and checkpoint",
    )
