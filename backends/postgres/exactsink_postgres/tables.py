"""A sink's table: its form in the server's catalog, problems with the rows, and making or widening it for an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg
import pyarrow as pa
from pydantic import TypeAdapter

from exactsink.contract import Fatal, Finding
from exactsink.toolkit.json_columns import is_json_text
from exactsink.toolkit.sql import quoted
from exactsink_postgres.options import PostgresOptions, TableName
from exactsink_postgres.server import ask
from exactsink_postgres.type_mapping import Column, cast_for, column_type, matches, misfit

__all__ = [
    "CREATE_LOCK",
    "Table",
    "UniqueIndex",
    "added_columns",
    "chosen_columns",
    "create_table",
    "ensure_table",
    "problems",
    "read_table",
    "too_old",
]

_OLDEST_VERSION = 15
CREATE_LOCK = 0x6578_6163_7473_696E  # only one process at a time makes or widens a table that sinks share

# `walk` goes from a column's type down through domains and one array. Each domain may have a modifier.
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
                    AND NOT indnullsnotdistinct AND NOT indisexclusion) ORDER BY relname), '[]')
            FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
            WHERE indrelid = this.oid AND indisunique) AS "unique"
    FROM this
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
    """A table in the catalog. `kind` and `persistence` are pg_class's letters.

    `row_security`: policies apply to this session's user, who therefore may not COPY. `owned` and `readable` are this
    user's rights, `closed` the columns that it may not insert into.
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
    def sql(self) -> str:
        """The qualified name, quoted, for statements."""
        return quoted(self.schema, self.name)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


_TABLES = TypeAdapter(Table)


def read_table(connection: psycopg.Connection, name: TableName) -> Table | None:
    """Read a table from the catalog; None when it isn't there.

    A name without a schema is found by the session's search path. The schema and the table that were found are in the
    answer. Raises psycopg.Error, and Fatal for a server that is too old.
    """
    if (refusal := too_old(connection)) is not None:
        raise Fatal(refusal.message, next=refusal.fix)
    rows = ask(connection, _TABLE, schema=name.schema, name=name.name)
    return _TABLES.validate_python(rows[0]) if rows else None


def too_old(connection: psycopg.Connection) -> Finding | None:
    """Refuse a server whose catalog and statements are too old for this release."""
    if connection.info.server_version >= _OLDEST_VERSION * 10_000:
        return None
    version = connection.info.parameter_status("server_version")
    message = f"the server is PostgreSQL {version}, this sink needs {_OLDEST_VERSION} or newer"
    return Finding("error", message, f"pg_upgrade to PostgreSQL {_OLDEST_VERSION} or newer")


def ensure_table(
    connection: psycopg.Connection, options: PostgresOptions, sink: str, schema: pa.Schema, keys: Sequence[str] = ()
) -> Table:
    """Return the table, fit for rows of `schema`: made, with these keys, and widened when the options say so.

    Idempotent, also from two processes at once. Raises Fatal, with column and statement, when it can't take the rows;
    and psycopg's errors.
    """
    name = options.name
    table = read_table(connection, name)
    if table is None and options.create:
        table = _changed(connection, name, [create_table(name, schema, keys)])
    if table is not None and options.on_schema_change == "add_columns":
        missing = added_columns(table, schema)
        table = _changed(connection, name, missing) if missing else table
    if table is None:
        raise Fatal(
            f"sink {sink}: there is no table {name}",
            why="it does not exist, or is on no schema of the role's search_path",
            next=f"make it ({create_table(name, schema, keys)}), or set create = true",
        )
    for finding in problems(table, schema):
        if finding.severity == "error":
            raise Fatal(f"sink {sink}: {finding.message}", next=finding.fix)
    return table


def create_table(name: TableName, schema: pa.Schema, keys: Sequence[str] = ()) -> str:
    """Return the CREATE TABLE IF NOT EXISTS for rows, with this primary key.

    Raises Fatal for a type that no column can have.
    """
    columns = []
    for field in schema:
        nullable = field.nullable or is_json_text(field.type)  # the struct around JSON is never NULL, its text may be
        columns.append(f"{_declared(str(name), field)}{'' if nullable else ' NOT NULL'}")
    if keys:
        columns.append(f"PRIMARY KEY ({', '.join(map(quoted, keys))})")
    return f"CREATE TABLE IF NOT EXISTS {name.sql} ({', '.join(columns)})"


def added_columns(table: Table, schema: pa.Schema) -> list[str]:
    """Return the ALTER TABLE for every column of the rows that the table lacks. Existing rows get NULL.

    Raises Fatal for a type that no column can have.
    """
    return [_addition(table, field) for field, found in _matched(table, schema) if not found]


