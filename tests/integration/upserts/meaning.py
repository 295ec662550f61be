"""What the options of an upsert mean, on a dictionary: every database has to end as it does.

A database's tests parametrize over `CASES` and hand `check` a `Target`.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from exactsink.contract import AlreadyCommitted, Committed, ExactsinkError
from exactsink.testing import Session
from exactsink_idempotent_upsert.options import UpsertOptions
from exactsink_idempotent_upsert.table import DELETED, GUARD
from tests.differential.plays import applied

Row = Mapping[str, Any]
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), ("n", pa.int64()), ("o", pa.int64())])
TABLE = "t"
COLUMNS = {"k": "BIGINT PRIMARY KEY", "v": "VARCHAR(40)", "n": "BIGINT", "o": "BIGINT", "d": "BIGINT DEFAULT 7"}
"""The table: `d` is in no row that comes. For strategy direct it has the columns GUARD, too."""

STANDING = [{"k": 1, "v": "old", "n": 100, "o": 4, "d": 1}, {"k": 2, "v": "old", "n": 200, "o": None, "d": 2}]

MODES: tuple[dict[str, Any], ...] = (
    {},
    {"mode": "insert_if_absent"},
    {"mode": "replace"},
    {"update_columns": ("n",)},
    {"set": {"n": f"{TABLE}.n + excluded.n"}},
    {"set": {"n": f"{TABLE}.n + excluded.n"}, "update_columns": ()},
)
ORDERS: tuple[dict[str, Any], ...] = ({}, {"order_by": "o"}, {"version": "o"})


@dataclass(frozen=True)
class Case:
    options: Mapping[str, Any]

    def __str__(self) -> str:
        said = (f"{name}-{value}" if isinstance(value, str) else name for name, value in self.options.items())
        return "-".join(said).replace(" ", "_")

    @property
    def deletes(self) -> bool:
        return "delete_when" in self.options

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA.append(pa.field(DELETED, pa.bool_())) if self.deletes else SCHEMA

    def epochs(self) -> Iterator[list[list[dict[str, Any]]]]:
        """Draw epochs of partitions; strategy direct gets all rows of an epoch in one."""
        chance = random.Random(0)
        for epoch in range(3):
            drawn = [
                {
                    "k": chance.randrange(6),
                    "v": f"{epoch}-{number}",
                    "n": chance.randrange(1, 9),
                    "o": chance.choice([None, 1, 2, 3, 4, 5]),
                    DELETED: chance.random() < 0.3,
                }
                for number in range(18)
            ]
            rows = [{name: row[name] for name in self.schema.names} for row in drawn]
            cut = 18 if self.options["strategy"] == "direct" else chance.randrange(19)
            yield [rows[:cut], rows[cut:]] if cut < 18 else [rows]


def _combined() -> Iterator[dict[str, Any]]:
    for mode, order, delete in itertools.product(MODES, ORDERS, ({}, {"delete_when": "v = ''"})):
        for strategy in ("staged", "direct"):
            options = {"strategy": strategy, **mode, **order, **delete}
            with suppress(ValidationError):
                UpsertOptions.model_validate({"url": "sqlite:////x.db", "table": TABLE, "keys": ("k",), **options})
                yield options


CASES = [Case(options) for options in _combined()]


@dataclass(frozen=True)
class Target:
    """A table of a database: `session(options)` is a sink's, of the options that a case doesn't give, too.

    `make(columns, rows)` makes the table; `read()` returns its rows, with the columns of COLUMNS in their order.
    """

    session: Callable[[Mapping[str, Any]], Session]
    make: Callable[[Mapping[str, str], Sequence[Row]], None]
    read: Callable[[], list[tuple[Any, ...]]]
    guard: Mapping[str, str] = field(default_factory=lambda: dict.fromkeys(GUARD, "BIGINT"))


def target(sink: Callable[[Mapping[str, Any]], Any], sql: Callable[[str], Any]) -> Target:
    """Return the target of a database for which `sink` makes a sink of these options, and `sql` runs a statement."""

    def make(columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        sql(f"CREATE TABLE {TABLE} ({', '.join(f'{name} {kind}' for name, kind in columns.items())})")
        for row in rows:
            values = ", ".join("NULL" if value is None else repr(value) for value in row.values())
            sql(f"INSERT INTO {TABLE} ({', '.join(row)}) VALUES ({values})")

    made = {"create": False}
    return Target(lambda given: sink({**given, **made}), make, lambda: sql(f"SELECT {', '.join(COLUMNS)} FROM {TABLE}"))


def check(case: Case, target: Target) -> None:
    """Run a case's epochs, each prepared twice and committed three times, and compare after each."""
    target.make(COLUMNS | (target.guard if case.options["strategy"] == "direct" else {}), STANDING)
    sink = target.session({"table": TABLE, "keys": ("k",), **case.options})
    stands: dict[Any, dict[str, Any]] = {row["k"]: dict(row) for row in STANDING}
    for epoch, partitions in enumerate(case.epochs(), start=1):
        tables = [pa.Table.from_pylist(partition, schema=case.schema) for partition in partitions]
        abandoned = sink.prepare(epoch, tables)
        # the driver died, and the next one has the batch written again
        sink = replace(sink, ctx=replace(sink.ctx, generation=epoch + 1))
        votes = sink.prepare(epoch, tables)
        assert sink.commit(epoch, votes) == [Committed()] * len(votes)
        for late in (votes, abandoned):
            assert sink.commit(epoch, late) == [AlreadyCommitted()] * len(late)
        applied({**case.options, "keys": ("k",)}, itemgetter("k"), stands, list(itertools.chain(*partitions)))
        assert sorted(target.read()) == sorted(tuple(row[name] for name in COLUMNS) for row in stands.values())
    check_audit(sink, Counter(row["o"] for row in stands.values()))


