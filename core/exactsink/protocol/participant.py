"""One task's part of an epoch, on an executor: hand each sink's rows to its writer, count them, and vote.

Spark's tasks and the processes of the runner without Spark run this same code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.contract import Backend, Fatal, Refused, Txn, Writer
from exactsink.protocol.checked import calling, check_committable, of_sink
from exactsink.protocol.quarantine import Judge
from exactsink.protocol.votes import EpochPlan, Vote

__all__ = ["Probe", "SinkRows", "no_probe", "write_partition"]

SinkRows = Mapping[str, tuple[pa.RecordBatch, pa.Array]]
"""For each sink: its rows of one Arrow batch, and their 64-bit hashes."""

Probe = Callable[[str, Literal["before", "after"], int], None]
"""Receives the protocol points `write` and `pre_commit`, with the epoch, in the task: for fault injection."""


def no_probe(point: str, edge: str, epoch: int) -> None:
    """Ignore the point."""


class _Branch:
    """One sink's writer in this task, with the framework's own count of the rows that it got."""

    def __init__(self, backend: Backend, txn: Txn, ticket: bytes) -> None:
        self._backend = backend
        self._txn = txn
        self._ticket = ticket
        self._writer: Writer | None = None
        self._rows = 0
        self._bytes = 0
        self._digest = 0

    def write(self, batch: pa.RecordBatch, hashes: pa.Array) -> None:
        if batch.num_rows == 0:
            return
        if self._writer is None:
            with self._calling("writer"):
                self._writer = self._backend.writer(self._txn, batch.schema, self._ticket)
        with self._calling("write"):
            self._writer.write(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        self._digest = (self._digest + _digest(hashes)) % (1 << 64)

    def pre_commit(self) -> Vote:
        if self._writer is None:
            return Vote(self._txn.sink, self._txn.partition, 0, None)
        writer, self._writer = self._writer, None  # from here on, only the sweep may roll it back
        with self._calling("pre_commit"):
            given = check_committable(self._txn.sink, self._backend, writer.pre_commit())
        committable = replace(given, digest=self._digest)
        return Vote(self._txn.sink, self._txn.partition, self._rows, committable, bytes=self._bytes)

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.abort()

    def _calling(self, call: str) -> AbstractContextManager[None]:
        return calling(self._txn.sink, self._backend, call, in_task=True)


class _Partition:
    """One partition's branches, and the judges of the sinks with a quarantine for their bad rows.

    `current` is the sink that is being called.
    """

    def __init__(self, plan: EpochPlan, backends: Mapping[str, Backend], partition: int, attempt: int) -> None:
        self.current = ""
        self._backends = backends
        self._branches = {
            sink: _Branch(backends[sink], plan.txn(sink, partition, attempt), sink_plan.ticket)
            for sink, sink_plan in plan.sinks.items()
            if sink_plan.only is None or partition in sink_plan.only
        }
        self._judges = {
            sink: Judge(plan.txn(sink, partition, attempt), judging, backends[sink])
            for sink, judging in plan.judged.items()
            if sink in self._branches or judging.quarantine in self._branches
        }
        self._read = [sink for sink in plan.read if sink in self._branches or sink in self._judges]

    def write(self, rows: SinkRows) -> None:
        for sink in self._read:
            self.current = sink
            given = rows[sink]
            if sink in self._judges:
                given = self._judged(sink, *given)
            if sink in self._branches:
                self._branches[sink].write(*given)

    def _judged(self, sink: str, batch: pa.RecordBatch, hashes: pa.Array) -> tuple[pa.RecordBatch, pa.Array]:
        """Write a sink's bad rows into its quarantine, if that is written, and return the others."""
        good, bad = self._judges[sink].split(batch, hashes)
        to = self._judges[sink].quarantine
        if bad is not None and to in self._branches:
            rows, own = bad
            self.current = to
            self._branches[to].write(self._backends[to].shape_in_task(rows), own)
            self.current = sink
        return good

    def pre_commit(self) -> Sequence[Vote]:
        votes = []
        for sink, branch in self._branches.items():
            self.current = sink
            vote, judge = branch.pre_commit(), self._judges.get(sink)
            votes.append(replace(vote, quarantined=judge.found.rows, reason=judge.found.reason) if judge else vote)
        return votes

    def close(self) -> None:
        """Close the judges."""
        for judge in self._judges.values():
            with suppress(Exception):  # they wrote nothing
                judge.close()

    def abort(self) -> None:
        """Drop the work that was begun, as far as possible. The sweep finds the rest."""
        for branch in self._branches.values():
            with suppress(Exception):  # the first error is the one to raise
                branch.abort()


def write_partition(
    plan: EpochPlan,
    backends: Mapping[str, Backend],
    partition: int,
    attempt: int,
    batches: Iterable[SinkRows],
    probe: Probe,
) -> Iterator[Vote]:
    """Write one partition's batches into all sinks in one pass, in a task, and vote for each sink.

    A Fatal or Refused error is returned as a vote, so that the driver gets it whole. Any other error is raised, so that
    Spark retries the task. Every batch is read, even if no sink takes it, because a stateful plan must run whole. Rows
    that a sink's judge finds bad go to its quarantine instead, if that is written.
    """
    mine = _Partition(plan, backends, partition, attempt)
    try:
        probe("write", "before", plan.epoch)
        for rows in batches:
            mine.write(rows)
        probe("write", "after", plan.epoch)
        probe("pre_commit", "before", plan.epoch)
        votes = mine.pre_commit()
        probe("pre_commit", "after", plan.epoch)
    except (Fatal, Refused) as refusal:
        mine.abort()
        yield Vote(mine.current, partition, 0, None, of_sink(mine.current, refusal) if mine.current else refusal)
    except BaseException:
        mine.abort()
        raise
    else:
        yield from votes
    finally:
        mine.close()


def _digest(hashes: pa.Array) -> int:
    # Arrow's sum of unsigned integers wraps at 2^64, which is the sum wanted.
    return int(pc.sum(hashes.view(pa.uint64())).as_py() or 0)
