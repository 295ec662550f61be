"""Check the sink's table: why it can't take the rows, and how it could refuse a decided row, each with a fix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pyarrow as pa

from exactsink.contract import Fatal, Finding, JobContext
from exactsink.toolkit.sql import quoted
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.own_tables import MARKS_TABLE, Marks
from exactsink_postgres.server import ask
from exactsink_postgres.tables import Table, added_columns, create_table, problems, read_table
from exactsink_postgres.type_mapping import is_read_by_server, matches

__all__ = ["deferred_findings", "grant", "table_findings", "unjudged", "unusable"]

_SPACE = """
    SELECT coalesce(%(space)s, current_schema()) AS space, current_setting('search_path') AS path,
        current_user AS role, space.oid IS NOT NULL AS there, has_schema_privilege(space.oid, 'USAGE') AS reachable,
        has_schema_privilege(space.oid, 'CREATE') AS creatable
    FROM (SELECT) AS one LEFT JOIN pg_namespace AS space ON space.nspname = coalesce(%(space)s, current_schema())
"""
_PARTS = """
    SELECT format('%%I.%%I', space.nspname, class.relname) AS part, class.relkind::text AS kind
    FROM pg_partition_tree(%(oid)s::oid::regclass) AS tree JOIN pg_class AS class ON class.oid = tree.relid
        JOIN pg_namespace AS space ON space.oid = class.relnamespace
    WHERE tree.isleaf AND (class.relkind = 'f' OR class.relpersistence <> 'p') ORDER BY 1
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
    SELECT class.relname AS name, pg_has_role(class.relowner, 'USAGE') AS owned,
        class.relname ~ '^exactsink_rows_' AS staging,
        has_table_privilege(class.oid, 'SELECT') AND has_table_privilege(class.oid, 'INSERT')
            AND has_table_privilege(class.oid, 'DELETE')
            AND (class.relname = 'exactsink_epochs' OR has_table_privilege(class.oid, 'UPDATE'))
            AND (class.relname !~ '^exactsink_rows_' OR has_table_privilege(class.oid, 'TRUNCATE')) AS usable
    FROM pg_class AS class JOIN pg_namespace AS space ON space.oid = class.relnamespace
    WHERE space.nspname = %(space)s AND class.relkind = 'r' AND (class.relname = ANY (%(names)s)
        OR class.relname ~ '^exactsink_rows_' AND starts_with(obj_description(class.oid, 'pg_class'), %(sink)s))
    ORDER BY 1
"""
_STAGING = """
    SELECT current_database() AS database, space.oid IS NOT NULL AS there,
        CASE WHEN space.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE')
            ELSE has_schema_privilege(space.oid, 'USAGE') AND has_schema_privilege(space.oid, 'CREATE') END AS usable
    FROM (SELECT) AS one LEFT JOIN pg_namespace AS space ON space.nspname = %(space)s
"""
_PUBLICATIONS = """
    SELECT quote_ident(pubname) AS name FROM pg_publication WHERE pubinsert AND (puballtables OR EXISTS (
        SELECT FROM pg_publication_namespace JOIN pg_namespace AS space ON space.oid = pnnspid
        WHERE pnpubid = pg_publication.oid AND nspname = %(space)s)) ORDER BY 1
"""
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence"}
# Since PostgreSQL 18 a CHECK or a foreign key may be NOT ENFORCED. Older catalogs have no such column.
_PARENTS = """
    SELECT 'foreign key ' || quote_ident(conname), confrelid::regclass::text FROM pg_constraint
    WHERE conrelid = %(oid)s AND contype = 'f'
"""
_DEFERRED = """
    SELECT CASE contype WHEN 'f' THEN 'foreign key ' WHEN 'x' THEN 'exclusion constraint '
        WHEN 't' THEN 'constraint trigger ' ELSE 'deferrable constraint ' END || quote_ident(conname)
    FROM pg_constraint WHERE conrelid = %(oid)s AND coalesce(to_jsonb(pg_constraint) ->> 'conenforced', 'true')::bool
        AND (contype IN ('f', 'x', 't') OR (contype IN ('p', 'u') AND condeferrable))
    UNION ALL
    SELECT 'unique index ' || quote_ident(relname) || CASE WHEN indexprs IS NOT NULL THEN ' on expressions'
        WHEN indpred IS NOT NULL THEN ', which is partial'
        WHEN indisexclusion THEN ' WITHOUT OVERLAPS' WHEN indnullsnotdistinct THEN ' with NULLS NOT DISTINCT'
        ELSE ', whose identity column gets the value from the table' END
    FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
    WHERE indrelid = %(oid)s AND indisunique AND (indimmediate AND (indexprs IS NOT NULL OR indpred IS NOT NULL
        OR indnullsnotdistinct OR indisexclusion) OR EXISTS (SELECT FROM pg_attribute
            WHERE attrelid = indrelid AND attnum = ANY (indkey) AND attidentity <> ''))
    UNION ALL
    SELECT 'trigger ' || quote_ident(tgname) FROM pg_trigger
    WHERE NOT tgisinternal AND tgparentid = 0 AND tgconstraint = 0 AND tgenabled <> 'D' AND tgtype & %(events)s <> 0
        AND (tgrelid = %(oid)s OR tgrelid IN (SELECT relid FROM pg_partition_tree(%(oid)s::oid::regclass)))
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


