"""A table of SQLite and the Arrow rows for it: types, values and statements.

Text keeps order: timestamps and dates are ISO 8601 of a fixed width (UTC where the type has a zone), so that text
order is time order. Decimals are plain decimal text, of which no digit is lost. SQLite has no NaN: it becomes NULL.
Executors import this module: SQLAlchemy only where the driver calls.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.toolkit.json_columns import plain
from exactsink.toolkit.sql import quoted

__all__ = [
    "DELETED",
    "GUARD",
    "HeldRows",
    "Table",
    "column_type",
    "create_table",
    "insert",
    "sort_values",
    "stored_values",
    "unstorable",
]

DELETED = "exactsink_delete"
"""The column of staged rows that says whether a row deletes its key's row. It is never stored."""

GUARD = ("exactsink_epoch", "exactsink_generation")
"""The columns of a table that tasks write to directly: whose write a row is, so that no older one goes over it."""

_STORED = {
    "BOOLEAN": ["boolean"],
    "BIGINT": ["integer"],
    "DOUBLE": ["floating"],
    "TEXT": ["string", "large_string", "string_view", "decimal", "timestamp", "date", "time"],
    "BLOB": ["binary", "large_binary", "binary_view", "fixed_size_binary"],
}
_MOST_VALUES = 900  # bound in one statement; every build of SQLite takes 999
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400
_FIRST, _END = -719_162 * _DAY, 2_932_897 * _DAY  # the years 1 to 9999: outside them ISO text loses its width


@dataclass(frozen=True)
class Table:
    """One table as the options want it, and the statements for it.

    `exclude` names columns of the rows that are not stored; `deletes` says that rows bring the column DELETED;
    `guarded` that the table has the columns GUARD. `update_columns` are None where all but the keys are set;
    `expressions` are SQL by column, for a row whose key is there.
    """

    name: str
    keys: tuple[str, ...]
    order_by: str | None
    create: bool
    exclude: tuple[str, ...] = ()
    deletes: bool = False
    guarded: bool = False
    schema: str | None = None
    mode: Literal["upsert", "insert_if_absent", "replace"] = "upsert"
    update_columns: tuple[str, ...] | None = None
    expressions: tuple[tuple[str, str], ...] = ()
    version: str | None = None
    add_columns: bool = False

    @property
    def ordered_by(self) -> str | None:
        """The column by which rows of one epoch are taken; None for the order in which they come."""
        return self.version or self.order_by

    def updated(self, names: Iterable[str]) -> list[str]:
        """Name the columns of the rows that are set where the key is there; `expressions` have their own."""
        if self.mode == "insert_if_absent":
            return []
        own = {*self.keys, *dict(self.expressions)}
        some = None if self.update_columns is None else {*self.update_columns, self.version, *GUARD}
        return [name for name in names if name not in own and (some is None or name in some)]

    def stored(self, names: Iterable[str]) -> list[str]:
        """Name the columns of the rows that the table holds."""
        return [name for name in names if name not in self.exclude and not (self.deletes and name == DELETED)]

    def bound(self, names: Iterable[str]) -> list[str]:
        """Name the columns whose values go in: those stored, and at the end whether the row deletes."""
        return [*self.stored(names), *([DELETED] if self.deletes else [])]

    def created_for(self, schema: pa.Schema) -> str:
        """Return the statement that makes the table for a frame, of types that preflight let pass."""
        columns = {name: column_type(schema.field(name).type) or "NullType" for name in self.stored(schema.names)}
        guard = dict.fromkeys(GUARD, "BIGINT") if self.guarded else {}
        return create_table(self.name, {**columns, **guard}, self.keys)

    def with_column(self, name: str, kind: str | None) -> str:
        return f"ALTER TABLE {quoted(self.name)} ADD COLUMN {quoted(name)} {kind};"

    def with_unique_keys(self) -> str:
        """Return the statement that makes the keys an upsert's conflict target."""
        name = quoted("_".join(("exactsink", self.name, *self.keys)))
        return f"CREATE UNIQUE INDEX {name} ON {quoted(self.name)} ({_listed(self.keys)});"

    def upsert(self, columns: Sequence[str], rows: str = "") -> str:
        """Return the INSERT .. ON CONFLICT for a row that is bound, or for `rows`: VALUES of several, or a SELECT.

        The table is named with its schema: a temporary table of the same name must not take its place. In a guarded
        table `columns` end with GUARD, and a row stays as it is when a later epoch or generation wrote it.
        """
        rows = rows or f"VALUES {_bound(len(columns))}"
        others = [name for name in columns if name not in self.keys]
        assignments = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in others)
        action = f"DO UPDATE SET {assignments}" if others else "DO NOTHING"
        into = f"main.{quoted(self.name)} AS held ({_listed(columns)})"
        return f"INSERT INTO {into} {rows} ON CONFLICT ({_listed(self.keys)}) {action}{self._guard()}"

    def _guard(self) -> str:
        if not self.guarded:
            return ""
        held, given = (", ".join(f"{row}.{name}" for name in GUARD) for row in ("held", "excluded"))
        return f" WHERE held.{GUARD[0]} IS NULL OR ({held}) <= ({given})"

    def by_key(self, what: str, collations: Mapping[str, str]) -> str:
        """Return `what` (DELETE, SELECT 1) for one key's row; `collations` are those by which an upsert meets it."""
        equal = (f"{quoted(key)} = ? COLLATE {quoted(collations.get(key.lower(), 'BINARY'))}" for key in self.keys)
        return f"{what} FROM main.{quoted(self.name)} WHERE {' AND '.join(equal)}"


