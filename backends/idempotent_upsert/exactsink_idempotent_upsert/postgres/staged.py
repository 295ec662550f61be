"""Upserts into PostgreSQL: rows wait in the `postgres` backend's staging tables, and one statement upserts an epoch.

Executors import this module: no SQLAlchemy here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa

from exactsink.contract import Committable, Committer, JobContext, Txn, Validator, Writer
from exactsink.toolkit.sql import quoted
from exactsink_idempotent_upsert.database import STAGED, Strategy, foreseen
from exactsink_idempotent_upsert.limits import check_order
from exactsink_idempotent_upsert.postgres.columns import ROW_COLUMN, as_named, choose, judged, numbered, ordered_in
from exactsink_idempotent_upsert.postgres.questions import PostgresQuestions
from exactsink_idempotent_upsert.postgres.statements import DROPS, ORDER, RESET, ROW, Source, Statements, take_rounds
from exactsink_idempotent_upsert.table import DELETED, Table
from exactsink_postgres import public as pg

__all__ = ["StagingTables"]

_READ_THROUGH = 2
"""Up to so many times an epoch's rows, a table is read whole by its index; from four times on, lookups are faster."""


class StagingTables(Strategy):
    """Strategy staged: rows wait in staging tables of the database itself."""

    def __init__(self, options: pg.PostgresOptions, table: Table) -> None:
        self._options, self._table = options, table

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return _UpsertWriter(self._options, self._table, txn, schema, ticket)

    def validator(self, schema: pa.Schema, rules: bytes) -> Validator:
        return pg.TableValidator(pg.RowRules.load(rules), schema, partial(check_order, self._table))

    def committer(self, ctx: JobContext) -> Committer:
        return _UpsertCommitter(self._options, ctx, self._table)


class _UpsertWriter(pg.StagingWriter):
    """Number a task's rows, because a key may come more than once in an epoch."""

    own_columns = (pg.ATTEMPT_COLUMN, ROW_COLUMN)

    def __init__(self, options: pg.PostgresOptions, table: Table, txn: Txn, schema: pa.Schema, ticket: bytes) -> None:
        self._table = table
        super().__init__(options, txn, ordered_in(schema, table, pg.StagedTicket.load(ticket).columns), ticket)

    def write(self, batch: pa.RecordBatch) -> None:
        check_order(self._table, batch)
        super().write(batch)

    def own_values(self, count: int) -> list[pa.Array]:
        return [*super().own_values(count), numbered(self._rows, count)]

    def vote(self, rows: int) -> dict[str, Any]:
        own = {pg.ATTEMPT, ROW, DELETED, ORDER}
        brought = [column.name for column in self._staged.columns if column.name not in own]
        return {**super().vote(rows), "columns": brought}


