"""A sink's table: as the server's catalog has it, what keeps rows out of it, and made or widened for an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psycopg
import pyarrow as pa
from pydantic import TypeAdapter

from exactsink.contract import Fatal, Finding
from exactsink_postgres.commands import TableName, add_column, create_table, quoted
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.server import ask
from exactsink_postgres.type_mapping import Column, cast_for, column_type, matches, misfit

__all__ = [
    "MADE_MEANWHILE",
    "Table",
    "UniqueIndex",
    "added_columns",
    "chosen_columns",
    "deferred_constraints",
    "ensure_table",
    "problems",
    "read_table",
]

MADE_MEANWHILE = (
    psycopg.errors.DuplicateTable,
    psycopg.errors.DuplicateColumn,
    psycopg.errors.DuplicateObject,
    psycopg.errors.UniqueViolation,  # of the catalog's own index
)
"""What a server answers to one of two processes that make the same thing at once."""

# `walk` goes from a column's type down through domains and one array. A modifier may stand at any domain on the way.
_TABLE = """
    WITH RECURSIVE this AS (
        SELECT class.*, space.nspname FROM pg_class AS class JOIN pg_namespace AS space ON space.oid = relnamespace
        WHERE relname = %(name)s AND relkind NOT IN ('i', 'I', 't', 'c')
            AND CASE WHEN %(schema)s::text IS NULL THEN pg_table_is_visible(class.oid) ELSE nspname = %(schema)s END
    ), attribute AS (
        SELECT pg_attribute.* FROM this JOIN pg_attribute ON attrelid = this.oid AND attnum > 0 AND NOT attisdropped
    ), walk AS (
        SELECT attnum, atttypid AS type, atttypmod AS modifier, attnotnull AS not_null, 0::oid AS element, 0 AS depth,
            CASE WHEN attidentity <> '' THEN 'the next number of its sequence'
                ELSE pg_get_expr(adbin, adrelid) END AS filler
        FROM attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        UNION ALL
        SELECT attnum, CASE typtype WHEN 'd' THEN typbasetype ELSE typelem END,
            CASE WHEN typtype = 'd' AND modifier = -1 THEN typtypmod ELSE modifier END,
            not_null OR (typtype = 'd' AND element = 0 AND typnotnull),
            CASE typtype WHEN 'd' THEN element ELSE typelem END, depth + 1,
            coalesce(filler, CASE WHEN typtype = 'd' AND element = 0 THEN typdefault END)
        FROM walk JOIN pg_type ON oid = type
        WHERE typtype = 'd' OR (typcategory = 'A' AND typlen = -1 AND typelem <> 0 AND element = 0)
    ), lowest AS (SELECT DISTINCT ON (attnum) * FROM walk ORDER BY attnum, depth DESC)
    SELECT oid::bigint, nspname AS schema, relname AS name, relkind::text AS kind, relpersistence::text AS persistence,
        row_security_active(oid) AS row_security, pg_has_role(relowner, 'USAGE') AS owned,
        has_table_privilege(oid, 'SELECT') AS readable,
        (SELECT coalesce(json_agg(json_build_object('name', attname, 'type', format_type(atttypid, atttypmod),
                'base', typname, 'kind', typtype, 'array', element <> 0, 'modifier', modifier, 'not_null', not_null,
                'optional', NOT not_null OR filler IS NOT NULL, 'computed', attgenerated <> '' OR attidentity = 'a',
                'default', filler, 'element', element::bigint) ORDER BY attnum), '[]')
            FROM attribute JOIN lowest USING (attnum) JOIN pg_type ON pg_type.oid = type) AS columns,
        ARRAY(SELECT attname::text FROM attribute WHERE NOT has_column_privilege(attrelid, attnum, 'INSERT')
            ORDER BY attnum) AS closed,
        (SELECT coalesce(json_agg(json_build_object('name', relname, 'columns', ARRAY(SELECT attname
                    FROM unnest(indkey) WITH ORDINALITY AS key (attnum, place) JOIN attribute USING (attnum)
                    WHERE place <= indnkeyatts AND indexprs IS NULL ORDER BY place),
                'plain', indexprs IS NULL AND indpred IS NULL AND indisvalid AND indimmediate
                    AND NOT indnullsnotdistinct) ORDER BY relname), '[]')
            FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
            WHERE indrelid = this.oid AND indisunique) AS "unique"
    FROM this
