"""Strategy `direct` on PostgreSQL: each task upserts its own rows in one transaction, and its COMMIT is the vote.

The rows wait in a temporary table of that transaction, so until the vote it holds no lock on the sink's table. The vote
itself is kept in `exactsink_staged`, beside the sink's table: one that is gone there was lost by a failover.

Executors import this module: no SQLAlchemy here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from exactsink.contract import (
    AlreadyCommitted,
    Committable,
    Committed,
    ExactsinkError,
    Fatal,
    Finding,
    InDoubt,
    JobContext,
    LineageError,
    Lost,
    Mark,
    Outcome,
    Prepared,
    Standing,
    Txn,
    Unknown,
)
from exactsink.toolkit.sql import quoted
from exactsink_idempotent_upsert.database import OWNER_TABLE, WRITTEN, Owner, owned_by
from exactsink_idempotent_upsert.postgres.columns import ROW_COLUMN, as_named, choose, numbered
from exactsink_idempotent_upsert.postgres.questions import asks
from exactsink_idempotent_upsert.postgres.statements import HELD, ORDER, RESET, ROW, HeldRows, Statements, take_rounds
from exactsink_idempotent_upsert.strategies import check_owner, keys_apart, late
from exactsink_idempotent_upsert.table import GUARD, Table
from exactsink_postgres.committer import Asks, PostgresCommitter
from exactsink_postgres.errors import AGAIN, UNDECIDED
from exactsink_postgres.load import LoadingWriter, Ticket, payload_of
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.own_tables import OwnTable, Registry
from exactsink_postgres.server import Session
from exactsink_postgres.tables import Table as Found

__all__ = ["DirectOptions", "DirectTicket", "DirectUpsertCommitter", "DirectUpsertWriter", "Owners"]

_HELD = re.compile(r"(pg_temp_\d+\.)?" + HELD.partition(".")[2])


class DirectOptions(PostgresOptions):
    """The options as the parts of the `postgres` backend take them, of a strategy that it lacks itself."""

    strategy: Literal["direct"] = "direct"  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class DirectTicket(Ticket):
    """A ticket whose rows go into a temporary table first; `target` is the sink's, its name as the catalog has it.

    `rest` are columns that mode replace sets to their default.
    """

    target: str
    rest: tuple[str, ...]


class Owners(OwnTable):
    """Who alone writes a table directly, in the schema of those tables."""

    name = OWNER_TABLE
    columns = "(target text PRIMARY KEY, job text NOT NULL, sink text NOT NULL, lineage text NOT NULL)"

    def owner(self, target: str, tag: str = "") -> Owner | None:
        """Return who owns a table, and keep it so until the transaction ends. `tag` begins the statement."""
        found = self._run(tag + " SELECT job, sink, lineage FROM {} WHERE target = %s FOR SHARE", target).fetchall()
        return found[0] if found else None

    def last(self, target: str) -> Owner | None:
        """Return who owns a table; None also where there is no table of owners."""
        found = self._asked("SELECT job, sink, lineage FROM {} WHERE target = %s", target)
        return found[0] if found else None

    def take(self, target: str, mine: Owner, succeeds: frozenset[str]) -> Owner:
        """Take a table and return the owner: another one where it has one, but for journals that this one succeeds."""
        self._run("INSERT INTO {} VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING", target, *mine)
        owner = self.owner(target)
        if owner is not None and owner[:2] == mine[:2] and owner[2] in succeeds:
            self._run("UPDATE {} SET lineage = %s WHERE target = %s", mine[2], target)
            return mine
        return owner or mine

    def owned_by(self, owner: Owner, target: str) -> tuple[str, str]:
        """Return a message that names a table's owner, and how it is set free."""
        return owned_by(owner, f"{self.schema}.{target}", target, self.relation, quoted(self.schema, target))


