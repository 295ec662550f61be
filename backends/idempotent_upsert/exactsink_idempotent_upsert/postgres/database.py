"""A table in PostgreSQL, through the `postgres` backend's sessions, COPY, marks, votes and sweep.

A task holds its rows in a temporary table until it votes, so until then it has no lock on the sink's table. Its vote is
stored in `exactsink_staged`, beside that table: a missing vote was lost by a failover. Executors import this module, so
it does not import SQLAlchemy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from exactsink.contract import Fatal, InDoubt, JobContext, Mark, Traits, Txn
from exactsink.toolkit.roads import Marker
from exactsink.toolkit.sql import counted_by, quoted
from exactsink_idempotent_upsert.database import (
    OWNER_TABLE,
    UNBEGUN,
    Database,
    Held,
    Owner,
    Session,
    Strategy,
    Votes,
    owned_by,
)
from exactsink_idempotent_upsert.postgres.columns import (
    ROW_COLUMN,
    TableColumns,
    as_named,
    choose,
    numbered,
    ordered_in,
    own_options,
)
from exactsink_idempotent_upsert.postgres.questions import PostgresQuestions
from exactsink_idempotent_upsert.postgres.staged import StagingTables
from exactsink_idempotent_upsert.postgres.statements import HELD, ORDER, RESET, ROW, HeldRows, Statements, take_rounds
from exactsink_idempotent_upsert.table import GUARD, Table
from exactsink_postgres import public as pg

__all__ = ["HeldCopy", "HeldTicket", "Owners", "PostgresDatabase", "TableSession", "marker_of"]

_HELD = re.compile(r"(pg_temp_\d+\.)?" + HELD.partition(".")[2])


@dataclass(frozen=True, slots=True)
class HeldTicket(pg.Ticket):
    """A ticket for rows that first go into a temporary table. `target` is the sink's table, by its name in the catalog.

    `rest` are columns that mode replace sets to their default.
    """

    target: str
    rest: tuple[str, ...]


def marker_of(job: str, sink: str, mark: Mark | None) -> Marker | None:
    """Return a mark as a marker, without a generation, because the table of marks has none."""
    if mark is None:
        return None
    return Marker(job, sink, mark.lineage, -1 if mark.epoch is None else mark.epoch, 0, min(mark.tokens, default=""))


class Owners(pg.OwnTable):
    """Who alone writes a table directly, in the schema of those tables."""

    name = OWNER_TABLE
    columns = "(target text PRIMARY KEY, job text NOT NULL, sink text NOT NULL, lineage text NOT NULL)"

    def owner(self, target: str, tag: str = "") -> Owner | None:
        """Return who owns a table, and keep it so until the transaction ends. `tag` begins the statement."""
        found = self._run(tag + " SELECT job, sink, lineage FROM {} WHERE target = %s FOR SHARE", target).fetchall()
        return found[0] if found else None

    def last(self, target: str) -> Owner | None:
        """Return the owner of a table, None even if the table of owners does not exist."""
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


class _Votes(Votes):
    def __init__(self, registry: pg.VoteRegistry, tag: str, target: str, rows: int) -> None:
        self._registry, self._tag, self._target, self._rows = registry, tag, target, rows

    def add(self, participant: str) -> None:
        self._registry.register(self._tag, participant, self._target, self._rows)

    def of(self, job: str, sink: str) -> Iterator[InDoubt]:
        return self._registry.in_doubt(job, sink, keep=True)

    def forget(self, participants: Iterable[str]) -> None:
        self._registry.forget(list(participants))


class TableSession(Session):
    """A transaction on the table `target` and exactsink's tables in its schema. `held` are a task's rows in it."""

    def __init__(
        self,
        connection: pg.Session,
        marks: pg.Marks,
        target: str,
        held: HeldCopy | None = None,
        make: Callable[[pa.Schema], pg.Marks] | None = None,
    ) -> None:
        self._connection, self._marks, self._target, self._held, self._make = connection, marks, target, held, make
        self._tag = "" if held is None else held.tag

    def make_marker_table(self) -> None:
        self._marks.create()

    def make_tables(self, schema: pa.Schema) -> None:
        """Wait for tasks that write for the sink first: they and a change of the table would wait for each other."""
        assert self._make is not None, "only a driver makes tables"
        self._marks.lock()
        self._marks = self._make(schema)
        self._marks.create()

    def marker(self, job: str, sink: str) -> Marker | None:
        """Read it while no task writes for the sink; a task reads it while no driver marks."""
        if self._held is None:
            self._marks.lock()
        else:
            self._marks.lock_shared(self._tag)
        return marker_of(job, sink, self._marks.newest(self._tag))

    def store(self, marker: Marker) -> None:
        """Add it: those below it are trimmed later, in no commit's way."""
        self._marks.add(marker.epoch, marker.token)

    def apply(self, batches: Iterable[pa.RecordBatch]) -> None:
        raise NotImplementedError("staged rows wait in tables")

    def write(self, held: Held, epoch: int, generation: int) -> tuple[int, int] | None:
        assert self._held is not None
        return self._held.upsert(HeldRows(epoch, generation))

    def owner(self) -> Owner | None:
        return self._owners.owner(self._target, self._tag)

    @property
    def votes(self) -> Votes:
        rows = 0 if self._held is None else self._held.total
        return _Votes(pg.VoteRegistry(self._connection, self._marks.schema), self._tag, self._target, rows)

    def listed(self, job: str, sink: str) -> list[InDoubt]:
        return list(self.votes.of(job, sink))

    def take(self, mine: Owner, succeeds: frozenset[str] = frozenset()) -> Owner:
        self._owners.create()
        pg.VoteRegistry(self._connection, self._marks.schema).create()
        return self._owners.take(self._target, mine, succeeds)

    @property
    def _owners(self) -> Owners:
        return Owners(self._connection, self._marks.schema)


