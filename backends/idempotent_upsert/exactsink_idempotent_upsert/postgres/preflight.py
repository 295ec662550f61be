"""What of a table in PostgreSQL keeps rows from being upserted, or could refuse a decided one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pyarrow as pa

from exactsink.contract import Finding
from exactsink.toolkit.sql import quoted
from exactsink_idempotent_upsert.database import OWNER_TABLE
from exactsink_idempotent_upsert.preflight_frame import named_findings
from exactsink_idempotent_upsert.table import GUARD, Table
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.preflight_table import grant
from exactsink_postgres.server import ask
from exactsink_postgres.tables import Table as Found
from exactsink_postgres.tables import read_table
from exactsink_postgres.type_mapping import matches

__all__ = ["direct_findings", "key_findings", "reworded"]

_RIGHTS = """
    SELECT current_user AS role, has_any_column_privilege(%(oid)s::oid, 'UPDATE') AS may_update,
        has_table_privilege(%(oid)s::oid, 'DELETE') AS may_delete,
        has_table_privilege(%(oid)s::oid, 'SELECT') AS may_read
"""
_REFERENCES = """
    SELECT quote_ident(conname) AS name, conrelid::regclass::text AS child, confrelid::regclass::text AS parent,
        conrelid = %(oid)s::oid AS own
    FROM pg_constraint WHERE contype = 'f' AND conparentid = 0 AND %(oid)s::oid IN (conrelid, confrelid) ORDER BY 1
"""
_DIRECT = """
    SELECT current_user AS role, current_database() AS database, name,
        to_regclass(format('%%I.%%I', space, name)) AS oid,
        has_database_privilege(current_database(), 'TEMPORARY') AS may_hold,
        has_schema_privilege(space, 'CREATE') AS may_make
    FROM (SELECT %(space)s::text AS space) AS one, unnest(%(names)s::text[]) AS name ORDER BY name
"""
_TWO_PHASE = 'strategy = "two_phase"'
_OR_TWO_PHASE = f"; else {_TWO_PHASE}"
_UNLOGGED = "; or staging = "


def reworded(finding: Finding) -> Finding:
    """Return a finding of the `postgres` backend without the ways out that only it has."""
    if finding.fix.startswith(_TWO_PHASE):
        return replace(finding, fix="filter such rows before this sink, or take it off the table")
    return replace(finding, fix=finding.fix.partition(_UNLOGGED)[0].partition(_OR_TWO_PHASE)[0])


def key_findings(
    connection: psycopg.Connection, options: PostgresOptions, table: Table, schema: pa.Schema | None
) -> Iterator[Finding]:
    """Find what an upsert needs beside what an insert does. Raises psycopg's errors."""
    if schema is not None:
        yield from named_findings(table, schema)
    there = read_table(connection, options.name)
    if there is None:
        return
    keys = {found[0].name for found in matches(table.keys, there.columns) if found}
    plain = [index for index in there.unique if index.plain]
    if not any(set(index.columns) == keys for index in plain):
        message = f"table {there}: no unique index is over the keys {', '.join(table.keys)}, and all of them"
        columns = ", ".join(map(quoted, sorted(keys)))
        yield Finding("error", message, f"CREATE UNIQUE INDEX ON {there.sql} ({columns});")
    for index in plain if not table.guarded else ():  # tasks that write directly meet it before the decision
        if set(index.columns) != keys:
            message = f"table {there}: unique index {index.name} is checked only when a decided epoch is applied"
            yield Finding("warning", f"{message}: a row that it refuses stops the job then", "drop such rows before")
    yield from _rights(connection, table, there.oid, there.sql)
    yield from _references(connection, table, there)
    if table.version is not None and table.deletes:
        message = "a row that `delete_when` deletes forgets its version: an older one that comes later brings it back"
        yield Finding("warning", message, "keep the row, with a column that says it is gone")


def direct_findings(connection: psycopg.Connection, space: str, schema: pa.Schema | None) -> Iterator[Finding]:
    """Find what strategy direct needs beside what an upsert does. Raises psycopg's errors."""
    for name in () if schema is None else schema.names:
        if name.lower() in GUARD:
            message = f"the rows have a column {name}, which strategy direct keeps itself"
            yield Finding("error", message, f"rename it: withColumnRenamed({name!r}, ...)")
    for own in ask(connection, _DIRECT, space=space, names=[OWNER_TABLE, "exactsink_staged"]):
        role = quoted(own["role"])
        if not own["may_hold"] and own["name"] == OWNER_TABLE:
            fix = grant("TEMPORARY", f"DATABASE {quoted(own['database'])}", role)
            yield Finding("error", f"role {role} may not make temporary tables, which hold a task's rows", fix)
        if own["oid"] is None and not own["may_make"]:
            message = f"role {role} may not make table {space}.{own['name']}, which strategy direct keeps"
            yield Finding("error", message, grant("CREATE", f"SCHEMA {quoted(space)}", role))


def _references(connection: psycopg.Connection, table: Table, there: Found) -> Iterator[Finding]:
    """Find foreign keys that a row, or a delete, may break."""
    for key in ask(connection, _REFERENCES, oid=there.oid):
        name, parent, child = key["name"], key["parent"], key["child"]
        if key["own"] and table.guarded:
            message = (
                f"table {there}: foreign key {name} to {parent}: tasks may write before those of the sink that feeds"
            )
            fix = f'where a sink of this job feeds {parent}: strategy = "staged", and after = "..." (its name)'
            yield Finding("warning", f"{message} it, and the epoch fails", fix)
        elif not key["own"] and table.deletes:
            message = (
                f"table {child} has foreign key {name} to {there}: a delete that it refuses stops the job after the"
            )
            fix = f'delete from {child}, too; if a sink of this job does, set after = "..." (its name) on this one'
            yield Finding("warning", f"{message} decision, and one that cascades goes unseen", fix)


def _rights(connection: psycopg.Connection, table: Table, oid: int, name: str) -> Iterator[Finding]:
    [may] = ask(connection, _RIGHTS, oid=oid)
    role = quoted(may["role"])
    if not may["may_update"] and (table.guarded or table.mode != "insert_if_absent"):
        yield Finding("error", f"role {role} may not update table {name}", grant("UPDATE", name, role))
    if table.guarded and not may["may_read"]:
        message = f"role {role} may not read table {name}: an upsert looks for the row there"
        yield Finding("error", message, grant("SELECT", name, role))
    if not may["may_delete"] and table.deletes:
        yield Finding("error", f"role {role} may not delete from table {name}", grant("DELETE", name, role))
