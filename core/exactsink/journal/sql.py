"""A journal's entries as rows of one SQL table; its primary key makes `put` an atomic create.

SQLite and PostgreSQL are proven; others go through SQLAlchemy Core only. SQLAlchemy is imported where a store is made.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from exactsink.durable import make_folder
from exactsink.errors import ConfigError, Fatal, PreflightError, Retryable
from exactsink.journal.store import SeqTaken

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine, Select, Table

__all__ = ["JOURNAL_TABLE", "SqlStore"]

JOURNAL_TABLE = "exactsink_journal"
"""It holds the entries of every job that names its database: one row per (job, seq)."""

_JOB_LENGTH = 64
_CHUNK = 500  # seqs in one DELETE: below every database's limit of bound values
_LOCK_SECONDS = 30

_LIBPQ = MappingProxyType(
    {
        "connect_timeout": 10,
        "fallback_application_name": "exactsink journal",
        # A peer that is gone without a word is an error within a minute, not after the kernel's quarter of an hour.
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
    }
)
"""What the URL may say otherwise."""

_PIP = MappingProxyType(
    {
        "MySQLdb": "mysqlclient",
        "psycopg": "'psycopg[binary]>=3.2'",
        "psycopg2": "psycopg2-binary",
    }
)
"""Distributions whose name is not their module's."""

# remote_apply is stronger than on; everything else is weaker. A stalled driver must not hold a seq for good, nor wait
# for one: it is told, and reads the seq.
_POSTGRES_TRANSACTION = f"""
SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', current_setting('fsync') = 'off',
    set_config('synchronous_commit',
        CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true),
    set_config('lock_timeout', '{_LOCK_SECONDS}s', true),
    set_config('idle_in_transaction_session_timeout', '{_LOCK_SECONDS}s', true)
"""


