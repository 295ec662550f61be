"""What exactsink keeps in the schema of a sink's table: its marks, who has staged which rows, and those rows.

`exactsink_epochs` holds the marks: a row for a journal's birth, for each participant that was committed, for each epoch
that was applied. `exactsink_staged` holds the participants that have voted with strategy `staged`, and an
`exactsink_rows_...` the rows of one epoch that one claim has opened.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import psycopg
from psycopg import sql

from exactsink.contract import Fatal, InDoubt, Mark, Txn
from exactsink.toolkit.sql import quoted
from exactsink_postgres.server import Session
from exactsink_postgres.tables import CREATE_LOCK, Table

__all__ = ["ATTEMPT", "MARKS_TABLE", "Marks", "Registry", "StagingTable", "UniqueKey", "drop_idle", "in_query"]

ATTEMPT = "exactsink_attempt"
"""The first column of a staging table: whose rows they are."""

_LOG = logging.getLogger("exactsink")
_DROP_MILLISECONDS = 500  # a task that still writes keeps its table; the next claim looks again
_BIRTH = -1  # the epoch of a birth's row
_WHOLE = ""  # the ref of a row for a whole epoch, or a birth
MARKS_TABLE = """(job text, sink text, epoch bigint, ref text, lineage text NOT NULL, token text NOT NULL,
    PRIMARY KEY (job, sink, epoch, ref))"""
# Release 0.1 kept one row for (job, sink), of the epoch that strategy staged had applied last, without a token.
_UPGRADE = f"""ALTER TABLE {{}} DROP CONSTRAINT exactsink_epochs_pkey, DROP COLUMN generation,
    ADD COLUMN ref text NOT NULL DEFAULT '{_WHOLE}', ADD COLUMN token text NOT NULL DEFAULT '',
    ADD PRIMARY KEY (job, sink, epoch, ref)"""
_STAGED_TABLE = """(participant text PRIMARY KEY, rows_table text NOT NULL, rows bigint NOT NULL,
    staged_at timestamptz NOT NULL DEFAULT clock_timestamp())"""
_NEWEST = """
    SELECT lineage, epoch, array_agg(DISTINCT stored ->> 'token'), count(nullif(stored ->> 'ref', '')), count(*)
    FROM (SELECT lineage, epoch, to_jsonb(mark) AS stored FROM {0} AS mark WHERE job = %s AND sink = %s
        AND epoch = (SELECT max(epoch) FROM {0} WHERE job = %s AND sink = %s)) AS newest
    GROUP BY lineage, epoch ORDER BY lineage = %s LIMIT 1
"""
_OWNER = re.compile(r"g(\d+)-(.*)\.e(\d+)")
_COLUMNS = """
    SELECT attname FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""
_GIVEN_BY_THE_TABLE = """
    AND attgenerated = '' AND attname <> ALL (%s)
    AND (attidentity <> '' OR NOT has_column_privilege(attrelid, attnum, 'INSERT'))
"""
_LIST = r"""
    SELECT obj_description(oid, 'pg_class') FROM pg_class
    WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r' AND relname LIKE 'exactsink\_rows\_%%'
        AND starts_with(obj_description(oid, 'pg_class'), %s)
    ORDER BY relname
"""


def in_query(name: str) -> str:
    """Write a quoted name so that it can stand in a query with parameters."""
    return name.replace("%", "%%")


class _OwnTable:
    """One table of exactsink's own in a schema, through one session.

    All calls raise psycopg's errors; those that write belong into a transaction.
    """

    name: ClassVar[str]
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
            self.session.run(f"CREATE TABLE IF NOT EXISTS {self.relation} {self.columns}")

    def _run(self, statement: str, *given: object) -> psycopg.Cursor[Any]:
        return self.session.run(statement.format(in_query(self.relation)), *given)

    def _asked(self, statement: str, *given: object) -> list[tuple[Any, ...]]:
        """Return the rows of a table that may not be there yet: no rows then, and an end to its transaction."""
        try:
            return self._run(statement, *given).fetchall()
        except psycopg.errors.UndefinedTable:
            return []

    def _is_there(self, column: str = "tableoid") -> bool:
        """Return whether the table is there, and has the column."""
        query = "SELECT FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = %s"
        return bool(self.session.run(query, self.relation, column).fetchall())


