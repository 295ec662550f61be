"""Portable SQL: columns for Arrow values, and the statements for an epoch's rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from exactsink_idempotent_upsert.limits import family
from exactsink_idempotent_upsert.setwise import POSITION, ROWS, FinalRows
from exactsink_idempotent_upsert.table import DELETED, Table

__all__ = ["EpochRows", "column_type", "columns_of", "takes"]

_TURN = "exactsink_turn"
_TURNS, _STATES, _CHOSEN = "exactsink_turns", "exactsink_states", "exactsink_chosen"
_AT_ONCE = 1000
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "INT": 32, "BIGINT": 64, "HUGEINT": 128}
_SHORT = ("REAL", "FLOAT")
_DIGITS = re.compile(r"^(?:DECIMAL|NUMERIC)\((\d+), ?(\d+)\)$")
_is = pa.types


class _Exact(sa.Numeric[Any]):
    """A decimal that is bound exactly. SQLAlchemy would bind a float if it thinks that a driver accepts no decimals."""

    def bind_processor(self, dialect: sa.Dialect) -> Any:
        return None if dialect.supports_native_decimal else lambda value: None if value is None else f"{value:f}"


_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    "boolean": sa.Boolean(),
    "unsigned": _Exact(20, 0),
    "whole": sa.BigInteger(),
    "float": sa.Double(),
    "text": sa.Text(),
    "bytes": sa.LargeBinary(),
    "date": sa.Date(),
    "time": sa.Time(),
}


def column_type(type: pa.DataType, *, key: bool = False) -> sa.types.TypeEngine[Any] | None:
    """Return the column type for values of an Arrow type; None when none takes them without loss."""
    if _is.is_dictionary(type):
        return column_type(type.value_type, key=key)
    of = family(type)
    if of == "decimal":
        return _Exact(type.precision, type.scale) if type.scale >= 0 else None
    if of == "timestamp":
        return sa.DateTime(timezone=type.tz is not None)
    return sa.String(255) if key and of == "text" else _TYPES.get(of)


def columns_of(connection: sa.Connection, table: Table) -> list[str]:
    """Name the table's columns: the dialects' reflection is not always up to its database."""
    named = sa.table(table.name, schema=table.schema)
    return list(connection.execute(sa.select(sa.text("*")).select_from(named).where(sa.text("1 = 0"))).keys())


def takes(declared: str, kind: pa.DataType) -> bool:
    """Return whether a column of this type holds all values of an Arrow type exactly; true if that is unknown.

    In a key or a version, a changed value would mean another row.
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


