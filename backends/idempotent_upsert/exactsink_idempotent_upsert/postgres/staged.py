"""Upserts into PostgreSQL: rows wait in the `postgres` backend's staging tables, and one statement upserts an epoch.

Executors import this module: no SQLAlchemy here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from exactsink.contract import Backend, Committable, Committer, ConfigError, Finding, JobContext, Traits, Txn, Writer
from exactsink.toolkit.sql import quoted
from exactsink_idempotent_upsert.options import UpsertOptions
from exactsink_idempotent_upsert.postgres.preflight import key_findings, reworded
from exactsink_idempotent_upsert.postgres.statements import ORDER, ROW, Source, Statements
from exactsink_idempotent_upsert.table import DELETED, Table
from exactsink_postgres.load import payload_of
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.server import Session
from exactsink_postgres.staged import ATTEMPT_COLUMN, Doubt, Gone, Place, StagedTicket, StagingCommitter, StagingWriter
from exactsink_postgres.staging_tables import ATTEMPT, Form, StagingTable
from exactsink_postgres.tables import chosen_columns, ensure_table
from exactsink_postgres.type_mapping import Column, column_type, matches

__all__ = ["PostgresUpserts"]

_ROW_COLUMN = Column(ROW, "bigint", "int8", not_null=True, optional=False)
_DELETED_COLUMN = Column(DELETED, "boolean", "bool", not_null=True, optional=False)


class PostgresUpserts(Backend):
    """The database's part of an upsert with strategy `staged`."""

    options: UpsertOptions

    def __init__(self, options: UpsertOptions, table: Table) -> None:
        super().__init__(options)
        self.table = replace(table, name=self._own.name.name, schema=self._own.name.schema)

    @property
    def strategy(self) -> str:
        return self.options.strategy

    @property
    def target(self) -> str:
        return f"{self.options.address}#{self._own.name}"

    @property
    def traits(self) -> Traits:
        return Traits(atomic_visibility=True, can_lose_votes=True, marks=True)  # a failover may lose staged rows

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        staged = {column.name for column in StagedTicket.load(ticket).columns}
        if ORDER in staged:  # what `order_by` names has no column of its own in the table
            place = schema.get_field_index(self.table.order_by)
            schema = schema.set(place, schema.field(place).with_name(ORDER))
        return UpsertStagingWriter(self._own, txn, schema, ticket)

    def committer(self, ctx: JobContext) -> Committer:
        return UpsertStagingCommitter(self._own, ctx, self.table)

    @cached_property
    def _own(self) -> PostgresOptions:
        options = self.options
        given = {"conninfo": options.url.get_secret_value(), "table": options.table, "strategy": "staged"}
        more: dict[str, Any] = {"create": options.create, "on_schema_change": options.on_schema_change}
        if options.staging_schema is not None:
            more["staging_schema"] = options.staging_schema
        wait = max(options.busy_timeout_seconds, 0.001)
        return PostgresOptions.model_validate({**given, **more, "lock_timeout_seconds": wait})


class UpsertStagingWriter(StagingWriter):
    """Numbers a task's rows, as a key may come more than once in an epoch."""

    own_columns = (ATTEMPT_COLUMN, _ROW_COLUMN)

    def own_values(self, count: int) -> list[pa.Array]:
        numbers = pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count), start=pa.scalar(self._rows, pa.int64()))
        return [*super().own_values(count), numbers]

    def vote(self, rows: int) -> dict[str, Any]:
        own = {ATTEMPT, ROW, DELETED, ORDER}
        brought = [column.name for column in self._staged.columns if column.name not in own]
        return {**super().vote(rows), "columns": brought}


