"""What a SQLite table may still do to rows after the decision, where tasks can't know it: warnings, with the reason."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

from exactsink.contract import Finding
from exactsink_idempotent_upsert.names import ascii_lower
from exactsink_idempotent_upsert.sqlite.trial import other_unique, table_sql
from exactsink_idempotent_upsert.table import Table

__all__ = ["late_findings"]

_COLUMNS = "SELECT name FROM pragma_table_xinfo(?) WHERE NOT hidden"
_TRIGGERS = "SELECT name FROM main.sqlite_master WHERE type = 'trigger' AND lower(tbl_name) = lower(?) ORDER BY name"
_PARENTS = 'SELECT DISTINCT "table" FROM pragma_foreign_key_list(?) ORDER BY 1'
_CHILDREN = """
    SELECT DISTINCT child.name FROM main.sqlite_master AS child, pragma_foreign_key_list(child.name) AS key
    WHERE child.type = 'table' AND lower(key."table") = lower(?) ORDER BY 1
"""


def late_findings(table: Table, connection: sqlite3.Connection, names: Sequence[str]) -> Iterator[Finding]:
    """Find what may refuse rows of these columns when they are applied, or is left undone then."""
    if not table.guarded:  # tasks that write directly meet the table before the decision
        yield from _refusals(table, connection, names)
    yield from _references(table, connection)
    if table.version is not None and table.deletes:
        message = "a row that `delete_when` deletes takes its version along: an older one that comes later is a new row"
        yield Finding("warning", message, "keep deleted rows with a mark, as rows of this sink, if old ones come late")


def _refusals(table: Table, connection: sqlite3.Connection, names: Sequence[str]) -> Iterator[Finding]:
    stops = "the job would stop after the decision, when a row breaks it"
    for columns in other_unique(connection, table, names):
        of = ", ".join(columns)
        message = f"UNIQUE ({of}) of table {table.name} can't be checked against rows of other tasks, nor those there"
        yield Finding("warning", f"{message}: {stops}", f"make {of} unique before this sink, or drop the constraint")
    for (name,) in connection.execute(_TRIGGERS, (table.name,)):
        message = f"trigger {name} of table {table.name} can't be tried before the decision"
        yield Finding("warning", f"{message}: if it refuses a row, the job stops", f"see that {name} takes every row")
    brought = set(map(ascii_lower, names))
    kept = [name for (name,) in connection.execute(_COLUMNS, (table.name,)) if ascii_lower(name) not in brought]
    partly = table.expressions or table.update_columns is not None or (kept and table.mode == "upsert")
    if partly and "CHECK" in table_sql(connection, table.name).upper():
        message = f"table {table.name} has CHECK, and a row there keeps some columns, which tasks can't know"
        yield Finding("warning", f"{message}; {stops}", "bring all columns that CHECK reads, or drop it")


def _references(table: Table, connection: sqlite3.Connection) -> Iterator[Finding]:
    """Report foreign keys: SQLite holds to them only in connections that ask for it, and this sink's don't."""
    unheld = "SQLite leaves that to each connection, and this sink's don't check it"
    for (parent,) in connection.execute(_PARENTS, (table.name,)):
        message = f"table {table.name} has a FOREIGN KEY to {parent}: {unheld}, so rows may show before those they name"
        fix = f'if another sink of this job feeds {parent}, set after = "..." (its name) on this one'
        yield Finding("warning", message, fix + ", or on that one where rows are deleted" if table.deletes else fix)
    for (child,) in connection.execute(_CHILDREN, (table.name,)) if table.deletes else ():
        message = f"table {child} has a FOREIGN KEY to {table.name}: {unheld}, so a delete neither stops nor cascades"
        yield Finding(
            "warning", message, f'delete from {child}, too; if a sink of this job does, set after = "..." here'
        )
