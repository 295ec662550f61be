"""What a staged sink keeps beside its table: the marker of the last applied epoch, and who has staged which rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg

from exactsink.contract import InDoubt, Marker, Txn
from exactsink_postgres.server import MADE_MEANWHILE
from exactsink_postgres.tables import quoted

__all__ = ["Ledger", "StagedRows", "in_query"]

_TABLES = {
    "exactsink_epochs": """(job text, sink text, lineage text NOT NULL, epoch bigint NOT NULL,
        generation bigint NOT NULL, PRIMARY KEY (job, sink))""",
    "exactsink_staged": """(participant text PRIMARY KEY, rows_table text NOT NULL, rows bigint NOT NULL,
        staged_at timestamptz NOT NULL DEFAULT clock_timestamp())""",
}
_TRIES = 5
_NEVER = -1  # the epoch of a marker that its first transaction has just made


def in_query(name: str) -> str:
    """Write a quoted name so that it can stand in a query with parameters."""
    return name.replace("%", "%%")


@dataclass(frozen=True, slots=True)
class StagedRows:
    """What the registry says of one participant: the staging table's name and the number of its rows."""

    rows_table: str
    rows: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """Both tables in one schema. All calls raise psycopg's errors; those that write belong into a transaction."""

    schema: str

    def create(self, connection: psycopg.Connection) -> None:
        """Make both tables where they are not there. Idempotent, also from two processes at once."""
        for name, columns in _TABLES.items():
            for attempt in range(_TRIES):
                if self._is_there(connection, name):
                    break
                try:
                    with connection.transaction():
                        connection.execute(f"CREATE TABLE IF NOT EXISTS {self._sql(name)} {columns}")
                except MADE_MEANWHILE:  # the server does not serialize them: the other one's is there when it commits
                    if attempt + 1 == _TRIES:
                        raise

    def marker(self, connection: psycopg.Connection, job: str, sink: str) -> Marker | None:
        """Read the marker; None where there is none, or no table."""
        if not self._is_there(connection, "exactsink_epochs"):
            return None
        return self._marker(connection, job, sink, "")

    def lock_marker(self, connection: psycopg.Connection, mine: Marker) -> Marker | None:
        """Lock the marker until the transaction ends, and read it; None when no epoch was ever applied."""
        connection.execute(
            f"INSERT INTO {self._epochs} (job, sink, lineage, epoch, generation) "
            "VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            (mine.job, mine.sink, mine.lineage, _NEVER, mine.generation),
        )
        stored = self._marker(connection, mine.job, mine.sink, "FOR UPDATE")
        return None if stored is None or stored.epoch == _NEVER else stored

    def store_marker(self, connection: psycopg.Connection, mine: Marker) -> None:
        """Write the marker, which this transaction has locked."""
        connection.execute(
            f"UPDATE {self._epochs} SET lineage = %s, epoch = %s, generation = %s WHERE job = %s AND sink = %s",
            (mine.lineage, mine.epoch, mine.generation, mine.job, mine.sink),
        )

    def register(self, connection: psycopg.Connection, tag: str, participant: str, staged: StagedRows) -> None:
        """Enter a participant, in the transaction that holds its rows. `tag` begins the statement."""
        connection.execute(
            f"{tag} INSERT INTO {self._registry} (participant, rows_table, rows) VALUES (%s, %s, %s)",
            (participant, staged.rows_table, staged.rows),
        )

    def registered(self, connection: psycopg.Connection, participants: Sequence[str]) -> dict[str, StagedRows]:
        """Read what is known of these participants, and keep it so until the transaction ends."""
        found = connection.execute(
            f"SELECT participant, rows_table, rows FROM {self._registry} "
            "WHERE participant = ANY (%s) ORDER BY participant FOR UPDATE",
            (list(participants),),
        )
        return {participant: StagedRows(rows_table, rows) for participant, rows_table, rows in found}

    def in_table(self, connection: psycopg.Connection, rows_table: str) -> list[Txn]:
        """Name the participants whose rows a staging table holds."""
        query = f"SELECT participant FROM {self._registry} WHERE rows_table = %s ORDER BY participant"
        found = [Txn.parse(participant) for (participant,) in connection.execute(query, (rows_table,))]
        return [txn for txn in found if txn is not None]

    def forget(self, connection: psycopg.Connection, participants: Sequence[str]) -> set[str]:
        """Take participants out of the registry; give the names of the staging tables that held them."""
        if not self._is_there(connection, "exactsink_staged"):
            return set()
        statement = f"DELETE FROM {self._registry} WHERE participant = ANY (%s) RETURNING rows_table"
        return {rows_table for (rows_table,) in connection.execute(statement, (list(participants),))}

    def holds(self, connection: psycopg.Connection, rows_table: str) -> bool:
        """Return whether a staging table holds a registered participant."""
        query = f"SELECT 1 FROM {self._registry} WHERE rows_table = %s LIMIT 1"
        return connection.execute(query, (rows_table,)).fetchone() is not None

    def in_doubt(self, connection: psycopg.Connection, job: str, sink: str) -> Iterator[InDoubt]:
        """List the participants of one sink whose rows are staged and neither applied nor dropped."""
        if not self._is_there(connection, "exactsink_staged"):
            return
        found = connection.execute(
            "SELECT participant, extract(epoch FROM clock_timestamp() - staged_at)::float8 "
            f"FROM {self._registry} WHERE starts_with(participant, %s) ORDER BY participant",
            (f"{job}.{sink}.",),
        )
        for participant, age in found:
            txn = Txn.parse(participant)
            if txn is not None:
                yield InDoubt.of(txn, age_seconds=age)

    def _marker(self, connection: psycopg.Connection, job: str, sink: str, lock: str) -> Marker | None:
        row = connection.execute(
            f"SELECT job, sink, lineage, epoch, generation FROM {self._epochs} WHERE job = %s AND sink = %s {lock}",
            (job, sink),
        ).fetchone()
        return None if row is None else Marker(*row)

    def _is_there(self, connection: psycopg.Connection, name: str) -> bool:
        row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (self._sql(name),)).fetchone()
        return row is not None and bool(row[0])

    @property
    def _epochs(self) -> str:
        return in_query(self._sql("exactsink_epochs"))

    @property
    def _registry(self) -> str:
        return in_query(self._sql("exactsink_staged"))

    def _sql(self, name: str) -> str:
        return f"{quoted(self.schema)}.{quoted(name)}"