def chosen_columns(table: Table, schema: pa.Schema) -> tuple[Column, ...]:
    """Return the columns that the rows' go into, in the rows' order. Raises Fatal when names don't say which."""
    for finding in _unnamed(table, schema, add_columns=False):
        raise Fatal(finding.message, next=finding.fix)
    return tuple(found[0] for _, found in _matched(table, schema))


def problems(table: Table, schema: pa.Schema, *, add_columns: bool = False) -> list[Finding]:
    """Find why rows don't fit a table, each reason with its fix.

    With `add_columns`, columns that the table lacks are not an error, because they will be added.
    """
    found = list(_unnamed(table, schema, add_columns=add_columns))
    pairs = [(field, columns[0]) for field, columns in _matched(table, schema) if len(columns) == 1]
    for field, column in pairs:
        why = None if column.computed else misfit(field, column)
        if why is not None:
            found.append(Finding("error", f"table {table}, column {column.name}: {why}", _fixes(table, field, column)))
    rest = [column for column in table.columns if column not in [column for _, column in pairs]]
    given = [f"{column.name} ({column.default or 'NULL'})" for column in rest if column.optional or column.computed]
    for column in rest:
        if not column.optional and not column.computed:
            alter = f"ALTER TABLE {table.sql} ALTER COLUMN {quoted(column.name)}"
            message = f"table {table}, column {column.name}: the rows lack it, and it is NOT NULL without a default"
            fix = f"add it to the frame, or {alter} DROP NOT NULL, or {alter} SET DEFAULT ..."
            found.append(Finding("error", message, fix))
    if given:
        message = f"table {table}, columns missing from the rows, with the values they will have: {', '.join(given)}"
        found.append(Finding("warning", message, "add them to the frame if you want other values"))
    return found


def _changed(connection: psycopg.Connection, name: TableName, statements: list[str]) -> Table | None:
    """Run the statements in one transaction, and read the table.

    A table that another process made meanwhile is kept.
    """
    with connection.transaction():
        for statement in (f"SELECT pg_advisory_xact_lock({CREATE_LOCK})", *statements):
            connection.execute(statement.encode())
    return read_table(connection, name)


def _declared(table: str, field: pa.Field) -> str:
    kind = column_type(field.type)
    if kind is None:
        raise Fatal(
            f"table {table}, column {field.name}: there is no type of the server for the rows' {field.type}",
            next="cast it in the frame, for example CAST(NULL AS STRING), or leave it out of columns",
        )
    return f"{quoted(field.name)} {kind}"


def _addition(table: Table, field: pa.Field) -> str:
    return f"ALTER TABLE {table.sql} ADD COLUMN IF NOT EXISTS {_declared(str(table), field)}"


def _unnamed(table: Table, schema: pa.Schema, *, add_columns: bool) -> Iterator[Finding]:
    """Find fields that no column, or not one alone, is for."""
    owners: dict[str, str] = {}
    for field, found in _matched(table, schema):
        where = f"table {table}, column {field.name}"
        if not found:
            try:
                fix = f'{_addition(table, field)}; or set on_schema_change = "add_columns"'
            except Fatal as no_type:
                yield Finding("error", no_type.what, no_type.next)
                continue
            if not add_columns:
                yield Finding("error", f"table {table} has no column {field.name}", fix)
            continue
        name = found[0].name
        if len(found) > 1:
            names = ", ".join(column.name for column in found)
            yield Finding("error", f"{where} may be any of {names}", "rename it in the frame to one of them, exactly")
        elif name in owners:
            message = f"{where}: {owners[name]} and {field.name} of the rows both go into {name}"
            yield Finding("error", message, "rename one of them in the frame, or leave it out of columns")
        elif found[0].computed:
            yield Finding("error", f"table {table}, column {name}: the server computes it", "leave it out of columns")
        else:
            owners[name] = field.name


def _matched(table: Table, schema: pa.Schema) -> Iterator[tuple[pa.Field, list[Column]]]:
    return zip(schema, matches(schema.names, table.columns), strict=True)


def _fixes(table: Table, field: pa.Field, column: Column) -> str:
    cast, wanted = cast_for(field, column), column_type(field.type)
    fixes = [f"write {cast} in the frame"] if cast else []
    if wanted is not None:
        alter = f"ALTER TABLE {table.sql} ALTER COLUMN {quoted(column.name)} TYPE {wanted}"
        fixes.append(f"{alter} USING {quoted(column.name)}::{wanted}")  # the server casts few types by itself
    return ", or ".join(fixes) or "leave it out of columns"
