"""A table in PostgreSQL, reached as the `postgres` backend reaches it: its sessions, COPY, marks, votes and sweep.

Executors import this module: no SQLAlchemy here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import pyarrow as pa

from exactsink.contract import InDoubt, JobContext, Traits, Txn
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
    owned_by,
)
from exactsink_idempotent_upsert.postgres.columns import ROW_COLUMN, Chosen, choose, own_options
from exactsink_idempotent_upsert.postgres.questions import PostgresQuestions
from exactsink_idempotent_upsert.postgres.session import HeldCopy, HeldTicket, Owners, TableSession, marker_of
from exactsink_idempotent_upsert.postgres.staged import StagingTables
from exactsink_idempotent_upsert.postgres.statements import HELD, RESET
from exactsink_idempotent_upsert.table import GUARD, Table
from exactsink_postgres import public as pg

__all__ = ["PostgresDatabase"]


class PostgresDatabase(Database):
    """One table; a driver's calls go through one session, which is kept and has read the mark."""

    voted_in = "exactsink_staged"

    def __init__(
        self, url: str, address: str, table: Table, ctx: JobContext | None, wait: float, staging_schema: str | None
    ) -> None:
        self.table = table
        self._address, self._ctx = address, ctx
        self._given = url, table, wait, staging_schema
        self._schema = ""
        self._connection: pg.Session  # of a driver's call
        self._chosen: Chosen  # as the epoch was opened

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
        return list(pg.Registry(self._connection, self._sink.schema(self._connection)).in_doubt(job, sink))

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
        assert self._ctx is not None, "only a driver asks"
        return pg.SinkSession(self._own, self._ctx)

    def _marks(self, schema: str = "") -> pg.Marks:
        return self._sink.marks(self._connection, schema)

    def _make(self, schema: pa.Schema) -> pg.Marks:
        """Make or widen the table as the options say; return the marks beside it."""
        self._chosen = choose(self._connection, self._own, self._sink.ctx.sink, self.table, schema)
        self._schema = self._chosen.table.schema
        return self._marks(self._schema)
