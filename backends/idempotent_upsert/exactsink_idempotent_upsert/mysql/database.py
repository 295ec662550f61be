"""MariaDB and MySQL: sessions that refuse what they would cut, transactions, and the marker and owner tables.

Executors import this module: the driver and SQLAlchemy only where it connects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from exactsink.contract import Fatal, InDoubt, Retryable, Txn
from exactsink.toolkit.roads import Marker
from exactsink.toolkit.sql import counted_by
from exactsink_idempotent_upsert.database import (
    MARKER_TABLE,
    OWNER_TABLE,
    VOTE_TABLE,
    Database,
    Held,
    Owner,
    Session,
    Votes,
)
from exactsink_idempotent_upsert.limits import Limit
from exactsink_idempotent_upsert.mysql.errors import answered, is_refusal
from exactsink_idempotent_upsert.mysql.statements import Statements, quoted
from exactsink_idempotent_upsert.mysql.values import column_type, packed, rows_of
from exactsink_idempotent_upsert.questions import Questions
from exactsink_idempotent_upsert.setwise import ROWS, Spool, in_order, numbered
from exactsink_idempotent_upsert.storable import inexact, unstorable
from exactsink_idempotent_upsert.table import GUARD, Table

if TYPE_CHECKING:
    import pymysql

    from exactsink_idempotent_upsert.mysql.catalog import Catalog

__all__ = ["MysqlDatabase"]

_MODE = (
    "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,"
    "NO_AUTO_VALUE_ON_ZERO"
)
_PRODUCT = "MariaDB and MySQL"
_STATEMENT_BYTES = 256 * 1024
_TEXT = "VARCHAR(255) NOT NULL"
_OPTIONS = "ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
_MARKERS = (
    f"CREATE TABLE IF NOT EXISTS {MARKER_TABLE} (job {_TEXT}, sink {_TEXT}, lineage {_TEXT}, epoch BIGINT NOT NULL,"
    f" generation BIGINT NOT NULL, token {_TEXT}, PRIMARY KEY (job, sink)) {_OPTIONS}"
)
_OWNERS = (
    f"CREATE TABLE IF NOT EXISTS {OWNER_TABLE} (target {_TEXT}, job {_TEXT}, sink {_TEXT}, lineage {_TEXT},"
    f" PRIMARY KEY (target)) {_OPTIONS}"
)
_VOTES = (
    f"CREATE TABLE IF NOT EXISTS {VOTE_TABLE} (participant {_TEXT} PRIMARY KEY, voted_at DOUBLE NOT NULL) {_OPTIONS}"
)
_THERE = "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s"
_READ_MARKER = f"SELECT lineage, epoch, generation, token FROM {MARKER_TABLE} WHERE job = %s AND sink = %s"
_NEW_MARKER = (
    f"INSERT INTO {MARKER_TABLE} (lineage, epoch, generation, token, job, sink) VALUES (%s, %s, %s, %s, %s, %s)"
)
_NEXT_MARKER = (
    f"UPDATE {MARKER_TABLE} SET lineage = %s, epoch = %s, generation = %s, token = %s WHERE job = %s AND sink = %s"
)
_READ_OWNER = f"SELECT job, sink, lineage FROM {OWNER_TABLE} WHERE target = %s"


@dataclass(frozen=True, slots=True)
class MysqlDatabase(Database):
    """One table of a MariaDB or MySQL server. Every call opens and closes a connection of its own."""

    url: str
    address: str
    table: Table
    busy_timeout_seconds: float

    @property
    def place(self) -> str:
        return self.address

    def connect(self) -> pymysql.Connection[Any]:
        """Connect, and make the session strict, in UTC and READ COMMITTED. It is in autocommit."""
        import pymysql
        from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql
        from sqlalchemy.engine import make_url

        args, given = MySQLDialect_pymysql().create_connect_args(make_url(self.url))
        wait = max(1, int(self.busy_timeout_seconds))
        settings = (
            f"SET SESSION sql_mode = '{_MODE}', time_zone = '+00:00', innodb_lock_wait_timeout = {wait},"
            " foreign_key_checks = 1, unique_checks = 1"
        )
        own = {"charset": "utf8mb4", "autocommit": True, "connect_timeout": 10, "local_infile": False}
        if "unix_socket" in given and not any(name.startswith("ssl") for name in given):
            own["ssl_disabled"] = True  # nobody reads a socket on the way, and an SSL context takes 10 ms
        connection = pymysql.connect(*args, **{**given, **own})
        try:
            with connection.cursor() as cursor:
                cursor.execute(settings)
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
                cursor.execute("SELECT @@sql_mode")
                [(mode,)] = cursor.fetchall()
            if "STRICT_ALL_TABLES" not in mode:
                raise Fatal(
                    f"{self.address} did not make the session strict: sql_mode is {mode}",
                    why="it would cut values silently",
                    next="let the job reach the server without what changes its statements",
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def session(self, connection: pymysql.Connection[Any]) -> _Session:
        return _Session(connection, self)

    @contextmanager
    def transaction(self, *, make: bool = False) -> Iterator[Session]:
        connection = self.connect()
        try:
            connection.begin()
            yield self.session(connection)
            connection.commit()
        finally:
            connection.close()  # without a COMMIT the server rolls back

    def answered(self, doing: str, safe: str) -> AbstractContextManager[None]:
        return answered(self, doing, safe)

    def hold(self, txn: Txn, schema: pa.Schema, form: Sequence[str]) -> Held:
        self.connect().close()
        return Spool(self)

    def last_marker(self, job: str, sink: str) -> Marker | None:
        with closing(self.connect()) as connection:
            session = self.session(connection)
            return session.read_marker(job, sink) if session.has_table(MARKER_TABLE) else None

    def last_owner(self) -> Owner | None:
        with closing(self.connect()) as connection:
            session = self.session(connection)
            return session.owner() if session.has_table(OWNER_TABLE) else None

    def listed(self, job: str, sink: str) -> list[InDoubt]:
        with closing(self.connect()) as connection:
            return self.session(connection).listed(job, sink)

    def by_epoch(self, column: str, first: int) -> Mapping[int | None, int]:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(counted_by(quoted(column), Statements(self.table).name, first))
            return dict(cursor.fetchall())

    @contextmanager
    def questions(self) -> Iterator[Questions]:
        from exactsink_idempotent_upsert.mysql.questions import MysqlQuestions

        with closing(self.connect()) as connection:
            yield MysqlQuestions(connection, self.table)

    def limits(self, schema: pa.Schema) -> dict[str, Limit]:
        with closing(self.connect()) as connection:
            table = self.table
            return _catalog(connection, table).limits(table.stored(schema.names), (*table.keys, table.version))

    def unstorable(self, batch: pa.RecordBatch) -> str | None:
        return unstorable(batch, _PRODUCT, column_type, inexact)

    def quoted(self, name: str) -> str:
        return quoted(name)


class _Session(Session):
    def __init__(self, connection: pymysql.Connection[Any], database: MysqlDatabase) -> None:
        self._connection = connection
        self._table = database.table
        self._database = database
        self._marked = False

    def has_table(self, name: str) -> bool:
        return bool(self._rows(_THERE, name))

    def make_marker_table(self) -> None:
        self._define(MARKER_TABLE, _MARKERS)

    def make_tables(self, schema: pa.Schema) -> None:
        self.make_marker_table()
        table, statements = self._table, Statements(self._table)
        catalog = _catalog(self._connection, table)
        stored = table.stored(schema.names)
        if table.create and not catalog.columns:
            kinds = {name: column_type(schema.field(name).type, key=name in table.keys) or "" for name in stored}
            self._commit_definition(statements.created_for(kinds, catalog.exact_collation))
        elif table.add_columns and catalog.columns:
            for name in catalog.missing(stored):
                self._commit_definition(statements.with_column(name, column_type(schema.field(name).type)))

    def marker(self, job: str, sink: str) -> Marker | None:
        return self.read_marker(job, sink, " FOR UPDATE")

    def read_marker(self, job: str, sink: str, lock: str = "") -> Marker | None:
        found = self._rows(_READ_MARKER + lock, job, sink)
        self._marked = bool(found)
        return Marker(job, sink, *found[0]) if found else None

    def store(self, marker: Marker) -> None:
        """Replace the marker, or store the first one: a rival that has stored it meanwhile makes that fail."""
        what = (marker.lineage, marker.epoch, marker.generation, marker.token, marker.job, marker.sink)
        from pymysql.err import IntegrityError

        try:
            self._rows(_NEXT_MARKER if self._marked else _NEW_MARKER, *what)
        except IntegrityError as error:
            raise Retryable(
                f"sink {marker.sink}: another process stored the target's first marker",
                why="none of what this one applied is kept",
                next="it is looked at again",
            ) from error

    def apply(self, batches: Iterable[pa.RecordBatch]) -> None:
        ordered = in_order(self._database, self._table, batches)
        if self._table.deletes:
            self._apply_at_once(numbered(self._table, ordered))
        else:
            self._upsert(ordered)

    def _apply_at_once(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Apply rows some of which delete: out of a temporary table, which is gone with the connection."""
        if (first := next(batches, None)) is None:
            return
        catalog, brought = _catalog(self._connection, self._table), first.schema.names
        statements, names = self._statements(brought), self._table.stored(brought[1:])
        self._connection.query(statements.rows({name: catalog.declared(name) for name in names}))
        for pack in packed((rows_of(batch, brought) for batch in chain([first], batches)), _STATEMENT_BYTES):
            self._connection.query(f"INSERT INTO {ROWS} VALUES ".encode() + pack)
        for statement in statements.applied(names):
            self._connection.query(statement)

    def write(self, held: Held, epoch: int, generation: int) -> tuple[int, int] | None:
        from pymysql.err import MySQLError

        assert isinstance(held, Spool)
        try:
            self._upsert(in_order(self._database, self._table, held.read()), (epoch, generation))
        except MySQLError as error:
            newer = self._rows(Statements(self._table).newer_than(epoch, generation)) if is_refusal(error) else ()
            if not newer:
                raise
            return int(newer[0][0]), int(newer[0][1])
        return None

    def owner(self) -> Owner | None:
        found: Sequence[Owner] = self._rows(_READ_OWNER, self._table.target)
        return found[0] if found else None

    @property
    def votes(self) -> Votes:
        return Votes(self._rows)

    def listed(self, job: str, sink: str) -> list[InDoubt]:
        return list(self.votes.of(job, sink)) if self.has_table(VOTE_TABLE) else []

    def take(self, mine: Owner, succeeds: frozenset[str] = frozenset()) -> Owner:
        self._define(OWNER_TABLE, _OWNERS)
        self._define(VOTE_TABLE, _VOTES)
        new = f"INSERT INTO {OWNER_TABLE} VALUES (%s, %s, %s, %s) ON DUPLICATE KEY UPDATE target = target"
        self._rows(new, self._table.target, *mine)
        [owner] = self._rows(_READ_OWNER + " FOR UPDATE", self._table.target)
        if owner[:2] == mine[:2] and owner[2] in succeeds:
            self._rows(f"UPDATE {OWNER_TABLE} SET lineage = %s WHERE target = %s", mine[2], self._table.target)
            return mine
        job, sink, lineage = owner
        return job, sink, lineage

    def _upsert(self, batches: Iterator[pa.RecordBatch], guard: tuple[int, ...] = ()) -> None:
        if (first := next(batches, None)) is None:
            return
        stored = self._table.stored(first.schema.names)
        names, statements = [*stored, *(GUARD if guard else ())], self._statements(stored)
        before = statements.insert(names).encode()
        after = statements.on_duplicate(names, *guard).encode()
        more = "".join(f",{number}" for number in guard)
        for pack in packed((rows_of(batch, stored, more) for batch in chain([first], batches)), _STATEMENT_BYTES):
            self._connection.query(before + pack + after)

    def _statements(self, names: Iterable[str]) -> Statements:
        catalog = _catalog(self._connection, self._table)
        rest = catalog.defaulted(self._table.stored(names)) if self._table.mode == "replace" else ()
        return Statements(self._table, tuple(rest), bool(catalog.other_unique(self._table.keys)))

    def _rows(self, statement: str, *values: object) -> Sequence[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return tuple(cursor.fetchall())

    def _define(self, name: str, statement: str) -> None:
        if not self.has_table(name):
            self._commit_definition(statement)

    def _commit_definition(self, statement: str) -> None:
        """Run what ends the transaction that it is in, and begin the next one."""
        self._connection.query(statement)
        self._connection.begin()


def _catalog(connection: pymysql.Connection[Any], table: Table) -> Catalog:
    from exactsink_idempotent_upsert.mysql.catalog import Catalog

    return Catalog.read(connection, table)
