"""A task's side of the staged strategy: rows into the epoch's staging table, checked as far as the server can."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import psycopg
import pyarrow as pa

from exactsink.contract import Committable, ExactsinkError, Fatal, Retryable, Txn, Writer
from exactsink_postgres.load import PAYLOAD_VERSION, Load, Ticket
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.server import UNDECIDED, explained
from exactsink_postgres.staged.ledger import Ledger, StagedRows, in_query
from exactsink_postgres.staged.rows_table import ATTEMPT, UniqueKey
from exactsink_postgres.tables import quoted

__all__ = ["DURABLE", "StagedTicket", "StagingWriter"]

DURABLE = "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
"""Makes a transaction's COMMIT wait for the disk; what asks for more stays."""


@dataclass(frozen=True, slots=True)
class StagedTicket:
    """What the driver reports every task: `load` for the staging table, and whose place it takes.

    `target` is the sink's table in `schema`; `keys` are its unique indexes that are checked before the decision.
    """

    load: Ticket
    schema: str
    target: str
    rows_table: str
    keys: tuple[UniqueKey, ...]

    def dump(self) -> bytes:
        return json.dumps({**asdict(self), "load": self.load.dump().decode()}).encode()

    @classmethod
    def read(cls, ticket: bytes) -> StagedTicket:
        """Read a ticket back."""
        given = json.loads(ticket)
        keys = tuple(UniqueKey(key["index"], key["constraint"], tuple(key["columns"])) for key in given["keys"])
        load = Ticket.load(given["load"].encode())
        return cls(load, given["schema"], given["target"], given["rows_table"], keys)


