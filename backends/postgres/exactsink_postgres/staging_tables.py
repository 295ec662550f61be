"""Staging tables: a sink keeps a few of them, in a schema beside the users', and each epoch uses one alone.

A table's comment names its epoch and claim, or says `free`. Epochs neither create nor drop tables, so that pg_dump
finds each table that it has listed.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import ClassVar

import psycopg
from psycopg import sql

from exactsink.contract import Committable, Fatal
from exactsink.toolkit.payloads import read_vote
from exactsink.toolkit.sql import quoted
from exactsink_postgres.errors import AGAIN, UNDECIDED
from exactsink_postgres.own_tables import VoteRegistry, in_query
from exactsink_postgres.server import Session
from exactsink_postgres.tables import CREATE_LOCK, Table, UniqueIndex

__all__ = ["ATTEMPT", "Form", "OpenEpoch", "RowsAt", "StagingTable", "clear", "make_schema"]

ATTEMPT = "exactsink_attempt"
"""The first column of a staging table: the attempt that wrote the row."""

_LOG = logging.getLogger("exactsink")
_COMMENT = re.compile(r"(?:g(\d+)-(\S*)\.e(\d+)|free) (\w+) (\d+)")
_LIST = r"""SELECT relname, relpersistence = 'u', obj_description(oid, 'pg_class') FROM pg_class
    WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r' AND relname LIKE 'exactsink\_rows\_%%'
        AND starts_with(obj_description(oid, 'pg_class'), %s)
    ORDER BY relname"""
_COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
_GIVEN_BY_THE_TABLE = """ AND attgenerated = '' AND attname <> ALL (%s)
    AND (attidentity <> '' OR NOT has_column_privilege(attrelid, attnum, 'INSERT'))"""
_FORM = """SELECT left(md5(concat_ws(' ', %s::text,
        (SELECT string_agg(concat_ws(' ', attnum, attname, atttypid, atttypmod, attcollation, attnotnull, attgenerated,
                attidentity, has_column_privilege(attrelid, attnum, 'INSERT'), adbin), ',' ORDER BY attnum)
            FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
            WHERE attrelid = target AND attnum > 0 AND NOT attisdropped),
        (SELECT string_agg(concat_ws(' ', conname, conbin, to_jsonb(pg_constraint) ->> 'conenforced'), ',' ORDER BY oid)
            FROM pg_constraint WHERE conrelid = target AND contype = 'c'),
        (SELECT string_agg(indexrelid::text, ',' ORDER BY indexrelid) FROM pg_index
            WHERE indrelid = target AND indisunique))), 16)
    FROM (SELECT %s::oid AS target) AS one"""


@dataclass(frozen=True, slots=True)
class OpenEpoch:
    """An epoch as one claim has opened it: `lineage` is the journal's name."""

    generation: int
    lineage: str
    epoch: int

    def __str__(self) -> str:
        return f"g{self.generation}-{self.lineage}.e{self.epoch}"


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a sink's staging tables: its table, for rows with `columns`. `beside` declares more columns.

    They have the table's NOT NULL, CHECKs, defaults and generated columns: a row that breaks them fails in its task,
    and the table gets the values that a default gave. Values that only the table itself can make (those of an identity)
    have no column here, and CHECKs that need them are left out. `required` are columns that take no NULL, whatever the
    table says. `unique` says whether the table's unique keys hold.
    """

    like: Table
    columns: tuple[str, ...]
    beside: str = f"{ATTEMPT} bigint NOT NULL"
    unlogged: bool = False
    unique: bool = True
    required: tuple[str, ...] = ()

    def hashed(self, session: Session) -> str:
        """Return a hash of everything that determines a table of this form."""
        own = f"{self.columns} {self.beside} {self.unlogged} {self.unique} {self.required}"
        ((found,),) = session.run(_FORM, own, self.like.oid).fetchall()
        return str(found)


@dataclass(frozen=True, slots=True)
class StagingTable:
    """One of the staging tables of a sink (job.sink), and the epoch that uses it, None if it is free.

    `form` is the hash of its form.
    """

    schema: str
    sink: str
    opened: OpenEpoch | None
    form: str
    number: int = 0
    unlogged: bool = False

    @property
    def name(self) -> str:
        made_for = f"{self.sink} {self.form} {self.number}"
        return f"exactsink_rows_{hashlib.sha256(made_for.encode()).hexdigest()[:16]}"

    @property
    def whose(self) -> str:
        return f"{self.sink}.{self.opened or 'free'}"

    @property
    def comment(self) -> str:
        """The text of the table's comment."""
        return f"{self.whose} {self.form} {self.number}"

    @property
    def relation(self) -> str:
        """The qualified name, quoted."""
        return quoted(self.schema, self.name)

    def registry(self, session: Session) -> VoteRegistry:
        return VoteRegistry(session, self.schema, unlogged=self.unlogged)

    @classmethod
    def find(cls, session: Session, schema: str, sink: str) -> Iterator[StagingTable]:
        """List the staging tables of one sink of a job in a schema, whichever claims use them."""
        for name, unlogged, comment in session.run(_LIST, quoted(schema), f"{sink}.").fetchall():
            match = _COMMENT.fullmatch(comment.removeprefix(f"{sink}."))
            if match is not None:
                opened = OpenEpoch(int(match[1]), match[2], int(match[3])) if match[1] else None
                table = cls(schema, sink, opened, match[4], int(match[5]), unlogged)
                if table.name == name:  # it follows from the comment: a copied one leads to no foreign table
                    yield table

    @classmethod
    def take(cls, session: Session, schema: str, sink: str, opened: OpenEpoch, form: Form) -> StagingTable:
        """Return the table of an epoch: its present one, or a free one, or a new one.

        Idempotent. Call it in a transaction.
        """
        session.run("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", f"exactsink staging {sink}")
        hashed = form.hashed(session)
        own = [table for table in cls.find(session, schema, sink) if table.form == hashed]
        for table in own:
            if table.opened == opened:
                return table
        free = [replace(table, opened=opened) for table in own if table.opened is None]
        new = (cls(schema, sink, opened, hashed, number, form.unlogged) for number in count())
        table = free[0] if free else next(table for table in new if not _is_there(session, table.relation))
        if not free:
            table._create(session, form)
        session.run(f"COMMENT ON TABLE {table.relation} IS {sql.quote(table.comment)}")
        return table

    def keys(self, session: Session, like: Table) -> tuple[UniqueIndex, ...]:
        """Return the unique keys of the sink's table whose columns this table has."""
        there = {name for (name,) in session.run(_COLUMNS, self.relation)}
        return tuple(index for index in like.unique if index.plain and there.issuperset(index.columns))

    def is_standing(self, session: Session, tag: str = "") -> bool:
        """Return whether the table exists, and still belongs to the same epoch. `tag` begins the statement."""
        found = session.run(f"{tag} SELECT obj_description(to_regclass(%s), 'pg_class')", self.relation).fetchall()
        return found == [(self.comment,)]

    @staticmethod
    def columns(session: Session, relation: str, beside: Sequence[str]) -> list[str]:
        """Name the columns of a staging table (quoted) that go over; none when it is not there."""
        query = _COLUMNS + " AND attgenerated = '' AND attname <> ALL (%s) ORDER BY attnum"
        return [name for (name,) in session.run(query, relation, list(beside))]

    @staticmethod
    def rows(session: Session, relation: str, attempts: Sequence[int]) -> int:
        """Count the rows of these attempts in a staging table (quoted)."""
        query = f"SELECT count(*) FROM {in_query(relation)} WHERE {ATTEMPT} = ANY (%s)"
        ((count,),) = session.run(query, list(attempts)).fetchall()
        return int(count)

    def _create(self, session: Session, form: Form) -> None:
        session.run(
            f"CREATE {'UNLOGGED ' * form.unlogged}TABLE {self.relation} ({form.beside}, "
            f"LIKE {form.like.sql} INCLUDING CONSTRAINTS INCLUDING DEFAULTS INCLUDING GENERATED) "
            "WITH (autovacuum_enabled = false, toast.autovacuum_enabled = false)"
        )
        for (name,) in session.run(_COLUMNS + _GIVEN_BY_THE_TABLE, form.like.sql, list(form.columns)).fetchall():
            session.run(f"ALTER TABLE {self.relation} DROP COLUMN {quoted(name)} CASCADE")
        for name in form.required:
            session.run(f"ALTER TABLE {self.relation} ALTER COLUMN {quoted(name)} SET NOT NULL")

    @staticmethod
    def check_twice(
        session: Session, relation: str, key: UniqueIndex, given: Sequence[Committable], where: str
    ) -> None:
        """Raise Fatal if a key comes twice in these participants' rows."""
        columns = in_query(", ".join(map(quoted, key.columns)))
        some = in_query(" AND ".join(f"{quoted(column)} IS NOT NULL" for column in key.columns))
        rows = f"FROM {in_query(relation)} WHERE {some} AND {ATTEMPT} = ANY (%s)"
        attempts = {committable.txn.attempt: committable.txn.partition for committable in given}
        repeated = f"SELECT ROW({columns})::text AS key {rows} GROUP BY {columns} HAVING count(*) > 1"
        ((found,),) = session.run(f"SELECT min(key) FROM ({repeated}) AS repeated", list(attempts)).fetchall()
        if found is None:
            return
        query = f"SELECT DISTINCT {ATTEMPT} {rows} AND ROW({columns})::text = %s"
        holders = session.run(query, list(attempts), found).fetchall()
        partitions = sorted(attempts[attempt] for (attempt,) in holders)
        fix = f"drop the doubles before this sink (columns: {', '.join(key.columns)}), then {AGAIN}"
        why = f"partition {partitions[0]} of this epoch has the key twice"
        if len(partitions) > 1:
            why = f"partitions {' and '.join(map(str, partitions))} of this epoch have rows with the same unique key"
            fix += '; to see them together, set distribution = "hash(key)" for this sink, with the columns of the key'
        what = f"{where}, constraint {key.name}: key ({', '.join(key.columns)})={found} comes twice"
        raise Fatal(what, why=f"{why}; {UNDECIDED}", next=fix)