class HeldRows:
    """Rows in a temporary table of the connection, to be read in the order in which they apply.

    The table has no declared types, so it keeps values as they are, and ends with the connection.
    """

    def __init__(self, connection: sqlite3.Connection, table: Table) -> None:
        self._connection = connection
        self._table = table
        self.names: list[str] = []
        self.total = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if not self.names:
            self.names = self._table.bound(batch.schema.names)
            held = ", ".join(f"c{i}" for i in range(len(self.names)))
            self._connection.execute(f"CREATE TEMP TABLE exactsink_rows (position INTEGER PRIMARY KEY, {held}, rank)")
        columns = [stored_values(batch.column(name)) for name in self.names]
        order_by = self._table.order_by
        columns.append([None] * batch.num_rows if order_by is None else sort_values(batch.column(order_by)))
        values = f"(NULL, {', '.join('?' * len(columns))})"
        self._connection.executemany(f"INSERT INTO temp.exactsink_rows VALUES {values}", zip(*columns, strict=True))
        self.total += batch.num_rows

    def select(self, more: str = "") -> str:
        held = ", ".join(f"c{i}" for i in range(len(self.names)))
        order = "position" if self._table.order_by is None else "rank, position"
        return f"SELECT {held}{more} FROM temp.exactsink_rows WHERE true ORDER BY {order}"


