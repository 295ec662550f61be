"""What of a table in PostgreSQL keeps rows from being upserted, or could refuse a decided one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pyarrow as pa

from exactsink.contract import Finding
from exactsink.toolkit.sql import quoted
from exactsink_idempotent_upsert.table import Table
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.preflight_table import grant
from exactsink_postgres.server import ask
from exactsink_postgres.tables import read_table
from exactsink_postgres.type_mapping import matches

__all__ = ["key_findings", "reworded"]

_RIGHTS = """
    SELECT current_user AS role, has_any_column_privilege(%(oid)s::oid, 'UPDATE') AS may_update,
        has_table_privilege(%(oid)s::oid, 'DELETE') AS may_delete
"""
_TWO_PHASE = 'strategy = "two_phase"'
_UNLOGGED = "; or staging = "


def reworded(finding: Finding) -> Finding:
    """Return a finding of the `postgres` backend without the ways out that only it has."""
    if finding.fix.startswith(_TWO_PHASE):
        return replace(finding, fix="filter such rows before this sink, or take it off the table")
    return replace(finding, fix=finding.fix.partition(_UNLOGGED)[0])


def key_findings(
    connection: psycopg.Connection, options: PostgresOptions, table: Table, schema: pa.Schema
) -> Iterator[Finding]:
    """Find what an upsert needs beside what an insert does. Raises psycopg's errors."""
    for option, names in (("keys", table.keys), ("order_by", (table.order_by,)), ("version", (table.version,))):
        for name in names:
            if name is not None and name not in schema.names:
                message = f"`{option}` names column {name}, the rows have {', '.join(schema.names)}"
                yield Finding("error", message, f"select {name} into this sink, or correct `{option}`")
    there = read_table(connection, options.name)
    if there is None:
        return
    keys = {found[0].name for found in matches(table.keys, there.columns) if found}
    plain = [index for index in there.unique if index.plain]
    if not any(set(index.columns) == keys for index in plain):
        message = f"table {there}: no unique index is over the keys {', '.join(table.keys)}, and all of them"
        columns = ", ".join(map(quoted, sorted(keys)))
        yield Finding("error", message, f"CREATE UNIQUE INDEX ON {there.sql} ({columns});")
    for index in plain:
        if set(index.columns) != keys:
            message = f"table {there}: unique index {index.name} is checked only when a decided epoch is applied"
            yield Finding("warning", f"{message}: a row that it refuses stops the job then", "drop such rows before")
    yield from _rights(connection, table, there.oid, there.sql)
    if table.version is not None and table.deletes:
        message = "a row that `delete_when` deletes forgets its version: an older one that comes later brings it back"
        yield Finding("warning", message, "keep the row, with a column that says it is gone")


def _rights(connection: psycopg.Connection, table: Table, oid: int, name: str) -> Iterator[Finding]:
    [may] = ask(connection, _RIGHTS, oid=oid)
    role = quoted(may["role"])
    if not may["may_update"] and table.mode != "insert_if_absent":
        yield Finding("error", f"role {role} may not update table {name}", grant("UPDATE", name, role))
    if not may["may_delete"] and table.deletes:
        yield Finding("error", f"role {role} may not delete from table {name}", grant("DELETE", name, role))
