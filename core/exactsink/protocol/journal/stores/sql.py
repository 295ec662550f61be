"""A journal's entries as rows of one SQL table. The primary key makes `put` an atomic create.

SQLite and PostgreSQL are proven; others use only SQLAlchemy Core. This module is imported only if a job's journal is in
a database, because nothing else needs SQLAlchemy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import LONGBLOB
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError
from sqlalchemy.schema import CreateTable

from exactsink.contract import Fatal, PreflightError, Retryable
from exactsink.protocol.journal.stores import SeqTaken
from exactsink.protocol.journal.stores.database import Database
from exactsink.toolkit.storage import create_file, make_folder

__all__ = ["JOURNAL_TABLE", "Database", "SqlStore"]

JOURNAL_TABLE = "exactsink_journal"
"""The table with the entries of every job that names its database: one row per (job, seq)."""

_JOB_LENGTH = 64
_TABLE = sa.Table(
    JOURNAL_TABLE,
    sa.MetaData(),
    sa.Column("job", sa.String(_JOB_LENGTH), primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("record", sa.LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb"), nullable=False),
    mysql_engine="InnoDB",
)
_CHUNK = 500  # seqs in one DELETE: below every database's limit of bound values


class SqlStore:
    """Keep one job's entries in a database. For one thread at a time. It connects with its first call.

    `url` is SQLAlchemy's. Raises ConfigError at once if it is not such a URL, or if its driver is missing. A database
    that could lose an entry, or show an old state, is refused with PreflightError by the first call. After any other
    failure of a `put`, it is unknown whether the put took effect, and it is never retried here. `read`, `list` and
    `delete` raise Retryable or Fatal. After each error the connection is dropped, and the next call opens a new one. No
    message and no log shows the password.
    """

    def __init__(self, url: str, job: str) -> None:
        if not 0 < len(job) <= _JOB_LENGTH:
            raise ValueError(f"job name of {len(job)} characters: 1 to {_JOB_LENGTH} fit the journal's table")
        self._database = Database(url)
        self._job = job
        self._stands = False  # whether this store has seen the table, which it never makes twice

    def __repr__(self) -> str:
        return f"SqlStore({self._database.place!r}, {self._job!r})"

    def put(self, seq: int, data: bytes) -> None:
        """Insert an entry in its own transaction, durable when it returns. Makes the table if there is none.

        Raises SeqTaken only if an entry with this seq was seen, because a row can be refused for other reasons.
        """
        self._make_table()
        try:
            with self._database.transaction(write=True) as connection:
                connection.execute(_TABLE.insert().values(job=self._job, seq=seq, record=data))
            return
        except IntegrityError:
            if self._record(seq) is None:
                raise
        raise SeqTaken(seq)

    def read(self, seq: int) -> bytes | None:
        with self._explained("read"):
            return self._record(seq)

    def newest(self) -> int:
        found = self._listed(sa.func.max(_TABLE.c.seq))
        return -1 if not found or found[0][0] is None else int(found[0][0])

    def list(self) -> Sequence[int]:
        return [int(row[0]) for row in self._listed(_TABLE.c.seq)]

    def sizes(self, seqs: Sequence[int]) -> Mapping[int, int]:
        table, asked = _TABLE.c, set(seqs)
        found = self._listed(table.seq, sa.func.length(table.record), first=min(asked, default=0)) if asked else ()
        return {int(seq): int(size) for seq, size in found if seq in asked}

    def delete(self, seqs: Iterable[int]) -> None:
        """Remove entries, all or none, in one transaction. Idempotent."""
        gone = sorted(set(seqs))
        if not gone or self._is_new_file():
            return
        entries = _TABLE.delete().where(_TABLE.c.job == self._job)
        with self._explained("trimmed"), self._database.transaction(write=True) as connection:
            if self._found(connection):
                for first in range(0, len(gone), _CHUNK):
                    connection.execute(entries.where(_TABLE.c.seq.in_(gone[first : first + _CHUNK])))

    def close(self) -> None:
        """Close the connection. Idempotent; a later call opens a new one."""
        self._database.close()

    def _listed(self, *columns: sa.ColumnElement[Any], first: int = 0) -> Sequence[Sequence[Any]]:
        """Select columns of the entries from seq `first` on; nothing if the table does not exist."""
        if self._is_new_file():
            return ()
        entries = sa.select(*columns).where(_TABLE.c.job == self._job, _TABLE.c.seq >= first)
        with self._explained("listed"), self._database.transaction() as connection:
            return connection.execute(entries).all() if self._found(connection) else ()

    def _record(self, seq: int) -> bytes | None:
        if self._is_new_file():
            return None
        with self._database.transaction() as connection:
            if not self._found(connection):
                return None
            entry = sa.select(_TABLE.c.record).where(_TABLE.c.job == self._job, _TABLE.c.seq == seq)
            data = connection.execute(entry).scalar()
            return None if data is None else bytes(data)

    def _is_new_file(self) -> bool:
        """Return whether SQLite would create the file.

        A read creates nothing, and a file that has vanished is an error.
        """
        return not self._stands and self._database.file is not None and not self._database.file.exists()

    def _make_table(self) -> None:
        """Make the table if it does not exist. Idempotent, even from two processes at the same moment."""
        if self._stands:
            return
        if self._database.file is not None:
            make_folder(self._database.file.parent)
            create_file(self._database.file, b"")  # a file that SQLite makes would not belong to its folder's owner
        with self._database.transaction(write=True) as connection:
            if self._found(connection):
                return
            statement = str(CreateTable(_TABLE).compile(dialect=connection.dialect))
        self._create(" ".join(statement.split()))

    def _create(self, statement: str) -> None:
        failure: DBAPIError | None = None
        try:
            with self._database.transaction(write=True) as connection:
                connection.exec_driver_sql(statement)
        except DBAPIError as error:
            failure = error
        with self._database.transaction() as connection:
            if self._found(connection):  # mine, or that of a faster process
                return
        if failure is None or isinstance(failure, OperationalError):  # the answer was lost, which is not a refusal
            raise failure or RuntimeError(f"{JOURNAL_TABLE} was made and is not there")
        raise PreflightError(
            f"table {JOURNAL_TABLE} can't be made at {self._database.place}",
            why=_reason(failure),
            next=f"have the database's owner run: {statement}; "
            f"GRANT SELECT, INSERT, DELETE ON {JOURNAL_TABLE} TO the job's role;",
        ) from failure

    def _found(self, connection: sa.Connection) -> bool:
        """Return whether the table exists, checked once per store.

        Refuse a key that would let two drivers own a seq.
        """
        if self._stands:
            return True
        inspector = sa.inspect(connection)
        if not inspector.has_table(JOURNAL_TABLE):
            return False
        if set(inspector.get_pk_constraint(JOURNAL_TABLE)["constrained_columns"]) != {"job", "seq"}:
            raise PreflightError(
                f"table {JOURNAL_TABLE} at {self._database.place} lacks the primary key (job, seq)",
                why="without it two drivers could both own an entry; it was copied or changed by hand",
                next=f"stop all its jobs, check that each (job, seq) is unique, then run: ALTER TABLE {JOURNAL_TABLE} "
                "ADD PRIMARY KEY (job, seq); in SQLite create the table again with this key",
            )
        self._stands = True
        return True

    @contextmanager
    def _explained(self, done: str) -> Iterator[None]:
        """Turn the database's errors into exactsink's, for calls that may be repeated."""
        try:
            yield
        except SQLAlchemyError as error:
            kind = Fatal if isinstance(error, ProgrammingError) else Retryable
            raise kind(
                f"the journal at {self._database.place} could not be {done}",
                why=_reason(error),
                next=f"check that the database answers, and grants SELECT, INSERT and DELETE on {JOURNAL_TABLE}; "
                "then start the job again",
            ) from error


def _reason(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).strip()
