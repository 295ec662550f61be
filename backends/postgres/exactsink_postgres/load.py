"""One participant's rows on their way into a table: a transaction with one COPY, which its owner ends.

The statements' first words name the participant, so that the sweep sees sessions that have not prepared anything yet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

import psycopg
import pyarrow as pa

from exactsink.contract import Committable, ExactsinkError, Fatal, Txn
from exactsink_postgres.locks import TAG, LockWatch, blocked, timed_out
from exactsink_postgres.rows import Column, RowEncoder
from exactsink_postgres.server import UNDECIDED, History, Server, explained
from exactsink_postgres.tables import quoted

__all__ = ["PAYLOAD_VERSION", "TAG", "Load", "Ticket", "payload_of"]

PAYLOAD_VERSION = 1

_CANCEL_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Ticket:
    """What the driver reports every task: where rows go, and whose database it is.

    `relation` is the table that gets the rows, quoted; `table` is the sink's, for messages.
    """

    history: History
    table: str
    relation: str
    columns: tuple[Column, ...]

    def dump(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def load(cls, ticket: bytes) -> Ticket:
        """Read a ticket back."""
        given = json.loads(ticket)
        columns = tuple(Column(**column) for column in given["columns"])
        return cls(History(**given["history"]), given["table"], given["relation"], columns)


class _Left(Exception):
    """The COPY is not to be ended well."""


class Load:
    """An open transaction with a COPY under way. Nothing is visible, and all of it ends with the session.

    `xid` is the transaction's id, `history` where that has a meaning. Whoever makes it has to close it.
    """

    def __init__(
        self, server: Server, txn: Txn, schema: pa.Schema, ticket: Ticket, lock_timeout_seconds: float
    ) -> None:
        if Txn.parse(txn.id) != txn:
            raise ValueError(f"{txn.id!r} is no participant's name")  # it becomes part of statements
        self._txn = txn
        self._ticket = ticket
        self._encoder = RowEncoder(ticket.table, schema, ticket.columns)
        self._doing = f"sink {txn.sink}: write epoch {txn.epoch} to table {ticket.table}"
        self._rows = 0
        self._copying: AbstractContextManager[psycopg.Copy] | None = None
        self.tag = TAG.format(txn.id)
        self.connection = server.connect(f"exactsink {txn.job}.{txn.sink}")
        self._watch = LockWatch(server, self.connection.info.backend_pid, lock_timeout_seconds)
        try:
            with self.explained(), self._watch.working():
                self._begin(lock_timeout_seconds)
        except BaseException:
            self.close()
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        """Send a batch's rows. The server may report what is wrong with them only at the end."""
        data = self._encoder.encode(batch)
        with self.explained(), self._watch.working():
            self._copy.write(data)
        self._rows += batch.num_rows

    def finish(self) -> int:
        """End the COPY: the server has checked and taken every row. Gives their number."""
        with self.explained(), self._watch.working():
            self._copy.write(self._encoder.finish())
            copying, self._copying = self._copying, None
            assert copying is not None
            copying.__exit__(None, None, None)
        if self._cursor.rowcount != self._rows:
            raise Fatal(
                f"{self._doing}: the server took {self._cursor.rowcount} of {self._rows} rows",
                why="a trigger on the table drops rows silently; " + UNDECIDED,
                next=f"take the trigger off table {self._ticket.table}, then start the job again",
            )
        return self._rows

    def close(self) -> None:
        """End the session, and with it whatever it had not prepared or committed. Idempotent."""
        copying, self._copying = self._copying, None
        if copying is not None:  # left in the middle: psycopg would say so in the log, as an error
            with suppress(psycopg.Error):
                self.connection.cancel_safe(timeout=_CANCEL_SECONDS)
                copying.__exit__(_Left, _Left(), None)
        self.connection.close()
        self._watch.close()

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn the server's errors into ours; a lock that did not come is reported with its holder."""
        try:
            with explained(self._doing, UNDECIDED):
                yield
        except ExactsinkError as error:
            cause, names = error.__cause__, self._encoder.names
            if isinstance(cause, psycopg.errors.LockNotAvailable):
                seen = self._watch.blocker
                if seen is None:
                    raise timed_out(self._doing, self._watch.writers_to(self._ticket.relation)) from cause
                raise blocked(self._doing, self._txn, seen, names) from cause
            if isinstance(cause, psycopg.errors.DeadlockDetected):
                other = self._watch.of_deadlock(cause.diag.message_detail or "")
                if other is not None:
                    raise blocked(self._doing, self._txn, other, names) from cause
            raise

    def _begin(self, lock_timeout_seconds: float) -> None:
        milliseconds = max(1, round(lock_timeout_seconds * 1000))  # 0 would wait for ever
        self.connection.execute(f"{self.tag} BEGIN; SET LOCAL lock_timeout = {milliseconds}".encode())
        self.history = History.of(self.connection)
        self._check_place()
        self.xid = self._assigned()
        self._cursor = self.connection.cursor()
        names = ", ".join(map(quoted, self._encoder.names))
        copy = f"{self.tag} COPY {self._ticket.relation} ({names}) FROM STDIN WITH (FORMAT binary)"
        copying = self._cursor.copy(copy.encode())
        self._copy = copying.__enter__()
        self._copying = copying
        self._copy.write(self._encoder.header())

    def _check_place(self) -> None:
        if not self.history.is_same_place(self._ticket.history):
            raise Fatal(
                f"sink {self._txn.sink}: this executor connects to another database than the driver",
                why=f"it is at {self.history}, the driver at {self._ticket.history}",
                next="name host, port and database in conninfo, or give driver and executors the same service file",
            )

    def _assigned(self) -> int:
        row = self.connection.execute(f"{self.tag} SELECT pg_current_xact_id()::text".encode()).fetchone()
        assert row is not None
        return int(row[0])


def payload_of(committable: Committable) -> dict[str, Any]:
    """Read what a participant said with its vote. Raises Fatal for a later release's."""
    if committable.version != PAYLOAD_VERSION:
        raise Fatal(
            f"{committable.txn.id}: can't read a vote of version {committable.version}",
            why=f"this release reads version {PAYLOAD_VERSION}",
            next="start the job with the release of exactsink that wrote the epoch",
        )
    voted: dict[str, Any] = json.loads(committable.payload)
    return voted