"""

_DEFERRED = """
    SELECT CASE contype WHEN 'f' THEN 'foreign key ' WHEN 'x' THEN 'exclusion constraint '
        WHEN 't' THEN 'constraint trigger ' ELSE 'deferrable constraint ' END || quote_ident(conname)
    FROM pg_constraint
    WHERE conrelid = %(oid)s AND (contype IN ('f', 'x', 't') OR (contype IN ('p', 'u') AND condeferrable))
    UNION ALL
    SELECT 'unique index ' || quote_ident(relname) || CASE WHEN indexprs IS NOT NULL THEN ' on expressions'
        WHEN indpred IS NOT NULL THEN ', which is partial' WHEN indnullsnotdistinct THEN ' with NULLS NOT DISTINCT'
        ELSE ', whose identity column gets the value from the table' END
    FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
    WHERE indrelid = %(oid)s AND indisunique AND (indimmediate AND (indexprs IS NOT NULL OR indpred IS NOT NULL
        OR indnullsnotdistinct) OR EXISTS (SELECT FROM pg_attribute
            WHERE attrelid = indrelid AND attnum = ANY (indkey) AND attidentity <> ''))
    UNION ALL
    SELECT 'trigger ' || quote_ident(tgname) FROM pg_trigger
    WHERE tgrelid = %(oid)s AND NOT tgisinternal AND tgconstraint = 0 AND tgenabled <> 'D' AND tgtype & 4 = 4
    UNION ALL
    SELECT 'rule ' || quote_ident(rulename) FROM pg_rewrite
    WHERE ev_class = %(oid)s AND ev_type = '3' AND ev_enabled <> 'D'
    UNION ALL
    SELECT 'whether there is a partition for a row' FROM pg_partitioned_table
    WHERE partrelid = %(oid)s AND partdefid = 0
    UNION ALL
    SELECT 'unique index ' || quote_ident(name.relname) || ' of a partition'
    FROM pg_partition_tree(%(oid)s::oid::regclass) AS tree
        JOIN pg_index AS index ON index.indrelid = tree.relid AND index.indisunique
        JOIN pg_class AS name ON name.oid = index.indexrelid
    WHERE tree.level > 0 AND NOT name.relispartition
    UNION ALL
    SELECT 'what its own partition''s bounds allow' FROM pg_class WHERE oid = %(oid)s AND relispartition
    ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """A unique index. `columns` is empty where it is over expressions.

    `plain`: over columns, of all rows, NULLs distinct, valid and not deferrable.
    """

    name: str
    columns: tuple[str, ...]
    plain: bool


@dataclass(frozen=True, slots=True)
class Table:
    """A table as the catalog has it; `kind` and `persistence` are pg_class's letters.

    `row_security`: policies apply to this session's user, who therefore may not COPY. `owned` and `readable` say what
    this user may do with it, `closed` which columns it may not insert into.
    """

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    row_security: bool
    owned: bool
    readable: bool
    columns: tuple[Column, ...]
    closed: tuple[str, ...]
    unique: tuple[UniqueIndex, ...]

    @property
    def full_name(self) -> TableName:
        return TableName(self.schema, self.name)

    @property
    def sql(self) -> str:
        """The qualified name, quoted, for statements."""
        return self.full_name.sql

    def __str__(self) -> str:
        return str(self.full_name)


_TABLES = TypeAdapter(Table)


def read_table(connection: psycopg.Connection, name: TableName) -> Table | None:
    """Read a table from the catalog; None when it isn't there.

    A name without a schema is found by the session's search path. The schema and the table that were found are in the
    answer. Raises psycopg.Error.
    """
    rows = ask(connection, _TABLE, schema=name.schema, name=name.name)
    return _TABLES.validate_python(rows[0]) if rows else None


def ensure_table(connection: psycopg.Connection, options: PostgresOptions, sink: str, schema: pa.Schema) -> Table:
    """Return the table, fit for rows of `schema`: made and widened when the options say so.

    Idempotent, also from two processes at once. Raises Fatal, with column and statement, when it can't take the rows;
    and psycopg's errors.
    """
    table = read_table(connection, options.name)
    if table is None and options.create:
        _change(connection, [create_table(options.name, schema)])
        table = read_table(connection, options.name)
    if table is not None and options.on_schema_change == "add_columns":
        missing = added_columns(table, schema)
        if missing:
            _change(connection, missing)
            table = read_table(connection, options.name)
    if table is None:
        try:
            made = create_table(options.name, schema)
        except Fatal as no_type:
            made = no_type.what
        raise Fatal(
            f"sink {sink}: there is no table {options.name}",
            why="it does not exist, or is on no schema of the role's search_path",
            next=f"make it ({made}), or set create = true",
        )
    for finding in problems(table, schema):
        if finding.severity == "error":
            raise Fatal(f"sink {sink}: {finding.message}", next=finding.fix)
    return table


