"""MariaDB and MySQL: sessions that refuse values that they would cut, transactions, and the meaning of errors.

Executors import this module, so it imports the driver and SQLAlchemy only when it connects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from exactsink.contract import Fatal, Txn
from exactsink_idempotent_upsert.database import MARKER_TABLE, Held, Result, Session
from exactsink_idempotent_upsert.limits import Limit, inexact, unstorable
from exactsink_idempotent_upsert.mysql.catalog import Catalog, code_of
from exactsink_idempotent_upsert.mysql.statements import Statements, column_type, packed, quoted, rows_of
from exactsink_idempotent_upsert.own_tables import Refusal, SqlDatabase, SqlSession, made
from exactsink_idempotent_upsert.questions import Questions
from exactsink_idempotent_upsert.setwise import ROWS, Spool, in_order, numbered
from exactsink_idempotent_upsert.table import GUARD, Table

if TYPE_CHECKING:
    import pymysql


__all__ = ["MysqlDatabase"]

_PASSING = {
    "another transaction has changed the row: exactsink tries again": (1020,),
    "free space on the server's disk": (1021, 1114),
    "free space on the server's disk, and read its log": (1180,),
    "raise max_connections, or close connections: none is free": (1040,),
    "start the server again: it is shutting down": (1053,),
    "check the network: the connection broke off": (1152, 1158, 1159, 1160, 1161),
    "see who holds locks on the table: SHOW ENGINE INNODB STATUS": (1205,),
    "another transaction held locks that this one needs: exactsink tries again": (1213,),
    "see whether the server is read-only: a standby, for example": (1290, 1836),
    "find out who ended the statement": (1317,),
    "find out who ended the connection": (1927,),
    "see max_statement_time": (1969,),
    "see max_execution_time": (3024,),
    "see wait_timeout": (4031,),
    "check that the server runs": (2002, 2003, 2006, 2013),
}
"""The fix for each code of an error that may pass."""

_OUT_OF_RANGE = 1690  # so a statement ends that meets a row which it must not change
_NO_TABLE, _TOO_LARGE = 1146, 1153
_HINTS = {
    _TOO_LARGE: "raise max_allowed_packet",
    1292: "check the column's type",
    1364: "give the column a default, or select it into this sink",
    1406: "check the column's length",
    1452: "a row refers to a row that does not exist: let this sink commit `after` the sink that writes that row",
    1665: "set binlog_format to MIXED or ROW",
}
_MODE = (
    "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,"
    "NO_AUTO_VALUE_ON_ZERO"
)
_PRODUCT = "MariaDB and MySQL"
_STATEMENT_BYTES = 256 * 1024
_KINDS = {"text": "VARCHAR(255)", "number": "BIGINT", "moment": "DOUBLE"}
_OPTIONS = "ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
_THERE = "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s"


@dataclass(frozen=True, slots=True)
class MysqlDatabase(SqlDatabase):
    """One table of a MariaDB or MySQL server. Every call opens and closes a connection of its own."""

    url: str
    place: str
    table: Table
    busy_timeout_seconds: float

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
                    f"{self.place} did not make the session strict: sql_mode is {mode}",
                    why="it would cut values silently",
                    next="let the job connect to the server without a proxy or setting that changes its statements",
                )
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def transaction(self, *, make: bool = False) -> Iterator[Session]:
        connection = self.connect()
        try:
            connection.begin()
            yield _Session(connection, self)
            connection.commit()
        finally:
            connection.close()  # without a COMMIT the server rolls back

    def refusal(self, error: Exception) -> Refusal | None:
        from pymysql.err import MySQLError

        if not isinstance(error, MySQLError):
            return None
        code, text = code_of(error), error.args[1] if len(error.args) > 1 else str(error)
        said = f"{text} ({code})"
        if look := next((look for look, codes in _PASSING.items() if code in codes), None):
            return Refusal(True, said, look)
        fix = _HINTS.get(code, f"fix table {self.table.name}")
        if code == _NO_TABLE and MARKER_TABLE in str(text):
            fix = "restore the database that the epoch was opened on"
        if code == _OUT_OF_RANGE:
            said = "a row has the same values in a second unique index as a row with another key"
            fix = "change one of the two rows, or drop the index"
        return Refusal(False, said, fix)

    def hold(self, txn: Txn, schema: pa.Schema, form: Sequence[str]) -> Held:
        self.connect().close()
        return Spool(self)

    @contextmanager
    def looking(self) -> Iterator[_Session]:
        with closing(self.connect()) as connection:
            yield _Session(connection, self)

    @contextmanager
    def questions(self) -> Iterator[Questions]:
        from exactsink_idempotent_upsert.mysql.questions import MysqlQuestions  # tasks need no checks

        with closing(self.connect()) as connection:
            yield MysqlQuestions(connection, self.table)

    def limits(self, schema: pa.Schema) -> dict[str, Limit]:
        with closing(self.connect()) as connection:
            table = self.table
            return Catalog.read(connection, table).limits(table.stored(schema.names), (*table.keys, table.version))

    def unstorable(self, batch: pa.RecordBatch) -> str | None:
        return unstorable(batch, _PRODUCT, column_type, inexact)

    def quoted(self, name: str) -> str:
        return quoted(name)


class _Session(SqlSession):
    kinds, lock = _KINDS, " FOR UPDATE"
    absent = "INSERT INTO {} ON DUPLICATE KEY UPDATE target = target"

    def __init__(self, connection: pymysql.Connection[Any], database: MysqlDatabase) -> None:
        self._connection = connection
        self._table = database.table
        self._database = database

    def run(self, statement: str, *values: object) -> Result:
        cursor: pymysql.cursors.Cursor = self._connection.cursor()
        cursor.execute(statement, values or None)
        return cursor

    def has(self, name: str) -> bool:
        return bool(self.run(_THERE, name).fetchall())

    def define(self, name: str) -> None:
        self._commit_definition(f"{made(name, _KINDS)} {_OPTIONS}")

    def is_race(self, error: Exception) -> bool:
        from pymysql.err import IntegrityError

        return isinstance(error, IntegrityError)

    def make_tables(self, schema: pa.Schema) -> None:
        self.make_marker_table()
        table, statements = self._table, Statements(self._table)
        catalog = Catalog.read(self._connection, table)
        stored = table.stored(schema.names)
        if table.create and not catalog.columns:
            kinds = {name: column_type(schema.field(name).type, key=name in table.keys) or "" for name in stored}
            self._commit_definition(statements.created_for(kinds, catalog.exact_collation))
        elif table.add_columns and catalog.columns:
            for name in catalog.missing(stored):
                self._commit_definition(statements.with_column(name, column_type(schema.field(name).type)))

    def apply(self, batches: Iterable[pa.RecordBatch]) -> None:
        ordered = in_order(self._database, self._table, batches)
        if self._table.deletes:
            self._apply_at_once(numbered(self._table, ordered))
        else:
            self._upsert(ordered)

    def _apply_at_once(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Apply rows, some of which delete, from a temporary table. The table ends with the connection."""
        if (first := next(batches, None)) is None:
            return
        catalog, brought = Catalog.read(self._connection, self._table), first.schema.names
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
            query = Statements(self._table).newer_than(epoch, generation)
            newer = self.run(query).fetchall() if code_of(error) == _OUT_OF_RANGE else ()
            if not newer:
                raise
            return int(newer[0][0]), int(newer[0][1])
        return None

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
        catalog = Catalog.read(self._connection, self._table)
        rest = catalog.defaulted(self._table.stored(names)) if self._table.mode == "replace" else ()
        return Statements(self._table, tuple(rest), bool(catalog.other_unique(self._table.keys)))

    def _commit_definition(self, statement: str) -> None:
        """Run a statement that ends its own transaction, and begin the next one."""
        self._connection.query(statement)
        self._connection.begin()