class DirectUpsertWriter(LoadingWriter):
    """COPYs a task's rows into a temporary table, and upserts them at `pre_commit`, guarded row by row."""

    def __init__(
        self, options: PostgresOptions, table: Table, txn: Txn, schema: pa.Schema, ticket: DirectTicket
    ) -> None:
        self._direct = ticket
        self._names = tuple(column.name for column in ticket.columns if column.name not in (ROW, ORDER))
        self._table = as_named(table, self._names)
        self._schema = pa.schema([(ROW, pa.int64()), *schema])
        super().__init__(options, txn, self._schema, ticket)
        self._waiting = self._waiting._replace(relation=quoted(ticket.schema, ticket.target))

    def write(self, batch: pa.RecordBatch) -> None:
        numbers = numbered(self._rows, batch.num_rows)
        super().write(pa.RecordBatch.from_arrays([numbers, *batch.columns], schema=self._schema))

    def enter(self) -> None:
        super().enter()
        needed = {*self._table.keys, ROW}
        declared = (f"{quoted(c.name)} {c.type}{' NOT NULL' * (c.name in needed)}" for c in self._direct.columns)
        self.execute(f"CREATE TEMPORARY TABLE {HELD} ({', '.join(declared)}) ON COMMIT DROP")

    def vote(self, rows: int) -> dict[str, Any]:
        ticket, txn, session = self._direct, self._txn, self.session
        with self.explained():
            self.marks.lock_shared(self.tag)
            stands = self.marks.newest(self.tag)
            if stands is not None and stands.epoch is not None and stands.epoch >= txn.epoch:
                raise late(ticket.table, txn, f"the mark of epoch {stands.epoch}")
            owners = Owners(session, ticket.schema)
            owner = owners.owner(ticket.target, self.tag)
            check_owner(txn, ticket.lineage, owner, owners.owned_by(owner, ticket.target)[0] if owner else "")
            self._upsert(rows)
            Registry(session, ticket.schema).register(self.tag, txn.id, ticket.target, rows)
        self.end("COMMIT")
        return {"schema": ticket.schema}

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Return the server's errors of the table that the user knows."""
        try:
            with super().explained():
                yield
        except ExactsinkError as error:
            if error.__cause__ is None:
                raise
            what, why, fix = (_HELD.sub(self._ticket.table, text) for text in (error.what, error.why, error.next))
            raise type(error)(what, why=why, next=fix) from error.__cause__

    def _upsert(self, rows: int) -> None:
        """Write the rows that are held. Raises Refused where a newer one stands, Fatal where the table drops some."""
        table, ticket = self._table, self._direct
        held = HeldRows(self._txn.epoch, self._txn.generation)
        names = (*self._names, *GUARD)
        ordered = ORDER if ORDER in {column.name for column in ticket.columns} else table.ordered_by
        target = quoted(ticket.schema, ticket.target)
        statements = Statements(table, target, names, names, ordered, (held,), ticket.rest)
        if statements.in_rounds:
            written, taken, expected = take_rounds(self.execute, statements)
        else:
            written = taken = expected = self.execute(statements.at_once()).rowcount
            if written != rows:  # keys came twice, or rows stay as they are
                ((expected,),) = self.execute(statements.keys_count()).fetchall()
                taken = statements.taken(self.execute, written, expected)
        if written == expected:
            return
        newer = self.execute(statements.newer(held)).fetchall()
        if newer:
            raise late(ticket.table, self._txn, "epoch {} of generation {}".format(*newer[0]))
        if taken != expected:
            raise Fatal(
                f"{self._doing}: it took {taken} of {expected} rows",
                why=f"a trigger or rule of the table drops or adds rows; {UNDECIDED}",
                next=f"take it off table {ticket.table}, then {AGAIN}",
            )


