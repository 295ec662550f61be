"""Read one table of a MariaDB or MySQL server: columns, indexes, engine, and the limits of columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from exactsink_idempotent_upsert.limits import Limit
from exactsink_idempotent_upsert.table import Table

if TYPE_CHECKING:
    import pymysql

__all__ = ["Catalog", "Column", "code_of"]

_COLUMNS = """
    SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE = 'NO', COLUMN_DEFAULT IS NOT NULL, EXTRA,
        CHARACTER_MAXIMUM_LENGTH, CHARACTER_OCTET_LENGTH, NUMERIC_PRECISION, NUMERIC_SCALE, DATETIME_PRECISION,
        CHARACTER_SET_NAME, COLLATION_NAME, GENERATION_EXPRESSION, COLUMN_KEY = 'PRI', COLUMN_DEFAULT LIKE 'nextval(%%'
    FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = COALESCE(%s, DATABASE()) AND TABLE_NAME = %s
    ORDER BY ORDINAL_POSITION
"""
_INDEXES = """
    SELECT INDEX_NAME, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS
    WHERE TABLE_SCHEMA = COALESCE(%s, DATABASE()) AND TABLE_NAME = %s AND NON_UNIQUE = 0
    ORDER BY INDEX_NAME, SEQ_IN_INDEX
"""
_TABLE = """
    SELECT TABLE_TYPE, ENGINE, (SELECT TRANSACTIONS FROM information_schema.ENGINES AS e WHERE e.ENGINE = t.ENGINE)
    FROM information_schema.TABLES AS t WHERE TABLE_SCHEMA = COALESCE(%s, DATABASE()) AND TABLE_NAME = %s
"""
_WHOLE = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_TIMES = ("datetime", "timestamp", "time")
_LAST_TIMESTAMP = 2**31 - 1
_ROOM = 512 * 1024  # bytes of a packet for the parts of a statement beside one row


def code_of(error: Exception) -> int:
    """Return the server's or the driver's number; that of a lost connection where it has none."""
    code = error.args[0] if error.args else 0
    return code if isinstance(code, int) and code else 2013


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `kind` is its type's name, `declared` the type as the table's statement has it."""

    name: str
    kind: str
    declared: str
    required: bool
    default: bool
    extra: str
    characters: int | None
    bytes: int | None
    precision: int | None
    scale: int | None
    ticks: int | None
    charset: str | None
    collation: str | None
    generated: str | None
    primary: bool
    counted: bool | None

    @property
    def is_filled(self) -> bool:
        """Whether the server has a value where a row brings none."""
        return self.default or not self.required or self.is_own or "auto_increment" in self.extra.lower()

    @property
    def is_own(self) -> bool:
        return bool(self.generated)

    @property
    def names_a_row(self) -> bool:
        """Whether mode replace leaves the column unchanged, because another value would identify another row."""
        counts = "auto_increment" in self.extra.lower() or bool(self.counted)
        return self.is_own or self.primary or counts

    @property
    def unsigned(self) -> bool:
        return "unsigned" in self.declared

    def limit(self) -> Limit:
        least = greatest = digits = tick = None
        if bits := _WHOLE.get(self.kind):
            least, greatest = (0, 2**bits - 1) if self.unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        elif self.kind == "decimal" and self.precision is not None and self.scale is not None:
            digits = (self.precision - self.scale, self.scale)
            least = 0 if self.unsigned else None
        elif self.kind in _TIMES:
            tick = 10 ** (6 - (self.ticks or 0))
            if self.kind == "timestamp":
                least, greatest = 1, _LAST_TIMESTAMP
        narrow = self.charset in ("utf8", "utf8mb3")
        required = self.required and "auto_increment" not in self.extra.lower()
        return Limit(required, self.characters, self.bytes, least, greatest, digits, tick, narrow)


@dataclass(frozen=True, slots=True)
class Catalog:
    """A table in the catalog; without columns if it does not exist."""

    columns: dict[str, Column]
    unique: dict[str, dict[str, int | None]]
    engine: tuple[str, str | None, str | None] | None
    packet: int
    exact_collation: str
    """Of texts that are equal byte by byte only, trailing spaces included."""

    @classmethod
    def read(cls, connection: pymysql.Connection[Any], table: Table) -> Catalog:
        with connection.cursor() as cursor:

            def rows(statement: str) -> Sequence[Any]:
                cursor.execute(statement, (table.schema, table.name))
                return tuple(cursor.fetchall())

            columns = {column.name.lower(): column for column in (Column(*row) for row in rows(_COLUMNS))}
            unique: dict[str, dict[str, int | None]] = {}
            for index, name, part in rows(_INDEXES):
                unique.setdefault(index, {})[str(name).lower()] = part
            engine = rows(_TABLE)
            cursor.execute("SELECT @@max_allowed_packet, VERSION()")
            [(packet, version)] = cursor.fetchall()
        exact = "utf8mb4_nopad_bin" if "mariadb" in version.lower() else "utf8mb4_0900_bin"
        return cls(columns, unique, engine[0] if engine else None, packet, exact)

    def declared(self, name: str) -> str:
        """Return a column's type, including its collation, which decides which texts are equal."""
        column = self.columns[name.lower()]
        return f"{column.declared} COLLATE {column.collation}" if column.collation else column.declared

    def missing(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name.lower() not in self.columns]

    def defaulted(self, names: Iterable[str]) -> list[str]:
        """Name the columns that rows of these ones leave to their defaults: none that names a row."""
        brought = {name.lower() for name in names}
        return [column.name for key, column in self.columns.items() if key not in brought and not column.names_a_row]

    def meets(self, keys: Iterable[str]) -> bool:
        """Return whether a unique index is over exactly these keys, whole."""
        return dict.fromkeys((key.lower() for key in keys), None) in self.unique.values()

    def other_unique(self, keys: Iterable[str]) -> list[str]:
        own = {key.lower() for key in keys}
        return [name for name, parts in self.unique.items() if set(parts) != own or any(parts.values())]

    def limits(self, names: Iterable[str], finds: Iterable[str | None]) -> dict[str, Limit]:
        """Return the limits of these columns. `finds` names the columns that identify the row of a delete."""
        if not self.columns:
            return {}
        found = {name: self.columns[name.lower()].limit() for name in names if name.lower() in self.columns}
        found |= {name: replace(found[name], deletes=True) for name in finds if name in found}
        return {**found, "": Limit(bytes=max(0, self.packet - _ROOM) // 2)}  # a literal is at most twice as long