def make_schema(session: Session, schema: str) -> None:
    """Make the schema of the staging tables where there is none. Idempotent; belongs into a transaction."""
    look = "SELECT FROM pg_namespace WHERE nspname = %s"  # a read of the table, because a cached answer may be older
    if session.run(look, schema).fetchall():
        return
    session.run(f"SELECT pg_advisory_xact_lock({CREATE_LOCK})")
    if not session.run(look, schema).fetchall():
        session.run(f"CREATE SCHEMA {quoted(schema)}")


def clear(session: Session, tables: Iterable[StagingTable], left: set[StagingTable], *, drop: bool = False) -> None:
    """Empty the tables that hold no registered participant, and free them. The caller has made sure that they may be.

    Each is freed in its own transaction; `drop` drops them instead. If a lock is not free at once (a task still writes,
    or pg_dump reads), or if the server refuses, the table is left, and logged unless `left` has it already. The next
    epoch tries again, and uses another table meanwhile.
    """
    for table in tables:
        try:
            with session.transaction():
                session.run("SET LOCAL synchronous_commit = off")  # work that a crash undoes is repeated
                # Checked under the lock: a writer has committed, or is gone, and nobody else takes the table.
                session.run(f"LOCK TABLE {table.relation} IN ACCESS EXCLUSIVE MODE NOWAIT")
                if table.is_standing(session) and not table.registry(session).in_table(table.name):
                    _empty(session, table, drop=drop)
        except psycopg.errors.UndefinedTable:  # another process dropped it
            continue
        except psycopg.Error as error:
            if table not in left:
                _LOG.warning("staging table %s.%s (%s) is left: %s", table.schema, table.name, table.whose, error)
            if session.closed:  # the server is away, so nobody holds the table; the next epoch tries again
                break
            left.add(table)