_INSERT = 4  # the bit of a trigger that fires on it
_UNJUDGED = """
    SELECT CASE contype WHEN 'c' THEN 'CHECK ' WHEN 'f' THEN 'foreign key ' ELSE 'constraint ' END
        || quote_ident(conname) FROM pg_constraint WHERE conrelid = %(oid)s AND contype = ANY (%(kinds)s)
        AND coalesce(to_jsonb(pg_constraint) ->> 'conenforced', 'true')::bool
    UNION ALL
    SELECT 'trigger ' || quote_ident(tgname) FROM pg_trigger
    WHERE tgrelid = %(oid)s AND NOT tgisinternal AND tgenabled <> 'D' AND tgtype & 4 = 4
    ORDER BY 1
"""


def table_findings(
    options: PostgresOptions,
    ctx: JobContext,
    connection: psycopg.Connection,
    schema: pa.Schema | None,
    *,
    late: bool = True,
) -> Iterator[Finding]:
    """Find why the sink's table can't take rows of `schema` or, without one, rows of any columns.

    `late` adds the constraints that staged rows meet only after the decision.
    """
    name, staged = options.name, options.strategy == "staged"
    table = read_table(connection, name)
    [at] = ask(connection, _SPACE, space=table.schema if table else name.schema)
    role, space = quoted(at["role"]), at["space"]
    if not at["there"]:
        message = f"no schema of search_path ({at['path']}) exists that role {at['role']} may use"
        fix = f"name the schema in the config: table = 'public.{quoted(name.name)}'"
        if name.schema is not None:
            message = f"schema {name.schema} does not exist"
            fix = f"CREATE SCHEMA {quoted(name.schema)} AUTHORIZATION {role};"
        yield Finding("error", message, fix)
        return
    if not at["reachable"]:
        message = f"role {role} may not use schema {space}"
        yield Finding("error", message, grant("USAGE", f"SCHEMA {quoted(space)}", role))
    makes = options.create and table is None
    if not at["creatable"] and makes:
        message = f"role {role} may not make the table in schema {space}"
        yield Finding("error", message, grant("CREATE", f"SCHEMA {quoted(space)}", role))
    may_make = at["creatable"] or makes  # else it is an error already
    yield from _own_tables(ctx, connection, space, role, may_make=may_make)
    if staged:
        yield from _staging(options, ctx, connection, role)
    if table is None:
        yield from _absent(options, schema, space)
    elif table.kind not in ("r", "p"):
        message = f"{name} is {_KINDS.get(table.kind, 'no table')}: rows go into ordinary and partitioned tables"
        yield Finding("error", message, 'name the table itself in the config: table = "schema.name"')
    else:
        yield from _unfit(connection, table, role)
        yield from _rights(options, connection, table, schema, role)
        yield from _columns(options, table, schema, role)
        yield from deferred_findings(connection, table).values() if staged and late else ()


def _absent(options: PostgresOptions, schema: pa.Schema | None, space: str) -> Iterator[Finding]:
    """Return how the table is made."""
    ways = ["create = true in the config"]
    try:
        ways = [f"{create_table(options.name, schema)};", *ways] if schema is not None else ways
    except Fatal as error:
        yield Finding("error", error.what, error.next)
        return
    if not options.create:
        yield Finding("error", f"table {options.name} does not exist in schema {space}", " or ".join(ways))