class HeldCopy(pg.Load, Held):
    """COPYs a task's rows into a temporary table, and upserts them when it votes, guarded row by row."""

    def __init__(
        self, options: pg.PostgresOptions, table: Table, txn: Txn, schema: pa.Schema, ticket: HeldTicket
    ) -> None:
        self._direct = ticket
        self._names = tuple(column.name for column in ticket.columns if column.name not in (ROW, ORDER))
        self._table = as_named(table, self._names)
        self._schema = pa.schema([(ROW, pa.int64()), *ordered_in(schema, table, ticket.columns)])
        super().__init__(options, txn, self._schema, ticket)
        self._waiting = self._waiting._replace(relation=quoted(ticket.schema, ticket.target))

    def add(self, batch: pa.RecordBatch) -> None:
        numbers = numbered(self._rows, batch.num_rows)
        self.write(pa.RecordBatch.from_arrays([numbers, *batch.columns], schema=self._schema))

    def enter(self) -> None:
        super().enter()
        needed = {*self._table.keys, ROW}
        declared = (f"{quoted(c.name)} {c.type}{' NOT NULL' * (c.name in needed)}" for c in self._direct.columns)
        self.execute(f"CREATE TEMPORARY TABLE {HELD} ({', '.join(declared)}) ON COMMIT DROP")

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        self.total = self.finish()
        with self.explained():
            yield TableSession(self.session, self.marks, self._direct.target, self)
        self.end("COMMIT")

    def close(self) -> None:
        self.abort()

    def renamed(self, text: str) -> str:
        return _HELD.sub(self._ticket.table, text)

    def upsert(self, held: HeldRows) -> tuple[int, int] | None:
        """Write the rows, or return the guard of a newer existing row. Raises Fatal if the table drops some."""
        ticket, names = self._direct, (*self._names, *GUARD)
        ordered = ORDER if ORDER in self._schema.names else self._table.ordered_by
        target = quoted(ticket.schema, ticket.target)
        statements = Statements(self._table, target, names, names, ordered, (held,), ticket.rest)
        statements = statements.by_bytes(self.execute, HELD)
        if statements.in_rounds:
            written, taken, expected = take_rounds(self.execute, statements)
        else:
            written = taken = expected = self.execute(statements.at_once()).rowcount
            if written != self.total:  # keys came twice, or existing rows stay
                ((expected,),) = self.execute(statements.keys_count()).fetchall()
                taken = statements.taken(self.execute, written, expected)
        if written == expected:
            return None
        for epoch, generation in self.execute(statements.newer(held)).fetchall():
            return epoch, generation
        if taken != expected:
            raise Fatal(
                f"{self._doing}: it took {taken} of {expected} rows",
                why=f"a trigger or rule of the table drops or adds rows; {pg.UNDECIDED}",
                next=f"drop it from table {ticket.table}, then {pg.AGAIN}",
            )
        return None


