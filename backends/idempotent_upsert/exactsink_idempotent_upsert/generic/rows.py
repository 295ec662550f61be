"""How rows go in by portable SQL: a temporary table, then DELETE, UPDATE and INSERT of each key's next row."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from exactsink.toolkit.json_columns import plain
from exactsink_idempotent_upsert.table import DELETED, Table

__all__ = ["Rounds", "column_type", "columns_declared", "columns_of", "takes"]

_ROWS = "exactsink_rows"
_POSITION = "exactsink_position"
_AT_ONCE = 1000
_DECLARED = ("table_schema", "table_name", "column_name", "data_type")
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "INT": 32, "BIGINT": 64, "HUGEINT": 128}
_SHORT = ("REAL", "FLOAT")
_DIGITS = re.compile(r"^(?:DECIMAL|NUMERIC)\((\d+), ?(\d+)\)$")
_is = pa.types


class _Exact(sa.Numeric[Any]):
    """A decimal that goes in as it is: SQLAlchemy binds a float where it thinks that a driver takes no decimals."""

    def bind_processor(self, dialect: sa.Dialect) -> Any:
        return None if dialect.supports_native_decimal else lambda value: None if value is None else f"{value:f}"


def column_type(type: pa.DataType, *, key: bool = False) -> sa.types.TypeEngine[Any] | None:
    """Return the column type for values of an Arrow type; None when none takes them without loss."""
    if _is.is_dictionary(type):
        return column_type(type.value_type, key=key)
    if _is.is_decimal(type) and type.scale >= 0:
        return _Exact(type.precision, type.scale)
    if _is.is_uint64(type):
        return _Exact(20, 0)
    kinds: tuple[tuple[Callable[[pa.DataType], bool], sa.types.TypeEngine[Any]], ...] = (
        (_is.is_boolean, sa.Boolean()),
        (_is.is_integer, sa.BigInteger()),
        (_is.is_floating, sa.Double()),
        (_is.is_string, sa.String(255) if key else sa.Text()),
        (_is.is_large_string, sa.String(255) if key else sa.Text()),
        (_is.is_binary, sa.LargeBinary()),
        (_is.is_large_binary, sa.LargeBinary()),
        (_is.is_timestamp, sa.DateTime(timezone=bool(getattr(type, "tz", None)))),
        (_is.is_date, sa.Date()),
        (_is.is_time, sa.Time()),
    )
    return next((kind for fits, kind in kinds if fits(type)), None)


def columns_of(connection: sa.Connection, table: Table) -> list[str]:
    """Name the table's columns: the dialects' reflection is not always up to its database."""
    named = sa.table(table.name, schema=table.schema)
    return list(connection.execute(sa.select(sa.text("*")).select_from(named).where(sa.text("1 = 0"))).keys())


def columns_declared(connection: sa.Connection, table: Table) -> dict[str, str]:
    """Return the columns' types by name in lower case, as the standard's information schema has them, if there is one.

    The dialects' reflection is not always up to its database: DuckDB's fails.
    """
    named = sa.table("columns", *map(sa.column, _DECLARED), schema="information_schema").c
    query = sa.select(named.column_name, named.data_type).where(named.table_name == table.name)
    if table.schema is not None:
        query = query.where(named.table_schema == table.schema)
    try:
        return {row[0].lower(): row[1].upper() for row in connection.execute(query)}
    except sa.exc.DBAPIError:
        return {}


def takes(declared: str, kind: pa.DataType) -> bool:
    """Return whether a column of this type holds all values of an Arrow type as they are; true where it is not known.

    Of a key, or a version, another value is another row.
    """
    name, bits = declared.partition("(")[0], _BITS.get(declared)
    digits = tuple(map(int, found.groups())) if (found := _DIGITS.search(declared)) else None
    if _is.is_boolean(kind) or _is.is_date(kind) or _is.is_time(kind):
        return True
    if _is.is_integer(kind):
        wide = digits is None or digits[0] - digits[1] >= len(str(2**kind.bit_width))
        return wide and (bits is None or bits >= kind.bit_width)
    if _is.is_floating(kind):
        return bits is None and digits is None and not (name in _SHORT and kind.bit_width > 32)
    if _is.is_decimal(kind):
        whole = digits is None or (digits[0] - digits[1] >= kind.precision - kind.scale and digits[1] >= kind.scale)
        return whole and bits is None and name not in (*_SHORT, "DOUBLE", "DOUBLE PRECISION")
    if _is.is_timestamp(kind):
        return name != "DATE" and ("WITH TIME ZONE" in declared) == (kind.tz is not None)
    return bits is None and digits is None


class Rounds:
    """An epoch's rows in a temporary table. A round applies one row of each key, by the database's own equality.

    Where rows of a key go over each other whole, one round is enough: the last row's, or the first one's.
    """

    def __init__(self, connection: sa.Connection, table: Table, schema: pa.Schema) -> None:
        self._connection = connection
        self._table = table
        self._names = table.bound(schema.names)
        self._stored = table.stored(schema.names)
        columns = [sa.Column(name, column_type(schema.field(name).type)) for name in self._names]
        position = sa.Column(_POSITION, sa.BigInteger)
        self._rows = sa.Table(_ROWS, sa.MetaData(), position, *columns, prefixes=["TEMPORARY"])
        self._total = 0
        connection.execute(sa.schema.CreateTable(self._rows))

    def add(self, batch: pa.RecordBatch) -> None:
        columns = [plain(batch.column(name)).to_pylist() for name in self._names]
        numbers = range(self._total, self._total + batch.num_rows)
        rows = [dict(zip((_POSITION, *self._names), row, strict=True)) for row in zip(numbers, *columns, strict=True)]
        for first in range(0, len(rows), _AT_ONCE):
            self._connection.execute(self._rows.insert(), rows[first : first + _AT_ONCE])
        self._total += batch.num_rows

    def apply(self) -> None:
        most, run = 1, self._connection.exec_driver_sql
        if self._one_after_another:
            most = run(f"SELECT max(exactsink_round) FROM ({self._numbered()}) AS numbered").scalar() or 1
        for number in range(1, most + 1):
            rows = f"(SELECT * FROM ({self._numbered()}) AS numbered WHERE exactsink_round = {number})"
            for statement in self._statements(rows):
                run(statement)
        self._rows.drop(self._connection)

    @property
    def _one_after_another(self) -> bool:
        table = self._table
        partial = table.update_columns is not None or table.version is not None
        return bool(table.expressions or table.deletes or partial)

    def _numbered(self) -> str:
        backwards = not self._one_after_another and self._table.mode != "insert_if_absent"
        order = f"{self._quoted(_POSITION)}{' DESC' if backwards else ''}"
        keys = ", ".join(map(self._quoted, self._table.keys))
        return f"SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY {order}) AS exactsink_round FROM {_ROWS}"

    def _statements(self, rows: str) -> Iterator[str]:
        """Return the statements of a round. Its rows are `excluded`, as the expressions call them."""
        table, quoted = self._table, self._quoted
        own = quoted(table.name)
        there = f"{quoted(table.schema)}.{own}" if table.schema else own
        same = " AND ".join(f"{own}.{quoted(key)} = excluded.{quoted(key)}" for key in table.keys)
        if table.version is not None:
            held, given = (f"{row}.{quoted(table.version)}" for row in (own, "excluded"))
            takes = f"{same} AND ({held} IS NULL OR {held} <= {given})"
        else:
            takes = same
        if table.deletes:
            yield f"DELETE FROM {there} WHERE EXISTS (SELECT 1 FROM {rows} AS excluded WHERE {DELETED} AND {takes})"
            rows = f"(SELECT * FROM {rows} AS undeleted WHERE NOT {DELETED})"
        sets = dict(table.expressions) | {name: f"excluded.{quoted(name)}" for name in table.updated(self._stored)}
        values = [f"{quoted(n)} = (SELECT {sql} FROM {rows} AS excluded WHERE {same})" for n, sql in sets.items()]
        values += [f"{quoted(name)} = DEFAULT" for name in self._rest()]
        if values:
            yield (
                f"UPDATE {there} SET {', '.join(values)} WHERE EXISTS (SELECT 1 FROM {rows} AS excluded WHERE {takes})"
            )
        names = ", ".join(map(quoted, self._stored))
        absent = f"NOT EXISTS (SELECT 1 FROM {there} WHERE {same})"
        yield f"INSERT INTO {there} ({names}) SELECT {names} FROM {rows} AS excluded WHERE {absent}"

    def _rest(self) -> list[str]:
        """Name the columns that mode replace sets to their default."""
        if self._table.mode != "replace":
            return []
        brought = {name.lower() for name in self._stored}
        there = columns_of(self._connection, self._table)
        return [name for name in there if name.lower() not in brought]

    def _quoted(self, name: str) -> str:
        preparer = self._connection.dialect.identifier_preparer
        return preparer.quote_identifier(name)
