"""Staging tables: one for each epoch that a claim opens, beside the sink's table and shaped like it."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from exactsink.contract import Fatal
from exactsink_postgres.staged.ledger import Ledger
from exactsink_postgres.tables import quoted

__all__ = ["ATTEMPT", "RowsTable", "UniqueKey", "drop_idle", "staged_columns"]

ATTEMPT = "exactsink_attempt"
"""The first column of a staging table: whose rows they are."""

_LOG = logging.getLogger("exactsink")
_DROP_MILLISECONDS = 500  # a task that still writes keeps its table; the next claim looks again
_OWNER = re.compile(r"g(?P<generation>\d+)-(?P<lineage>.*)\.e(?P<epoch>\d+)")
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


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A unique index of the sink's table, and the index on the staging table that stands for it."""

    index: str
    constraint: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RowsTable:
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
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    @classmethod
    def find(cls, connection: psycopg.Connection, schema: str, sink: str) -> list[RowsTable]:
        """List the staging tables of one sink of a job, whichever claims made them."""
        found = []
        for (comment,) in connection.execute(_LIST, (quoted(schema), f"{sink}.g")):
            match = _OWNER.fullmatch(comment.removeprefix(f"{sink}."))
            if match is not None:  # the name follows from the rest: a copied comment leads to no stranger's table
                found.append(cls(schema, sink, int(match["generation"]), match["lineage"], int(match["epoch"])))
        return found

    def create(self, connection: psycopg.Connection, target: str, columns: Sequence[str]) -> None:
        """Make it like `target` (quoted), for rows that have these columns. Belongs into a transaction. Idempotent.

        It has the target's NOT NULL, CHECKs, defaults and generated columns: a row that breaks them fails in its task,
        and what a default gave to a row is what the target gets. What only the target itself can give (the values of
        an identity) has no column here, and the CHECKs that need it go, too. Raises Fatal when a stranger has the name.
        """
        connection.execute(f"SELECT pg_advisory_xact_lock({int(self.name[-15:], 16)})")  # one process makes it
        if self._is_mine(connection):
            return
        connection.execute(
            f"CREATE TABLE {self.relation} ({ATTEMPT} bigint NOT NULL, "
            f"LIKE {target} INCLUDING CONSTRAINTS INCLUDING DEFAULTS INCLUDING GENERATED) "
            "WITH (autovacuum_enabled = false, toast.autovacuum_enabled = false)"
        )
        connection.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(self._identifier, sql.Literal(self.owner)))
        for (name,) in connection.execute(_COLUMNS + _GIVEN_BY_THE_TABLE, (target, list(columns))).fetchall():
            connection.execute(f"ALTER TABLE {self.relation} DROP COLUMN {quoted(name)} CASCADE")

    def add_keys(self, connection: psycopg.Connection, uniques: Iterable[tuple[str, Sequence[str]]]) -> list[UniqueKey]:
        """Make a unique index for each (constraint, columns) that it can check, and give them. Idempotent."""
        there = {name for (name,) in connection.execute(_COLUMNS, (self.relation,))}
        keys = []
        for number, (constraint, columns) in enumerate(sorted(uniques)):
            if there.issuperset(columns):
                key = UniqueKey(f"{self.name}_{number}", constraint, tuple(columns))
                listed = ", ".join(map(quoted, columns))
                connection.execute(
                    f"CREATE UNIQUE INDEX IF NOT EXISTS {quoted(key.index)} ON {self.relation} ({listed})"
                )
                keys.append(key)
        return keys

    @property
    def _identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    def _is_mine(self, connection: psycopg.Connection) -> bool:
        query = "SELECT obj_description(to_regclass(%s), 'pg_class') FROM to_regclass(%s) AS oid WHERE oid IS NOT NULL"
        row = connection.execute(query, (self.relation, self.relation)).fetchone()
        if row is not None and row[0] != self.owner:
            raise Fatal(
                f"table {self.schema}.{self.name} is not this sink's staging table {self.owner}",
                why=f"its comment is {row[0]!r}",
                next="see whose it is, and move it away; names that begin with exactsink_ are taken",
            )
        return row is not None


def staged_columns(connection: psycopg.Connection, table: str) -> list[str]:
    """Name the columns of a staging table (quoted) that go over; none when it is not there."""
    query = _COLUMNS + "AND attgenerated = '' AND attname <> %s ORDER BY attnum"
    return [name for (name,) in connection.execute(query, (table, ATTEMPT))]


def drop_idle(connection: psycopg.Connection, ledger: Ledger, tables: Iterable[RowsTable]) -> set[str]:
    """Drop those that hold no registered participant, each in a transaction of its own; give the names of those left.

    What is locked or refused is logged and left: nothing depends on it. Whose turn it is, the caller has seen to.
    """
    left = set()
    for table in tables:
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = {_DROP_MILLISECONDS}")
                # The registry is read under the lock: whoever writes here has committed, or is gone.
                connection.execute(f"LOCK TABLE {table.relation} IN ACCESS EXCLUSIVE MODE")
                if not ledger.holds(connection, table.name):
                    connection.execute(f"DROP TABLE {table.relation}")
        except psycopg.errors.UndefinedTable:  # another process dropped it
            continue
        except psycopg.Error as error:
            _LOG.warning("staging table %s.%s (%s) is left: %s", table.schema, table.name, table.owner, error)
            if connection.closed:  # the server went away, nobody holds the table: the next epoch tries again
                break
            left.add(table.name)
    return left
