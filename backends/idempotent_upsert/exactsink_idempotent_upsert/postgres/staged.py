"""Upserts into PostgreSQL: rows wait in the `postgres` backend's staging tables, and one statement upserts an epoch.

Executors import this module: no SQLAlchemy here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa

from exactsink.contract import Committable, Committer, JobContext, Txn, Validator, Writer
from exactsink.toolkit.sql import quoted
from exactsink_idempotent_upsert.database import Strategy
from exactsink_idempotent_upsert.limits import CheckedWriter, check_order
from exactsink_idempotent_upsert.postgres.columns import ROW_COLUMN, as_named, choose, held_in, numbered, ordered_in
from exactsink_idempotent_upsert.postgres.questions import PostgresQuestions
from exactsink_idempotent_upsert.postgres.statements import DROPS, ORDER, RESET, ROW, Source, Statements, take_rounds
from exactsink_idempotent_upsert.table import DELETED, Table
from exactsink_postgres.public import (
    ATTEMPT,
    ATTEMPT_COLUMN,
    Asks,
    Column,
    Doubt,
    Form,
    Gone,
    Place,
    PostgresOptions,
    RowRules,
    Session,
    StagedTicket,
    StagingCommitter,
    StagingTable,
    StagingWriter,
    TableValidator,
    check_staged,
    matches,
    payload_of,
)
from exactsink_postgres.public import Table as Found

__all__ = ["StagingTables"]

_READ_THROUGH = 2
"""A table with so many times an epoch's rows is read through, by its index: from four times on looking up is faster."""


class StagingTables(Strategy):
    """Strategy staged: rows wait in staging tables of the database itself."""

    def __init__(self, options: PostgresOptions, table: Table) -> None:
        self._options, self._table = options, table

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        brought = ordered_in(schema, self._table, StagedTicket.load(ticket).columns)
        writer, by = _UpsertWriter(self._options, txn, brought, ticket), self._table.ordered_by
        if by is None or not pa.types.is_floating(schema.field(by).type):
            return writer
        return CheckedWriter(writer, self._table.name, {}, check=partial(check_order, self._table))

    def validator(self, schema: pa.Schema, rules: bytes) -> Validator:
        return TableValidator(RowRules.load(rules), schema)

    def committer(self, ctx: JobContext) -> Committer:
        return _UpsertCommitter(self._options, ctx, self._table)


class _UpsertWriter(StagingWriter):
    """Numbers a task's rows, as a key may come more than once in an epoch."""

    own_columns = (ATTEMPT_COLUMN, ROW_COLUMN)

    def own_values(self, count: int) -> list[pa.Array]:
        return [*super().own_values(count), numbered(self._rows, count)]

    def vote(self, rows: int) -> dict[str, Any]:
        own = {ATTEMPT, ROW, DELETED, ORDER}
        brought = [column.name for column in self._staged.columns if column.name not in own]
        return {**super().vote(rows), "columns": brought}