class StagingWriter(Writer):
    """COPYs a task attempt's rows into the staging table, each with the attempt's number.

    Rows and registry entry are one transaction, and its COMMIT is the vote. Constraints of the sink's table are
    checked before it, also against rows that stand there already, so that a decided epoch can be applied.
    """

    def __init__(self, options: PostgresOptions, txn: Txn, schema: pa.Schema, ticket: bytes) -> None:
        self._options = options
        self._txn = txn
        self._ticket = StagedTicket.read(ticket)
        self._schema = pa.schema([pa.field(ATTEMPT, pa.int64()), *schema])
        self._attempt = pa.scalar(txn.attempt, pa.int64())
        with self._explained():
            self._load = Load(options.server, txn, self._schema, self._ticket.load, options.lock_timeout_seconds)

    def write(self, batch: pa.RecordBatch) -> None:
        mine = pa.repeat(self._attempt, batch.num_rows)
        with self._explained():
            self._load.write(pa.RecordBatch.from_arrays([mine, *batch.columns], schema=self._schema))

    def pre_commit(self) -> Committable:
        try:
            with self._explained():
                return self._vote()
        finally:
            self._load.close()

    def abort(self) -> None:
        self._load.close()

    def _vote(self) -> Committable:
        load, ticket = self._load, self._ticket
        rows = load.finish()
        with load.explained():
            load.connection.execute(f"{load.tag} {DURABLE}")
            for key in ticket.keys:
                self._check_key(key)
            staged = StagedRows(ticket.rows_table, rows)
            Ledger(ticket.schema).register(load.connection, load.tag, self._txn.id, staged)
            done = load.connection.execute(f"{load.tag} COMMIT").statusmessage
        if done != "COMMIT":
            raise Retryable(
                f"{self._doing}: the server answered {done} to COMMIT", why=UNDECIDED, next="start the job again"
            )
        place = {"system": load.history.system, "database": load.history.database}
        payload = {"rows_table": ticket.rows_table, "schema": ticket.schema, **place}
        return Committable(self._txn, rows, json.dumps(payload).encode(), PAYLOAD_VERSION)

    def _check_key(self, key: UniqueKey) -> None:
        """Look whether one of this attempt's rows has a key that stands in the sink's table already.

        An aggregate, not LIMIT 1: no row is found as a rule, so the plan is to be good for all of them.
        """
        listed = ", ".join(f"staged.{quoted(column)}" for column in key.columns)
        equal = " AND ".join(f"target.{quoted(column)} = staged.{quoted(column)}" for column in key.columns)
        row = self._load.connection.execute(
            f"{self._load.tag} SELECT min(ROW({listed})::text) FROM {self._ticket.load.relation} AS staged "
            f"JOIN {quoted(self._ticket.schema)}.{quoted(self._ticket.target)} AS target ON {equal} "
            f"WHERE staged.{ATTEMPT} = {self._txn.attempt}"
        ).fetchone()
        if row is not None and row[0] is not None:
            found = f"key ({', '.join(key.columns)})={row[0]}"
            raise Fatal(
                f"{self._doing}: {self._named(key)}: {found} stands in the table already",
                why=f"SQLSTATE 23505; {UNDECIDED}",
                next="drop such rows before this sink, or take them out of the table, then start the job again",
            )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Return the server's errors of the table that the user knows."""
        try:
            yield
        except ExactsinkError as error:
            cause = error.__cause__
            if isinstance(cause, psycopg.errors.UndefinedTable) and self._ticket.rows_table in str(cause):
                raise self._swept() from cause
            if isinstance(cause, psycopg.errors.UniqueViolation):
                for key in self._ticket.keys:
                    if cause.diag.constraint_name == key.index:
                        detail = cause.diag.message_detail or "a key comes twice"
                        raise self._doubled(key, detail.rstrip(".")) from cause
            renamed = [self._renamed(text) for text in (error.what, error.why, error.next)]
            raise type(error)(renamed[0], why=renamed[1], next=renamed[2]) from cause

    def _swept(self) -> Retryable:
        return Retryable(
            f"{self._doing}: its staging table {self._ticket.rows_table} is gone",
            why=f"a newer driver has claimed the job and swept what generation {self._txn.generation} had not decided; "
            "or somebody dropped the table",
            next="start the job again, unless its new driver runs already",
        )

    def _doubled(self, key: UniqueKey, detail: str) -> ExactsinkError:
        """Distinguish a second attempt of the same partition, no mistake in the rows, from a key that comes twice."""
        self._load.close()
        with self._options.server.connect("exactsink: whose key") as session, explained(self._doing):
            others = Ledger(self._ticket.schema).in_table(session, self._ticket.rows_table)
            holders = self._holders(session, key, detail)
        what = f"{self._doing}: {self._named(key)}: {detail}"
        if any(txn.partition == self._txn.partition and txn.attempt != self._txn.attempt for txn in others):
            why = f"an earlier attempt of partition {self._txn.partition} has staged its rows, and its vote got lost"
            return Retryable(what, why=f"{why}; {UNDECIDED}", next="start the job again: the epoch starts over")
        fix = f"drop the doubles before this sink (columns: {', '.join(key.columns)}), then start the job again"
        other = next((txn.partition for txn in others if txn.attempt in holders), None)
        if other is None:
            return Fatal(
                what, why=f"partition {self._txn.partition} of this epoch has the key twice; {UNDECIDED}", next=fix
            )
        both = f"partitions {other} and {self._txn.partition}"
        seen = 'to see them together, set distribution = "hash(key)" for this sink, with the columns of the key'
        why = f"{both} of this epoch have rows with the same unique key; {UNDECIDED}"
        return Fatal(what, why=why, next=f"{fix}; {seen}")

    def _holders(self, session: psycopg.Connection, key: UniqueKey, detail: str) -> set[int]:
        """Find whose rows have the key that the server's message shows, whatever language it speaks."""
        shown = ", ".join(f"{quoted(column)}::text" for column in key.columns)
        query = f"SELECT DISTINCT {ATTEMPT} FROM {self._ticket.load.relation} "
        query = in_query(query) + f"WHERE strpos(%s, ')=(' || concat_ws(', ', {in_query(shown)}) || ')') > 0"
        return {attempt for (attempt,) in session.execute(query, (detail,))}

    def _named(self, key: UniqueKey) -> str:
        return f"table {self._ticket.schema}.{self._ticket.target}, constraint {key.constraint}"

    def _renamed(self, text: str) -> str:
        for key in reversed(self._ticket.keys):  # _10 before _1
            text = text.replace(key.index, key.constraint)
        return text.replace(f"{ATTEMPT}, ", "").replace(self._ticket.rows_table, self._ticket.target)

    @property
    def _doing(self) -> str:
        return f"sink {self._txn.sink}: write epoch {self._txn.epoch} to table {self._ticket.load.table}"
