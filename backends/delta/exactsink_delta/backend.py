"""The `delta` backend: its traits, and the parts of it that executors use."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from exactsink.contract import Backend, Committer, JobContext, Traits, Txn, Validator, Writer
from exactsink.toolkit.storage import path_of
from exactsink.toolkit.tabular.tables import TableValidator
from exactsink_delta.committer import DeltaCommitter
from exactsink_delta.options import DeltaOptions
from exactsink_delta.writer import DeltaWriter, fit_for

__all__ = ["DeltaBackend", "DeltaOptions"]


class DeltaBackend(Backend):
    """Write rows to a Delta table. Executors get the options, but no open table."""

    Options = DeltaOptions
    options: DeltaOptions

    @property
    def strategy(self) -> str:
        return "append" if self.options.mode == "append" else "overwrite"

    @property
    def target(self) -> str:
        return f"delta:{self.options.path}"

    @property
    def traits(self) -> Traits:
        """Return traits: a VACUUM may delete files that wait for their commit."""
        appends = self.options.mode == "append"
        given = Traits(atomic_visibility=True, can_lose_votes=True, marks=True, validates_rows=True)
        return replace(given, appends=appends, batch_only=not appends)

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return DeltaWriter(path_of(self.options.path), txn, pa.ipc.read_schema(pa.py_buffer(ticket)))

    def validator(self, schema: pa.Schema, rules: bytes) -> Validator:
        return TableValidator(schema, fit_for(pa.ipc.read_schema(pa.py_buffer(rules))))

    def committer(self, ctx: JobContext) -> Committer:
        return DeltaCommitter(self.options, ctx)
