"""The part of a file backend that does not depend on the store."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from exactsink.contract import Backend, Fatal, Finding, Txn, Validator
from exactsink.toolkit.tabular.lines import errors, problems, shape
from exactsink.toolkit.tabular.options import TabularOptions
from exactsink.toolkit.tabular.parts import check_batch
from exactsink.toolkit.tabular.tables import TableValidator

__all__ = ["TabularBackend"]


class TabularBackend(Backend):
    """Write rows as files; a subclass chooses the store.

    Its `writer` calls `check_rows` first, and `refuse_bad_rows` before it gives a batch to its `Parts`.
    """

    options: TabularOptions

    def shape(self, schema: pa.Schema) -> list[str] | None:
        """Let the JVM make the lines of text formats, then the partition columns. Raises ConfigError if SQL can't."""
        return shape(self.options, schema)

    def shape_in_task(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Leave texts and integers unchanged, because JSON lines and Parquet need the JVM only for other types."""
        return super().shape_in_task(rows) if self.options.format == "csv" else rows

    def problems(self, schema: pa.Schema) -> list[Finding]:
        """Find why rows of the shaped `schema` can't be written as the options require."""
        return problems(self.options, schema)

    def check_rows(self, txn: Txn, schema: pa.Schema) -> None:
        """Raise Fatal, in the task, for rows that can't be written as the options require."""
        for found in errors(self.problems(schema)):
            raise Fatal(f"sink {txn.sink}: {found.message}", next=found.fix)

    def validator(self, schema: pa.Schema, rules: bytes) -> Validator:
        """Judge rows as `check_batch` does, which a writer calls."""
        return TableValidator(schema, partial(check_batch, self.options))
