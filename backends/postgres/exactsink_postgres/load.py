"""Write one participant's rows into a table: a transaction with one COPY, which the strategy's vote ends.

The statements begin with the participant's name, so that the sweep finds sessions that have not prepared yet.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import psycopg
import pyarrow as pa
from pydantic import TypeAdapter

from exactsink.contract import Committable, ExactsinkError, Fatal, Retryable, Txn, Writer
from exactsink.toolkit.sql import quoted
from exactsink_postgres.encoder import RowEncoder
from exactsink_postgres.errors import UNDECIDED
from exactsink_postgres.locks import TAG, Waiting
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.own_tables import Marks
from exactsink_postgres.type_mapping import Column

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Load", "LoadingWriter", "Ticket"]

_CANCEL_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Ticket:
    """The driver's message to every task: the table for the rows, and its journal.

    `relation` is the table that gets the rows, quoted. `table` is the sink's, for messages, in `schema`. `lineage`
    names the journal; `fed_by` names the journal of the mark in the target, None if there is no mark.
    """

    table: str
    relation: str
    columns: tuple[Column, ...]
    schema: str
    lineage: str
    fed_by: str | None

    def dump(self) -> bytes:
        return _json_of(type(self)).dump_json(self)  # type: ignore[arg-type]  # mypy looks at an instance's hash

    @classmethod
    def load(cls, ticket: bytes) -> Self:
        """Read a ticket back."""
        read: Self = _json_of(cls).validate_json(ticket)  # type: ignore[arg-type]  # as above
        return read


@cache
def _json_of(kind: type[Ticket]) -> TypeAdapter[Any]:
    """Return the JSON adapter for a kind of tickets, made once per process because that takes longer than a ticket."""
    return TypeAdapter(kind)


class _Left(Exception):
    """The COPY must end without success."""


class Load:
    """An open transaction with a running COPY. Nothing is visible, and everything ends with the session."""

    def __init__(self, options: PostgresOptions, txn: Txn, schema: pa.Schema, ticket: Ticket) -> None:
        if Txn.parse(txn.id) != txn:
            raise ValueError(f"{txn.id!r} is not a participant's name")  # it becomes part of statements
        self._options, self._txn, self._ticket = options, txn, ticket
        self._encoder = RowEncoder(ticket.table, schema, ticket.columns)
        self._doing = f"sink {txn.sink}: write epoch {txn.epoch} to table {ticket.table}"
        self._rows = 0
        self._copying: AbstractContextManager[psycopg.Copy] | None = None
        self._waiting = Waiting(self._doing, UNDECIDED, ticket.relation, txn, self._encoder.names)
        self.tag = TAG.format(txn.id)
        timeout = options.lock_timeout_seconds
        self.session = options.server.connect(f"exactsink {txn.job}.{txn.sink}", timeout)
        self.marks = Marks(self.session, ticket.schema, txn.job, txn.sink, ticket.lineage)
        try:
            with self.explained():
                self._begin()
        except BaseException:
            self.abort()
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        """Send a batch's rows. The server may report bad rows only at the end."""
        data = self._encoder.encode(batch)
        with self.explained():
            self._copy.write(data)
        self._rows += batch.num_rows

    def abort(self) -> None:
        """End the session, and with it whatever it had not prepared or committed. Idempotent."""
        copying, self._copying = self._copying, None
        if copying is not None:  # left in the middle: psycopg would say so in the log, as an error
            with suppress(psycopg.Error):
                self.session.cancel_safe(timeout=_CANCEL_SECONDS)
                copying.__exit__(_Left, _Left(), None)
        self.session.close()

    def finish(self) -> int:
        """End the COPY: the server has checked and taken every row. Return their number."""
        with self.explained():
            self._copy.write(self._encoder.finish())
            copying, self._copying = self._copying, None
            assert copying is not None
            copying.__exit__(None, None, None)
        if self._cursor.rowcount != self._rows:
            raise Fatal(
                f"{self._doing}: the server took {self._cursor.rowcount} of {self._rows} rows",
                why="a trigger on the table drops rows silently; " + UNDECIDED,
                next=f"drop the trigger from table {self._ticket.table}, then start the job again",
            )
        return self._rows

    def enter(self) -> None:
        """Look for the mark that the driver has seen in the target. Called once the transaction has begun."""
        fed_by = self._ticket.fed_by
        if fed_by is not None and not self.marks.is_fed_by(fed_by, self.tag):
            raise Fatal(
                f"{self._doing}: this executor connects to another database than the driver",
                why=f"journal {fed_by} has left no mark there; {UNDECIDED}",
                next="name host, port and database in conninfo, or give driver and executors the same service file",
            )

    def execute(self, statement: str, *given: object) -> psycopg.Cursor[Any]:
        """Run a statement that names the participant."""
        return self.session.run(f"{self.tag} {statement}", *given)

    def end(self, command: str, name: str = "") -> None:
        """End the transaction. The server answers ROLLBACK, and no error, when it was broken before."""
        with self.explained():
            answer = self.execute(f"{command} {name}").statusmessage
        if answer != command:
            raise Retryable(
                f"{self._doing}: the server answered {answer} to {command}",
                why=f"the transaction was broken before; {UNDECIDED}",
                next="see the server's log; if a connection pooler is in between, connect past it",
            )

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn the server's errors into ours, of the table that the user knows; a lock's with its holder."""
        try:
            with self.session.explained(self._waiting):
                yield
        except ExactsinkError as error:
            if error.__cause__ is None:
                raise
            what, why, fix = map(self.renamed, (error.what, error.why, error.next))
            raise type(error)(what, why=why, next=fix) from error.__cause__

    def renamed(self, text: str) -> str:
        """Name the sink's table in a message, where another one gets the rows first."""
        return text

    def _begin(self) -> None:
        self.session.begin(self.tag)
        self.enter()
        self._cursor = self.session.cursor()
        names = ", ".join(map(quoted, self._encoder.names))
        copy = f"{self.tag} COPY {self._ticket.relation} ({names}) FROM STDIN WITH (FORMAT {self._encoder.format})"
        copying = self._cursor.copy(copy.encode())
        self._copy = copying.__enter__()
        self._copying = copying
        self._copy.write(self._encoder.header())


class LoadingWriter(Load, Writer):
    """Load rows, and vote. A strategy implements the vote, whose payload is of `payload_version`."""

    payload_version: ClassVar[int] = 2

    def pre_commit(self) -> Committable:
        try:
            rows = self.finish()
            payload = self.vote(rows)
        finally:
            self.abort()
        return Committable(self._txn, rows, json.dumps(payload).encode(), self.payload_version)

    @abstractmethod
    def vote(self, rows: int) -> dict[str, Any]:
        """Make the rows durable, and end the transaction. Return the data that the driver needs to commit them."""