class SqlStore:
    """Keep one job's entries in a database. For one thread at a time; opens nothing before its first call.

    `url` is SQLAlchemy's. What is no such URL, or lacks its driver, is a ConfigError at once. A database that could
    lose an entry, or show an old state, is refused with PreflightError by the call that meets it. A `put` that fails
    in any other way leaves open whether it took effect, and is never tried again here; `read`, `list` and `delete`
    raise Retryable or Fatal. After each error the connection is dropped: the next call opens a new one.
    No message and no log shows the password.
    """

    def __init__(self, url: str, job: str) -> None:
        if not 0 < len(job) <= _JOB_LENGTH:
            raise ValueError(f"job name of {len(job)} characters: 1 to {_JOB_LENGTH} fit the journal's table")
        given = _parsed(url)
        self._engine = _engine(given)
        self._file = Path(given.database) if given.database and given.get_backend_name() == "sqlite" else None
        self._place = _shown(given)
        self._job = job
        self._table = _table()
        self._stands = False  # the table, as far as this store has seen; it is never made twice

    def __repr__(self) -> str:
        return f"SqlStore({self._place!r}, {self._job!r})"

    def put(self, seq: int, data: bytes) -> None:
        """Insert an entry in a transaction of its own, durable when it returns. Makes the table where there is none.

        Raises SeqTaken only when an entry with this seq was seen: a row can be refused for other reasons too.
        """
        from sqlalchemy.exc import IntegrityError

        self._make_table()
        try:
            with self._transaction(write=True) as connection:
                connection.execute(self._table.insert().values(job=self._job, seq=seq, record=data))
            return
        except IntegrityError:
            if self._record(seq) is None:
                raise
        raise SeqTaken(seq)

    def read(self, seq: int) -> bytes | None:
        with self._explained("read"):
            return self._record(seq)

    def list(self) -> Sequence[int]:
        if self._is_new_file():
            return []
        with self._explained("listed"), self._transaction() as connection:
            if not self._found(connection):
                return []
            return [int(seq) for seq in connection.execute(self._select("seq")).scalars()]

    def delete(self, seqs: Iterable[int]) -> None:
        """Remove entries, all or none, in one transaction. Idempotent."""
        gone = sorted(set(seqs))
        if not gone or self._is_new_file():
            return
        entries = self._table.delete().where(self._table.c.job == self._job)
        with self._explained("trimmed"), self._transaction(write=True) as connection:
            if self._found(connection):
                for first in range(0, len(gone), _CHUNK):
                    connection.execute(entries.where(self._table.c.seq.in_(gone[first : first + _CHUNK])))

    def close(self) -> None:
        """Close the connection. Idempotent; a later call opens a new one."""
        self._engine.dispose()

    def _record(self, seq: int) -> bytes | None:
        if self._is_new_file():
            return None
        with self._transaction() as connection:
            if not self._found(connection):
                return None
            data = connection.execute(self._select("record").where(self._table.c.seq == seq)).scalar()
            return None if data is None else bytes(data)

    def _select(self, column: str) -> Select[Any]:
        from sqlalchemy import select

        return select(self._table.c[column]).where(self._table.c.job == self._job)

    def _is_new_file(self) -> bool:
        """Say that SQLite would make the file: reading makes nothing. A file that was seen and is gone is an error."""
        return not self._stands and self._file is not None and not self._file.exists()

    def _make_table(self) -> None:
        """Make the table, unless it stands: idempotent, also from two processes at the same moment."""
        from sqlalchemy.exc import DBAPIError, OperationalError

        if self._stands:
            return
        if self._file is not None:
            make_folder(self._file.parent)
        with self._transaction(write=True) as connection:
            if self._found(connection):
                return
        try:
            with self._transaction(write=True) as connection:
                self._table.create(connection, checkfirst=True)
        except DBAPIError as error:
            with self._transaction() as connection:
                if self._found(connection):  # another process came first
                    return
            if isinstance(error, OperationalError):  # lost on the way, say: no refusal
                raise
            raise _no_table(self._place, error, self._table, self._engine) from error
        with self._transaction() as connection:
            self._found(connection)

    def _found(self, connection: Connection) -> bool:
        """Say whether the table stands, once for this store; refuse one whose key would let two drivers own a seq."""
        if self._stands:
            return True
        from sqlalchemy import inspect

        inspector = inspect(connection)
        if not inspector.has_table(JOURNAL_TABLE):
            return False
        if set(inspector.get_pk_constraint(JOURNAL_TABLE)["constrained_columns"]) != {"job", "seq"}:
            raise PreflightError(
                f"table {JOURNAL_TABLE} at {self._place} lacks the primary key (job, seq)",
                why="without it two drivers could both own an entry; it was copied or changed by hand",
                next=f"stop all its jobs, see that no (job, seq) is there twice, then run: ALTER TABLE {JOURNAL_TABLE} "
                "ADD PRIMARY KEY (job, seq); in SQLite make the table anew with this key",
            )
        self._stands = True
        return True

    @contextmanager
    def _transaction(self, write: bool = False) -> Iterator[Connection]:
        """Give a transaction that is committed at the end; after any error nothing of the connection is used again."""
        try:
            with self._engine.connect() as connection:
                if self._file is not None:
                    _begin_sqlite(connection, self._file, write)
                elif connection.dialect.name == "postgresql":
                    _begin_postgres(connection, self._place)
                yield connection
                connection.commit()
        except BaseException:
            self._engine.dispose()
            raise

    @contextmanager
    def _explained(self, done: str) -> Iterator[None]:
        """Turn the database's errors into ours, where it makes no difference whether the call took effect."""
        from sqlalchemy.exc import ProgrammingError, SQLAlchemyError

        try:
            yield
        except SQLAlchemyError as error:
            kind = Fatal if isinstance(error, ProgrammingError) else Retryable
            raise kind(
                f"the journal at {self._place} could not be {done}",
                why=_reason(error),
                next=f"see that the database answers, and grants SELECT, INSERT and DELETE on {JOURNAL_TABLE}; "
                "then start the job again",
            ) from error


def _parsed(url: str) -> URL:
    """Read a URL, a SQLite file's path made absolute. No error repeats it: a mistyped one may show the password."""
    try:
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError
    except ModuleNotFoundError as error:
        raise ConfigError(f"a journal in a database needs {error.name}", next="pip install SQLAlchemy") from error
    try:
        given = make_url(url)
    except (ArgumentError, ValueError):
        given = None  # raised below, so that the error does not carry this one
    if given is None or "@" in (given.host or ""):
        raise ConfigError(
            "the journal's URL is not one that SQLAlchemy reads",
            why="it is DRIVER://USER:PASSWORD@HOST:PORT/DATABASE, with odd characters written as %40 (@), %2F (/)",
            next="mend the URL: postgresql+psycopg://user:password@host/database, or sqlite:////path/to/file.db",
        )
    return _one_file(given) if given.get_backend_name() == "sqlite" else given


def _one_file(given: URL) -> URL:
    write = "write sqlite:////path/to/file.db"
    in_memory = not given.database or given.database.startswith(":memory:") or "mode=memory" in given.database
    if in_memory or "memory" in given.query.values():
        raise PreflightError("a journal can't be in memory", why="it would end with its process", next=write)
    odd = given.host or given.username or given.password or given.query or str(given.database).startswith("file:")
    if odd or given.drivername not in ("sqlite", "sqlite+pysqlite"):
        why = "a file that is opened in another mode, or by another driver, is not proven to keep what it is given"
        raise ConfigError("a journal's SQLite URL holds a path only", why=why, next=write)
    return given.set(database=str(Path(str(given.database)).absolute()))


