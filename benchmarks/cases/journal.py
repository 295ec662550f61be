"""The journal, short and long: opening, appending, listing and starting must not grow with its length."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.epochs import never
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from exactsink.contract import Committable, Txn
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.records import BoundSink, Clean, Decide, DecidedSink, Identity
from exactsink.protocol.journal.stores import JournalStore
from exactsink.protocol.journal.stores.local import LocalStore

__all__ = [
    "BENCHMARK",
    "InMemory",
    "Opener",
    "Started",
    "Used",
    "append",
    "build",
    "build_starts",
    "journal_stores",
    "memory_folder",
    "start",
]

_FEW = 10
_KEEP = 1_000
_SINKS = 2
_PARTITIONS = 2
_OPENED = 10
_APPENDED = 50
_STARTS = 10_000
_STARTED = 10
_SINK_NAMES = tuple(f"sink-{n}" for n in range(_SINKS))
_BOUND = tuple(BoundSink(name, "null", "null", "nowhere") for name in _SINK_NAMES)

Opener = Callable[[Path], JournalStore]


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    keep = setting.scaled(_KEEP, least=20)
    sizes = [_FEW, keep, 10 * keep, 100 * keep]
    openers, notes = journal_stores()
    variants, bounds = [], []
    with tempfile.TemporaryDirectory(dir=memory_folder(setting.folder), prefix="exactsink-journals-") as memory:
        for kind, opener in openers.items():
            for size in sizes:
                built = Path(memory, f"{kind}-{size}")
                build(opener(built), size, keep)
                variants.append(Variant(f"{kind} {size:,}", Used(opener, built, keep)))
            few, kept, many = (f"{kind} {sizes[index]:,}" for index in (0, 1, -1))
            # From `keep` epochs on, a journal keeps the same number of records, so nothing may grow.
            bounds += [Bound(metric, many, kept, at_most=1.5) for metric in ("open_ms", "append_ms", "list_ms")]
            bounds += [Bound("append_ms", many, few, at_most=2), Bound("open_ms", many, few)]
            starts = (_FEW, setting.scaled(_STARTS, least=200))
            for epochs in ("deciding", "idle"):
                of = {count: f"{kind} {count:,} {epochs} starts" for count in starts}
                for count, name in of.items():
                    built = Path(memory, name)
                    build_starts(opener(built), count, keep, decides=epochs == "deciding")
                    variants.append(Variant(name, Started(opener, built, keep)))
                bounds.append(Bound("start_ms", of[starts[-1]], of[_FEW], at_most=2))
        notes.append(f"each epoch decides {_SINKS} sinks with {_PARTITIONS} participants; {keep:,} epochs are kept")
        yield Plan(variants, bounds, notes)


def memory_folder(folder: Path) -> Path:
    """Find a folder where syncs cost nothing: 100,000 epochs are built there, then copied to the measured place."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and os.access(memory, os.W_OK) else folder


def journal_stores() -> tuple[Mapping[str, Opener], list[str]]:
    """Return the available stores, and name the missing ones."""
    stores: dict[str, Opener] = {"local": lambda folder: LocalStore(folder)}
    try:
        from exactsink.protocol.journal.stores.sql import SqlStore
    except ImportError as error:
        return stores, [f"no SQLite variant: {error}"]

    def sqlite(folder: Path) -> JournalStore:
        folder.mkdir(exist_ok=True)
        store: JournalStore = SqlStore(f"sqlite:///{folder}/journal.db", "benchmark")
        return store

    return {**stores, "sqlite": sqlite}, []