def _own_tables(
    ctx: JobContext, connection: psycopg.Connection, space: str, role: str, *, may_make: bool
) -> Iterator[Finding]:
    """Find whether this role can't make or use the table of the marks, and who else gets its rows."""
    found = _own(ctx, connection, space, Marks.name)
    marks = quoted(space, Marks.name)
    if not may_make and all(own["name"] != Marks.name for own in found):
        made = f"CREATE TABLE {marks} {' '.join(MARKS_TABLE.split())}; "
        message = f"role {role} may not make table {space}.{Marks.name}, which keeps the marks of every sink here"
        yield Finding("error", message, made + grant("SELECT, INSERT, DELETE", marks, role))
    for publication in ask(connection, _PUBLICATIONS, space=space):
        message = f"publication {publication['name']} takes all tables of schema {space}, {Marks.name} among them: its "
        fix = f"CREATE TABLE {marks} {' '.join(MARKS_TABLE.split())}; on the subscriber, or publish tables by name"
        yield Finding("warning", f"{message}subscribers stop where they lack that table", fix)
    yield from _unusable([own for own in found if not own["staging"]], space, role)


def _staging(options: PostgresOptions, ctx: JobContext, connection: psycopg.Connection, role: str) -> Iterator[Finding]:
    """Find staging tables that this role can't make or use, and who else can read their rows."""
    space = options.staging_schema
    [at] = ask(connection, _STAGING, space=space)
    if not at["usable"]:
        message = f"role {role} may not make its staging tables in schema {space} (staging_schema)"
        fix = grant("USAGE, CREATE", f"SCHEMA {quoted(space)}", role)
        if not at["there"]:
            message = f"role {role} may not make schema {space} for its staging tables (staging_schema)"
            fix = f"CREATE SCHEMA {quoted(space)} AUTHORIZATION {role};"
        yield Finding("error", message, fix)
    yield from unusable(ctx, connection, space, role, "exactsink_staged", "exactsink_staged_unlogged")
    for publication in ask(connection, _PUBLICATIONS, space=space) if options.staging == "logged" else ():
        message = f"publication {publication['name']} takes all tables of schema {space}, staged rows among them: its "
        fix = 'publish tables by name; or staging = "unlogged" in the config, which publishes none: staged rows that '
        fix += "a crash of the server empties are written again, from a source that still has them"
        yield Finding("warning", f"{message}subscribers stop where they lack the staging tables", fix)


def _own(ctx: JobContext, connection: psycopg.Connection, space: str, *names: str) -> list[dict[str, Any]]:
    """Return which of these tables, and which of the sink's staging tables, exist in a schema."""
    return ask(connection, _OWN, space=space, sink=f"{ctx.job}.{ctx.sink}.", names=list(names))


def unusable(ctx: JobContext, connection: psycopg.Connection, space: str, role: str, *names: str) -> Iterator[Finding]:
    """Find which of these tables in a schema, and of the sink's staging tables, this role can't use."""
    return _unusable(_own(ctx, connection, space, *names), space, role)


def _unusable(found: list[dict[str, Any]], space: str, role: str) -> Iterator[Finding]:
    for own in found:
        name = quoted(space, own["name"])
        if own["staging"] and not own["owned"]:
            message = f"staging table {space}.{own['name']} of this sink belongs to another role"
            yield Finding("error", f"{message}: this one can't empty it", f"ALTER TABLE {name} OWNER TO {role};")
        elif not own["usable"]:
            message = f"role {role} may not use table {space}.{own['name']}, which exactsink keeps"
            rights = "SELECT, INSERT, DELETE" if own["name"] == Marks.name else "SELECT, INSERT, UPDATE, DELETE"
            rights += ", TRUNCATE" * own["staging"]
            yield Finding("error", message, grant(rights, name, role))


def _unfit(connection: psycopg.Connection, table: Table, role: str) -> Iterator[Finding]:
    """Refuse a relation that COPY, a crash, or PREPARE TRANSACTION does not allow."""
    if table.row_security:
        message = f"row security of table {table} applies to this role, and COPY refuses it"
        fix = f"ALTER ROLE {role} BYPASSRLS; or ALTER TABLE {table.sql} DISABLE ROW LEVEL SECURITY;"
        yield Finding("error", message, fix)
    parts = ask(connection, _PARTS, oid=table.oid) if table.kind == "p" else []
    if table.kind == "r" and table.persistence == "u":
        parts = [{"part": table.sql, "kind": "r"}]
    for part in parts:
        if part["kind"] == "f":
            message = f"partition {part['part']} of table {table} is a foreign table: a commit here does not cover it"
            yield Finding("error", message, f"ALTER TABLE {table.sql} DETACH PARTITION {part['part']};")
        else:
            message = f"table {part['part']} is unlogged: a crash of the server empties it, also of decided rows"
            yield Finding("error", message, f"ALTER TABLE {part['part']} SET LOGGED;")


