"""exactsink's own tables beside a sink's table: its marks, and the registry of staged votes.

`exactsink_epochs` holds the marks, in the schema of the table: a row for a journal's birth, for each committed
participant, and for each applied epoch. `exactsink_staged` holds the participants that have voted with strategy
`staged`, in the schema of the staging tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import psycopg

from exactsink.contract import InDoubt, Mark, Txn
from exactsink.toolkit.sql import quoted
from exactsink_postgres.server import Session
from exactsink_postgres.tables import CREATE_LOCK

__all__ = ["MARKS_TABLE", "Marks", "OwnTable", "VoteRegistry", "in_query"]

_BIRTH = -1  # the epoch of a birth's row
_WHOLE = ""  # the ref of a row for a whole epoch, or a birth
MARKS_TABLE = """(job text, sink text, epoch bigint, ref text, lineage text NOT NULL, token text NOT NULL,
    PRIMARY KEY (job, sink, epoch, ref))"""
_STAGED_TABLE = """(participant text PRIMARY KEY, rows_table text NOT NULL, rows bigint NOT NULL,
    staged_at timestamptz NOT NULL DEFAULT clock_timestamp())"""
_NEWEST = """
    SELECT lineage, epoch, array_agg(DISTINCT token), count(nullif(ref, '')), count(*) FROM {0}
    WHERE job = %s AND sink = %s AND epoch = (SELECT max(epoch) FROM {0} WHERE job = %s AND sink = %s)
    GROUP BY lineage, epoch ORDER BY lineage = %s LIMIT 1
"""


def in_query(name: str) -> str:
    """Write a quoted name so that it is safe in a query with parameters."""
    return name.replace("%", "%%")


class OwnTable:
    """One of exactsink's own tables in a schema, through one session.

    All calls raise psycopg's errors. Make calls that write in a transaction.
    """

    name: str
    kind = "TABLE"
    columns: ClassVar[str]

    def __init__(self, session: Session, schema: str) -> None:
        self.session = session
        self.schema = schema

    @property
    def relation(self) -> str:
        """The qualified name, quoted."""
        return quoted(self.schema, self.name)

    def create(self) -> None:
        """Make it where it is not there. Idempotent, also from two processes at once."""
        if not self._is_there():
            self.session.run(f"SELECT pg_advisory_xact_lock({CREATE_LOCK})")
            self.session.run(f"CREATE {self.kind} IF NOT EXISTS {self.relation} {self.columns}")

    def _run(self, statement: str, *given: object) -> psycopg.Cursor[Any]:
        return self.session.run(statement.format(in_query(self.relation)), *given)

    def _asked(self, statement: str, *given: object) -> list[tuple[Any, ...]]:
        """Return the rows of a table that may not be there yet: no rows then, and an end to its transaction."""
        try:
            return self._run(statement, *given).fetchall()
        except psycopg.errors.UndefinedTable:
            return []

    def _is_there(self) -> bool:
        return bool(self.session.run("SELECT WHERE to_regclass(%s) IS NOT NULL", self.relation).fetchall())


class Marks(OwnTable):
    """The marks of one job's one sink, whose journal is `lineage`."""

    name = "exactsink_epochs"
    columns = MARKS_TABLE

    def __init__(self, session: Session, schema: str, job: str, sink: str, lineage: str) -> None:
        super().__init__(session, schema)
        self._key = (job, sink)
        self._lineage = lineage

    def newest(self, tag: str = "") -> Mark | None:
        """Return the mark: of the highest epoch, else the birth. None where neither is, nor a table."""
        rows = self._asked(tag + _NEWEST, *self._key, *self._key, self._lineage)
        if not rows:
            return None
        lineage, epoch, tokens, refs, count = rows[0]
        if epoch == _BIRTH:
            return Mark(lineage)
        return Mark(lineage, epoch, frozenset(tokens), refs if refs == count else None)

    def put_birth(self) -> None:
        """Write the birth if there is no mark at all."""
        statement = """
            INSERT INTO {0} (job, sink, epoch, ref, lineage, token) SELECT %s, %s, %s, %s, %s, ''
            WHERE NOT EXISTS (SELECT FROM {0} WHERE job = %s AND sink = %s) ON CONFLICT DO NOTHING
        """
        self._run(statement, *self._key, _BIRTH, _WHOLE, self._lineage, *self._key)

    def add(self, epoch: int, token: str, ref: str = _WHOLE, tag: str = "") -> None:
        """Add the row of the epoch, or of its participant `ref`. `tag` begins the statement."""
        statement = tag + " INSERT INTO {} (job, sink, epoch, ref, lineage, token) VALUES (%s, %s, %s, %s, %s, %s)"
        self._run(statement, *self._key, epoch, ref, self._lineage, token)

    def proven(self, epoch: int, refs: Sequence[str]) -> set[str]:
        """Return those of an epoch's participants that have a row, or all of them when a later epoch has one."""
        query = "SELECT ref, epoch FROM {} WHERE job = %s AND sink = %s AND lineage = %s AND epoch >= %s"
        rows = self._asked(query, *self._key, self._lineage, epoch)
        if any(stored > epoch for _, stored in rows):
            return set(refs)
        return {ref for ref, _ in rows}.intersection(refs)

    def is_fed_by(self, lineage: str, tag: str) -> bool:
        """Return whether there is a row of this journal. `tag` begins the statement."""
        query = tag + " SELECT FROM {} WHERE job = %s AND sink = %s AND lineage = %s LIMIT 1"
        return bool(self._asked(query, *self._key, lineage))

    def lock(self) -> None:
        """Keep others who apply an epoch of this sink, or write for it, waiting until the transaction ends."""
        self.session.run("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", self._lock)

    def lock_shared(self, tag: str) -> None:
        """Keep those who apply an epoch of this sink waiting, and no others. `tag` begins the statement."""
        self.session.run(f"{tag} SELECT pg_advisory_xact_lock_shared(hashtextextended(%s, 0))", self._lock)

    @property
    def _lock(self) -> str:
        return f"exactsink {'.'.join(self._key)}"

    def trim(self) -> None:
        """Delete the marks below the highest epoch that the statement sees; not durably, as old ones are harmless."""
        statement = """
            DELETE FROM {0} WHERE (SELECT set_config('synchronous_commit', 'off', true)) = 'off' AND job = %s
                AND sink = %s AND epoch < (SELECT max(epoch) FROM {0} WHERE job = %s AND sink = %s) RETURNING epoch
        """
        self._asked(statement, *self._key, *self._key)


