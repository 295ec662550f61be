"""An epoch's rows as a database applies them at once: from a temporary table, in their order, separately for each key.

Only a key's rows after its last delete count. With `version`, their order is that of the versions. So if a newer row in
the table makes a delete ineffective, no earlier row of that key could have been applied either. Executors import this
module.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.toolkit.json_columns import plain
from exactsink_idempotent_upsert.database import Database, Held, Session
from exactsink_idempotent_upsert.limits import without_views
from exactsink_idempotent_upsert.table import DELETED, Table

__all__ = ["POSITION", "ROWS", "FinalRows", "Spool", "in_order", "numbered"]

ROWS = "exactsink_rows"
"""The temporary table of an epoch's rows. Its columns have the types and collations of the table's."""

POSITION = "exactsink_position"
_GONE = "exactsink_gone"
_AT_ONCE = 10_000  # rows


@dataclass(frozen=True, slots=True)
class FinalRows:
    """Queries for rows of the temporary table. Their keys are the columns `keys`, by their names in SQL."""

    keys: str
    deletes: bool

    def gone(self) -> str:
        """Return a query for each key's last delete."""
        return f"SELECT * FROM ({self._marked}) AS exactsink_marked WHERE {POSITION} = {_GONE}"

    def left(self) -> str:
        """Return a query for the rows that no later delete of their key makes void."""
        if not self.deletes:
            return f"SELECT * FROM {ROWS}"
        return f"SELECT * FROM ({self._marked}) AS exactsink_marked WHERE {POSITION} > {_GONE}"

    @property
    def _marked(self) -> str:
        last = f"max(CASE WHEN {DELETED} THEN {POSITION} ELSE -1 END) OVER (PARTITION BY {self.keys})"
        return f"SELECT {ROWS}.*, {last} AS {_GONE} FROM {ROWS}"


def numbered(table: Table, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add rows' positions.

    A row that deletes keeps only its identifying columns, because the others need fit no column.
    """
    total = 0
    for batch in batches:
        columns = {name: without_views(plain(batch.column(name))) for name in table.bound(batch.schema.names)}
        for name in columns if table.deletes else ():
            if name not in (*table.keys, table.version, DELETED):
                columns[name] = pc.if_else(columns[DELETED], pa.scalar(None, columns[name].type), columns[name])
        positions = pa.array(range(total, total + batch.num_rows), pa.int64())
        yield pa.RecordBatch.from_pydict({POSITION: positions, **columns})
        total += batch.num_rows


class Spool(Held):
    """Rows in a temporary file of this process alone."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._file = tempfile.TemporaryFile(prefix="exactsink-")  # noqa: SIM115 - closed by close
        self._stream: pa.ipc.RecordBatchStreamWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        if self._stream is None:
            self._stream = pa.ipc.new_stream(pa.PythonFile(self._file, mode="w"), batch.schema)
        self._stream.write_batch(batch)
        self.total += batch.num_rows

    def transaction(self) -> AbstractContextManager[Session]:
        return self._database.transaction()

    def read(self) -> Iterator[pa.RecordBatch]:
        """Return the rows in their order of arrival."""
        if self._stream is None:
            return
        self._stream.close()
        self._file.seek(0)
        yield from pa.ipc.open_stream(self._file)

    def table(self) -> pa.Table:
        """Return all rows, over the file's pages rather than in memory."""
        assert self._stream is not None
        self._stream.close()
        self._file.flush()
        return pa.ipc.open_stream(pa.memory_map(f"/proc/self/fd/{self._file.fileno()}")).read_all()

    def close(self) -> None:
        self._file.close()


def in_order(database: Database, table: Table, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return rows in the order in which they apply: as they arrive, or from the least to the greatest.

    If each row of an epoch replaces the one before it, and the first must stay, the order is reversed.
    """
    backwards = table.guarded and table.mode == "insert_if_absent"
    if table.ordered_by is None and not backwards:
        yield from batches
        return
    spool = Spool(database)
    try:
        for batch in batches:
            columns = [without_views(plain(column)) for column in batch.columns]
            spool.add(pa.RecordBatch.from_arrays(columns, names=batch.schema.names))
        if spool.total:
            rows = spool.table()
            order = _order(rows, table.ordered_by)
            order = order.take(pa.array(range(len(rows) - 1, -1, -1))) if backwards else order
            for first in range(0, len(order), _AT_ONCE):
                taken = order.slice(first, _AT_ONCE)
                yield from rows.take(taken).combine_chunks().to_batches()
    finally:
        spool.close()


def _order(rows: pa.Table, ordered_by: str | None) -> pa.Array:
    if ordered_by is None:
        return pa.array(range(len(rows)), pa.uint64())
    by = rows[ordered_by]
    by = by.cast(pa.float64()) if pa.types.is_float16(by.type) else by  # Arrow sorts no halves
    known = pc.invert(pc.is_null(by, nan_is_null=True))  # NULL is the lowest
    ranked = pa.table({"known": known, "by": by})
    return pc.sort_indices(ranked, sort_keys=[("known", "ascending"), ("by", "ascending")])  # stable
