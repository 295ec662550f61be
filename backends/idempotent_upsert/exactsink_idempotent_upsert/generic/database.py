"""Any other database with a SQLAlchemy dialect: portable SQL, in one transaction with the marker. Strategy staged only.

Of two drivers the marker lets one through: it is replaced on condition that it is the one that was read, so that the
second of them finds it changed and rolls back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from exactsink.contract import Fatal, InDoubt, Retryable, Txn
from exactsink.toolkit.local_paths import other_owner
from exactsink.toolkit.roads import Marker
from exactsink_idempotent_upsert.database import MARKER_TABLE, Database, Held, Owner, Session, Votes
from exactsink_idempotent_upsert.generic.questions import GenericQuestions
from exactsink_idempotent_upsert.generic.rows import EpochRows, column_type
from exactsink_idempotent_upsert.setwise import in_order, numbered
from exactsink_idempotent_upsert.storable import inexact, unstorable
from exactsink_idempotent_upsert.table import Table

__all__ = ["GenericDatabase"]

_KEY = sa.String(255)


@dataclass(frozen=True, slots=True)
class GenericDatabase(Database):
    """One table of a database. Every call opens and closes a connection of its own."""

    url: str
    address: str
    table: Table
    knows_rows = False

    @property
    def place(self) -> str:
        return self.address

    @contextmanager
    def transaction(self, *, make: bool = False) -> Iterator[Session]:
        with self._engine().begin() as connection:
            yield _Session(connection, self)

    @contextmanager
    def answered(self, doing: str, safe: str) -> Iterator[None]:
        try:
            yield
        except (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError) as error:
            what = f"could not {doing} in {self.address}: {getattr(error, 'orig', error)}"
            raise Retryable(what, why=safe or "the database may answer later", next="see that it runs") from error
        except sa.exc.SQLAlchemyError as error:
            what = f"could not {doing} in {self.address}: {getattr(error, 'orig', error)}"
            fix = f"fix table {self.table.name}, then start the job again"
            raise Fatal(what, why=safe or "the database refuses", next=fix) from error

    def hold(self, txn: Txn, schema: pa.Schema, form: Sequence[str]) -> Held:
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

    @contextmanager
    def questions(self) -> Iterator[GenericQuestions]:
        """Connect, to ask."""
        with self._engine().connect() as connection:
            yield GenericQuestions(connection, self.table, self.address, _Session(connection, self).tried)

    def unstorable(self, batch: pa.RecordBatch) -> str | None:
        return unstorable(batch, "this database", lambda kind: str(column_type(kind) or "") or None, inexact)

    def _engine(self) -> sa.Engine:
        file = Path(self.address.partition(":///")[2])
        if self.address.startswith("duckdb") and (user := other_owner(file)) is not None:
            why = f"DuckDB would make files that are root's beside it, and user {user} could open it no more"
            raise Fatal(f"{file} is user {user}'s", why=why, next=f"repeat the command with `sudo -u {user}` before it")
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
        kinds = {n: column_type(schema.field(n).type, key=n in table.keys) for n in table.stored(schema.names)}
        columns = [sa.Column(n, kind, primary_key=n in table.keys, autoincrement=False) for n, kind in kinds.items()]
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

    def tried(self) -> None:
        """Replace a marker that is not there. Raises what the database refuses the statement with."""
        if sa.inspect(self._connection).has_table(MARKER_TABLE):
            self._connection.execute(self._markers.update().where(sa.false()).values(epoch=0))

    def apply(self, batches: Iterable[pa.RecordBatch]) -> None:
        rows = None
        for batch in numbered(self._table, in_order(self._database, self._table, batches)):
            rows = rows or EpochRows(self._connection, self._table, batch.schema, self._rest(batch.schema))
            rows.add(batch)
        if rows is not None:
            rows.apply()

    def _rest(self, schema: pa.Schema) -> Sequence[str]:
        with self._database.questions() as questions:  # on a connection of its own: a look that fails rolls back
            return questions.rest(schema)

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
