"""A table in PostgreSQL, reached as the `postgres` backend reaches it: its sessions, COPY, marks, votes and sweep.

Executors import this module: no SQLAlchemy here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa

from exactsink.contract import InDoubt, JobContext, Marker, Traits, Txn
from exactsink.toolkit.sql import counted_by, quoted
from exactsink_idempotent_upsert.database import (
    OWNER_TABLE,
    UNBEGUN,
    Database,
    Held,
    Owner,
    Session,
    Strategy,
    owned_by,
)
from exactsink_idempotent_upsert.options import UpsertOptions
from exactsink_idempotent_upsert.postgres.columns import ROW_COLUMN, Chosen, choose, own_options
from exactsink_idempotent_upsert.postgres.questions import PostgresQuestions
from exactsink_idempotent_upsert.postgres.session import HeldCopy, HeldTicket, MarkedBy, Owners, TableSession
from exactsink_idempotent_upsert.postgres.staged import StagingTables
from exactsink_idempotent_upsert.postgres.statements import HELD, RESET
from exactsink_idempotent_upsert.table import GUARD, Table
from exactsink_postgres.public import Registry, SinkSession
from exactsink_postgres.public import Session as Connection

__all__ = ["PostgresDatabase"]


class PostgresDatabase(Database):
    """One table; a driver's calls go through one session, which is kept and read the mark."""

    voted_in = "exactsink_staged"

    def __init__(self, options: UpsertOptions, table: Table, ctx: JobContext | None) -> None:
        self.table = table
        self._address = options.address
        self._own = own_options(options)
        self._ctx = ctx
        self._sink = None if ctx is None else SinkSession(self._own, ctx)
        self._connection: Connection | None = None
        self._chosen: Chosen | None = None
        self._schema = ""

    @property
    def place(self) -> str:
        return self._address

    @property
    def traits(self) -> Traits:
        if self.table.guarded:
            return super().traits
        # A failover may lose what was voted.
        return Traits(atomic_visibility=True, can_lose_votes=True, marks=True, validates_rows=True)

    @property
    def staged(self) -> Strategy:
        return StagingTables(self._own, self.table)

    @contextmanager
    def explained(self, doing: str, safe: str = "") -> Iterator[None]:
        if self._sink is None:  # a task's session explains its own errors
            yield
            return
        with self._sink.opening(doing) if safe == UNBEGUN else self._sink.using(doing, safe) as self._connection:
            yield

    @contextmanager
    def transaction(self, *, make: bool = False) -> Iterator[Session]:
        connection, sink = self._driver
        with connection.transaction():
            yield _DriverSession(self, connection, sink)

    def hold(self, txn: Txn, schema: pa.Schema, form: Sequence[str]) -> Held:
        ticket = HeldTicket.load(form[0].encode())
        self._schema = ticket.schema
        return HeldCopy(self._own, self.table, txn, schema, ticket)

    def form(self, schema: pa.Schema) -> tuple[str, ...]:
        """Return the ticket for tasks."""
        connection, sink = self._driver
        assert self._chosen is not None
        assert self._ctx is not None
        there, columns = self._chosen.table, self._chosen.columns
        mark = sink.marks(connection, there.schema).newest()
        into = (ROW_COLUMN, *(columns[name] for name in schema.names if name in columns))
        where = (str(there), HELD, into, there.schema, self._ctx.lineage, None if mark is None else mark.lineage)
        rest: list[tuple[str]] = []
        if self.table.mode == "replace":
            rest = connection.run(RESET, there.oid, [*(column.name for column in into), *GUARD]).fetchall()
        return (HeldTicket(*where, there.name, tuple(name for (name,) in rest)).dump().decode(),)

    def last_marker(self, job: str, sink: str) -> Marker | None:
        connection, mine = self._driver
        return MarkedBy.of(job, sink, mine.marks(connection).newest())

    def put_birth(self, birth: Marker) -> Marker:
        connection, sink = self._driver
        marks = sink.marks(connection)
        with connection.transaction():
            marks.create()
            marks.put_birth()
        return self.last_marker(birth.job, birth.sink) or birth

    def trim_marks(self) -> None:
        connection, sink = self._driver
        sink.marks(connection).trim()

    def last_owner(self) -> Owner | None:
        connection, sink = self._driver
        self._schema = sink.schema(connection)
        return Owners(connection, self._schema).last(self.table.name)

    def writing(self) -> list[InDoubt]:
        connection, sink = self._driver
        return sink.listed(connection)

    def listed(self, job: str, sink: str) -> list[InDoubt]:
        connection, mine = self._driver
        return list(Registry(connection, mine.schema(connection)).in_doubt(job, sink))

    def end(self, participants: Sequence[str]) -> None:
        connection, sink = self._driver
        sink.roll_back(connection, participants)

    def blocks(self, participant: str) -> Sequence[str]:
        connection, sink = self._driver
        return sink.held_by(connection, participant)

    def by_epoch(self, column: str, first: int) -> Mapping[int | None, int]:
        connection, _ = self._driver
        return dict(connection.run(counted_by(quoted(column), self._own.name.sql, first)).fetchall())

    @contextmanager
    def questions(self) -> Iterator[PostgresQuestions]:
        connection, _ = self._driver
        assert self._ctx is not None
        yield PostgresQuestions(connection, self._own, self._ctx, self.table)

    def unstorable(self, batch: pa.RecordBatch) -> str | None:
        """Leave it to the encoder, which knows the columns."""
        return None

    def missing_keys(self, column: pa.Array) -> int:
        """Leave it to the server: a temporary or staging table takes no NULL there, and a NaN equals another one."""
        return 0

    def owned_by(self, owner: Owner) -> tuple[str, str]:
        schema, name = self._schema, self.table.name
        return owned_by(owner, f"{schema}.{name}", name, quoted(schema, OWNER_TABLE), quoted(schema, name))

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()

    @property
    def _driver(self) -> tuple[Connection, SinkSession]:
        assert self._connection is not None, "only a driver calls it, within `explained`"
        assert self._sink is not None
        return self._connection, self._sink

    def made(self, connection: Connection, schema: pa.Schema) -> str:
        """Make or widen the table as the options say; return its schema."""
        assert self._ctx is not None
        self._chosen = choose(connection, self._own, self._ctx.sink, self.table, schema)
        self._schema = self._chosen.table.schema
        return self._schema


class _DriverSession(TableSession):
    def __init__(self, database: PostgresDatabase, connection: Connection, sink: SinkSession) -> None:
        super().__init__(connection, database.table, sink.marks(connection), database.table.name)
        self._database, self._sink = database, sink

    def make_tables(self, schema: pa.Schema) -> None:
        """Wait for tasks that write for the sink first: they and a change of the table would wait for each other."""
        self._marks.lock()
        self._marks = self._sink.marks(self._connection, self._database.made(self._connection, schema))
        self._marks.create()