class Marks(_OwnTable):
    """The marks of one job's one sink, whose journal is `lineage`."""

    name = "exactsink_epochs"
    columns = MARKS_TABLE

    def __init__(self, session: Session, schema: str, job: str, sink: str, lineage: str) -> None:
        super().__init__(session, schema)
        self._key = (job, sink)
        self._lineage = lineage

    def create(self) -> None:
        """Make the table, or give an earlier release's its present columns. Idempotent."""
        if not self._is_there("token"):
            super().create()
            self.session.run(f"SELECT pg_advisory_xact_lock({CREATE_LOCK})")
            if not self._is_there("token"):
                self.session.run(_UPGRADE.format(self.relation))

    def newest(self) -> Mark | None:
        """Return the mark: of the highest epoch, else the birth. None where neither is, nor a table."""
        rows = self._asked(_NEWEST, *self._key, *self._key, self._lineage)
        if not rows:
            return None
        lineage, epoch, tokens, refs, count = rows[0]
        if epoch == _BIRTH:
            return Mark(lineage)
        return Mark(lineage, epoch, frozenset(filter(None, tokens)), refs if refs == count else None)

    def put_birth(self) -> None:
        """Put the birth where there is no mark at all."""
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
        """Keep others who apply an epoch of this sink waiting until the transaction ends."""
        self.session.run("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", f"exactsink {'.'.join(self._key)}")

    def trim(self) -> None:
        """Delete all below the highest epoch that stands when the statement runs; not durably, as they harm nobody."""
        statement = """
            DELETE FROM {0} WHERE (SELECT set_config('synchronous_commit', 'off', true)) = 'off' AND job = %s
                AND sink = %s AND epoch < (SELECT max(epoch) FROM {0} WHERE job = %s AND sink = %s) RETURNING epoch
        """
        self._asked(statement, *self._key, *self._key)