def added_columns(table: Table, schema: pa.Schema) -> list[str]:
    """Return the ALTER TABLE for every column of the rows that the table lacks; NULL stands in the rows there are."""
    return [add_column(table.full_name, field) for field, found in _matched(table, schema) if not found]


def chosen_columns(table: Table, schema: pa.Schema) -> tuple[Column, ...]:
    """Return the columns that the rows' go into, in the rows' order. Raises Fatal when names don't say which."""
    for finding in _unnamed(table, schema, add_columns=False):
        raise Fatal(finding.message, next=finding.fix)
    return tuple(found[0] for _, found in _matched(table, schema))


def problems(table: Table, schema: pa.Schema, *, add_columns: bool = False) -> list[Finding]:
    """Find what keeps rows from going into a table, each with what fixes it.

    With `add_columns` columns that the table lacks are no error, as they will be added.
    """
    found = list(_unnamed(table, schema, add_columns=add_columns))
    pairs = [(field, columns[0]) for field, columns in _matched(table, schema) if len(columns) == 1]
    for field, column in pairs:
        why = None if column.computed else misfit(field, column)
        if why is not None:
            found.append(Finding("error", f"table {table}, column {column.name}: {why}", _fixes(table, field, column)))
    rest = [column for column in table.columns if column not in [column for _, column in pairs]]
    for column in rest:
        if not column.optional and not column.computed:
            alter = f"ALTER TABLE {table.sql} ALTER COLUMN {quoted(column.name)}"
            message = f"table {table}, column {column.name}: the rows lack it, and it is NOT NULL without a default"
            fix = f"add it to the frame, or {alter} DROP NOT NULL, or {alter} SET DEFAULT ..."
            found.append(Finding("error", message, fix))
    given = [f"{column.name} ({column.default or 'NULL'})" for column in rest if column.optional or column.computed]
    if given:
        message = f"table {table} has columns that the rows lack, and what they get: {', '.join(given)}"
        found.append(Finding("warning", message, "add them to the frame where that is not wanted"))
    return found


def deferred_constraints(connection: psycopg.Connection, table: Table) -> list[str]:
    """Name what of a table an epoch's rows can break though every check before its decision has passed.

    With the staged strategy such a row stops the job with the epoch decided, until somebody fixes the table or the
    constraint; strategy `two_phase` finds it in the task. Raises psycopg's errors.
    """
    return [name for (name,) in connection.execute(_DEFERRED, {"oid": table.oid})]


def _change(connection: psycopg.Connection, statements: Sequence[str]) -> None:
    """Run the statements, in one transaction. What another process made meanwhile stands."""
    with suppress(*MADE_MEANWHILE), connection.transaction():
        for statement in statements:
            connection.execute(statement.encode())


def _unnamed(table: Table, schema: pa.Schema, *, add_columns: bool) -> Iterator[Finding]:
    """Find fields that no column, or not one alone, is for."""
    owners: dict[str, str] = {}
    for field, found in _matched(table, schema):
        where = f"table {table}, column {field.name}"
        if not found:
            try:
                fix = f'{add_column(table.full_name, field)}; or set on_schema_change = "add_columns"'
            except Fatal as no_type:
                yield Finding("error", no_type.what, no_type.next)
                continue
            if not add_columns:
                yield Finding("error", f"table {table} has no column {field.name}", fix)
        elif len(found) > 1:
            names = ", ".join(column.name for column in found)
            yield Finding("error", f"{where} may be any of {names}", "rename it in the frame to one of them, exactly")
        elif found[0].name in owners:
            message = f"{where}: {owners[found[0].name]} and {field.name} of the rows both go into {found[0].name}"
            yield Finding("error", message, "rename one of them in the frame, or leave it out of columns")
        elif found[0].computed:
            message = f"table {table}, column {found[0].name}: the server computes it"
            yield Finding("error", message, "leave it out of columns")
        if len(found) == 1:
            owners.setdefault(found[0].name, field.name)


def _matched(table: Table, schema: pa.Schema) -> Iterator[tuple[pa.Field, list[Column]]]:
    return zip(schema, matches(schema.names, table.columns), strict=True)


def _fixes(table: Table, field: pa.Field, column: Column) -> str:
    cast, wanted = cast_for(field, column), column_type(field.type)
    fixes = [f"write {cast} in the frame"] if cast else []
    if wanted is not None:
        fixes.append(f"ALTER TABLE {table.sql} ALTER COLUMN {quoted(column.name)} TYPE {wanted}")
    return ", or ".join(fixes) or "leave it out of columns"