class InMemory:
    """The place where journals of any length are built. They are copied from here into the measured store."""

    def __init__(self) -> None:
        self._entries: dict[int, bytes] = {}
        self._newest = -1

    def put(self, seq: int, data: bytes) -> None:
        assert seq > self._newest
        self._entries[seq], self._newest = data, seq

    def read(self, seq: int) -> bytes | None:
        return self._entries.get(seq)

    def newest(self) -> int:
        return self._newest

    def list(self) -> Sequence[int]:
        return list(self._entries)

    def sizes(self, seqs: Sequence[int]) -> Mapping[int, int]:
        return {seq: len(self._entries[seq]) for seq in seqs if seq in self._entries}

    def delete(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self._entries.pop(seq, None)

    def close(self) -> None:
        """Do nothing."""

    def copy_into(self, store: JournalStore) -> None:
        for seq, data in self._entries.items():
            store.put(seq, data)
        _close(store)


def build(store: JournalStore, epochs: int, keep: int) -> None:
    memory = InMemory()
    journal = Journal(memory, keep_epochs=keep, wait=never)
    generation = journal.claim("benchmark", "benchmark").generation
    for epoch in range(epochs):
        append(journal, epoch, generation)
    memory.copy_into(store)


def build_starts(store: JournalStore, starts: int, keep: int, *, decides: bool) -> None:
    """Start repeatedly, each time with a new handle: one epoch, or none, and a clean end."""
    memory = InMemory()
    for epoch in range(starts):
        journal, generation = start(memory, keep)
        if decides:
            append(journal, epoch, generation)
        journal.keep(Clean())
    memory.copy_into(store)


def start(store: JournalStore, keep: int) -> tuple[Journal, int]:
    """Use the journal as a driver's start does."""
    journal = Journal(store, keep_epochs=keep, wait=never)
    journal.read()
    claim = journal.claim("benchmark", "benchmark", Identity("benchmark", checkpoint="/some/where", sinks=_BOUND))
    journal.sum_up()
    return journal, claim.generation


def append(journal: Journal, epoch: int, generation: int, partitions: int = _PARTITIONS) -> None:
    """Decide an epoch of two sinks with so many participants each."""
    sinks = {
        name: DecidedSink("null", "null", "nowhere", _committables(name, epoch, partitions)) for name in _SINK_NAMES
    }
    journal.decide(Decide(epoch, generation, f"input {epoch}", sinks))
    journal.trim()


def _committables(sink: str, epoch: int, partitions: int) -> tuple[Committable, ...]:
    txns = [Txn("benchmark", epoch, sink, 1, "0123456789ab", part, epoch + part) for part in range(partitions)]
    return tuple(Committable(txn, 1000, b'{"path": "some/where"}', digest=2**63 + epoch) for txn in txns)


class Used:
    """Open, list, and append to a copy of a built journal in each round, so that its length stays the same."""

    def __init__(self, opener: Opener, built: Path, keep: int) -> None:
        self._keep = keep
        self._opener = opener
        self._built = built

    def __call__(self, folder: Path) -> Work:
        place = folder / "journal"
        shutil.copytree(self._built, place)
        return lambda: self._work(place)

    def _work(self, place: Path) -> Metrics:
        store = self._opener(place)
        store.list()  # the first one also connects
        listing = _medians("list", _OPENED, lambda n: store.list())
        opening = _medians("open", _OPENED, lambda n: self._journal(self._opener(place)).read())
        journal = self._journal(store)
        generation = journal.claim("benchmark", "benchmark").generation
        decision = journal.log.decision
        assert decision is not None
        first = decision.epoch + 1
        appending = _medians("append", _APPENDED, lambda n: append(journal, first + n, generation))
        _close(store)
        return {**opening, **appending, **listing}

    def _journal(self, store: JournalStore) -> Journal:
        return Journal(store, keep_epochs=self._keep, wait=never)


class Started:
    """Run a few more starts on a copy of a built journal in each round."""

    def __init__(self, opener: Opener, built: Path, keep: int) -> None:
        self._opener = opener
        self._built = built
        self._keep = keep

    def __call__(self, folder: Path) -> Work:
        place = folder / "journal"
        shutil.copytree(self._built, place)
        return lambda: _medians("start", _STARTED, lambda n: self._work(place))

    def _work(self, place: Path) -> None:
        store = self._opener(place)
        _, generation = start(store, self._keep)
        assert generation > 1
        _close(store)


def _medians(name: str, times: int, call: Callable[[int], object]) -> Metrics:
    walls, cpus = [], []
    for number in range(times):
        started, cpu = time.perf_counter(), time.process_time()
        call(number)
        cpus.append(time.process_time() - cpu)
        walls.append(time.perf_counter() - started)
    return {f"{name}_ms": statistics.median(walls) * 1000, f"{name}_cpu_ms": statistics.median(cpus) * 1000}


def _close(store: JournalStore) -> None:
    close = getattr(store, "close", None)
    if close is not None:
        close()


BENCHMARK = Benchmark(
    "journal", "Opening, appending to and listing a journal of 10 to 100,000 epochs; a start after 10,000.", _open
)