def _empty(session: Session, table: StagingTable, *, drop: bool) -> None:
    if drop:
        session.run(f"DROP TABLE {table.relation}")
    else:
        session.run(f"TRUNCATE {table.relation}")
        free = replace(table, opened=None)
        session.run(f"COMMENT ON TABLE {table.relation} IS {sql.quote(free.comment)}")


def _is_there(session: Session, relation: str) -> bool:
    return bool(session.run("SELECT FROM pg_class WHERE oid = to_regclass(%s)", relation).fetchall())


@dataclass(frozen=True, slots=True, order=True)
class RowsAt:
    """The payload of a vote: where the participant's rows wait, and the schema of the sink's table.

    `columns` are the columns of the rows of an upsert.
    """

    staging_schema: str
    rows_table: str
    unlogged: bool
    schema: str
    columns: tuple[str, ...]
    VERSION: ClassVar[int] = 3

    @classmethod
    def of(cls, committable: Committable) -> RowsAt:
        return read_vote(committable, cls.VERSION, cls)

    @classmethod
    def places(cls, committables: Sequence[Committable]) -> dict[RowsAt, list[Committable]]:
        """Sort committables by where their rows wait."""
        found: dict[RowsAt, list[Committable]] = {}
        for committable in committables:
            found.setdefault(cls.of(committable), []).append(committable)
        return found

    @property
    def relation(self) -> str:
        """The qualified name, quoted."""
        return quoted(self.staging_schema, self.rows_table)

    def registry(self, session: Session) -> VoteRegistry:
        return VoteRegistry(session, self.staging_schema, unlogged=self.unlogged)