class PostgresDatabase(Database):
    """One table; a driver's calls go through one session, which is kept and has read the mark."""

    voted_in = "exactsink_staged"

    def __init__(
        self, url: str, address: str, table: Table, ctx: JobContext | None, wait: float, staging_schema: str | None
    ) -> None:
        self.table = table
        self.place, self._ctx = address, ctx
        self._given = url, table, wait, staging_schema
        self._schema = ""
        self._connection: pg.Session  # of a driver's call
        self._chosen: TableColumns  # as the epoch was opened

    @property
    def traits(self) -> Traits:
        if self.table.guarded:
            return super().traits
        # A failover may lose votes.
        return Traits(atomic_visibility=True, can_lose_votes=True, marks=True, validates_rows=True)

    @property
    def staged(self) -> Strategy | None:
        return None if self.table.guarded else StagingTables(self._own, self.table)

    @contextmanager
    def answered(self, doing: str, safe: str) -> Iterator[None]:
        if self._ctx is None:  # a task's session explains its own errors
            yield
            return
        with self._sink.using(doing, pg.UNBEGUN if safe == UNBEGUN else safe) as self._connection:
            yield

    @contextmanager
    def transaction(self, *, make: bool = False) -> Iterator[Session]:
        with self._connection.transaction():
            yield TableSession(self._connection, self._marks(), self.table.name, make=self._make)

    def hold(self, txn: Txn, schema: pa.Schema, form: Sequence[str]) -> Held:
        ticket = HeldTicket.load(form[0].encode())
        self._schema = ticket.schema
        return HeldCopy(self._own, self.table, txn, schema, ticket)

    def form(self, schema: pa.Schema) -> tuple[str, ...]:
        """Return the ticket for tasks."""
        there, columns = self._chosen.table, self._chosen.columns
        mark = self._marks(there.schema).newest()
        into = (ROW_COLUMN, *(columns[name] for name in schema.names if name in columns))
        fed_by = None if mark is None else mark.lineage
        rest: list[tuple[str]] = []
        if self.table.mode == "replace":
            brought = [*(column.name for column in into), *GUARD]
            rest = self._connection.run(RESET, there.oid, brought).fetchall()
        where = (str(there), HELD, into, there.schema, self._sink.ctx.lineage, fed_by)
        return (HeldTicket(*where, there.name, tuple(name for (name,) in rest)).dump().decode(),)

    def last_marker(self, job: str, sink: str) -> Marker | None:
        return marker_of(job, sink, self._marks().newest())

    def put_birth(self, birth: Marker) -> Marker:
        marks = self._marks()
        with self._connection.transaction():
            marks.create()
            marks.put_birth()
        return self.last_marker(birth.job, birth.sink) or birth

    def trim_marks(self) -> None:
        self._marks().trim()

    def last_owner(self) -> Owner | None:
        self._schema = self._sink.schema(self._connection)
        return Owners(self._connection, self._schema).last(self.table.name)

    def writing(self) -> list[InDoubt]:
        return self._sink.listed(self._connection)

    def listed(self, job: str, sink: str) -> list[InDoubt]:
        return list(pg.VoteRegistry(self._connection, self._sink.schema(self._connection)).in_doubt(job, sink))

    def end(self, participants: Sequence[str]) -> None:
        self._sink.roll_back(self._connection, participants)

    def blocks(self, participant: str) -> Sequence[str]:
        return self._sink.held_by(self._connection, participant)

    def by_epoch(self, column: str, first: int) -> Mapping[int | None, int]:
        return dict(self._connection.run(counted_by(quoted(column), self._own.name.sql, first)).fetchall())

    @contextmanager
    def questions(self) -> Iterator[PostgresQuestions]:
        yield PostgresQuestions(self._connection, self._own, self._sink.ctx, self.table)

    def unstorable(self, batch: pa.RecordBatch) -> str | None:
        """Leave it to the encoder, which knows the columns."""
        return None

    def missing_keys(self, column: pa.Array) -> int:
        """Leave it to the server: a temporary table takes no NULL there, and a NaN equals another one."""
        return 0

    def owned_by(self, owner: Owner) -> tuple[str, str]:
        schema, name = self._schema, self.table.name
        return owned_by(owner, f"{schema}.{name}", name, quoted(schema, OWNER_TABLE), quoted(schema, name))

    def close(self) -> None:
        self._sink.close()

    @cached_property
    def _own(self) -> pg.PostgresOptions:
        return own_options(*self._given)

    @cached_property
    def _sink(self) -> pg.SinkSession:
        assert self._ctx is not None, "only a driver checks"
        return pg.SinkSession(self._own, self._ctx)

    def _marks(self, schema: str = "") -> pg.Marks:
        return self._sink.marks(self._connection, schema)

    def _make(self, schema: pa.Schema) -> pg.Marks:
        """Make or widen the table as the options require. Return the marks beside it."""
        self._chosen = choose(self._connection, self._own, self._sink.ctx.sink, self.table, schema)
        self._schema = self._chosen.table.schema
        return self._marks(self._schema)
