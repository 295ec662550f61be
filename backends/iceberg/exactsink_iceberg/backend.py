"""The `iceberg` backend: its traits, and the parts of it that executors use."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from exactsink.contract import Backend, Committer, JobContext, Traits, Txn, Validator, Writer
from exactsink.toolkit.tabular.tables import TableValidator
from exactsink_iceberg.committer import IcebergCommitter
from exactsink_iceberg.options import IcebergOptions
from exactsink_iceberg.writer import IcebergWriter, Ticket, fit_for

__all__ = ["IcebergBackend", "IcebergOptions"]


class IcebergBackend(Backend):
    """Write rows to an Iceberg table. Executors get the options, but no open table."""

    Options = IcebergOptions
    options: IcebergOptions

    @property
    def strategy(self) -> str:
        return "append" if self.options.mode == "append" else "overwrite"

    @property
    def target(self) -> str:
        branch = "" if self.options.branch == "main" else f":{self.options.branch}"
        return f"iceberg:{self.options.warehouse}:{self.options.catalog}:{self.options.table}{branch}"

    @property
    def traits(self) -> Traits:
        """Return traits: a removal of orphan files may delete files that wait for their commit."""
        appends = self.options.mode == "append"
        given = Traits(atomic_visibility=True, can_lose_votes=True, marks=True, validates_rows=True)
        return replace(given, appends=appends, batch_only=not appends)

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return IcebergWriter(txn, Ticket.model_validate_json(ticket))

    def validator(self, schema: pa.Schema, rules: bytes) -> Validator:
        return TableValidator(schema, fit_for(Ticket.model_validate_json(rules)))

    def committer(self, ctx: JobContext) -> Committer:
        return IcebergCommitter(self.options, ctx)
