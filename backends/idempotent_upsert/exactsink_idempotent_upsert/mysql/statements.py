"""SQL of MariaDB and MySQL: the statements for a table, and Arrow values as literals, made a column at a time.

Times are in UTC if their type has a zone, and so are the sessions. Values that neither product can hold are refused:
NaN, infinity. Executors import this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.toolkit.json_columns import plain
from exactsink_idempotent_upsert.limits import family
from exactsink_idempotent_upsert.setwise import POSITION, ROWS, FinalRows
from exactsink_idempotent_upsert.table import DELETED, GUARD, Table

__all__ = ["Statements", "column_type", "packed", "quoted", "rows_of"]

_LAST = "exactsink_last"  # like no table's name

# The parts of SQL beside words, so that an `excluded` in a text or a name is not taken for the incoming row.
_PARTS = re.compile(
    r"""'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*`
    | (?<![\w.`]) excluded \s* \. \s* (?P<name> `(?:[^`]|``)+` | \w+ )""",
    re.VERBOSE | re.IGNORECASE,
)
_TYPES = {"boolean": "BOOLEAN", "unsigned": "BIGINT UNSIGNED", "whole": "BIGINT", "float": "DOUBLE", "text": "LONGTEXT"}
_TYPES |= {"bytes": "LONGBLOB", "timestamp": "DATETIME(6)", "date": "DATE", "time": "TIME(6)"}
_KEYS = {"text": "VARCHAR(255)", "bytes": "VARBINARY(255)"}
_MOST_DIGITS, _MOST_SCALE = 65, 30
_is = pa.types


def column_type(type: pa.DataType, *, key: bool = False) -> str | None:
    """Return the column type for values of an Arrow type; None when none takes them without loss.

    A key's text is compared byte by byte where the table is made here: its collation is the caller's to add.
    """
    if _is.is_dictionary(type):
        return column_type(type.value_type, key=key)
    if family(type) == "decimal":
        scale = max(type.scale, 0)
        digits = type.precision - min(type.scale, 0)
        return f"DECIMAL({digits}, {scale})" if digits <= _MOST_DIGITS and scale <= _MOST_SCALE else None
    return (_TYPES | _KEYS if key else _TYPES).get(family(type))


def rows_of(batch: pa.RecordBatch, names: Sequence[str], more: str = "") -> pa.Array:
    """Return the rows as text, `(1,'a')`, in bytes, with `more` at the end of each."""
    columns = [_literals(plain(batch.column(name))) for name in names]
    return _joined(_bytes(b"("), _joined(*columns, _bytes(b",")), _bytes(f"{more})".encode()), _bytes(b""))


def packed(batches: Iterable[pa.Array], most: int) -> Iterator[bytes]:
    """Join rows by commas, into texts of about `most` bytes: longer by less than a row."""
    total = 0

    def place(rows: pa.Array) -> int:
        nonlocal total
        total += int(rows.nbytes)
        return total // most

    for _, some in groupby(batches, place):  # small batches together
        rows = pa.concat_arrays(list(some))
        packs = pc.divide(pc.cumulative_sum(pc.add(pc.binary_length(rows), 1)), most)
        first = 0
        for end in pc.run_end_encode(packs, run_end_type=pa.int64()).run_ends.to_pylist():
            joined = pa.LargeListArray.from_arrays(pa.array([first, end], pa.int64()), rows)
            yield pc.binary_join(joined, _bytes(b","))[0].as_py()
            first = end


def _literals(column: pa.Array) -> pa.Array:
    kind = column.type
    if _is.is_boolean(kind):
        column = column.cast(pa.int8())
    elif _is.is_floating(kind):
        column = column.cast(pa.float64())
    elif _is.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", tz=kind.tz)).cast(pa.int64()).cast(pa.timestamp("us"))
    elif _is.is_decimal(kind) and kind.scale < 0:
        column = column.cast(pa.decimal256(kind.precision - kind.scale, 0))
    of = family(kind)
    text = column if of == "bytes" else column.cast(pa.large_string())
    text = text.cast(pa.large_binary())
    if of in ("bytes", "text"):  # the sessions' sql_mode leaves the backslash its meaning
        text = pc.replace_substring(pc.replace_substring(text, b"\\", b"\\\\"), b"'", b"''")
    if of in ("bytes", "text", "timestamp", "date", "time"):
        text = _joined(_bytes(b"_binary'" if of == "bytes" else b"'"), text, _bytes(b"'"), _bytes(b""))
    return pc.fill_null(text, _bytes(b"NULL"))


def _joined(*columns: pa.Array | pa.Scalar) -> pa.Array:
    """Join row by row, with the last argument as the separator."""
    return pc.binary_join_element_wise(*columns)


def _bytes(text: bytes) -> pa.Scalar:
    return pa.scalar(text, pa.large_binary())


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements for one table.

    `rest` are columns that mode replace sets to their default. `other_unique` says that the table has unique indexes
    beside that of the keys. ON DUPLICATE KEY then matches a row by any of them, and that row may belong to another key.
    """

    table: Table
    rest: tuple[str, ...] = ()
    other_unique: bool = False

    @property
    def name(self) -> str:
        return quoted(*filter(None, (self.table.schema, self.table.name)))

    def insert(self, columns: Sequence[str]) -> str:
        return f"INSERT INTO {self.name} ({_listed(columns)}) VALUES "

    def on_duplicate(self, columns: Sequence[str], epoch: int = 0, generation: int = 0) -> str:
        """Return the clause after the rows. The `columns` of a guarded table end with GUARD.

        Assignments run from left to right, and each sees those before it, so conditions read columns that are set last.
        """
        sets = [*self._refusals(epoch, generation), *self._sets(columns)]
        key = quoted(self.table.keys[0])
        return f" ON DUPLICATE KEY UPDATE {', '.join(sets) or f'{key} = {key}'}"

    def _sets(self, columns: Sequence[str]) -> Iterator[str]:
        table = self.table
        last = [name for name in (table.version, *reversed(GUARD)) if name is not None]
        plain = sorted(table.updated(columns), key=lambda name: last.index(name) + 1 if name in last else 0)
        values = [(name, _came(sql)) for name, sql in in_order(dict(table.expressions))]
        values += [(name, f"DEFAULT({quoted(name)})") for name in self.rest]
        values += [(name, f"VALUES({quoted(name)})") for name in plain]
        condition = " AND ".join(self._conditions())
        for name, value in values:
            held = self._held(name)
            yield f"{quoted(name)} = {f'IF({condition}, {value}, {held})' if condition else f'({value})'}"

    def _conditions(self) -> Iterator[str]:
        """Return the conditions under which a row is set: no newer one exists."""
        if self.table.guarded and self.table.mode == "insert_if_absent":  # of this epoch, which is not decided
            yield f"{self._held(GUARD[0])} = VALUES({quoted(GUARD[0])})"
        if self.table.version is not None:
            version = self._held(self.table.version)
            yield f"({version} IS NULL OR {version} <= VALUES({quoted(self.table.version)}))"

    def _refusals(self, epoch: int, generation: int) -> Iterator[str]:
        """Return assignments that change nothing, but end the statement with an error if it meets a forbidden row."""
        if self.table.guarded:
            there, by = map(self._held, GUARD)
            newer = f"{there} > {epoch} OR ({there} = {epoch} AND {by} > {generation})"
            if self.table.mode == "insert_if_absent":
                newer = f"{there} = {epoch} AND {by} > {generation}"
            yield f"{quoted(GUARD[1])} = IF({newer}, {by} * 0 + 9223372036854775807 + 1, {by})"
        if self.other_unique:
            same = " AND ".join(f"{self._held(key)} <=> VALUES({quoted(key)})" for key in self.table.keys)
            key = self.table.keys[0]
            overflow = f"LENGTH({self._held(key)}) * 0 + 9223372036854775807 + 1"
            yield f"{quoted(key)} = IF({same}, {self._held(key)}, {overflow})"

    def rows(self, declared: Mapping[str, str]) -> str:
        """Return the statement that makes the table of an epoch's rows, of columns as `declared`.

        They have names that no expression of `set` can mean.
        """
        columns = [f"{_own(at)} {kind} NULL" for at, kind in enumerate(declared.values())]
        made = ", ".join([f"{POSITION} BIGINT PRIMARY KEY", *columns, f"{DELETED} BOOLEAN NOT NULL"])
        return f"CREATE TEMPORARY TABLE {ROWS} ({made}) ENGINE=InnoDB"

    def applied(self, columns: Sequence[str]) -> Iterator[str]:
        """Return the statements by which an epoch's rows delete and upsert: the server takes them one after another.

        The rows lead the join, so that each is looked up by its key.
        """
        own = {name.lower(): _own(at) for at, name in enumerate(columns)}
        keys = [own[key.lower()] for key in self.table.keys]
        chosen = FinalRows(", ".join(keys), deletes=True)
        same = [f"{self._held(key)} = {_LAST}.{own[key.lower()]}" for key in self.table.keys]
        if self.table.version is not None:
            held = self._held(self.table.version)
            same.append(f"({held} IS NULL OR {held} <= {_LAST}.{own[self.table.version.lower()]})")
        there = quoted(self.table.name)
        yield (
            f"DELETE {there} FROM ({chosen.gone()}) AS {_LAST}"
            f" STRAIGHT_JOIN {self.name} AS {there} ON {' AND '.join(same)}"
        )
        into = f"INSERT INTO {self.name} ({_listed(columns)}) SELECT {', '.join(own.values())}"
        yield f"{into} FROM ({chosen.left()}) AS {_LAST} ORDER BY {POSITION}{self.on_duplicate(columns)}"

    def newer_than(self, epoch: int, generation: int) -> str:
        """Return the SELECT of the guard of rows that a later epoch or generation wrote."""
        there, by = map(quoted, GUARD)
        newer = f"{there} > {epoch} OR ({there} = {epoch} AND {by} > {generation})"
        return f"SELECT {there}, {by} FROM {self.name} WHERE {newer} LIMIT 1"

    def created_for(self, columns: Mapping[str, str], collation: str) -> str:
        """Return the statement that makes the table; text of its keys is compared by this collation."""
        options = f"ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation}"
        return f"CREATE TABLE IF NOT EXISTS {self.name} ({self.table.defined(columns, quoted)}) {options}"

    def with_column(self, name: str, kind: str | None) -> str:
        return f"ALTER TABLE {self.name} ADD COLUMN {quoted(name)} {kind}"

    def with_unique_keys(self) -> str:
        index = quoted("_".join(("exactsink", *self.table.keys))[:60])
        return f"CREATE UNIQUE INDEX {index} ON {self.name} ({_listed(self.table.keys)});"

    def _held(self, column: str) -> str:
        return quoted(self.table.name, column)


def in_order(expressions: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return expressions so that none reads a column that one before it has set. Raises CycleError."""
    reads = {
        name: {other for other in expressions if other != name and re.search(rf"\b{re.escape(other)}\b", sql, re.I)}
        for name, sql in expressions.items()
    }
    graph: dict[str, set[str]] = {name: set() for name in expressions}
    for name, read in reads.items():
        for other in read:
            graph[other].add(name)  # `name` reads it, so it is set first
    return [(name, expressions[name]) for name in TopologicalSorter(graph).static_order()]


def quoted(*names: str) -> str:
    """Quote an identifier, or several as one qualified name."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def _came(sql: str) -> str:
    """Write `excluded.column` as this database has it."""
    return _PARTS.sub(lambda part: f"VALUES({part['name']})" if part["name"] else part[0], sql)


def _own(at: int) -> str:
    return f"exactsink_{at}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))
