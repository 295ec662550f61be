"""A table that a sink upserts into, in any database, and batches of other columns than it takes.

What the options mean is played in `tests/differential`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from exactsink.contract import Committed, ExactsinkError
from exactsink.testing import Session
from exactsink_idempotent_upsert.table import GUARD

Row = Mapping[str, Any]
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), ("n", pa.int64()), ("o", pa.int64())])
TABLE = "t"
COLUMNS = {"k": "BIGINT PRIMARY KEY", "v": "VARCHAR(40)", "n": "BIGINT", "o": "BIGINT", "d": "BIGINT DEFAULT 7"}
"""The table: `d` is in no row that comes. For strategy direct it has the columns GUARD, too."""


@dataclass(frozen=True)
class Target:
    """A table of a database: `session(options)` is a sink's, of these options.

    `make(columns, rows)` makes the table; `read()` returns its rows, with the columns of COLUMNS in their order.
    """

    session: Callable[[Mapping[str, Any]], Session]
    make: Callable[[Mapping[str, str], Sequence[Row]], None]
    read: Callable[[], list[tuple[Any, ...]]]
    guard: Mapping[str, str] = field(default_factory=lambda: dict.fromkeys(GUARD, "BIGINT"))


def target(sink: Callable[[Mapping[str, Any]], Any], sql: Callable[[str], Any]) -> Target:
    """Return the target of a database for which `sink` makes a sink of these options, and `sql` runs a statement."""

    def make(columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        sql(f"CREATE TABLE {TABLE} ({', '.join(f'{name} {kind}' for name, kind in columns.items())})")
        for row in rows:
            values = ", ".join("NULL" if value is None else repr(value) for value in row.values())
            sql(f"INSERT INTO {TABLE} ({', '.join(row)}) VALUES ({values})")

    made = {"create": False}
    return Target(lambda given: sink({**given, **made}), make, lambda: sql(f"SELECT {', '.join(COLUMNS)} FROM {TABLE}"))


_LATER = {
    "a column more": SCHEMA.append(pa.field("more", pa.int64())),
    "lacks NOT NULL": pa.schema([field for field in SCHEMA if field.name != "n"]),
    "lacks the key": pa.schema([field for field in SCHEMA if field.name != "k"]),
    "lacks the order": pa.schema([field for field in SCHEMA if field.name != "o"]),
    "of a type that it can't hold": SCHEMA.set(1, pa.field("v", pa.list_(pa.int64()))),
}
later_columns = pytest.mark.parametrize("later", _LATER)


def check_later(later: str, target: Target, strategy: str = "staged") -> None:
    """Run an epoch, then another batch has other columns: what could not be applied is refused before the decision."""
    columns = {**COLUMNS, "k": "BIGINT UNIQUE", "n": "BIGINT NOT NULL"}
    target.make(columns | (target.guard if strategy == "direct" else {}), ())
    sink = target.session({"table": TABLE, "keys": ("k",), "order_by": "o", "strategy": strategy})
    row = {"k": 1, "v": "a", "n": 2, "o": 3, "more": 4}

    def rows(schema: pa.Schema) -> pa.Table:
        given = {**row, "v": [5]} if pa.types.is_list(schema.field("v").type) else row
        return pa.Table.from_pylist([given], schema=schema)

    assert sink.commit(1, sink.prepare(1, [rows(SCHEMA)])) == [Committed()]
    with pytest.raises(ExactsinkError) as refused:
        sink.open(2, _LATER[later])
    assert refused.value.next
    assert [table_row[:4] for table_row in target.read()] == [(1, "a", 2, 3)]
    again = sink.prepare(2, [rows(SCHEMA)])
    assert sink.commit(2, again) == [Committed()], "the same batch, as the table takes it"
