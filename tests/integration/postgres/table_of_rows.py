"""A table on the real server for rows of the tests: made, filled through the encoder, read back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psycopg
import pyarrow as pa

from exactsink_postgres.commands import TableName, quoted
from exactsink_postgres.encoder import RowEncoder
from exactsink_postgres.tables import Table, chosen_columns, problems, read_table

__all__ = ["encoder", "filled", "made", "pieces", "read", "round_trip"]


def made(connection: psycopg.Connection, columns: Mapping[str, str]) -> Table:
    """Make table `t` anew; `place` numbers the rows as they came."""
    connection.execute("DROP TABLE IF EXISTS t")
    listed = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
    connection.execute(f"CREATE TABLE t ({listed}, place bigserial)".encode())
    table = read_table(connection, TableName(None, "t"))
    assert table is not None
    return table


def encoder(table: Table, schema: pa.Schema) -> RowEncoder:
    assert [found for found in problems(table, schema) if found.severity == "error"] == []
    return RowEncoder(str(table), schema, chosen_columns(table, schema))


def filled(connection: psycopg.Connection, table: Table, batches: Sequence[pa.RecordBatch]) -> None:
    rows = encoder(table, batches[0].schema)
    names = ", ".join(map(quoted, rows.names))
    with connection.cursor().copy(f"COPY {table.sql} ({names}) FROM STDIN WITH (FORMAT binary)".encode()) as copy:
        copy.write(rows.header())
        for batch in batches:
            copy.write(rows.encode(batch))
        copy.write(rows.finish())


def read(connection: psycopg.Connection, what: Iterable[str]) -> list[tuple[Any, ...]]:
    cursor = connection.cursor(binary=True)
    return cursor.execute(f"SELECT {', '.join(what)} FROM t ORDER BY place".encode()).fetchall()


def pieces(values: pa.Array) -> list[pa.Array]:
    """Return values as they are, none of them, and the same again from the middle of an array."""
    around = pa.concat_arrays([values[-2:], values, values[:3]])
    return [values, values[:0], around.slice(len(values[-2:]), len(values))]


def round_trip(connection: psycopg.Connection, kind: str, values: pa.Array, what: str = "c") -> list[Any]:
    """Send values as three batches into a column of a type; give what the first and the last became, which is equal."""
    table = made(connection, {"c": kind})
    filled(connection, table, [pa.record_batch({"c": piece}) for piece in pieces(values)])
    stored = [value for (value,) in read(connection, [what])]
    assert len(stored) == 2 * len(values)
    assert repr(stored[: len(values)]) == repr(stored[len(values) :])
    return stored[: len(values)]