class _UpsertCommitter(StagingCommitter):
    """Applies an epoch by INSERT .. ON CONFLICT, each key's rows in their order, keys in theirs."""

    _overwrites = True

    def __init__(self, options: PostgresOptions, ctx: JobContext, table: Table) -> None:
        super().__init__(options, ctx)
        self._table = table

    def _asks(self, session: Session, schema: pa.Schema | None) -> Asks:
        return PostgresQuestions(session, self._options, self._ctx, self._table).asks(schema)

    def form(self, session: Session, schema: pa.Schema) -> tuple[Form, tuple[Column, ...]]:
        chosen = choose(session, self._options, self._ctx.sink, self._table, schema)
        columns = (ATTEMPT_COLUMN, ROW_COLUMN, *(chosen.columns[name] for name in schema.names))
        own = (ATTEMPT_COLUMN, ROW_COLUMN, *chosen.beside)
        declared = ", ".join(f"{quoted(one.name)} {one.type}{' NOT NULL' * one.not_null}" for one in own)
        keys = tuple(found[0].name for found in matches(self._table.keys, chosen.table.columns) if found)
        names = tuple(column.name for column in chosen.columns.values() if column not in chosen.beside)
        return Form(chosen.table, names, declared, unique=False, required=keys), columns

    def _judged(self, table: Found, schema: pa.Schema) -> dict[str, Column]:
        columns = super()._judged(table, held_in(self._table, schema))
        return {
            name: replace(column, not_null=column.not_null or name in self._table.keys)
            for name, column in columns.items()
        }

    def apply_rows(self, session: Session, target: str, waiting: Mapping[Place, Sequence[Committable]]) -> None:
        statements = _statements(session, self._table, target, waiting)
        voted = sum(committable.rows for committables in waiting.values() for committable in committables)
        if statements.in_rounds:
            check_staged(session, waiting)
            _, taken, keys = take_rounds(session.run, statements)
        else:
            changed = taken = keys = _merge(session, statements, voted)
            if statements.counted and changed == voted:  # so all rows were there, each of another key
                return
            check_staged(session, waiting)
            if statements.counted or session.run(DROPS, target).rowcount:
                ((keys,),) = session.run(statements.keys_count()).fetchall()
                taken = statements.taken(session.run, changed, keys)
        if taken != keys:
            raise Doubt(
                f"table {target} took {taken} of {keys} rows: a trigger or rule of it drops or adds rows; nothing of "
                "the epoch was applied"
            )


def _merge(session: Session, statements: Statements, voted: int) -> int:
    """Change the table, in the order of keys; return how many rows were changed."""
    try:
        with session.transaction():
            # What joins otherwise keeps the order in which the rows come, by which two jobs don't deadlock.
            session.run("SET LOCAL enable_hashjoin = off")
            if _reads_through(session, statements.target, voted):
                session.run("SET LOCAL enable_nestloop = off")
            return session.run(statements.merge()).rowcount
    except (psycopg.errors.UniqueViolation, psycopg.errors.FeatureNotSupported):  # a key came meanwhile; a rule
        return session.run(statements.at_once()).rowcount


def _reads_through(session: Session, target: str, voted: int) -> bool:
    """Return whether the table is small beside the epoch. The planner knows its size, and not that of the staged rows.

    Never with triggers: what they ask would be planned so, too.
    """
    if session.run("SELECT FROM pg_trigger WHERE tgrelid = to_regclass(%s) AND NOT tgisinternal", target).rowcount:
        return False
    ((plans,),) = session.run(f"EXPLAIN (FORMAT JSON) SELECT FROM {target}").fetchall()
    return bool(plans[0]["Plan"]["Plan Rows"] <= _READ_THROUGH * voted)


def _statements(
    session: Session, table: Table, target: str, waiting: Mapping[Place, Sequence[Committable]]
) -> Statements:
    """Return an epoch's statements, for rows that wait in one staging table, or in two of one form."""
    forms = {tuple(StagingTable.columns(session, place.relation, [])) for place in waiting}
    if len(forms) > 1 or () in forms:
        raise Gone("the epoch's staging tables are gone, or are not alike any more")
    (held,) = forms
    columns = tuple(name for name in held if name not in (ATTEMPT, ROW, DELETED, ORDER))
    first = next(iter(waiting.values()))[0]
    brought = tuple(payload_of(first, StagingWriter)["columns"])
    if table.mode == "replace":
        brought += tuple(name for (name,) in session.run(RESET, target, list(brought)) if name in columns)
    sources = tuple(
        Source(place.relation, tuple(c.txn.attempt for c in given), tuple(c.txn.partition for c in given))
        for place, given in waiting.items()
    )
    named = as_named(table, columns)
    ordered = ORDER if ORDER in held else named.ordered_by
    return Statements(named, target, columns, brought, ordered, sources)
