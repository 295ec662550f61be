"""A manual session: it drives a backend's contract call by call, as one claim of one job and sink, without a driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from exactsink.contract import (
    Backend,
    Committable,
    Committer,
    InDoubt,
    JobContext,
    Mark,
    Outcome,
    Standing,
    Txn,
    Writer,
)
from exactsink.protocol.journal.log import Log, undecided_before
from exactsink.protocol.journal.records import Claim
from exactsink.protocol.participant import no_probe, write_partition
from exactsink.protocol.votes import EpochPlan, SinkPlan, check_votes
from exactsink.testing.driver_run import hashed

__all__ = ["Session", "run_here"]

_Answer = TypeVar("_Answer")
_CHUNK_ROWS = 50


def run_here(call: Callable[[], _Answer]) -> _Answer:
    """Call it in this process."""
    return call()


@dataclass(frozen=True, slots=True)
class Session:
    """One claim of one job and sink. Each call makes a new committer or writer, and closes it.

    It pickles, and so do its bound methods, so a test can make its calls in any process. `token` is the claim's; its
    generation is in the context.
    """

    backend: Backend
    ctx: JobContext
    token: str

    def txn(self, epoch: int, partition: int, attempt: int | None = None) -> Txn:
        """Name a participant. By default its attempt is partition + 1."""
        ctx = self.ctx
        attempt = partition + 1 if attempt is None else attempt
        return Txn(ctx.job, epoch, ctx.sink, ctx.generation, self.token, partition, attempt)

    def open(self, epoch: int, schema: pa.Schema, participants: int | None = None) -> bytes:
        """Open an epoch and return its ticket."""
        return self.with_committer(lambda committer: committer.open_epoch(epoch, schema, participants))

    def writer(self, epoch: int, partition: int, schema: pa.Schema, ticket: bytes) -> Writer:
        """Open a participant's writer, which the caller ends."""
        return self.backend.writer(self.txn(epoch, partition), schema, ticket)

    def write(
        self, epoch: int, partition: int, ticket: bytes, rows: pa.Table, attempt: int | None = None
    ) -> Committable:
        """Write one partition as a task does, in pieces, and return its committable. Raises the task's error."""
        ctx, txn = self.ctx, self.txn(epoch, partition, attempt)
        plan = EpochPlan(ctx.job, epoch, ctx.generation, self.token, {ctx.sink: SinkPlan(ticket, None)})
        batches = [{ctx.sink: (batch, hashed(batch))} for batch in rows.to_batches(max_chunksize=_CHUNK_ROWS)]
        votes = list(write_partition(plan, {ctx.sink: self.backend}, partition, txn.attempt, batches, no_probe))
        return check_votes(plan, votes)[ctx.sink][0]

    def prepare(
        self, epoch: int, partitions: Sequence[pa.Table], run: Callable[[Callable[[], Any]], Any] = run_here
    ) -> list[Committable]:
        """Open an epoch, then write and pre-commit each partition. `run` makes each call, often in another process."""
        ticket: bytes = run(partial(self.open, epoch, partitions[0].schema))
        return [run(partial(self.write, epoch, number, ticket, rows)) for number, rows in enumerate(partitions)]

    def check_votes(self, epoch: int, schema: pa.Schema, committables: Sequence[Committable]) -> None:
        """Let a committer that has opened the epoch refuse votes that can't be committed together."""

        def call(committer: Committer) -> None:
            committer.open_epoch(epoch, schema, None)
            committer.check_votes(epoch, committables)

        self.with_committer(call)

    def commit(self, epoch: int, committables: Sequence[Committable], times: int = 1) -> list[Outcome]:
        """Commit so many times with one committer, and return the last outcomes."""
        return self.with_committer(lambda c: [list(c.commit(epoch, committables)) for _ in range(times)])[-1]

    def mark(self) -> Mark | None:
        """Read the sink's mark."""
        return self.with_committer(lambda committer: committer.mark())

    def put_birth(self) -> Mark:
        """Put the birth of the context's lineage, and return the target's mark."""
        return self.with_committer(lambda committer: committer.put_birth())

    def trim_marks(self) -> None:
        """Delete old marks."""
        self.with_committer(lambda committer: committer.trim_marks())

    def commit_marked(self, epoch: int, committables: Sequence[Committable]) -> list[Outcome]:
        """Commit as exactsink does: with a committer that has read the mark first."""

        def call(committer: Committer) -> list[Outcome]:
            committer.mark()
            return list(committer.commit(epoch, committables))

        return self.with_committer(call)

    def assess(self, epoch: int, committables: Sequence[Committable]) -> list[Standing]:
        """Return the state of an epoch's committables, as an operator's command does."""
        return self.with_committer(lambda committer: self.assessed_by(committer, epoch, committables))

    def assessed_by(self, committer: Committer, epoch: int, committables: Sequence[Committable]) -> list[Standing]:
        """Return the state of an epoch's committables. If the target keeps marks, the mark is read first."""
        if self.backend.traits.marks:
            committer.mark()
        return list(committer.assess(epoch, committables))

    def inherits_assess(self) -> bool:
        """Return whether the backend uses the default `assess` of the contract."""
        return self.with_committer(lambda committer: type(committer).assess is Committer.assess)

    def blocked(self) -> list[str]:
        """Return the effects of the participants in doubt on others, one sentence each."""
        return self.with_committer(lambda c: [said for participant in c.in_doubt() for said in c.blocks(participant)])

    def listed(self) -> list[InDoubt]:
        """List the participants that the backend holds in doubt."""
        return self.with_committer(lambda committer: list(committer.in_doubt()))

    def abort(self, *participants: InDoubt) -> None:
        """Abort these participants, like the sweep of a later claim of the same journal."""
        claims = [Claim(p.generation, p.token, "session", "query", self.ctx.lineage) for p in participants]
        mine = Claim(
            max((claim.generation for claim in claims), default=0) + 1, "0" * 12, "session", "query", self.ctx.lineage
        )
        log = Log(anchors=(*claims, mine))
        undecided = undecided_before(log, mine, self.ctx.sink, participants)
        self.with_committer(lambda committer: committer.abort(undecided))

    def with_committer(self, call: Callable[[Committer], _Answer]) -> _Answer:
        """Call it with a new committer."""
        committer = self.backend.committer(self.ctx)
        try:
            return call(committer)
        finally:
            committer.close()