class DirectUpsertCommitter(PostgresCommitter):
    """Marks an epoch that its tasks have written, once each of their votes is found in the registry."""

    _overwrites = True

    def __init__(self, options: PostgresOptions, ctx: JobContext, table: Table) -> None:
        super().__init__(options, ctx)
        self._table = table

    def check(self, schema: pa.Schema | None, participants: int | None) -> Iterable[Finding]:
        ctx, table, name = self._ctx, self._table, self._options.name
        found = list(super().check(schema, participants))
        if not any(finding.severity == "error" for finding in found):
            with self._using(f"check table {name}") as session:
                owners = Owners(session, self._schema(session))
                owner = owners.last(name.name)
            if owner is not None and owner[:2] != (ctx.job, ctx.sink):
                found.append(Finding("error", *owners.owned_by(owner, name.name)))
        return [*found, *keys_apart(ctx, table.keys, participants)]

    def _asks(self, session: Session, schema: pa.Schema | None) -> Asks:
        return asks(session, self._options, self._ctx, self._table, schema)

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        """Make the tables, and take the sink's for this sink. Idempotent, also from two processes; durable."""
        ctx = self._ctx
        with self._opening(epoch) as session:
            chosen = choose(session, self._options, ctx.sink, self._table, schema)
            table = chosen.table
            fed_by = self._fed_by(session)
            owners, mine = Owners(session, table.schema), (ctx.job, ctx.sink, ctx.lineage)
            with session.transaction():
                owners.create()
                Registry(session, table.schema).create()
                self._marks(session, table.schema).lock()
                owner = owners.take(table.name, mine, ctx.succeeds)
            if owner != mine:
                what, fix = owners.owned_by(owner, table.name)
                raise LineageError(what, why="epochs of two journals can't be compared row by row", next=fix)
            columns = (ROW_COLUMN, *(chosen.columns[name] for name in schema.names if name in chosen.columns))
            where = (str(table), HELD, columns, table.schema, ctx.lineage, fed_by)
            return DirectTicket(*where, table.name, self._rest(session, table, columns)).dump()

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        doing = f"mark epoch {epoch}"
        ids = [committable.txn.id for committable in committables]
        outcome: Outcome = Committed()
        with self._using(doing, WRITTEN) as session:
            _, seen = self._seen(session, doing)
            schema = payload_of(committables[0], DirectUpsertWriter)["schema"]
            marks, registry = self._marks(session, schema), Registry(session, schema)
            with session.transaction():
                marks.lock()
                if self._is_marked(marks, seen, epoch):
                    outcome = AlreadyCommitted()
                elif gone := sorted({*ids} - registry.registered(ids)):
                    outcome = _gone(registry, gone, ids, seen)
                else:
                    marks.add(epoch, max(committables, key=lambda one: one.txn.generation).txn.token)
                    registry.forget(ids)
        return [outcome for _ in committables]

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        doing = f"look how epoch {epoch} stands"
        ids = [committable.txn.id for committable in committables]
        with self._using(doing) as session:
            _, seen = self._seen(session, doing)
            schema = payload_of(committables[0], DirectUpsertWriter)["schema"]
            registry = Registry(session, schema)
            # In this order: a vote that another driver takes away meanwhile is marked by the second look.
            gone = sorted({*ids} - registry.registered(ids, keep=False))
            if self._is_marked(self._marks(session, schema), seen, epoch):
                return [AlreadyCommitted() for _ in ids]
        return [_gone(registry, gone, ids, seen) if gone else Prepared() for _ in ids]

    def _roll_back(self, session: Session, refs: Sequence[str]) -> None:
        """End the sessions that still write, and forget votes: what they wrote is overwritten by the replay."""
        super()._roll_back(session, refs)
        Registry(session, self._schema(session)).forget(refs)

    def _listed(self, session: Session) -> list[InDoubt]:
        # In this order: who votes between the two listings is in the second one.
        found = super()._listed(session)
        return [*found, *Registry(session, self._schema(session)).in_doubt(self._ctx.job, self._ctx.sink)]

    def _rest(self, session: Session, table: Found, columns: Iterable[Any]) -> tuple[str, ...]:
        if self._table.mode != "replace":
            return ()
        brought = [*(column.name for column in columns), *GUARD]
        return tuple(name for (name,) in session.run(RESET, table.oid, brought).fetchall())


def _gone(registry: Registry, gone: Sequence[str], ids: Sequence[str], seen: Mark | None) -> Lost | Unknown:
    """Return what becomes of an epoch whose votes are gone, given the mark that the journal knows."""
    evidence = f"of {len(ids)} votes {len(gone)} are in {registry.relation} no more: {gone[0]}"
    return Unknown(evidence) if seen is None else Lost(f"{evidence}; the target stands at {seen}")
