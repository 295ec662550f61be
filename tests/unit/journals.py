"""A journal's store in memory, where each call can go wrong, drivers' handles on it, and records to put there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from exactsink.contract import Committable, Txn
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.log import Log
from exactsink.protocol.journal.records import Claim, Decide, DecidedSink, Record, Redecide, decode, sealed
from exactsink.protocol.journal.stores import JournalStore, SeqTaken

QUERY, DRIVER = "query-1", "host:1"


class Store:
    """Entries in memory. `before_put`, `before_read` and `lists` hold what goes wrong in the next calls, one each."""

    def __init__(self) -> None:
        self.entries: dict[int, bytes] = {}
        self.puts: list[Record] = []
        self.reads: list[int] = []
        self.before_put: list[Callable[[Record], None]] = []
        self.before_read: list[Callable[[int], None]] = []
        self.lists: list[Callable[[list[int]], Sequence[int]]] = []

    def put(self, seq: int, data: bytes) -> None:
        record = decode(data)
        assert record.seq == seq
        self.puts.append(record)
        if self.before_put:
            self.before_put.pop(0)(record)
        if seq in self.entries:
            raise SeqTaken(seq)
        self.entries[seq] = data

    def read(self, seq: int) -> bytes | None:
        self.reads.append(seq)
        if self.before_read:
            self.before_read.pop(0)(seq)
        return self.entries.get(seq)

    def list(self) -> Sequence[int]:
        seqs = list(self.entries)
        return self.lists.pop(0)(seqs) if self.lists else seqs

    def newest(self) -> int:
        return max(self.list(), default=-1)

    def sizes(self, seqs: Sequence[int]) -> Mapping[int, int]:
        return {seq: len(self.entries[seq]) for seq in seqs if seq in self.entries}

    def delete(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self.entries.pop(seq, None)

    def close(self) -> None:
        pass

    def add(self, record: Record) -> Record:
        record, self.entries[record.seq] = sealed(record)
        return record

    def records(self) -> dict[int, Record]:
        return {seq: decode(self.entries[seq]) for seq in sorted(self.entries)}

    # what goes wrong

    def refuse(self, call: object) -> None:
        raise ConnectionError("refused")

    def lose_answer(self, record: Record) -> None:
        self.entries.setdefault(record.seq, sealed(record)[1])
        raise ConnectionError("no answer")

    def come_first(self, record: Record) -> Callable[[Record], None]:
        """Make another's record stand at the seq of the next put, as whoever has read the same journal wrote it."""

        def put(mine: Record) -> None:
            self.add(replace(record, seq=mine.seq, before=mine.before))

        return put


class Driver(Journal):
    """A handle on a journal, and how often it waited."""

    def __init__(self, store: JournalStore, keep_epochs: int = 1000, **limits: int) -> None:
        self.waits: list[int] = []
        super().__init__(store, keep_epochs=keep_epochs, wait=self.waits.append, **limits)


def whole(store: Store) -> Log:
    """Read a journal with a new handle, back to its first claim."""
    journal = Driver(store)
    journal.read()
    return journal.whole()


def claimed(store: Store, epochs: int = 0) -> Driver:
    """Claim a journal, and decide this many epochs in it."""
    journal = Driver(store)
    journal.claim(QUERY, DRIVER)
    for epoch in range(epochs):
        journal.decide(decided(epoch))
    store.puts.clear()
    return journal


def committables(*partitions: int, epoch: int = 0, sink: str = "lake", generation: int = 1) -> tuple[Committable, ...]:
    return tuple(Committable(Txn("job", epoch, sink, generation, "ab", p, p), p, b"") for p in partitions)


def decided(epoch: int, generation: int = 1) -> Decide:
    sinks = {
        "lake": DecidedSink("files", "rename", "/lake", committables(1, 2, epoch=epoch)),
        "table": DecidedSink("upsert", "staged", "/table", committables(1, epoch=epoch, sink="table")),
    }
    return Decide(epoch, generation, f"input-{epoch}", sinks)


def redecided(epoch: int, *partitions: int, sink: str = "lake") -> Redecide:
    return Redecide(epoch, sink, 2, committables(*partitions, epoch=epoch, sink=sink, generation=2))


def a_claim(generation: int = 2, driver: str = "host:2") -> Claim:
    return Claim(generation, "cafe", driver, QUERY, "ab", nonce="other")