def _engine(given: URL) -> Engine:
    """Make the engine; it connects later. One connection is kept, none of a SQLite file: that may be replaced."""
    from sqlalchemy import create_engine
    from sqlalchemy.exc import ArgumentError
    from sqlalchemy.pool import NullPool, QueuePool

    options: dict[str, Any] = {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0}
    if given.get_backend_name() == "sqlite":
        # isolation_level None: the driver begins nothing on its own.
        options = {"poolclass": NullPool, "connect_args": {"isolation_level": None, "timeout": _LOCK_SECONDS}}
    elif given.get_backend_name() == "postgresql":
        # The level is ours whatever the role's default or the URL's autocommit says.
        options |= {"isolation_level": "READ COMMITTED", "connect_args": _libpq(given)}
    wrong = ""
    try:
        engine = create_engine(given, hide_parameters=True, **options)
        if not engine.dialect.is_async:
            return engine
    except ImportError as error:
        module = (error.name or "").split(".")[0]
        needs = f"{given.drivername} needs the Python module {module}"
        raise ConfigError(needs, why=str(error), next=f"pip install {_PIP.get(module, module)}") from error
    except (ArgumentError, TypeError, ValueError) as error:
        wrong = type(error).__name__
    raise ConfigError(
        f"{given.drivername} can't hold a journal",
        why=f"SQLAlchemy refuses the URL ({wrong})" if wrong else "its driver is made for asyncio",
        next="name another driver, or mend the URL: postgresql+psycopg://user:password@host/database",
    )


def _libpq(given: URL) -> Mapping[str, Any]:
    if given.get_driver_name() not in ("psycopg", "psycopg2"):
        return {}
    arguments: dict[str, Any] = {name: value for name, value in _LIBPQ.items() if name not in given.query}
    if given.get_driver_name() == "psycopg":
        arguments["prepare_threshold"] = None  # a pooler between may send each transaction to another connection
    return arguments


def _table() -> Table:
    import sqlalchemy as sa
    from sqlalchemy.dialects.mysql import LONGBLOB

    return sa.Table(
        JOURNAL_TABLE,
        sa.MetaData(),
        sa.Column("job", sa.String(_JOB_LENGTH), primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("record", sa.LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb"), nullable=False),
        mysql_engine="InnoDB",
    )


def _begin_sqlite(connection: Connection, file: Path, write: bool) -> None:
    """Begin so that a commit outlives a power cut; a writer takes its lock now, so that it never has to give it back.

    The file's journal mode stays what it is: others may use the file. EXTRA also syncs the folder where that names
    the transaction.
    """
    folder = file.parent
    if not os.access(file if file.exists() else folder, os.W_OK) or not os.access(folder, os.W_OK | os.X_OK):
        raise PreflightError(
            f"the journal {file} is read-only",
            why="SQLite must write it, and make files beside it",
            next=f"chmod u+rw {file} and u+rwx {folder}, or run the driver as its owner",
        )
    connection.exec_driver_sql("PRAGMA synchronous = EXTRA")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _begin_postgres(connection: Connection, place: str) -> None:
    """Begin so that a commit is durable whatever the role's defaults; refuse a server where it is not.

    In each transaction: behind a pooler or after a failover the next one may meet another server.
    """
    replica, read_only, unsafe = connection.exec_driver_sql(_POSTGRES_TRANSACTION).one()[:3]
    what = why = next = ""
    if replica:
        what, why = "is a replica (in recovery)", "it shows an old state and takes no entries"
        next = "name the primary in the journal's URL (of several hosts: target_session_attrs=read-write)"
    elif read_only:
        what, why = "is read-only for this role", "a journal is written"
        next = "ALTER ROLE ... SET default_transaction_read_only = off; (or ALTER DATABASE ..., or name another role)"
    elif unsafe:
        what, why = "runs with fsync = off", "an entry, and so a decision, may be forgotten after a power cut"
        next = "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf();"
    if what:
        raise PreflightError(f"the journal's server at {place} {what}", why=why, next=next)


def _no_table(place: str, error: Exception, table: Table, engine: Engine) -> PreflightError:
    from sqlalchemy.schema import CreateTable

    statement = " ".join(str(CreateTable(table).compile(engine)).split())
    return PreflightError(
        f"table {JOURNAL_TABLE} can't be made at {place}",
        why=_reason(error),
        next=f"have the database's owner run: {statement}; "
        f"GRANT SELECT, INSERT, DELETE ON {JOURNAL_TABLE} TO the job's role;",
    )


def _reason(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).strip()


def _shown(given: URL) -> str:
    """Name the database without user, password and options."""
    return given.create(given.drivername, host=given.host, port=given.port, database=given.database).render_as_string()