class VoteRegistry(OwnTable):
    """The participants that have voted with strategy `staged`, and where their rows wait.

    Unlogged tables have an unlogged registry, so a crash of the server empties both.
    """

    columns = _STAGED_TABLE

    def __init__(self, session: Session, schema: str, *, unlogged: bool = False) -> None:
        super().__init__(session, schema)
        self.name = "exactsink_staged_unlogged" if unlogged else "exactsink_staged"
        self.kind = "UNLOGGED TABLE" if unlogged else "TABLE"

    def register(self, tag: str, participant: str, rows_table: str, rows: int) -> None:
        """Enter a participant, in the transaction that holds its rows. `tag` begins the statement."""
        statement = tag + " INSERT INTO {} (participant, rows_table, rows) VALUES (%s, %s, %s)"
        self._run(statement, participant, rows_table, rows)

    def registered(self, participants: Sequence[str], *, keep: bool = True) -> set[str]:
        """Return who of these participants is registered; `keep` it so until the transaction ends."""
        query = "SELECT participant FROM {} WHERE participant = ANY (%s) ORDER BY participant"
        return {participant for (participant,) in self._run(query + " FOR UPDATE" * keep, list(participants))}

    def in_table(self, rows_table: str) -> list[str]:
        """Name the participants with rows in a staging table."""
        query = "SELECT participant FROM {} WHERE rows_table = %s ORDER BY participant"
        return [participant for (participant,) in self._run(query, rows_table)]

    def forget(self, participants: Sequence[str]) -> set[str]:
        """Take participants out of the registry; return the names of the staging tables that hold their rows."""
        statement = "DELETE FROM {} WHERE participant = ANY (%s) RETURNING rows_table"
        return {rows_table for (rows_table,) in self._asked(statement, list(participants))}

    def in_doubt(self, job: str, sink: str, *, keep: bool = False) -> Iterator[InDoubt]:
        """List one sink's participants whose rows are staged, and neither applied nor dropped.

        `keep` is explained above.
        """
        query = "SELECT participant, extract(epoch FROM clock_timestamp() - staged_at)::float8 FROM {} "
        query += "WHERE starts_with(participant, %s) ORDER BY participant"
        for participant, age in self._asked(query + " FOR UPDATE" * keep, f"{job}.{sink}."):
            txn = Txn.parse(participant)
            if txn is not None:
                yield InDoubt.of(txn, age_seconds=age)

    def held_by(self, participant: str) -> Iterator[str]:
        """Return one sentence on the space of a registered participant."""
        query = "SELECT rows_table, rows, pg_total_relation_size(to_regclass(format('%%I.%%I', %s::text, rows_table))) "
        query += "FROM {} WHERE participant = %s"
        for table, rows, size in self._asked(query, self.schema, participant):
            takes = f"its {rows:,} rows wait in staging table {self.schema}.{table}"
            yield f"{takes} ({size or 0:,} bytes with all others' in it) until it ends; no reader waits for them"