class Registry(_OwnTable):
    """Who has voted with strategy `staged`, and where the rows wait."""

    name = "exactsink_staged"
    columns = _STAGED_TABLE

    def register(self, tag: str, participant: str, rows_table: str, rows: int) -> None:
        """Enter a participant, in the transaction that holds its rows. `tag` begins the statement."""
        statement = tag + " INSERT INTO {} (participant, rows_table, rows) VALUES (%s, %s, %s)"
        self._run(statement, participant, rows_table, rows)

    def registered(self, participants: Sequence[str]) -> set[str]:
        """Return who of these participants is registered, and keep it so until the transaction ends."""
        query = "SELECT participant FROM {} WHERE participant = ANY (%s) ORDER BY participant FOR UPDATE"
        return {participant for (participant,) in self._run(query, list(participants))}

    def in_table(self, rows_table: str) -> list[str]:
        """Name the participants whose rows a staging table holds."""
        query = "SELECT participant FROM {} WHERE rows_table = %s ORDER BY participant"
        return [participant for (participant,) in self._run(query, rows_table)]

    def forget(self, participants: Sequence[str]) -> set[str]:
        """Take participants out of the registry; return the names of the staging tables that held them."""
        statement = "DELETE FROM {} WHERE participant = ANY (%s) RETURNING rows_table"
        return {rows_table for (rows_table,) in self._asked(statement, list(participants))}

    def in_doubt(self, job: str, sink: str) -> Iterator[InDoubt]:
        """List the participants of one sink whose rows are staged and neither applied nor dropped."""
        query = "SELECT participant, extract(epoch FROM clock_timestamp() - staged_at)::float8 FROM {} "
        query += "WHERE starts_with(participant, %s) ORDER BY participant"
        for participant, age in self._asked(query, f"{job}.{sink}."):
            txn = Txn.parse(participant)
            if txn is not None:
                yield InDoubt.of(txn, age_seconds=age)


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A unique index of the sink's table, and the index on the staging table that stands for it."""

    index: str
    constraint: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StagingTable:
    """The staging table of one epoch under one claim: `sink` is job.sink, `lineage` the journal's name.

    Its comment says whose it is. The name is a hash of that, so every call for the same epoch finds the same table.
    """

    schema: str
    sink: str
    generation: int
    lineage: str
    epoch: int

    @property
    def name(self) -> str:
        return f"exactsink_rows_{hashlib.sha256(self.owner.encode()).hexdigest()[:16]}"

    @property
    def owner(self) -> str:
        """What the comment says."""
        return f"{self.sink}.g{self.generation}-{self.lineage}.e{self.epoch}"

    @property
    def relation(self) -> str:
        """The qualified name, quoted."""
        return quoted(self.schema, self.name)

    @classmethod
    def find(cls, session: Session, schema: str, sink: str) -> Iterator[StagingTable]:
        """List the staging tables of one sink of a job, whichever claims made them."""
        for (comment,) in session.run(_LIST, quoted(schema), f"{sink}.g").fetchall():
            match = _OWNER.fullmatch(comment.removeprefix(f"{sink}."))
            if match is not None:  # the name follows from the rest: a copied comment leads to no foreign table
                yield cls(schema, sink, int(match[1]), match[2], int(match[3]))

    def create(self, session: Session, target: Table, columns: Sequence[str]) -> tuple[UniqueKey, ...]:
        """Make it like `target`, for rows that have these columns; return its keys. Belongs into a transaction.

        It has the target's NOT NULL, CHECKs, defaults and generated columns: a row that breaks them fails in its task,
        and what a default gave to a row is what the target gets. What only the target itself can give (the values of
        an identity) has no column here, and the CHECKs that need it go, too. Idempotent. Raises Fatal when somebody
        else's table has the name.
        """
        session.run(f"SELECT pg_advisory_xact_lock({int(self.name[-15:], 16)})")  # one process makes it
        if not self._is_there(session):
            session.run(
                f"CREATE TABLE {self.relation} ({ATTEMPT} bigint NOT NULL, "
                f"LIKE {target.sql} INCLUDING CONSTRAINTS INCLUDING DEFAULTS INCLUDING GENERATED) "
                "WITH (autovacuum_enabled = false, toast.autovacuum_enabled = false)"
            )
            session.run(f"COMMENT ON TABLE {self.relation} IS {sql.quote(self.owner)}")
            for (name,) in session.run(_COLUMNS + _GIVEN_BY_THE_TABLE, target.sql, list(columns)).fetchall():
                session.run(f"ALTER TABLE {self.relation} DROP COLUMN {quoted(name)} CASCADE")
        there = {name for (name,) in session.run(_COLUMNS, self.relation)}
        keys = []
        for number, unique in enumerate(index for index in target.unique if index.plain):
            if there.issuperset(unique.columns):
                keys.append(UniqueKey(f"{self.name}_{number}", unique.name, unique.columns))
                index = f"CREATE UNIQUE INDEX IF NOT EXISTS {quoted(keys[-1].index)} ON {self.relation}"
                session.run(f"{index} ({', '.join(map(quoted, unique.columns))})")
        return tuple(keys)

    @staticmethod
    def columns(session: Session, relation: str) -> list[str]:
        """Name the columns of a staging table (quoted) that go over; none when it is not there."""
        query = _COLUMNS + "AND attgenerated = '' AND attname <> %s ORDER BY attnum"
        return [name for (name,) in session.run(query, relation, ATTEMPT)]

    def _is_there(self, session: Session) -> bool:
        query = "SELECT obj_description(oid, 'pg_class') FROM to_regclass(%s) AS oid WHERE oid IS NOT NULL"
        found = session.run(query, self.relation).fetchall()
        if found not in ([], [(self.owner,)]):
            raise Fatal(
                f"table {self.schema}.{self.name} is not this sink's staging table {self.owner}",
                why=f"its comment is {found[0][0]!r}",
                next="see whose it is, and move it away; names that begin with exactsink_ are taken",
            )
        return bool(found)


def drop_idle(session: Session, registry: Registry, tables: Iterable[StagingTable]) -> set[str]:
    """Drop those that hold no registered participant, each in a transaction of its own; return the names of those left.

    What is locked or refused is logged and left: nothing depends on it. Whose turn it is, the caller has seen to.
    """
    left = set()
    for table in tables:
        try:
            with session.transaction():
                session.run(f"SET LOCAL lock_timeout = {_DROP_MILLISECONDS}")
                # The registry is read under the lock: whoever writes here has committed, or is gone.
                session.run(f"LOCK TABLE {table.relation} IN ACCESS EXCLUSIVE MODE")
                if not registry.in_table(table.name):
                    session.run(f"DROP TABLE {table.relation}")
        except psycopg.errors.UndefinedTable:  # another process dropped it
            continue
        except psycopg.Error as error:
            _LOG.warning("staging table %s.%s (%s) is left: %s", table.schema, table.name, table.owner, error)
            if session.closed:  # the server went away, nobody holds the table: the next epoch tries again
                break
            left.add(table.name)
    return left