def _rights(
    options: PostgresOptions, connection: psycopg.Connection, table: Table, schema: pa.Schema | None, role: str
) -> Iterator[Finding]:
    """Find the privileges that the strategy's statements lack."""
    known = [column.name for column in table.columns] if schema is None else schema.names
    names = [found[0].name for found in matches(known, table.columns) if len(found) == 1]
    closed = [name for name in table.closed if name in names]
    if closed and (schema is not None or len(closed) == len(names)):
        columns = f" ({', '.join(map(quoted, closed))})" if len(closed) < len(names) else ""
        message = f"role {role} may not insert into table {table}{columns}"
        yield Finding("error", message, grant(f"INSERT{columns}", table.sql, role))
    if options.strategy == "staged" and not table.readable:
        message = f"role {role} may not read table {table}: strategy staged makes its staging tables like it"
        yield Finding("error", message, grant("SELECT", table.sql, role))
    for row in ask(connection, _CLOSED_SEQUENCES, oid=table.oid, names=names):
        message = (
            f"role {role} may not use sequence {row['sequence']}, which fills column {row['column']} of table {table}"
        )
        yield Finding("error", message, grant("USAGE", f"SEQUENCE {row['sequence']}", role))


def _columns(options: PostgresOptions, table: Table, schema: pa.Schema | None, role: str) -> Iterator[Finding]:
    """Compare the rows' columns with the table's. Report the columns that add_columns will add, or why it can't."""
    if schema is None:
        return
    adds = options.on_schema_change == "add_columns"
    yield from problems(table, schema, add_columns=adds)
    statements: list[str] = []
    with suppress(Fatal):  # a type that no column can have: reported above
        statements = added_columns(table, schema) if adds else []
    if not statements:
        return
    listed = " ".join(f"{statement};" for statement in statements)
    if table.owned:
        message = f"table {table} lacks columns of the rows, which the first epoch adds (on_schema_change)"
        yield Finding("warning", message, f"{listed} run it yourself to choose other types")
    else:
        message = f"table {table} lacks columns of the rows, and role {role}, which does not own it, can't add them"
        yield Finding("error", message, f"{listed} or ALTER TABLE {table.sql} OWNER TO {role};")


def grant(rights: str, on: str, role: str) -> str:
    return f"GRANT {rights} ON {on} TO {role};"


def unjudged(
    connection: psycopg.Connection, options: PostgresOptions, schema: pa.Schema, *, upserts: bool
) -> Iterator[Finding]:
    """Find constraints that only the server checks: a row that they refuse stops the job, even with a quarantine."""
    table = read_table(connection, options.name)
    if table is None:
        return
    kinds = ["c", "f", "x"] if upserts else ["c", "f", "x", "p", "u"]
    names = [name for (name,) in connection.execute(_UNJUDGED, {"oid": table.oid, "kinds": kinds}).fetchall()]
    for column in (columns[0] for columns in matches(schema.names, table.columns) if len(columns) == 1):
        if column.kind == "e" or column.base in ("json", "jsonb") or is_read_by_server(column):
            names.append(f"column {column.name}, {column.type}")
    if names:
        message = f"table {table}: only the server can check these: {', '.join(names)}"
        fix = "filter such rows before this sink"
        yield Finding("warning", f"{message}: a row that they refuse stops the job, and is not quarantined", fix)


def deferred_findings(connection: psycopg.Connection, table: Table, events: int = _INSERT) -> dict[str, Finding]:
    """Name the constraints that an epoch's rows can break although every check before the decision has passed.

    With strategy `staged`, such a row stops the job after the decision, until somebody fixes the table or the
    constraint. Strategy `two_phase` finds it in the task. `events` are pg_trigger's bits. Raises psycopg's errors.
    """
    parents: dict[str, str] = dict(connection.execute(_PARENTS, {"oid": table.oid}).fetchall())
    found = {}
    for (name,) in connection.execute(_DEFERRED, {"oid": table.oid, "events": events}):
        message = f"table {table}: {name} is checked only when a decided epoch is applied: a row that it refuses stops "
        fix = 'strategy = "two_phase" in the config, which checks before the decision'
        if (parent := parents.get(name)) is not None:
            feeds = f'if another sink of this job feeds {parent}, set after = "..." (its name) on this one'
            fix = f"{feeds}; else {fix}"
        found[name] = Finding("warning", f"{message}the job then", fix)
    return found
