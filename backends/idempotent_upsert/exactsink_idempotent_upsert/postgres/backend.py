"""Upserts into PostgreSQL by way of the `postgres` backend: its COPY, staging tables, marks and sweep.

Executors import this module: no SQLAlchemy here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import pyarrow as pa

from exactsink.contract import Backend, Committer, JobContext, Traits, Txn, Validator, Writer
from exactsink_idempotent_upsert.limits import CheckedWriter, check_order
from exactsink_idempotent_upsert.options import UpsertOptions
from exactsink_idempotent_upsert.postgres.direct import (
    DirectOptions,
    DirectTicket,
    DirectUpsertCommitter,
    DirectUpsertWriter,
)
from exactsink_idempotent_upsert.postgres.staged import UpsertStagingCommitter, UpsertStagingWriter
from exactsink_idempotent_upsert.postgres.statements import ORDER
from exactsink_idempotent_upsert.table import Table
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.staged import StagedTicket
from exactsink_postgres.validator import RowRules, TableValidator

__all__ = ["PostgresUpserts"]


class PostgresUpserts(Backend):
    """The database's part of an upsert."""

    options: UpsertOptions

    def __init__(self, options: UpsertOptions, table: Table) -> None:
        super().__init__(options)
        self.table = replace(table, name=self._own.name.name, schema=self._own.name.schema)

    @property
    def strategy(self) -> str:
        return self.options.strategy

    @property
    def target(self) -> str:
        return f"{self.options.address}#{self._own.name}"

    @property
    def traits(self) -> Traits:
        if self.table.guarded:
            return Traits(visible_early=True, needs_epoch_order=True, can_lose_votes=True, marks=True)
        # A failover may lose what was voted.
        return Traits(atomic_visibility=True, can_lose_votes=True, marks=True, validates_rows=True)

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        writer, by = self._writer(txn, schema, ticket), self.table.ordered_by
        if by is None or not pa.types.is_floating(schema.field(by).type):
            return writer
        return CheckedWriter(writer, self.table.name, {}, check=partial(check_order, self.table))

    def _writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        given = (DirectTicket if self.table.guarded else StagedTicket).load(ticket)
        if ORDER in {column.name for column in given.columns}:  # `order_by` names no column of the table's
            place = schema.get_field_index(self.table.order_by)
            schema = schema.set(place, schema.field(place).with_name(ORDER))
        if isinstance(given, DirectTicket):
            return DirectUpsertWriter(self._own, self.table, txn, schema, given)
        return UpsertStagingWriter(self._own, txn, schema, ticket)

    def validator(self, schema: pa.Schema, rules: bytes) -> Validator:
        return TableValidator(RowRules.load(rules), schema)

    def committer(self, ctx: JobContext) -> Committer:
        return (DirectUpsertCommitter if self.table.guarded else UpsertStagingCommitter)(self._own, ctx, self.table)

    @cached_property
    def _own(self) -> PostgresOptions:
        options = self.options
        given = {"conninfo": options.url.get_secret_value(), "table": options.table, "strategy": options.strategy}
        more: dict[str, Any] = {"create": options.create, "on_schema_change": options.on_schema_change}
        if options.staging_schema is not None:
            more["staging_schema"] = options.staging_schema
        wait = max(options.busy_timeout_seconds, 0.001)
        kind = DirectOptions if self.strategy == "direct" else PostgresOptions
        return kind.model_validate({**given, **more, "lock_timeout_seconds": wait})
