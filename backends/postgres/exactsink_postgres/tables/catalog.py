"""Tables as the server's catalog has them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from exactsink_postgres.rows.fits import Column

__all__ = ["Table", "TableName", "UniqueIndex", "quoted", "read_table"]

_IDENTIFIER = r'(?:[A-Za-z_\u0080-\uffff][\w$\u0080-\uffff]*|"(?:[^"]|"")+")'
_NAME = re.compile(rf"(?:(?P<schema>{_IDENTIFIER})\.)?(?P<name>{_IDENTIFIER})")

# Version 15 brought indnullsnotdistinct.
_TABLE = """
    SELECT this.oid::bigint, n.nspname, this.relname, this.relkind::text,
        this.relpersistence::text, row_security_active(this.oid),
        (SELECT json_agg(json_build_object('number', a.attnum, 'name', a.attname, 'type', a.atttypid::bigint,
                'modifier', a.atttypmod, 'shown', format_type(a.atttypid, a.atttypmod), 'not_null', a.attnotnull,
                'generated', a.attgenerated <> '', 'identity', a.attidentity,
                'default', pg_get_expr(d.adbin, d.adrelid)) ORDER BY a.attnum)
            FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
            WHERE a.attrelid = this.oid AND a.attnum > 0 AND NOT a.attisdropped),
        (SELECT json_agg(json_build_object('name', x.relname, 'keys', i.indkey::int2[],
                'used', i.indnkeyatts, 'definition', pg_get_indexdef(i.indexrelid), 'exact', i.indexprs IS NULL,
                'plain', i.indexprs IS NULL AND i.indpred IS NULL AND i.indisvalid AND i.indimmediate
                    AND NOT coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::bool, false)) ORDER BY x.relname)
            FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid WHERE i.indrelid = this.oid AND i.indisunique)
    FROM pg_class this JOIN pg_namespace n ON n.oid = this.relnamespace WHERE this.oid = to_regclass(%s)
"""
_TYPES = """
    SELECT oid::bigint, typname, typtype::text, typcategory = 'A' AND typlen = -1 AND typelem <> 0, typelem::bigint,
        typbasetype::bigint, typtypmod, typnotnull, typdefault
    FROM pg_type WHERE oid = ANY (%s::oid[])
"""


def quoted(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's name as SQL writes it: `orders`, `sales.orders`, `sales."Odd Name"`; unquoted is lower case."""

    schema: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read a name. Raises ValueError."""
        found = _NAME.fullmatch(text.strip())
        if found is None:
            raise ValueError(f'{text!r} is no table name: write orders, sales.orders or sales."Odd Name"')
        return cls(_plain(found["schema"]) if found["schema"] else None, _plain(found["name"]))

    @property
    def sql(self) -> str:
        """The name, quoted, for statements."""
        return f"{quoted(self.schema)}.{quoted(self.name)}" if self.schema else quoted(self.name)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """A unique index. `columns` is empty where it is over expressions.

    `plain`: over columns, of all rows, NULLs distinct, valid and not deferrable.
    """

    name: str
    columns: tuple[str, ...]
    definition: str
    plain: bool


@dataclass(frozen=True, slots=True)
class Table:
    """A table as the catalog has it; `kind` and `persistence` are pg_class's letters.

    `row_security`: policies apply to this session's user, who therefore may not COPY.
    """

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    columns: tuple[Column, ...]
    unique: tuple[UniqueIndex, ...]
    row_security: bool

    @property
    def sql(self) -> str:
        """The qualified name, quoted, for statements."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class _Type:
    """One row of pg_type: an array has `element`, a domain (`kind` d) its `base` and perhaps a modifier."""

    name: str
    kind: str
    is_array: bool
    element: int
    base: int
    modifier: int
    not_null: bool
    default: str | None

    @property
    def below(self) -> int:
        """Return the type that it is made of, 0 for one that is not."""
        return self.base if self.kind == "d" else self.element if self.is_array else 0


def read_table(connection: psycopg.Connection, name: TableName) -> Table | None:
    """Read a table from the catalog; None when it isn't there.

    A name without a schema is found by the session's search path. The schema and the table that were found are in the
    answer. Raises psycopg.Error.
    """
    with connection.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(_TABLE, (name.sql,)).fetchone()
        if row is None:
            return None
        oid, schema, relation, kind, persistence, row_security, columns, indexes = row
        types = _types(cursor, {column["type"] for column in columns or ()})
    names = {column["number"]: column["name"] for column in columns or ()}
    return Table(
        oid,
        schema,
        relation,
        kind,
        persistence,
        tuple(_column(column, types) for column in columns or ()),
        tuple(_index(index, names) for index in indexes or ()),
        row_security,
    )


def _types(cursor: psycopg.Cursor, wanted: set[int]) -> dict[int, _Type]:
    """Read types, and those that they are made of, down to the last."""
    types: dict[int, _Type] = {}
    while wanted:
        rows = cursor.execute(_TYPES, (list(wanted),)).fetchall()
        found = {oid: _Type(*rest) for oid, *rest in rows}
        types |= found
        wanted = {below for oid in found if (below := types[oid].below)} - types.keys()
    return types


def _column(given: dict[str, Any], types: dict[int, _Type]) -> Column:
    """Follow a column's type down through domains and one array. A modifier may stand at any domain on the way."""
    kind, modifier, element = types[given["type"]], given["modifier"], 0
    not_null, default = given["not_null"], given["default"]
    while kind.below and not (kind.is_array and element):
        if kind.kind != "d":
            element = kind.element
        elif modifier == -1:
            modifier = kind.modifier
        if kind.kind == "d" and not element:  # of the column's value, not of its elements
            not_null, default = not_null or kind.not_null, default or kind.default
        kind = types[kind.below]
    if given["identity"]:
        default = "the next number of its sequence"
    return Column(
        given["name"],
        given["shown"],
        base=kind.name,
        kind=kind.kind,
        array=element != 0,
        modifier=modifier,
        not_null=not_null,
        optional=not not_null or default is not None,
        computed=given["generated"] or given["identity"] == "a",
        default=default,
        element=element,
    )


def _index(given: dict[str, Any], names: dict[int, str]) -> UniqueIndex:
    keys = tuple(names[number] for number in given["keys"][: given["used"]]) if given["exact"] else ()
    return UniqueIndex(given["name"], keys, given["definition"], given["plain"])


def _plain(identifier: str) -> str:
    if identifier.startswith('"'):
        return identifier[1:-1].replace('""', '"')
    return identifier.lower()
