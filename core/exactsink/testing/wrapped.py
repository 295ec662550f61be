"""A backend, or a part of one, around another: every call goes to the real one.

A subclass adds a fault or a defect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from exactsink.contract import (
    Audit,
    Backend,
    Committable,
    Committer,
    Finding,
    InDoubt,
    JobContext,
    Mark,
    Outcome,
    Standing,
    Traits,
    Txn,
    Undecided,
    Validator,
    Writer,
)
from exactsink.toolkit.roads import Applier, Marker

__all__ = ["WrappedApplier", "WrappedBackend", "WrappedCommitter", "WrappedWriter"]


class WrappedBackend(Backend):
    """A backend that passes every call on: strategy, target and traits are those of the real one."""

    def __init__(self, real: Backend) -> None:
        super().__init__(real.options)
        self.real = real

    @property
    def strategy(self) -> str:
        return self.real.strategy

    @property
    def target(self) -> str:
        return self.real.target

    @property
    def servers(self) -> tuple[str, ...]:
        return self.real.servers

    @property
    def traits(self) -> Traits:
        return self.real.traits

    def shape(self, schema: pa.Schema) -> list[str] | None:
        return self.real.shape(schema)

    def shape_in_task(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return self.real.shape_in_task(rows)

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return self.real.writer(txn, schema, ticket)

    def validator(self, schema: pa.Schema, rules: bytes) -> Validator:
        return self.real.validator(schema, rules)

    def committer(self, ctx: JobContext) -> Committer:
        return self.real.committer(ctx)


class WrappedWriter(Writer):
    """A writer whose calls go to the real one."""

    def __init__(self, real: Writer) -> None:
        self.real = real

    def write(self, batch: pa.RecordBatch) -> None:
        self.real.write(batch)

    def pre_commit(self) -> Committable:
        return self.real.pre_commit()

    def abort(self) -> None:
        self.real.abort()


class WrappedCommitter(Committer):
    """A committer whose calls go to the real one."""

    def __init__(self, real: Committer) -> None:
        self.real = real

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        return self.real.check(schema, participants)

    def check_target(self, participants: int | None) -> Iterable[Finding]:
        return self.real.check_target(participants)

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        return self.real.open_epoch(epoch, schema, participants)

    def row_rules(self, schema: pa.Schema) -> bytes:
        return self.real.row_rules(schema)

    def check_votes(self, epoch: int, committables: Sequence[Committable]) -> None:
        self.real.check_votes(epoch, committables)

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        return self.real.commit(epoch, committables)

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        return self.real.assess(epoch, committables)

    def audit(self, epochs: Mapping[int, Sequence[Committable]], *, deep: bool) -> Mapping[int, Audit]:
        return self.real.audit(epochs, deep=deep)

    def blocks(self, participant: InDoubt) -> Sequence[str]:
        return self.real.blocks(participant)

    def abort(self, undecided: Undecided) -> None:
        self.real.abort(undecided)

    def in_doubt(self) -> Iterable[InDoubt]:
        return self.real.in_doubt()

    def mark(self) -> Mark | None:
        return self.real.mark()

    def put_birth(self) -> Mark:
        return self.real.put_birth()

    def trim_marks(self) -> None:
        self.real.trim_marks()

    def source_reached(self, epoch: int, ends: Sequence[str]) -> None:
        self.real.source_reached(epoch, ends)

    def close(self) -> None:
        self.real.close()


class WrappedApplier(Applier):
    """An applier whose calls go to the real one."""

    def __init__(self, real: Applier) -> None:
        self.real = real

    def check(self, schema: pa.Schema) -> Iterable[Finding]:
        return self.real.check(schema)

    def check_target(self) -> Iterable[Finding]:
        return self.real.check_target()

    def open_epoch(self, schema: pa.Schema) -> None:
        self.real.open_epoch(schema)

    def last_applied(self, job: str, sink: str) -> Marker | None:
        return self.real.last_applied(job, sink)

    def put_birth(self, birth: Marker) -> Marker:
        return self.real.put_birth(birth)

    def apply(self, marker: Marker, batches: Iterator[pa.RecordBatch]) -> bool:
        return self.real.apply(marker, batches)

    def close(self) -> None:
        self.real.close()
