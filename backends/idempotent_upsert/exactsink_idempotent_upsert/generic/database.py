"""Any other database with a SQLAlchemy dialect: portable SQL, in one transaction with the marker. Strategy staged only.

Of two drivers the marker lets one through: it is replaced on condition that it is the one that was read, so that the
second of them finds it changed and rolls back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from exactsink.contract import Fatal, Finding, InDoubt, Retryable
from exactsink.toolkit.roads import Marker
from exactsink_idempotent_upsert.database import MARKER_TABLE, Database, Held, Owner, Session, Votes
from exactsink_idempotent_upsert.generic.rows import Rounds, column_type, columns_declared, columns_of, takes
from exactsink_idempotent_upsert.generic.spool import in_order
from exactsink_idempotent_upsert.mysql.values import unstorable
from exactsink_idempotent_upsert.questions import frame_findings, keys_there
from exactsink_idempotent_upsert.table import Table

__all__ = ["GenericDatabase"]

_KEY = sa.String(255)


@dataclass(frozen=True, slots=True)
class GenericDatabase(Database):
    """One table of a database. Every call opens and closes a connection of its own."""

    url: str
    address: str
    table: Table

    @property
    def place(self) -> str:
        return self.address

    @contextmanager
    def transaction(self, *, make: bool = False) -> Iterator[Session]:
        with self._engine().begin() as connection:
            yield _Session(connection, self)

    @contextmanager
    def explained(self, doing: str, safe: str = "") -> Iterator[None]:
        try:
            yield
        except (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError) as error:
            what = f"could not {doing} in {self.address}: {getattr(error, 'orig', error)}"
            raise Retryable(what, why=safe or "the database may answer later", next="see that it runs") from error
        except sa.exc.SQLAlchemyError as error:
            what = f"could not {doing} in {self.address}: {getattr(error, 'orig', error)}"
            fix = f"fix table {self.table.name}, then start the job again"
            raise Fatal(what, why=safe or "the database refuses", next=fix) from error

    def hold(self) -> Held:
        raise NotImplementedError("strategy direct")

    def last_marker(self, job: str, sink: str) -> Marker | None:
        with self._engine().connect() as connection:
            there = sa.inspect(connection).has_table(MARKER_TABLE)
            return _Session(connection, self).marker(job, sink) if there else None

    def last_owner(self) -> Owner | None:
        return None

    def listed(self, job: str, sink: str) -> list[InDoubt]:
        return []

    def by_epoch(self, column: str, first: int) -> Mapping[int | None, int]:
        name: sa.ColumnClause[int] = sa.column(column)
        table = sa.table(self.table.name, name, schema=self.table.schema)
        query = sa.select(name, sa.func.count()).select_from(table).where((name >= first) | name.is_(None))
        with self._engine().connect() as connection:
            return {row[0]: row[1] for row in connection.execute(query.group_by(name))}

    def findings(self, schema: pa.Schema | None) -> Iterator[Finding]:
        found = list(frame_findings(self.table, schema, "SQL", lambda kind: str(column_type(kind) or "") or None))
        yield from found
        if found:
            return
        with self._engine().connect() as connection:
            look, table = sa.inspect(connection), self.table
            if not look.has_table(table.name, table.schema):
                if not table.create:
                    yield Finding("error", f"table {table.name} does not exist", "make it, or set create = true")
                return
            there = {name.lower() for name in columns_of(connection, table)}
        if schema is None:
            yield from keys_there(table, there)
        else:
            yield from self._fits(schema, there)
        yield Finding(
            "warning",
            f"what columns and constraints of table {table.name} refuse stops the job after the decision:"
            f" {self.address} is known by its SQL only",
            "filter or cast such rows before this sink, and give the keys a UNIQUE constraint",
        )

    def _fits(self, schema: pa.Schema, there: Collection[str]) -> Iterator[Finding]:
        missing = [name for name in self.table.stored(schema.names) if name.lower() not in there]
        for name in missing:
            yield Finding("error", f"table {self.table.name} has no column {name}", "add it to the table")
        if not missing:
            yield from self._narrow(schema)
            yield from self._tried(schema)

    def _narrow(self, schema: pa.Schema) -> Iterator[Finding]:
        """Find columns that would round, cut or refuse some values, where the database has an information schema."""
        with self._engine().connect() as connection:
            declared = columns_declared(connection, self.table)
        for field in schema:
            kind = declared.get(field.name.lower(), "")
            if kind and not takes(kind, field.type):
                message = f"column {field.name} of table {self.table.name} is {kind}, the rows have {field.type}"
                fix = f"widen the column, or cast {field.name} in the transform"
                yield Finding("error", f"{message}: it would be rounded, cut or refused", fix)

    def _tried(self, schema: pa.Schema) -> Iterator[Finding]:
        """Run the statements of an epoch on no row, and roll back: the database itself has the last word."""
        try:
            with self._engine().connect() as connection:
                Rounds(connection, self.table, schema).apply()
        except sa.exc.DBAPIError as error:
            said = " ".join(str(error.orig).split())
            yield Finding("error", f"table {self.table.name} can't be upserted into: {said}", "fix what it says")

    def unstorable(self, batch: pa.RecordBatch) -> str | None:
        return unstorable(batch, "this database")

    def _engine(self) -> sa.Engine:
        return sa.create_engine(self.url, poolclass=NullPool)


class _Session(Session):
    def __init__(self, connection: sa.Connection, database: GenericDatabase) -> None:
        self._connection = connection
        self._database = database
        self._table = database.table
        texts = [sa.Column(name, _KEY, primary_key=True) for name in ("job", "sink")]
        texts += [sa.Column("lineage", _KEY), sa.Column("token", _KEY)]
        numbers = [sa.Column(name, sa.BigInteger) for name in ("epoch", "generation")]
        self._markers = sa.Table(MARKER_TABLE, sa.MetaData(), *texts, *numbers)
        self._stored: Marker | None = None

    def make_marker_table(self) -> None:
        self._markers.create(self._connection, checkfirst=True)

    def make_tables(self, schema: pa.Schema) -> None:
        self.make_marker_table()
        table = self._table
        if not table.create:
            return
        columns = [
            sa.Column(
                name, column_type(schema.field(name).type, key=name in table.keys), primary_key=name in table.keys
            )
            for name in table.stored(schema.names)
        ]
        for column in columns:
            column.autoincrement = False
        sa.Table(table.name, sa.MetaData(), *columns, schema=table.schema).create(self._connection, checkfirst=True)

    def marker(self, job: str, sink: str) -> Marker | None:
        columns = self._markers.c
        query = sa.select(columns.lineage, columns.epoch, columns.generation, columns.token)
        found = self._connection.execute(query.where(columns.job == job, columns.sink == sink)).one_or_none()
        self._stored = None if found is None else Marker(job, sink, *found)
        return self._stored

    def store(self, marker: Marker) -> None:
        """Replace the marker that was read, and no other one. Raises Retryable."""
        columns, before = self._markers.c, self._stored
        values = {"lineage": marker.lineage, "epoch": marker.epoch}
        values |= {"generation": marker.generation, "token": marker.token}
        try:
            if before is None:
                new = self._markers.insert().values(job=marker.job, sink=marker.sink, **values)
                done = self._connection.execute(new).rowcount != 0
            else:
                same = [columns.job == marker.job, columns.sink == marker.sink, columns.epoch == before.epoch]
                same += [columns.generation == before.generation, columns.lineage == before.lineage]
                done = self._connection.execute(self._markers.update().where(*same).values(values)).rowcount == 1
        except (sa.exc.IntegrityError, sa.exc.OperationalError) as error:
            raise _raced(marker) from error
        if not done:
            raise _raced(marker)

    def apply(self, batches: Iterable[pa.RecordBatch]) -> None:
        rounds = None
        for batch in in_order(self._database, self._table, batches):
            rounds = rounds or Rounds(self._connection, self._table, batch.schema)
            rounds.add(batch)
        if rounds is not None:
            rounds.apply()

    def write(self, held: Held, epoch: int, generation: int) -> tuple[int, int] | None:
        raise NotImplementedError("strategy direct")

    def owner(self) -> Owner | None:
        return None

    @property
    def votes(self) -> Votes:
        raise NotImplementedError("strategy direct")

    def listed(self, job: str, sink: str) -> list[InDoubt]:
        return []

    def take(self, mine: Owner, succeeds: frozenset[str] = frozenset()) -> Owner:
        raise NotImplementedError("strategy direct")


def _raced(marker: Marker) -> Retryable:
    return Retryable(
        f"sink {marker.sink}: another process has replaced the target's marker meanwhile",
        why="none of what this one applied is kept",
        next="it is looked at again",
    )
