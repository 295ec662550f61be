"""An upsert as PostgreSQL's statements: an epoch's staged rows go into the table, each key's in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from exactsink.toolkit.sql import quoted
from exactsink_idempotent_upsert.table import DELETED, GUARD, Table

if TYPE_CHECKING:
    from psycopg import Cursor

__all__ = ["DROPS", "HELD", "ORDER", "RESET", "ROUNDS", "ROW", "HeldRows", "Source", "Statements", "take_rounds"]

ROW = "exactsink_row"
"""The column of a staging table with the number of an attempt's row."""

ORDER = "exactsink_order"
"""The column of a staging table with the value of `order_by`, if the sink's table has no such column."""

HELD = "pg_temp.exactsink_held"
"""A task's rows, until its transaction ends."""

ROUNDS = "pg_temp.exactsink_rounds"

RESET = """
    SELECT attname FROM pg_attribute
    WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' AND attidentity = ''
        AND attname <> ALL (%s)
        AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = attrelid AND indisprimary AND attnum = ANY (indkey))
        AND NOT EXISTS (SELECT FROM pg_attrdef WHERE adrelid = attrelid AND adnum = attnum
            AND pg_get_expr(adbin, adrelid) ~ 'nextval\\(')
"""
"""The columns that mode replace sets to their default, if rows have the given ones; never one that identifies a row."""

_TEXTS = "SELECT FROM pg_attribute WHERE attrelid = %s::regclass AND attname = %s AND attcollation <> 0"
"""Returns a row if a collation orders this column of the table."""

DROPS = """
    SELECT FROM (SELECT %s::regclass AS oid) AS this
    WHERE row_security_active(this.oid) OR EXISTS (SELECT FROM pg_rewrite WHERE ev_class = this.oid AND ev_type = '4')
        OR EXISTS (SELECT FROM pg_trigger WHERE NOT tgisinternal AND tgtype & 3 = 3 AND tgenabled <> 'D'
            AND (tgrelid = this.oid OR tgrelid IN (SELECT relid FROM pg_partition_tree(this.oid))))
"""
"""Returns a row if the table can drop a row without an error."""

_PLACE = "exactsink_place"
_ROUND = "exactsink_round"


@dataclass(frozen=True, slots=True)
class Source:
    """Staged rows: the staging table, and its participants' attempts with their partitions."""

    relation: str
    attempts: tuple[int, ...]
    partitions: tuple[int, ...]

    def select(self, columns: str, *, alone: bool) -> str:
        """Return a query for these columns, with those that hold the order of the rows.

        `alone` says that no other source's rows are in the table.
        """
        voted = self.attempts, self.partitions
        attempts, partitions = (f"'{{{','.join(map(str, numbers))}}}'::bigint[]" for numbers in voted)
        # Without retries a later partition has a later attempt: attempts order the rows then.
        if alone and [attempt for _, attempt in sorted(zip(*reversed(voted), strict=True))] == sorted(self.attempts):
            rows = f"SELECT {columns}, exactsink_attempt AS {_PLACE}, {ROW} FROM {self.relation}"
            return f"{rows} WHERE exactsink_attempt = ANY ({attempts})"
        return (
            f"SELECT {columns}, {_PLACE}, {ROW} FROM {self.relation} "
            f"JOIN unnest({attempts}, {partitions}) AS voted (attempt, {_PLACE}) ON attempt = exactsink_attempt"
        )