def insert(connection: sqlite3.Connection, statement: Callable[[str], str], columns: Sequence[Sequence[Any]]) -> int:
    """Insert rows, given as columns, in their order; return how many the table took.

    `statement` gets VALUES of as many rows as it is to insert: new ones in one take half the time of one in each.
    """
    width, total = len(columns), len(columns[0])
    values: list[Any] = [None] * (width * total)  # row after row
    for place, column in enumerate(columns):
        values[place::width] = column
    most, taken = max(1, _MOST_VALUES // width), 0
    size, full = most * width, total // most * most
    if full:
        each = (values[first : first + size] for first in range(0, full * width, size))
        taken = connection.executemany(statement(_several(width, most)), each).rowcount
    if full < total:
        taken += connection.execute(statement(_several(width, total - full)), values[full * width :]).rowcount
    return taken


def create_table(table: str, columns: Mapping[str, str], keys: Sequence[str]) -> str:
    """Return the CREATE TABLE IF NOT EXISTS for columns and their types, with the keys as primary key."""
    import sqlalchemy as sa
    from sqlalchemy.dialects import sqlite

    made = [sa.Column(name, getattr(sa.types, kind), primary_key=name in keys) for name, kind in columns.items()]
    statement = sa.schema.CreateTable(sa.Table(table, sa.MetaData(), *made), if_not_exists=True)
    return str(statement.compile(dialect=sqlite.dialect())).strip()


def column_type(type: pa.DataType) -> str | None:
    """Name the column type for values of an Arrow type; None when SQLite can't take them without loss."""
    if pa.types.is_dictionary(type):
        return column_type(type.value_type)
    if pa.types.is_uint64(type):
        return None
    fitting = (name for name, kinds in _STORED.items() if any(getattr(pa.types, f"is_{kind}")(type) for kind in kinds))
    return next(fitting, None)


def stored_values(column: pa.Array) -> list[Any]:
    """Return a column's values as Python values that sqlite3 binds."""
    column = plain(column)
    kind = column.type
    if pa.types.is_floating(kind):
        column = column.cast(pa.float64())
    elif pa.types.is_timestamp(kind):
        column = _iso(column)
    elif pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_decimal(kind):
        column = column.cast(pa.string())
    values: list[Any] = column.to_pylist()
    if pa.types.is_decimal(kind):
        return [format(Decimal(v), "f") if v and "E" in v else v for v in values]
    return values


def sort_values(column: pa.Array) -> list[Any]:
    """Return values which SQLite orders as the column's own are ordered, NULL (and NaN) lowest.

    Only decimals differ from what is stored: their text is no order, so they become zero-padded numerals, moved so
    far up that none is negative.
    """
    values = stored_values(column)
    kind = plain(column).type
    if not pa.types.is_decimal(kind):
        return values
    digits = kind.precision + max(0, -kind.scale)
    return [None if v is None else f"{int(v.replace('.', '')) + 10**digits:0{digits + 1}d}" for v in values]


def unstorable(batch: pa.RecordBatch) -> str | None:
    """Return which value of a batch could not be stored as it is; None when all can."""
    try:
        batch.validate(full=True)  # broken UTF-8, which Spark lets through, or digits that the type doesn't have
    except pa.ArrowInvalid as error:
        return str(error)
    for name, column in zip(batch.schema.names, map(plain, batch.columns), strict=True):
        if column_type(column.type) is None:
            return f"column {name} is of type {column.type}, which SQLite can't hold"
        if _outside_years(column):
            return f"column {name} has a value outside the years 1 to 9999"
    return None


def _outside_years(column: pa.Array) -> bool:
    """Return whether a date or timestamp can't be shown as ISO text of a fixed width."""
    kind = column.type
    if pa.types.is_date32(kind):
        first, end = _FIRST // _DAY, _END // _DAY
    elif pa.types.is_date64(kind) or pa.types.is_timestamp(kind):
        unit = _PER_SECOND["ms" if pa.types.is_date64(kind) else kind.unit]
        first, end = _FIRST * unit, _END * unit
    else:
        return False
    extremes = pc.min_max(column)
    least, greatest = extremes["min"].value, extremes["max"].value
    return least is not None and not first <= least <= greatest < end


def _iso(column: pa.Array) -> pa.Array:
    """Write timestamps as `YYYY-MM-DDTHH:MM:SS.ffffff`, nine digits for nanoseconds, with Z where there is a zone."""
    unit = "ns" if column.type.unit == "ns" else "us"
    zone = "UTC" if column.type.tz else None
    text = column.cast(pa.timestamp(unit, tz=column.type.tz)).cast(pa.timestamp(unit, tz=zone)).cast(pa.string())
    return pc.replace_substring(text, " ", "T", max_replacements=1)


def _several(width: int, rows: int) -> str:
    return f"VALUES {', '.join([_bound(width)] * rows)}"


def _bound(width: int) -> str:
    return f"({', '.join('?' * width)})"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))