class UpsertStagingCommitter(StagingCommitter):
    """Applies an epoch by INSERT .. ON CONFLICT, each key's rows in their order, keys in theirs."""

    def __init__(self, options: PostgresOptions, ctx: JobContext, table: Table) -> None:
        super().__init__(options, ctx)
        self._table = table

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        stored = self._stored(schema)
        found = [reworded(finding) for finding in super().check(stored, participants)]
        if any(finding.severity == "error" for finding in found):
            return found
        with self._using(f"check table {self._options.name}") as session:
            return [*found, *key_findings(session, self._options, self._table, schema)]

    def form(self, session: Session, schema: pa.Schema) -> tuple[Form, tuple[Column, ...]]:
        stored = self._stored(schema)
        table = ensure_table(session, self._options, self._ctx.sink, stored, self._table.keys)
        chosen = dict(zip(stored.names, chosen_columns(table, stored), strict=True))
        beside = [ATTEMPT_COLUMN, _ROW_COLUMN]
        for field in schema:
            if field.name == DELETED and self._table.deletes:
                chosen[field.name] = _DELETED_COLUMN
                beside.append(_DELETED_COLUMN)
            elif field.name not in chosen and field.name == self._table.order_by:
                chosen[field.name] = self._order_column(field)
                beside.append(chosen[field.name])
        columns = (ATTEMPT_COLUMN, _ROW_COLUMN, *(chosen[name] for name in schema.names))
        declared = ", ".join(f"{quoted(own.name)} {own.type}{' NOT NULL' * own.not_null}" for own in beside)
        keys = tuple(found[0].name for found in matches(self._table.keys, table.columns) if found)
        names = tuple(chosen[name].name for name in stored.names)
        return Form(table, names, declared, unique=False, required=keys), columns

    def apply_rows(self, session: Session, target: str, waiting: Mapping[Place, Sequence[Committable]]) -> None:
        statements = _statements(session, self._table, target, waiting)
        voted = sum(committable.rows for committables in waiting.values() for committable in committables)
        _check_staged(session, waiting, voted)
        if not statements.in_rounds:
            changed = _merge(session, statements)
            if statements.counted and changed != voted:  # keys came twice, or the table drops rows
                ((keys,),) = session.run(statements.keys_count()).fetchall()
                _check_changed(target, changed, keys)
            return
        for statement in statements.number():
            session.run(statement)
        ((rounds,),) = session.run(statements.last_round()).fetchall()
        for number in range(1, rounds + 1):
            if self._table.deletes:
                session.run(statements.deletes(number))
            session.run(statements.upserts(number))

    def _stored(self, schema: pa.Schema) -> pa.Schema:
        names = self._table.stored(schema.names)
        return pa.schema([field for field in schema if field.name in names])

    def _order_column(self, field: pa.Field) -> Column:
        kind = column_type(field.type)
        if kind is None:
            what = f"`order_by` names column {field.name}, whose type {field.type} has no order in PostgreSQL"
            raise ConfigError(what, next="cast it in the frame, or take another column")
        return Column(ORDER, kind, kind)


def _merge(session: Session, statements: Statements) -> int:
    """Change the table, in the order of keys; return how many rows were changed."""
    try:
        with session.transaction():
            # What joins otherwise keeps the order in which the rows come, by which two jobs don't deadlock.
            session.run("SET LOCAL enable_hashjoin = off")
            return session.run(statements.merge()).rowcount
    except (psycopg.errors.UniqueViolation, psycopg.errors.FeatureNotSupported):  # a key came meanwhile; a rule
        return session.run(statements.at_once()).rowcount


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
    sources = tuple(
        Source(place.relation, tuple(c.txn.attempt for c in given), tuple(c.txn.partition for c in given))
        for place, given in waiting.items()
    )
    named = _as_named(table, columns)
    ordered = ORDER if ORDER in held else named.ordered_by
    return Statements(named, target, columns, brought, ordered, sources)


def _as_named(table: Table, columns: Sequence[str]) -> Table:
    """Return the same with the names that the columns have in the table."""
    as_columns = [Column(name, "", "") for name in columns]

    def named(names: Iterable[str]) -> tuple[str, ...]:
        given = list(names)
        return tuple(
            found[0].name if found else name for name, found in zip(given, matches(given, as_columns), strict=True)
        )

    expressions = dict(table.expressions)
    return replace(
        table,
        keys=named(table.keys),
        order_by=table.order_by and named([table.order_by])[0],
        version=table.version and named([table.version])[0],
        update_columns=None if table.update_columns is None else named(table.update_columns),
        expressions=tuple(zip(named(expressions), expressions.values(), strict=True)),
    )


def _check_staged(session: Session, waiting: Mapping[Place, Sequence[Committable]], voted: int) -> None:
    there = 0
    for place, committables in waiting.items():
        query = f"SELECT count(*) FROM {place.relation} WHERE {ATTEMPT} = ANY (%s)"
        attempts = [committable.txn.attempt for committable in committables]
        ((count,),) = session.run(query, attempts).fetchall()
        there += count
    if there != voted:
        raise Doubt(f"{there} of the {voted} rows that were voted are staged: they were changed; nothing was applied")


def _check_changed(target: str, changed: int, keys: int) -> None:
    if changed != keys:
        raise Doubt(
            f"table {target} took {changed} of {keys} rows: a trigger or rule of it drops or adds rows; nothing of the "
            "epoch was applied"
        )