@dataclass(frozen=True, slots=True)
class HeldRows:
    """The rows that a task holds, to be written with an epoch and a generation."""

    epoch: int
    generation: int

    def select(self, columns: str, *, alone: bool) -> str:
        """Return a query for these columns, including the guard's, with those that hold the order of the rows."""
        guard = f"{self.epoch}::bigint AS {GUARD[0]}, {self.generation}::bigint AS {GUARD[1]}"
        return f"SELECT {columns}, {_PLACE}, {ROW} FROM (SELECT *, {guard}, 0 AS {_PLACE} FROM {HELD}) AS held"


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements that apply an epoch's rows to one table.

    `target` is its quoted name. `columns` are those of its columns that the staging tables have; `brought` are those of
    them that are set in an existing row. `ordered` is the column that orders an epoch's rows, None for their own order.
    `rest` are columns that mode replace sets to the table's default. `texts`: `ordered` has a collation.
    """

    table: Table
    target: str
    columns: tuple[str, ...]
    brought: tuple[str, ...]
    ordered: str | None
    sources: tuple[Source | HeldRows, ...]
    rest: tuple[str, ...] = ()
    texts: bool = False

    def by_bytes(self, run: Callable[..., Cursor[Any]], relation: str) -> Statements:
        """Return the same with texts ordered by their bytes, as every database does it; the rows are in `relation`."""
        return replace(self, texts=run(_TEXTS, relation, self.ordered).rowcount > 0)

    @property
    def in_rounds(self) -> bool:
        """Whether each row counts, not only a key's last (or first) one."""
        return bool(self.table.deletes or self.table.expressions or self.table.update_columns is not None)

    @property
    def counted(self) -> bool:
        """Whether each key's row is changed, whatever row exists."""
        return self.table.mode != "insert_if_absent" and self.table.version is None and bool(self._sets)

    def taken(self, run: Callable[[str], Cursor[Any]], changed: int, keys: int, number: int | None = None) -> int:
        """Return how many keys of a round, or of all rows, were changed or rightly left, once `changed` were changed.

        Changed rows satisfy the guard by now.
        """
        if changed == keys or self.counted:
            return changed
        rows = self._chosen() if number is None else self._round(number)
        left = f"SELECT count(*) FROM ({rows}) AS excluded JOIN {self.target} ON {self._equal('excluded')}"
        if self._conditions:
            left += f" WHERE ({' AND '.join(self._conditions)}) IS NOT TRUE"
        ((count,),) = run(left).fetchall()
        return int(count) + changed * bool(self._sets)  # without it, each key exists now, unless a row was dropped

    def merge(self) -> str:
        """Return the statement for an epoch that uses each key's last row, or its first.

        It reads the table once, while `at_once` looks up, locks and then changes each row. So a key that another
        transaction inserts meanwhile causes a unique violation.
        """
        values = _listed(self.columns, "excluded.")
        sets = ", ".join(self._sets)
        matched = f" WHEN MATCHED{self._unless_newer('AND')} THEN UPDATE SET {sets}" if sets else ""
        return (
            f"MERGE INTO {self.target} USING ({self._chosen()}) AS excluded ON {self._equal('excluded')}{matched} "
            f"WHEN NOT MATCHED THEN INSERT ({_listed(self.columns)}) VALUES ({values})"
        )

    def at_once(self) -> str:
        """Return a statement with the same effect that accepts a key which another transaction inserts meanwhile."""
        return self._insert(f"SELECT {_listed(self.columns)} FROM ({self._chosen()}) AS chosen")

    def keys_count(self) -> str:
        """Return a query for the number of keys."""
        return f"SELECT count(*) FROM (SELECT DISTINCT {self._keys} FROM ({self._rows()}) AS staged) AS keys"

    def newer(self, held: HeldRows) -> str:
        """Return a query for the guard of the newest existing row with one of these keys, if it is newer."""
        guard = _listed(GUARD, "stands.")
        return (
            f"SELECT {guard} FROM {self.target} AS stands WHERE ({guard}) > ({held.epoch}, {held.generation}) "
            f"AND ({_listed(self.table.keys, 'stands.')}) IN (SELECT {self._keys} FROM {HELD}) "
            f"ORDER BY ({guard}) DESC LIMIT 1"
        )

    def number(self) -> list[str]:
        """Return the statements that number each key's rows, in a table that ends with the transaction."""
        order = ", ".join(f"{part} ASC NULLS FIRST" for part in self._order)
        numbered = f"SELECT *, row_number() OVER (PARTITION BY {self._keys} ORDER BY {order}) AS {_ROUND}"
        made = [
            f"CREATE TEMPORARY TABLE exactsink_rounds ON COMMIT DROP AS {numbered} FROM ({self._rows()}) AS staged",
            f"CREATE INDEX ON {ROUNDS} ({_ROUND}, {self._keys})",
            f"ANALYZE {ROUNDS}",
        ]
        if self.table.deletes:  # the rows that are there are locked in the order of keys, as an upsert does it
            one = f"SELECT {self._keys} FROM {ROUNDS} WHERE {_ROUND} = 1"
            key = _listed(self.table.keys, "stands.")
            made.append(f"SELECT FROM {self.target} AS stands WHERE ({key}) IN ({one}) ORDER BY {key} FOR UPDATE")
        return made

    def rounds(self) -> str:
        """Return a query for the rounds' numbers, and how many rows of each delete and stay."""
        gone = f"count(*) FILTER (WHERE {DELETED})" if self.table.deletes else "0"
        return f"SELECT {_ROUND}, {gone}, count(*) - {gone} FROM {ROUNDS} GROUP BY 1 ORDER BY 1"

    def deletes(self, number: int) -> str:
        """Return the statement for a round's deletes."""
        return f"DELETE FROM {self.target} USING {self._gone(number)}"

    def undeleted(self, number: int) -> str:
        """Return a query that counts the rows that a round's deletes should have deleted, but did not."""
        return f"SELECT count(*) FROM {self.target}, {self._gone(number)}"

    def _gone(self, number: int) -> str:
        table = self.table
        guard = ""
        if table.version is not None:
            guard = f" AND {table.not_above(f'{quoted(table.name)}.', f'gone.{quoted(table.version)}')}"
        return f"{ROUNDS} AS gone WHERE {_ROUND} = {number} AND {DELETED} AND {self._equal('gone')}{guard}"

    def upserts(self, number: int) -> str:
        """Return the statement for a round's rows that stay; locks in key order."""
        return self._insert(f"{self._round(number)} ORDER BY {self._keys}")

    def tried(self) -> str:
        """Return a statement that changes nothing, and that the server refuses if it would refuse each epoch's."""
        return "EXPLAIN " + self._insert(f"SELECT {_listed(self.columns)} FROM {self.target} LIMIT 0")

    def _round(self, number: int) -> str:
        stay = f" AND NOT {DELETED}" if self.table.deletes else ""
        return f"SELECT {_listed(self.columns)} FROM {ROUNDS} WHERE {_ROUND} = {number}{stay}"

    def _chosen(self) -> str:
        """Return a query for the one row of each key, in the order of keys."""
        first = self.table.mode == "insert_if_absent"
        way = "ASC NULLS FIRST" if first else "DESC NULLS LAST"
        order = ", ".join([self._keys, *(f"{part} {way}" for part in self._order)])
        return f"SELECT DISTINCT ON ({self._keys}) * FROM ({self._rows()}) AS staged ORDER BY {order}"

    def _insert(self, rows: str) -> str:
        sets = self._sets
        action = f"DO UPDATE SET {', '.join(sets)}{self._unless_newer('WHERE')}" if sets else "DO NOTHING"
        return f"INSERT INTO {self.target} ({_listed(self.columns)}) {rows} ON CONFLICT ({self._keys}) {action}"

    @property
    def _sets(self) -> list[str]:
        """The assignments if the key exists."""
        sets = [f"{quoted(name)} = excluded.{quoted(name)}" for name in self.table.updated(self.brought)]
        sets += [f"{quoted(name)} = DEFAULT" for name in self.rest]
        return sets + [f"{quoted(name)} = {expression}" for name, expression in self.table.expressions]

    def _unless_newer(self, word: str) -> str:
        return f" {word} {' AND '.join(self._conditions)}" if self._conditions else ""

    @property
    def _conditions(self) -> list[str]:
        """The conditions under which an existing row is changed."""
        return self.table.unless_newer(quoted(self.table.name), "excluded")

    def _rows(self) -> str:
        columns = [*map(quoted, self.columns), *[DELETED] * self.table.deletes, *[ORDER] * (self.ordered == ORDER)]
        alone = len(self.sources) == 1
        return " UNION ALL ".join(source.select(", ".join(columns), alone=alone) for source in self.sources)

    def _equal(self, coming: str) -> str:
        return " AND ".join(f"{quoted(self.table.name, key)} = {coming}.{quoted(key)}" for key in self.table.keys)

    @property
    def _keys(self) -> str:
        return _listed(self.table.keys)

    @property
    def _order(self) -> list[str]:
        by = quoted(self.ordered or "") + '::text COLLATE "C"' * self.texts
        return [*([by] if self.ordered else []), _PLACE, ROW]


def _listed(names: Sequence[str], prefix: str = "") -> str:
    return ", ".join(prefix + quoted(name) for name in names)


def take_rounds(run: Callable[..., Cursor[Any]], statements: Statements) -> tuple[int, int, int]:
    """Apply each key's rows in rounds, one row of each key at a time. Stop after a round if the table drops rows of it.

    Return how many rows were changed, how many were applied (including those rightly left), and how many there were.
    """
    for statement in statements.number():
        run(statement)
    drops = run(DROPS, statements.target).rowcount
    changed = taken = rows = 0
    for number, gone, stay in run(statements.rounds()).fetchall():
        rows += gone + stay
        if gone:
            run(statements.deletes(number))
            ((left,),) = run(statements.undeleted(number)).fetchall() if drops else [(0,)]
            taken += gone - left
        now = run(statements.upserts(number)).rowcount if stay else 0
        changed += now
        taken += statements.taken(run, now, stay, number) if drops or statements.counted else stay
        if taken != rows:
            break
    return changed, taken, rows
