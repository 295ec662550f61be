"""A backend driven by hand, call by call, each in a process of its own: for work that no driver of the job did."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from exactsink.contract import Applier, Backend, Committable, JobContext, Marker, Outcome
from exactsink.protocol.participant import no_probe, write_partition
from exactsink.protocol.votes import EpochPlan, SinkPlan, check_votes
from exactsink.testing.driver_run import hashed
from exactsink.testing.processes import ask
from exactsink.testing.wrapped import WrappedApplier

__all__ = ["Commit", "Hand", "Slow"]


@dataclass(frozen=True, slots=True)
class Hand:
    """Whose work it is: a job and sink, and the claim that it is begun under."""

    backend: Backend
    ctx: JobContext
    token: str

    def prepare(
        self,
        epoch: int,
        partitions: Sequence[pa.Table],
        run: Callable[[Callable[[], bytes | Committable]], bytes | Committable] = ask,
    ) -> list[Committable]:
        """Open an epoch in one process, write and pre-commit each partition in another."""
        ticket = run(self.opening(epoch, partitions[0].schema))
        assert isinstance(ticket, bytes)
        voted = [run(_Write(self, epoch, n, ticket, table)) for n, table in enumerate(partitions)]
        return [committable for committable in voted if isinstance(committable, Committable)]

    def opening(self, epoch: int, schema: pa.Schema) -> Open:
        """Return the call that opens an epoch, for any process."""
        return Open(self, epoch, schema)

    def listed(self) -> list[str]:
        """Name what the backend lists as in doubt."""
        return ask(_List(self))

    def committing(self, epoch: int, committables: Sequence[Committable], times: int = 1) -> Commit:
        """Return the call that commits, for any process, with one committer, a number of times."""
        return Commit(self, epoch, tuple(committables), times)


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit, and give the last outcomes."""

    hand: Hand
    epoch: int
    committables: tuple[Committable, ...]
    times: int

    def __call__(self) -> Sequence[Outcome]:
        committer = self.hand.backend.committer(self.hand.ctx)
        for _ in range(self.times):
            outcomes = committer.commit(self.epoch, self.committables)
        committer.close()
        return list(outcomes)


class Slow(WrappedApplier):
    """Has looked at the marker and read the staged rows, and says so; applies them when it is reported to."""

    def __init__(self, real: Applier, says: int, reported: int) -> None:
        super().__init__(real)
        self._says = says
        self._reported = reported

    def apply(self, marker: Marker, batches: Iterator[pa.RecordBatch]) -> bool:
        rows = list(batches)
        os.write(self._says, b".")
        os.read(self._reported, 1)
        return super().apply(marker, iter(rows))


@dataclass(frozen=True, slots=True)
class Open:
    """Open an epoch, and give the ticket."""

    hand: Hand
    epoch: int
    schema: pa.Schema

    def __call__(self) -> bytes:
        committer = self.hand.backend.committer(self.hand.ctx)
        ticket = committer.open_epoch(self.epoch, self.schema, None)
        committer.close()
        return ticket


@dataclass(frozen=True, slots=True)
class _Write:
    hand: Hand
    epoch: int
    partition: int
    ticket: bytes
    table: pa.Table

    def __call__(self) -> Committable:
        ctx = self.hand.ctx
        sinks = {ctx.sink: SinkPlan(self.ticket, None)}
        plan = EpochPlan(ctx.job, self.epoch, ctx.generation, self.hand.token, sinks)
        batches = [{ctx.sink: (batch, hashed(batch))} for batch in self.table.to_batches(max_chunksize=50)]
        votes = list(
            write_partition(plan, {ctx.sink: self.hand.backend}, self.partition, self.partition + 1, batches, no_probe)
        )
        return check_votes(plan, votes)[ctx.sink][0]


@dataclass(frozen=True, slots=True)
class _List:
    hand: Hand

    def __call__(self) -> list[str]:
        committer = self.hand.backend.committer(self.hand.ctx)
        listed = [participant.ref for participant in committer.in_doubt()]
        committer.close()
        return listed
