"""An upsert as PostgreSQL's statements: staged rows of an epoch into the table, each key's in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exactsink.toolkit.sql import quoted
from exactsink_idempotent_upsert.table import DELETED, Table

__all__ = ["ORDER", "ROUNDS", "ROW", "Source", "Statements"]

ROW = "exactsink_row"
"""The column of a staging table that numbers an attempt's rows."""

ORDER = "exactsink_order"
"""The column of a staging table with what `order_by` names, where the sink's table has no such column."""

ROUNDS = "pg_temp.exactsink_rounds"
_PLACE = "exactsink_place"
_ROUND = "exactsink_round"


@dataclass(frozen=True, slots=True)
class Source:
    """Staged rows: the staging table, and its participants' attempts with their partitions."""

    relation: str
    attempts: tuple[int, ...]
    partitions: tuple[int, ...]

    def select(self, columns: str) -> str:
        """Return a query for these columns, beside those that say in which order the rows came."""
        attempts, partitions = (f"'{{{','.join(map(str, numbers))}}}'::bigint[]" for numbers in self._voted)
        return (
            f"SELECT {columns}, {_PLACE}, {ROW} FROM {self.relation} "
            f"JOIN unnest({attempts}, {partitions}) AS voted (attempt, {_PLACE}) ON attempt = exactsink_attempt"
        )

    @property
    def _voted(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.attempts, self.partitions


@dataclass(frozen=True, slots=True)
class Statements:
    """What an epoch's rows do to one table.

    `target` is its name, quoted; `columns` are those that the staging tables have of it, `brought` those among them
    that the rows bring; `ordered` is the column by which an epoch's rows are taken, None for their own order.
    """

    table: Table
    target: str
    columns: tuple[str, ...]
    brought: tuple[str, ...]
    ordered: str | None
    sources: tuple[Source, ...]

    @property
    def in_rounds(self) -> bool:
        """Whether each row counts, not only a key's last (or first) one."""
        return bool(self.table.deletes or self.table.expressions or self.table.update_columns is not None)

    @property
    def counted(self) -> bool:
        """Whether each key's row is changed, whatever stands there."""
        return self.table.mode != "insert_if_absent" and self.table.version is None

    def merge(self) -> str:
        """Return the statement for an epoch of which each key's last row counts, or its first.

        It reads the table once, where `at_once` looks up, locks and then changes each row; so a key that another
        transaction inserts meanwhile is a unique violation.
        """
        equal = " AND ".join(f"{quoted(self.table.name, key)} = excluded.{quoted(key)}" for key in self.table.keys)
        values = _listed(self.columns, "excluded.")
        matched = f" WHEN MATCHED{self._guard('AND')} THEN UPDATE SET {', '.join(self._sets)}" if self._sets else ""
        return (
            f"MERGE INTO {self.target} USING ({self._chosen()}) AS excluded ON {equal}{matched} "
            f"WHEN NOT MATCHED THEN INSERT ({_listed(self.columns)}) VALUES ({values})"
        )

    def at_once(self) -> str:
        """Return the same as a statement that takes a key that another transaction inserts meanwhile, too."""
        return self._insert(f"SELECT {_listed(self.columns)} FROM ({self._chosen()}) AS chosen")

    def keys_count(self) -> str:
        """Return a query for the number of keys."""
        return f"SELECT count(*) FROM (SELECT DISTINCT {self._keys} FROM ({self._rows()}) AS staged) AS keys"

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

    @staticmethod
    def last_round() -> str:
        return f"SELECT coalesce(max({_ROUND}), 0) FROM {ROUNDS}"

    def deletes(self, number: int) -> str:
        """Return the statement for a round's deletes."""
        name, equal = quoted(self.table.name), " AND ".join(self._equal())
        guard = f" AND {self._newer('gone')}" if self.table.version else ""
        return (
            f"DELETE FROM {self.target} USING {ROUNDS} AS gone "
            f"WHERE {_ROUND} = {number} AND {DELETED} AND {equal.replace('{}', name)}{guard}"
        )

    def upserts(self, number: int) -> str:
        """Return the statement for a round's rows that stay; locks in key order."""
        stay = f" AND NOT {DELETED}" if self.table.deletes else ""
        rows = f"SELECT {_listed(self.columns)} FROM {ROUNDS} WHERE {_ROUND} = {number}{stay}"
        return self._insert(f"{rows} ORDER BY {self._keys}")

    def _chosen(self) -> str:
        """Return a query for the one row of each key, in the order of keys."""
        first = self.table.mode == "insert_if_absent"
        way = "ASC NULLS FIRST" if first else "DESC NULLS LAST"
        order = ", ".join([self._keys, *(f"{part} {way}" for part in self._order)])
        return f"SELECT DISTINCT ON ({self._keys}) * FROM ({self._rows()}) AS staged ORDER BY {order}"

    def _insert(self, rows: str) -> str:
        sets = self._sets
        action = f"DO UPDATE SET {', '.join(sets)}{self._guard('WHERE')}" if sets else "DO NOTHING"
        return f"INSERT INTO {self.target} ({_listed(self.columns)}) {rows} ON CONFLICT ({self._keys}) {action}"

    @property
    def _sets(self) -> list[str]:
        """What is set where the key is there."""
        names = self.columns if self.table.mode == "replace" else self.brought
        sets = [f"{quoted(name)} = excluded.{quoted(name)}" for name in self.table.updated(names)]
        return sets + [f"{quoted(name)} = {expression}" for name, expression in self.table.expressions]

    def _guard(self, word: str) -> str:
        return f" {word} {self._newer('excluded')}" if self.table.version else ""

    def _newer(self, coming: str) -> str:
        assert self.table.version is not None
        stands = f"{quoted(self.table.name)}.{quoted(self.table.version)}"
        return f"({stands} IS NULL OR {coming}.{quoted(self.table.version)} >= {stands})"

    def _rows(self) -> str:
        columns = [*map(quoted, self.columns)]
        columns += [DELETED] if self.table.deletes else []
        columns += [ORDER] if self.ordered == ORDER else []
        return " UNION ALL ".join(source.select(", ".join(columns)) for source in self.sources)

    def _equal(self) -> list[str]:
        return [f"{{}}.{quoted(key)} = gone.{quoted(key)}" for key in self.table.keys]

    @property
    def _keys(self) -> str:
        return _listed(self.table.keys)

    @property
    def _order(self) -> list[str]:
        return [*([quoted(self.ordered)] if self.ordered else []), _PLACE, ROW]


def _listed(names: Sequence[str], prefix: str = "") -> str:
    return ", ".join(prefix + quoted(name) for name in names)
