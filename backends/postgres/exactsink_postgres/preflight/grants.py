"""What a role may do with a sink's table, and whether that is a table that rows can be copied into. For preflight."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pyarrow as pa

from exactsink.contract import Fatal, Finding, JobContext
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.preflight.late import late_constraints
from exactsink_postgres.rows.fits import matches
from exactsink_postgres.server import ask
from exactsink_postgres.tables import Table, add_column_statements, create_statement, problems, quoted, read_table

__all__ = ["table_findings"]

_TABLE = """
    SELECT class.oid::bigint AS oid, space.nspname AS space, class.relkind::text AS kind,
        class.relpersistence::text AS persistence, class.relrowsecurity AND row_security_active(class.oid) AS guarded,
        pg_has_role(class.relowner, 'USAGE') AS owned, pg_get_userbyid(class.relowner) AS owner,
        has_table_privilege(class.oid, 'INSERT') AS insertable,
        has_table_privilege(class.oid, 'SELECT') AS selectable, has_schema_privilege(space.oid, 'USAGE') AS reachable
    FROM pg_class AS class JOIN pg_namespace AS space ON space.oid = class.relnamespace
    WHERE class.relname = %(name)s AND class.relkind NOT IN ('i', 'I', 't', 'c')
        AND CASE WHEN %(space)s::text IS NULL THEN pg_table_is_visible(class.oid) ELSE space.nspname = %(space)s END
"""
_ELSEWHERE = """
    SELECT space.nspname AS space FROM pg_class AS class JOIN pg_namespace AS space ON space.oid = class.relnamespace
    WHERE class.relname = %(name)s AND class.relkind IN ('r', 'p') ORDER BY 1
"""
_SPACE = """
    SELECT space.nspname AS space, has_schema_privilege(space.oid, 'USAGE') AS reachable,
        has_schema_privilege(space.oid, 'CREATE') AS creatable
    FROM pg_namespace AS space WHERE space.nspname = coalesce(%(space)s, current_schema())
"""
_WHO = "SELECT current_user AS role, current_setting('search_path') AS path"
_PARTS = """
    SELECT format('%%I.%%I', space.nspname, class.relname) AS part, class.relkind::text AS kind
    FROM pg_partition_tree(%(oid)s::oid::regclass) AS tree JOIN pg_class AS class ON class.oid = tree.relid
        JOIN pg_namespace AS space ON space.oid = class.relnamespace
    WHERE tree.isleaf AND (class.relkind <> 'r' OR class.relpersistence <> 'p') ORDER BY 1
"""
_CLOSED_COLUMNS = """
    SELECT attname AS name FROM pg_attribute
    WHERE attrelid = %(oid)s AND attnum > 0 AND NOT attisdropped AND attname = ANY (%(names)s)
        AND NOT has_column_privilege(attrelid, attnum, 'INSERT') ORDER BY attnum
"""
_CLOSED_SEQUENCES = """
    SELECT DISTINCT format('%%I.%%I', space.nspname, sequence.relname) AS sequence, attribute.attname AS column
    FROM pg_attrdef AS filler JOIN pg_attribute AS attribute
            ON attribute.attrelid = filler.adrelid AND attribute.attnum = filler.adnum
        JOIN pg_depend AS uses ON uses.classid = 'pg_attrdef'::regclass AND uses.objid = filler.oid
            AND uses.refclassid = 'pg_class'::regclass
        JOIN pg_class AS sequence ON sequence.oid = uses.refobjid JOIN pg_namespace AS space ON space.oid = relnamespace
    WHERE filler.adrelid = %(oid)s AND attribute.attname <> ALL (%(names)s) AND attribute.attgenerated = ''
        AND CASE WHEN sequence.relkind = 'S' THEN NOT has_sequence_privilege(sequence.oid, 'USAGE, UPDATE') END
    ORDER BY 1
"""
_OWN = """
    SELECT class.relname AS name, class.relname ~ '^exactsink_rows_' AS made_by_epoch,
        pg_has_role(class.relowner, 'USAGE') AS owned,
        has_table_privilege(class.oid, 'SELECT') AND has_table_privilege(class.oid, 'INSERT')
            AND has_table_privilege(class.oid, 'UPDATE') AND has_table_privilege(class.oid, 'DELETE') AS usable
    FROM pg_class AS class JOIN pg_namespace AS space ON space.oid = class.relnamespace
    WHERE space.nspname = %(space)s AND class.relkind = 'r'
        AND (class.relname IN ('exactsink_epochs', 'exactsink_staged')
        OR class.relname ~ '^exactsink_rows_' AND starts_with(obj_description(class.oid, 'pg_class'), %(sink)s))
    ORDER BY 1
