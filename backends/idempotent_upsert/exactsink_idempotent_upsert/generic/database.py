"""Any other database with a SQLAlchemy dialect: portable SQL, in one transaction with the marker. Only strategy staged.

Rows go into a temporary table, then DELETE, UPDATE and INSERT write each key's final row. If two drivers apply an
epoch, the marker lets only one commit: it is replaced only if it is still the one that was read. The second driver
finds it changed, and rolls back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from exactsink.contract import Fatal
from exactsink.toolkit.local_paths import other_owner
from exactsink_idempotent_upsert.database import Result, Session
from exactsink_idempotent_upsert.generic.questions import GenericQuestions
from exactsink_idempotent_upsert.generic.statements import EpochRows, column_type
from exactsink_idempotent_upsert.limits import inexact, unstorable
from exactsink_idempotent_upsert.own_tables import Refusal, SqlDatabase, SqlSession, made
from exactsink_idempotent_upsert.setwise import in_order, numbered
from exactsink_idempotent_upsert.table import Table

__all__ = ["GenericDatabase"]

_OWN: dict[str, sa.types.TypeEngine[Any]] = {"text": sa.String(255), "number": sa.BigInteger(), "moment": sa.Double()}


@dataclass(frozen=True, slots=True)
class GenericDatabase(SqlDatabase):
    """One table of a database. Every call opens and closes a connection of its own."""

    url: str
    place: str
    table: Table
    knows_rows = False

    @contextmanager
    def transaction(self, *, make: bool = False) -> Iterator[Session]:
        with self._engine().begin() as connection:
            yield _Session(connection, self)

    @contextmanager
    def looking(self) -> Iterator[_Session]:
        with self._engine().connect() as connection:
            yield _Session(connection, self)

    def refusal(self, error: Exception) -> Refusal | None:
        if not isinstance(error, sa.exc.SQLAlchemyError):
            return None
        said = str(getattr(error, "orig", error))
        if isinstance(error, (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError)):
            return Refusal(True, said, "check that it runs")
        return Refusal(False, said, f"fix table {self.table.name}")

    @contextmanager
    def questions(self) -> Iterator[GenericQuestions]:
        """Connect for the checks."""
        with self._engine().connect() as connection:
            yield GenericQuestions(connection, self.table, self.place)

    def unstorable(self, batch: pa.RecordBatch) -> str | None:
        return unstorable(batch, "this database", lambda kind: str(column_type(kind) or "") or None, inexact)

    def _engine(self) -> sa.Engine:
        file = Path(self.place.partition(":///")[2])
        if self.place.startswith("duckdb") and (user := other_owner(file)) is not None:
            why = f"DuckDB would make files beside it that are root's, and user {user} could no longer open it"
            raise Fatal(f"{file} is user {user}'s", why=why, next=f"repeat the command with `sudo -u {user}` before it")
        return sa.create_engine(self.url, poolclass=NullPool)


class _Session(SqlSession):
    def __init__(self, connection: sa.Connection, database: GenericDatabase) -> None:
        self._connection = connection
        self._database = database
        self._table = database.table
        self.kinds = {name: kind.compile(connection.dialect) for name, kind in _OWN.items()}

    def run(self, statement: str, *values: object) -> Result:
        named = statement
        for place in range(len(values)):
            named = named.replace("%s", f":v{place}", 1)
        return self._connection.execute(sa.text(named), {f"v{place}": value for place, value in enumerate(values)})

    def has(self, name: str) -> bool:
        return sa.inspect(self._connection).has_table(name)

    def define(self, name: str) -> None:
        self.run(made(name, self.kinds).replace(" IF NOT EXISTS", ""))  # not every database has that

    def is_race(self, error: Exception) -> bool:
        return isinstance(error, (sa.exc.IntegrityError, sa.exc.OperationalError))

    def make_tables(self, schema: pa.Schema) -> None:
        self.make_marker_table()
        table = self._table
        if not table.create:
            return
        kinds = {n: column_type(schema.field(n).type, key=n in table.keys) for n in table.stored(schema.names)}
        columns = [sa.Column(n, kind, primary_key=n in table.keys, autoincrement=False) for n, kind in kinds.items()]
        sa.Table(table.name, sa.MetaData(), *columns, schema=table.schema).create(self._connection, checkfirst=True)

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