def check_audit(sink: Session, held: Counter[int | None]) -> None:
    """Let the database count its rows by a column, as if that held their epochs: from 2 on, of which 9 has none."""
    with closing(sink.backend.committer(replace(sink.ctx, epoch_column="o"))) as committer:
        found = committer.audit({2: (), 9: ()}, deep=False)
    none = None if held[None] else 0  # rows without an epoch may be any epoch's
    expected = {epoch: held[epoch] or none for epoch in (2, 9)}
    expected |= {epoch: rows for epoch, rows in held.items() if epoch is not None and epoch > 2}
    assert {epoch: audit.rows for epoch, audit in found.items()} == expected
    assert all(audit.at_most or audit.rows is None for audit in found.values())


_LATER = {
    "a column more": SCHEMA.append(pa.field("more", pa.int64())),
    "lacks NOT NULL": pa.schema([field for field in SCHEMA if field.name != "n"]),
    "lacks the key": pa.schema([field for field in SCHEMA if field.name != "k"]),
    "lacks the order": pa.schema([field for field in SCHEMA if field.name != "o"]),
    "of a type that it can't hold": SCHEMA.set(1, pa.field("v", pa.list_(pa.int64()))),
}
later_columns = pytest.mark.parametrize("later", _LATER)


def check_later(later: str, target: Target, strategy: str = "staged") -> None:
    """Run an epoch, then another batch has other columns: what could not be applied is refused before the decision."""
    columns = {**COLUMNS, "k": "BIGINT UNIQUE", "n": "BIGINT NOT NULL"}
    target.make(columns | (target.guard if strategy == "direct" else {}), ())
    sink = target.session({"table": TABLE, "keys": ("k",), "order_by": "o", "strategy": strategy})
    row = {"k": 1, "v": "a", "n": 2, "o": 3, "more": 4}

    def rows(schema: pa.Schema) -> pa.Table:
        given = {**row, "v": [5]} if pa.types.is_list(schema.field("v").type) else row
        return pa.Table.from_pylist([given], schema=schema)

    votes = sink.prepare(1, [rows(SCHEMA)])
    assert sink.commit(1, votes) == [Committed()]
    with pytest.raises(ExactsinkError) as refused:
        sink.open(2, _LATER[later])
    assert refused.value.next
    assert [table_row[:4] for table_row in target.read()] == [(1, "a", 2, 3)]
    again = sink.prepare(2, [rows(SCHEMA)])
    assert sink.commit(2, again) == [Committed()], "the same batch, as the table takes it"


every_case = pytest.mark.parametrize("case", CASES, ids=str)

_FEW: tuple[dict[str, Any], ...] = (
    {"strategy": "staged"},
    {"strategy": "staged", "mode": "insert_if_absent", "order_by": "o"},
    {"strategy": "staged", "mode": "replace", "version": "o", "delete_when": "v = ''"},
    {"strategy": "staged", "set": {"n": f"{TABLE}.n + excluded.n"}, "version": "o", "delete_when": "v = ''"},
    {"strategy": "direct", "mode": "insert_if_absent", "order_by": "o"},
    {"strategy": "direct", "update_columns": ("n",), "version": "o"},
)


def cases(*strategies: str) -> pytest.MarkDecorator:
    """Parametrize over the cases of these strategies: a few for every change, all for `make proof`."""
    chosen = [case for case in CASES if case.options["strategy"] in strategies]
    marked = [
        pytest.param(case, marks=() if case.options in _FEW else pytest.mark.proof, id=str(case)) for case in chosen
    ]
    return pytest.mark.parametrize("case", marked)
