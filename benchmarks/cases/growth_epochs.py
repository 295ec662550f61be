"""How an epoch without Spark grows: with its participants, and with lost participants that are written again."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa

from benchmarks.cases.journal import memory_folder
from benchmarks.epochs import EpochDriver
from benchmarks.null_backend import NullBackend, NullCommitter
from benchmarks.plan import Benchmark, Growth, Metrics, Plan, Setting, Variant, Work
from exactsink.contract import (
    BackendOptions,
    Committable,
    Committed,
    Committer,
    JobContext,
    Lost,
    Outcome,
)
from exactsink.protocol.sinks import Sink
from exactsink.protocol.votes import EpochPlan, Vote

__all__ = ["LOST", "PARTICIPANTS"]

_PARTICIPANTS = (10, 100, 1_000, 10_000)
_LOST = (10, 100, 1_000, 3_000)
_OF = 10_000
_SINK = "null"
_TOTAL = 10_000


@contextmanager
def _open_participants(setting: Setting) -> Iterator[Plan]:
    names = {count: f"{count:,} participants" for count in _PARTICIPANTS}
    with _memory(setting) as memory:
        variants = [
            Variant(names[count], _Epochs(memory, count, 0, setting.scaled(_TOTAL // count, least=3), count))
            for count in _PARTICIPANTS
        ]
        growth = Growth(
            "An epoch over its participants",
            "participants",
            "cpu_ms",
            "driver's CPU ms an epoch",
            {"vote, decide, commit, sweep": names},
            2,
            1_000,
            "cpu_us_each",
        )
        yield Plan(variants, growth.bounds(), ["one null sink; the journal in memory: no disk is measured"], [growth])


@contextmanager
def _open_lost(setting: Setting) -> Iterator[Plan]:
    names = {count: f"{count:,} lost" for count in _LOST}
    with _memory(setting) as memory:
        variants = [Variant(names[count], _Epochs(memory, _OF, count, 2, count)) for count in _LOST]
        growth = Growth(
            f"An epoch of {_OF:,} participants over those that are lost",
            "lost participants",
            "cpu_ms",
            "driver's CPU ms an epoch",
            {"decide, commit, write again, redecide, commit": names},
            2,
            10,
        )
        notes = ["each loses them once, at its first commit; a lost one is a vote and a line of log more, so little"]
        yield Plan(variants, growth.bounds(), notes, [growth])


@contextmanager
def _memory(setting: Setting) -> Iterator[Path]:
    """Make a folder in memory, and keep the log's lines off the terminal."""
    log, quiet = logging.getLogger("exactsink"), logging.NullHandler()
    with ExitStack() as stack:
        log.addHandler(quiet)
        stack.callback(log.removeHandler, quiet)
        place = tempfile.TemporaryDirectory(dir=memory_folder(setting.folder), prefix="exactsink-growth-")
        yield Path(stack.enter_context(place))


class _Losing(NullBackend):
    """Lose so many participants at each epoch's first commit."""

    def __init__(self, lost: int) -> None:
        super().__init__(BackendOptions())
        self._lost = lost

    def committer(self, ctx: JobContext) -> Committer:
        return _LosingCommitter(self._lost)


class _LosingCommitter(NullCommitter):
    def __init__(self, lost: int) -> None:
        self._lost = lost
        self._seen = -1

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        lost = self._lost if epoch > self._seen else 0
        self._seen = epoch
        return [Lost("asked for") if place < lost else Committed() for place in range(len(committables))]


class _Epochs:
    """Run so many epochs of so many participants."""

    def __init__(self, memory: Path, participants: int, lost: int, epochs: int, size: int) -> None:
        self._memory = memory
        self._participants = participants
        self._lost = lost
        self._epochs = epochs
        self._size = size

    def __call__(self, folder: Path) -> Work:
        return self._work

    def _work(self) -> Metrics:
        with tempfile.TemporaryDirectory(dir=self._memory) as place:
            driver = EpochDriver({_SINK: Sink(_SINK, "null", _Losing(self._lost), staging="")}, Path(place))
            schemas: Mapping[str, pa.Schema] = {_SINK: pa.schema([])}
            cpu = time.process_time()
            for _ in range(self._epochs):
                rows = driver.epoch(schemas, self._votes)
                if rows != {_SINK: self._participants}:
                    raise RuntimeError(f"{self._participants} rows were to be decided: {dict(rows)}")
            cpu = (time.process_time() - cpu) / self._epochs
        return {"cpu_ms": cpu * 1e3, "cpu_us_each": cpu / self._size * 1e6}

    def _votes(self, plan: EpochPlan) -> Sequence[Vote]:
        only = plan.sinks[_SINK].only
        partitions = range(self._participants) if only is None else sorted(only)
        txns = (plan.txn(_SINK, partition, partition) for partition in partitions)
        return [Vote(_SINK, txn.partition, 1, Committable(txn, 1, b'{"path": "some/where"}', digest=7)) for txn in txns]


PARTICIPANTS = Benchmark("growth_participants", "An epoch of 10 to 10,000 participants, no Spark.", _open_participants)
LOST = Benchmark("growth_lost", f"An epoch of {_OF:,} participants that loses 10 to 3,000 of them.", _open_lost)
