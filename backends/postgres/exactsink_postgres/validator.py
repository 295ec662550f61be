"""Find rows that a table can't hold, as far as its columns show it. Only the writer finds the other bad rows.

Those break CHECKs, unique keys, foreign keys or triggers, have a wrong enum label or invalid JSON, or a text that only
the server's own input function can judge. Executors import this module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pydantic import TypeAdapter

from exactsink.contract import BatchValidator, Fatal
from exactsink.toolkit.json_columns import plain
from exactsink_postgres.encoder import RowEncoder
from exactsink_postgres.type_mapping import Column

__all__ = ["RowRules", "TableValidator"]


@dataclass(frozen=True, slots=True)
class RowRules:
    """The columns that rows go into, each with the name that it has in the rows."""

    table: str
    columns: dict[str, Column]

    def dump(self) -> bytes:
        return TypeAdapter(RowRules).dump_json(self)

    @classmethod
    def load(cls, rules: bytes) -> RowRules:
        return TypeAdapter(RowRules).validate_json(rules)


class TableValidator(BatchValidator):
    """Judge rows by the encoder's checks, by NOT NULL, and by a check that raises Fatal."""

    def __init__(
        self, rules: RowRules, schema: pa.Schema, check: Callable[[pa.RecordBatch], None] = lambda batch: None
    ) -> None:
        judged = pa.schema([field for field in schema if field.name in rules.columns])
        self._encoder = RowEncoder(rules.table, judged, [rules.columns[name] for name in judged.names])
        self._names, self._rules, self._more = judged.names, rules, check
        super().__init__(self._refusal, schema)

    def _refusal(self, batch: pa.RecordBatch) -> str | None:
        for name in self._names:
            column = self._rules.columns[name]
            if column.not_null and plain(batch.column(name)).null_count:
                return f"table {self._rules.table}, column {column.name}: it is NOT NULL, and the row has NULL"
        try:
            self._more(batch)
            self._encoder.check(batch.select(self._names))
        except Fatal as refusal:
            return f"{refusal.what}: {refusal.why}"
        return None