"""
_TABLES = ("r", "p")  # ordinary, partitioned
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence"}


def table_findings(
    options: PostgresOptions, ctx: JobContext, connection: psycopg.Connection, schema: pa.Schema
) -> Iterator[Finding]:
    """Find what keeps rows of `schema` out of the sink's table. Changes nothing. Raises psycopg's errors."""
    who = ask(connection, _WHO)[0]
    role = quoted(who["role"])
    spaces = ask(connection, _SPACE, space=options.name.schema)
    found = ask(connection, _TABLE, name=options.name.name, space=options.name.schema)
    if found:
        spaces = ask(connection, _SPACE, space=found[0]["space"])
    if not spaces:
        yield _no_space(options, who)
        return
    [space] = spaces
    if not space["reachable"]:
        message = f"role {role} may not use schema {space['space']}"
        yield Finding("error", message, f"GRANT USAGE ON SCHEMA {quoted(space['space'])} TO {role};")
    if not space["creatable"] and (options.strategy == "staged" or (options.create and not found)):
        what = 'make its staging tables (strategy = "staged")' if options.strategy == "staged" else "make the table"
        message = f"role {role} may not {what} in schema {space['space']}"
        yield Finding("error", message, f"GRANT CREATE ON SCHEMA {quoted(space['space'])} TO {role};")
    if options.strategy == "staged":
        yield from _own_tables(ctx, connection, space["space"], role)
    if not found:
        yield from _absent(options, connection, schema, space["space"])
        return
    yield from _kind(options, connection, found[0], role)
    if found[0]["kind"] not in _TABLES:
        return
    table = read_table(connection, options.name) if space["reachable"] else None
    yield from _rights(options, connection, found[0], role, _names(table, schema))
    if table is not None:
        yield from _columns(options, table, schema, found[0]["owned"], role)
        yield from _late(options, connection, table)


def _no_space(options: PostgresOptions, who: dict[str, Any]) -> Finding:
    name = options.name
    if name.schema is not None:
        statement = f"CREATE SCHEMA {quoted(name.schema)} AUTHORIZATION {quoted(who['role'])};"
        return Finding("error", f"schema {name.schema} does not exist", statement)
    message = f"no schema of search_path ({who['path']}) exists that role {who['role']} may use"
    return Finding("error", message, f"name the schema in the config: table = 'public.{quoted(name.name)}'")


def _absent(
    options: PostgresOptions, connection: psycopg.Connection, schema: pa.Schema, space: str
) -> Iterator[Finding]:
    """Return how the table is made, and where else there is one of that name."""
    name = options.name
    try:
        statement = create_statement(name, schema)
    except Fatal as error:
        yield Finding("error", error.what, error.next)
        return
    if options.create:
        return
    others = [row["space"] for row in ask(connection, _ELSEWHERE, name=name.name) if row["space"] != space]
    message = f"table {name} does not exist in schema {space}"
    ways = [f"{statement};", "create = true in the config"]
    if others:
        message += f"; there is one in schema {', '.join(others)}"
        ways.append(f"table = '{quoted(others[0])}.{quoted(name.name)}'")
    yield Finding("error", message, " or ".join(ways))


def _own_tables(ctx: JobContext, connection: psycopg.Connection, space: str, role: str) -> Iterator[Finding]:
    """Find tables of the staged strategy, made by another role, that this one can't use."""
    for own in ask(connection, _OWN, space=space, sink=f"{ctx.job}.{ctx.sink}."):
        name = f"{quoted(space)}.{quoted(own['name'])}"
        if own["made_by_epoch"] and not own["owned"]:
            message = (
                f"staging table {space}.{own['name']} of this sink belongs to another role: this one can't drop it"
            )
            yield Finding("error", message, f"ALTER TABLE {name} OWNER TO {role};")
        elif not own["usable"]:
            message = f"role {role} may not use table {space}.{own['name']}, which strategy staged keeps"
            yield Finding("error", message, f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO {role};")


def _kind(
    options: PostgresOptions, connection: psycopg.Connection, table: dict[str, Any], role: str
) -> Iterator[Finding]:
    """Refuse what COPY, a crash, or PREPARE TRANSACTION would not take as a table."""
    name, sql = options.name, _sql(options, table)
    if table["kind"] not in _TABLES:
        message = f"{name} is {_KINDS.get(table['kind'], 'no table')}: rows go into ordinary and partitioned tables"
        yield Finding("error", message, 'name the table itself in the config: table = "schema.name"')
        return
    if table["guarded"]:
        message = f"row security of table {name} applies to this role, and COPY refuses it"
        yield Finding(
            "error", message, f"ALTER ROLE {role} BYPASSRLS; or ALTER TABLE {sql} DISABLE ROW LEVEL SECURITY;"
        )
    if table["persistence"] == "u" and table["kind"] == "r":
        yield _unlogged(str(name), sql)
    for part in ask(connection, _PARTS, oid=table["oid"]) if table["kind"] == "p" else ():
        if part["kind"] == "f":
            message = f"partition {part['part']} of table {name} is a foreign table: no commit here covers it"
            yield Finding("error", message, f"ALTER TABLE {sql} DETACH PARTITION {part['part']};")
        else:
            yield _unlogged(part["part"], part["part"])


def _rights(
    options: PostgresOptions, connection: psycopg.Connection, table: dict[str, Any], role: str, names: list[str]
) -> Iterator[Finding]:
    """Find the privileges that the strategy's statements lack."""
    name, sql = options.name, _sql(options, table)
    if not table["insertable"]:
        closed = [row["name"] for row in ask(connection, _CLOSED_COLUMNS, oid=table["oid"], names=names)]
        if closed:
            columns = f" ({', '.join(map(quoted, closed))})" if len(closed) < len(names) else ""
            message = f"role {role} may not insert into table {name}{columns}"
            yield Finding("error", message, f"GRANT INSERT{columns} ON {sql} TO {role};")
    if options.strategy == "staged" and not table["selectable"]:
        message = f"role {role} may not read table {name}: strategy staged makes its staging tables like it"
        yield Finding("error", message, f"GRANT SELECT ON {sql} TO {role};")
    for row in ask(connection, _CLOSED_SEQUENCES, oid=table["oid"], names=names):
        message = (
            f"role {role} may not use sequence {row['sequence']}, which fills column {row['column']} of table {name}"
        )
        yield Finding("error", message, f"GRANT USAGE ON SEQUENCE {row['sequence']} TO {role};")


def _names(table: Table | None, schema: pa.Schema) -> list[str]:
    """Name the table's columns that rows go into."""
    if table is None:
        return list(schema.names)
    return [found[0].name for found in matches(schema.names, table.columns) if len(found) == 1]


def _columns(options: PostgresOptions, table: Table, schema: pa.Schema, owned: bool, role: str) -> Iterator[Finding]:
    """Hold the rows' columns against the table's; say what add_columns will do, or why it can't."""
    adds = options.on_schema_change == "add_columns"
    yield from problems(table, schema, add_columns=adds)
    statements: list[str] = []
    with suppress(Fatal):  # a type that no column can have: reported above
        statements = add_column_statements(table, schema) if adds else []
    if not statements:
        return
    listed = " ".join(f"{statement};" for statement in statements)
    if owned:
        message = f"table {table} lacks columns of the rows, which the first epoch adds (on_schema_change)"
        yield Finding("warning", message, f"{listed} run it yourself to choose other types")
    else:
        message = f"table {table} lacks columns of the rows, and role {role}, which does not own it, can't add them"
        yield Finding("error", message, f"{listed} or ALTER TABLE {table.sql} OWNER TO {role};")


def _late(options: PostgresOptions, connection: psycopg.Connection, table: Table) -> Iterator[Finding]:
    if options.strategy == "staged":
        for late in late_constraints(connection, table):
            message = (
                f"table {table}: {late} is checked only when a decided epoch is applied: a bad row stops the job then"
            )
            yield Finding("warning", message, 'strategy = "two_phase" in the config, which checks before the decision')


def _sql(options: PostgresOptions, table: dict[str, Any]) -> str:
    return f"{quoted(table['space'])}.{quoted(options.name.name)}"


def _unlogged(name: str, sql: str) -> Finding:
    message = f"table {name} is unlogged: a crash of the server empties it, decided rows and all"
    return Finding("error", message, f"ALTER TABLE {sql} SET LOGGED;")