class _UpsertCommitter(pg.StagingCommitter):
    """Applies an epoch by INSERT .. ON CONFLICT, each key's rows in their order, keys in theirs."""

    _overwrites = True

    def __init__(self, options: pg.PostgresOptions, ctx: JobContext, table: Table) -> None:
        super().__init__(options, ctx)
        self._table = table

    def _asks(self, session: pg.Session, schema: pa.Schema | None) -> pg.Asks:
        return PostgresQuestions(session, self._options, self.ctx, self._table).asks(schema)

    def form(self, session: pg.Session, schema: pa.Schema) -> tuple[pg.Form, tuple[pg.Column, ...]]:
        chosen = choose(session, self._options, self.ctx.sink, self._table, schema)
        columns = (pg.ATTEMPT_COLUMN, ROW_COLUMN, *(chosen.columns[name] for name in schema.names))
        own = (pg.ATTEMPT_COLUMN, ROW_COLUMN, *chosen.beside)
        declared = ", ".join(f"{quoted(one.name)} {one.type}{' NOT NULL' * one.not_null}" for one in own)
        keys = tuple(found[0].name for found in pg.matches(self._table.keys, chosen.table.columns) if found)
        names = tuple(column.name for column in chosen.columns.values() if column not in chosen.beside)
        return pg.Form(chosen.table, names, declared, unique=False, required=keys), columns

    def _judged(self, table: pg.Table, schema: pa.Schema) -> dict[str, pg.Column]:
        return judged(table, self._table, schema)

    def apply_rows(self, session: pg.Session, target: str, waiting: Mapping[pg.RowsAt, Sequence[Committable]]) -> None:
        with foreseen(f"apply staged rows to table {target}", STAGED, psycopg.Error, pg.Unproven):
            self._upsert(session, target, waiting)

    def _upsert(self, session: pg.Session, target: str, waiting: Mapping[pg.RowsAt, Sequence[Committable]]) -> None:
        statements = _statements(session, self._table, target, waiting)
        voted = sum(committable.rows for committables in waiting.values() for committable in committables)
        if statements.in_rounds:
            pg.check_staged(session, waiting)
            _, taken, keys = take_rounds(session.run, statements)
        else:
            changed = taken = keys = _merge(session, statements, voted)
            if statements.counted and changed == voted:  # so all rows were there, each of another key
                return
            pg.check_staged(session, waiting)
            if statements.counted or session.run(DROPS, target).rowcount:
                ((keys,),) = session.run(statements.keys_count()).fetchall()
                taken = statements.taken(session.run, changed, keys)
        if taken != keys:
            raise pg.Unproven(
                f"table {target} took {taken} of {keys} rows: a trigger or rule of it drops or adds rows; nothing of "
                "the epoch was applied"
            )


def _merge(session: pg.Session, statements: Statements, voted: int) -> int:
    """Change the table, in the order of keys; return how many rows were changed."""
    try:
        with session.transaction():
            # Other joins keep the order in which the rows come, by which two jobs don't deadlock.
            session.run("SET LOCAL enable_hashjoin = off")
            if _reads_through(session, statements.target, voted):
                session.run("SET LOCAL enable_nestloop = off")
            return session.run(statements.merge()).rowcount
    except (psycopg.errors.UniqueViolation, psycopg.errors.FeatureNotSupported):  # a new key meanwhile; a rule
        return session.run(statements.at_once()).rowcount


def _reads_through(session: pg.Session, target: str, voted: int) -> bool:
    """Return whether the table is small beside the epoch. The planner knows its size, but not that of the staged rows.

    Never with triggers, because their queries would be planned the same way.
    """
    if session.run("SELECT FROM pg_trigger WHERE tgrelid = to_regclass(%s) AND NOT tgisinternal", target).rowcount:
        return False
    ((plans,),) = session.run(f"EXPLAIN (FORMAT JSON) SELECT FROM {target}").fetchall()
    return bool(plans[0]["Plan"]["Plan Rows"] <= _READ_THROUGH * voted)


def _statements(
    session: pg.Session, table: Table, target: str, waiting: Mapping[pg.RowsAt, Sequence[Committable]]
) -> Statements:
    """Return an epoch's statements, for rows that wait in one staging table, or in two of one form."""
    forms = {tuple(pg.StagingTable.columns(session, place.relation, [])) for place in waiting}
    if len(forms) > 1 or () in forms:
        raise pg.Gone("the epoch's staging tables are gone, or are not alike any more")
    (held,) = forms
    columns = tuple(name for name in held if name not in (pg.ATTEMPT, ROW, DELETED, ORDER))
    first = next(iter(waiting.values()))[0]
    brought = pg.RowsAt.of(first).columns
    if table.mode == "replace":
        brought += tuple(name for (name,) in session.run(RESET, target, list(brought)) if name in columns)
    sources = tuple(
        Source(place.relation, tuple(c.txn.attempt for c in given), tuple(c.txn.partition for c in given))
        for place, given in waiting.items()
    )
    named = as_named(table, columns)
    ordered = ORDER if ORDER in held else named.ordered_by
    return Statements(named, target, columns, brought, ordered, sources).by_bytes(session.run, sources[0].relation)