class EpochRows:
    """An epoch's rows in a temporary table, and the statements by which they go in: as many for each epoch.

    `rest` are the columns that mode replace sets to their default.
    """

    def __init__(self, connection: sa.Connection, table: Table, schema: pa.Schema, rest: Iterable[str] = ()) -> None:
        self._connection = connection
        self._table = table
        self._stored = [name for name in table.stored(schema.names) if name != POSITION]
        self._rest = list(rest)
        self._kept: list[str] = []
        self._there = columns_of(connection, table)
        self._own = self._quoted(table.name)
        self._name = f"{self._quoted(table.schema)}.{self._own}" if table.schema else self._own
        kinds: dict[str, Any] = {name: column_type(schema.field(name).type) for name in self._stored}
        flag = {DELETED: sa.Boolean()} if table.deletes else {}
        columns = {POSITION: sa.BigInteger(), **kinds, **flag}
        self._rows = sa.table(ROWS, *(sa.Column(name, kind) for name, kind in columns.items()))
        own = [f"CAST(0 AS {self._kind(sa.BigInteger())}) AS {POSITION}", *map(self._quoted, self._stored)]
        own += [f"CAST(NULL AS {self._kind(kind)}) AS {name}" for name, kind in flag.items()]
        self._keep(ROWS, f"SELECT {', '.join(own)} FROM {self._name} WHERE 1 = 0")

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep rows that have positions."""
        names = batch.schema.names
        rows = [dict(zip(names, row, strict=True)) for row in zip(*batch.to_pydict().values(), strict=True)]
        for first in range(0, len(rows), _AT_ONCE):
            self._connection.execute(self._rows.insert(), rows[first : first + _AT_ONCE])

    def apply(self) -> None:
        """Delete the row of each key whose rows include a delete, so that the rows after the delete can be inserted."""
        table, same, chosen = self._table, self._same, FinalRows(self._keys, self._table.deletes)
        if table.deletes:
            takes = f"WHERE {same}{f' AND {self._takes}' if table.version else ''}"
            self._run(f"DELETE FROM {self._name} WHERE EXISTS (SELECT 1 FROM ({chosen.gone()}) AS excluded {takes})")
        if table.expressions or table.update_columns is not None:
            self._fold(chosen.left())
        else:
            way = "" if table.mode == "insert_if_absent" else " DESC"
            turn = f"row_number() OVER (PARTITION BY {self._keys} ORDER BY {POSITION}{way})"
            turns = f"SELECT exactsink_came.*, {turn} AS {_TURN} FROM ({chosen.left()}) AS exactsink_came"
            self._keep(_CHOSEN, f"SELECT * FROM ({turns}) AS exactsink_numbered WHERE {_TURN} = 1")
            self._update([f"{self._quoted(name)} = DEFAULT" for name in self._rest])
            absent = f"NOT EXISTS (SELECT 1 FROM {self._name} WHERE {same})"
            self._run(f"{self._insert} FROM {_CHOSEN} AS excluded WHERE {absent}")
        for name in self._kept:
            self._run(f"DROP TABLE {name}")

    def compares_bytes(self, name: str) -> bool:
        """Return whether the table compares a column's texts by their bytes, as rows are taken. Only without rows."""
        self._connection.execute(self._rows.insert(), [{name: "B"}, {name: "\u00e4"}])
        outside = sa.or_(self._rows.c[name] < sa.literal("a"), self._rows.c[name] > sa.literal("z"))
        query = sa.select(sa.func.count()).select_from(self._rows).where(outside)
        return self._connection.execute(query).scalar() == 2

    def _fold(self, rows: str) -> None:
        """Apply each key's rows in turn, if all of them count, outside the table. Only the result goes into the table.

        A key that does not exist yet starts with its first row. Each next state has the columns' own types, as the
        query for the first state has them.
        """
        same = self._same
        there = f"EXISTS (SELECT 1 FROM {self._name} WHERE {same})"
        turn = f"row_number() OVER (PARTITION BY {self._keys} ORDER BY {POSITION})"
        turn += f" - CASE WHEN {there} THEN 0 ELSE 1 END"
        self._keep(_TURNS, f"SELECT excluded.*, {turn} AS {_TURN} FROM ({rows}) AS excluded")
        self._run(f"{self._insert} FROM {_TURNS} AS excluded WHERE {_TURN} = 0")
        sets = {name.lower(): sql for name, sql in self._sets.items()}
        values = (self._next(name, sets.get(name.lower())) for name in self._there)
        follows = f"{same} AND excluded.{_TURN} = {self._own}.{_TURN} + 1"
        named = ", ".join(map(self._quoted, self._there))
        self._keep(
            _CHOSEN,
            f"WITH RECURSIVE {_STATES} ({_TURN}, {named}) AS ("
            f"SELECT CAST(0 AS {self._kind(sa.BigInteger())}), {named} FROM {self._name}"
            f" WHERE EXISTS (SELECT 1 FROM {_TURNS} AS excluded WHERE {same})"
            f" UNION ALL SELECT excluded.{_TURN}, {', '.join(values)} FROM {_STATES} AS {self._own}"
            f" JOIN {_TURNS} AS excluded ON {follows}) SELECT {self._own}.* FROM {_STATES} AS {self._own}"
            f" WHERE NOT EXISTS (SELECT 1 FROM {_TURNS} AS excluded WHERE {follows})",
        )
        self._update([])

    def _next(self, name: str, value: str | None) -> str:
        """Return the next value of a column, after a row, from the state before it."""
        held = f"{self._own}.{self._quoted(name)}"
        if value is None or self._table.version is None:
            return f"({value})" if value else held
        return f"CASE WHEN {self._takes} THEN {value} ELSE {held} END"

    def _update(self, more: Sequence[str]) -> None:
        """Update existing keys with the values of the chosen rows."""
        took = f"FROM {_CHOSEN} AS excluded WHERE {self._same}"
        names = self._sets
        values = [f"{self._quoted(n)} = (SELECT excluded.{self._quoted(n)} {took})" for n in names] + [*more]
        if values:
            takes = f" AND {self._takes}" if self._table.version else ""
            self._run(f"UPDATE {self._name} SET {', '.join(values)} WHERE EXISTS (SELECT 1 {took}{takes})")

    @property
    def _sets(self) -> dict[str, str]:
        """The values to set if the key exists, by column. `excluded` is the incoming row."""
        table = self._table
        brought = {name: f"excluded.{self._quoted(name)}" for name in table.updated(self._stored)}
        return brought | dict(table.expressions)

    @property
    def _insert(self) -> str:
        names = ", ".join(map(self._quoted, self._stored))
        return f"INSERT INTO {self._name} ({names}) SELECT {names}"

    @property
    def _keys(self) -> str:
        return ", ".join(map(self._quoted, self._table.keys))

    @property
    def _same(self) -> str:
        return " AND ".join(f"{self._own}.{key} = excluded.{key}" for key in map(self._quoted, self._table.keys))

    @property
    def _takes(self) -> str:
        """The condition that the table has no greater version. NULL is the lowest."""
        held, given = (f"{row}.{self._quoted(self._table.version or '')}" for row in (self._own, "excluded"))
        return f"({held} IS NULL OR {held} <= {given})"

    def _keep(self, name: str, query: str) -> None:
        self._run(f"CREATE TEMPORARY TABLE {name} AS {query}")
        self._kept.append(name)

    def _run(self, statement: str) -> None:
        self._connection.exec_driver_sql(statement)

    def _kind(self, kind: sa.types.TypeEngine[Any]) -> str:
        return kind.compile(self._connection.dialect)

    def _quoted(self, name: str) -> str:
        return self._connection.dialect.identifier_preparer.quote_identifier(name)
