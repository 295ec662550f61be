"""Upserts into MariaDB: what a row can break, and names that may be any."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pymysql
import pytest

from exactsink.contract import AlreadyCommitted, Committed, Fatal, Refused, Retryable
from exactsink_idempotent_upsert.table import DELETED, GUARD
from tests.integration.upserts.other_columns import Target, check_later, later_columns, target
from tests.servers.mariadb import MariaDB
from tests.unit.test_upsert_direct import task
from tests.unit.upsert_sink import Sink, upsert

_GUARD = [f"{name} BIGINT" for name in GUARD]
UTC_2026 = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.timezone.utc)


def target_of(server: MariaDB, folder: Path) -> Target:
    here = Here(server)
    return target(lambda given: upsert(folder, **given, url=server.url(here.name)), here.sql)


@pytest.fixture
def here(mariadb: MariaDB) -> Here:
    return Here(mariadb)


class Here:
    """A database of one test's own."""

    def __init__(self, server: MariaDB) -> None:
        self.server = server
        self.name = server.new_database("upserts")

    def sql(self, *statements: str) -> list[Any]:
        return self.server.execute(*statements, database=self.name)

    def sink(self, folder: Path, **options: Any) -> Sink:
        return upsert(folder, **{"url": self.server.url(self.name), "busy_timeout_seconds": 1, **options})


@pytest.mark.parametrize("strategy", ["staged", "direct"])
@later_columns
def test_a_batch_of_other_columns_than_the_table_takes_is_no_epoch(
    mariadb: MariaDB, tmp_path: Path, later: str, strategy: str
) -> None:
    check_later(later, target_of(mariadb, tmp_path), strategy)


TYPES: dict[str, tuple[pa.DataType, Any, Any]] = {
    "bool": (pa.bool_(), True, 1),
    "int64": (pa.int64(), -(2**63), -(2**63)),
    "uint64": (pa.uint64(), 2**64 - 1, 2**64 - 1),
    "float": (pa.float64(), -2.2250738585072014e-308, -2.2250738585072014e-308),
    "tenth": (pa.float64(), 0.1, 0.1),
    "string": (pa.string(), "007 äöü \U0001f600 \0 '\"\\\n%s ", "007 äöü \U0001f600 \0 '\"\\\n%s "),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), "x", "x"),
    "decimal": (pa.decimal128(38, 18), Decimal("-12345678901234567890.1"), Decimal("-12345678901234567890.1")),
    "millions": (pa.decimal128(3, -6), Decimal("-12e6"), Decimal(-12_000_000)),
    "zoned": (pa.timestamp("us", "Asia/Tokyo"), UTC_2026, UTC_2026.replace(tzinfo=None)),
    "naive": (pa.timestamp("s"), dt.datetime(1, 1, 1), dt.datetime(1, 1, 1)),
    "date": (pa.date32(), dt.date(9999, 12, 31), dt.date(9999, 12, 31)),
    "time": (pa.time64("us"), dt.time(23, 59, 59, 999999), dt.timedelta(hours=24, microseconds=-1)),
    "binary": (pa.binary(), b"\0\xff'\\", b"\0\xff'\\"),
}


@pytest.mark.parametrize("strategy", ["staged", "direct"])
def test_create_makes_a_table_that_takes_every_type(here: Here, tmp_path: Path, strategy: str) -> None:
    columns = {name: pa.array([given, None, None], kind) for name, (kind, given, _) in TYPES.items()}
    sink = here.sink(tmp_path, keys=("or `der", "select"), table='`se"lect ü`', strategy=strategy)
    keys = {"or `der": ["a", "A", "a "], "select": pa.array([1, 1, 1])}  # three keys, byte by byte
    batch = pa.record_batch({**keys, **columns})
    assert sink.run(1, batch, batch) == [Committed()] * 2
    assert [found for found in sink.check(batch.schema) if found.severity == "error"] == []
    found = here.sql(f'SELECT {", ".join(f"`{name}`" for name in TYPES)} FROM `se"lect ü` ORDER BY `or ``der`')
    assert dict(zip(TYPES, found[1 if found[0][0] is None else 0], strict=True)) in [
        {name: stored for name, (_, _, stored) in TYPES.items()},
        dict.fromkeys(TYPES),
    ]
    assert sorted(row.count(None) for row in found) == [0, len(TYPES), len(TYPES)]


LIMITS: dict[str, tuple[str, pa.Array]] = {
    "BIGINT NOT NULL DEFAULT 1": ("is NOT NULL", pa.array([1, None])),
    "VARCHAR(3)": ("takes 3 characters", pa.array(["üüü", "a   "])),
    "TINYTEXT": ("takes 255 bytes", pa.array(["ü" * 128])),
    "TINYINT UNSIGNED": ("takes 0 to 255, and a row has -1", pa.array([255, -1])),
    "DECIMAL(5, 2)": ("takes 3 digits before the point and 2 after", pa.array([Decimal("1.005")])),
    "DATETIME(3)": ("keeps times to 1000 microseconds", pa.array([UTC_2026], pa.timestamp("us", "UTC"))),
    "TIMESTAMP(6) NULL": ("takes 1 to 2147483647", pa.array([dt.datetime(2040, 1, 1)], pa.timestamp("us"))),
    "VARCHAR(9) CHARACTER SET utf8mb3": ("three bytes at most", pa.array(["\U0001f600"])),
    "DOUBLE": ("has NaN or infinity", pa.array([float("inf")])),
    "LONGTEXT": ("a row has 9000000 bytes", pa.array(["a" * 9_000_000])),
}


@pytest.mark.parametrize("declared", LIMITS)
def test_what_a_column_would_cut_or_refuse_is_no_vote(here: Here, tmp_path: Path, declared: str) -> None:
    said, values = LIMITS[declared]
    here.sql(f"CREATE TABLE t (id BIGINT PRIMARY KEY, v {declared})")
    batch = pa.record_batch({"id": range(len(values)), "v": values})
    sink = here.sink(tmp_path, create=False)
    assert [finding for finding in sink.check(batch.schema) if finding.severity == "error"] == []
    with pytest.raises(Fatal, match=said):
        sink.vote(1, batch)
    assert sink.listed() == []


def test_a_row_never_goes_over_another_keys_that_a_second_unique_index_finds(here: Here, tmp_path: Path) -> None:
    here.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR(9) UNIQUE, o BIGINT)")
    sink = here.sink(tmp_path, create=False)
    assert [(found.severity, "unique index v" in found.message) for found in sink.check()] == [("warning", True)]
    assert sink.run(1, [(1, "a"), (2, "b"), (1, "c")]) == [Committed()]
    votes = sink.vote(2, [(3, "d"), (4, "b")])
    with pytest.raises(Fatal, match="second unique index"):
        sink.commit(2, votes)
    assert here.sql("SELECT id, v FROM t ORDER BY id") == [(1, "c"), (2, "b")]


@pytest.mark.parametrize("given", [{}, {"version": "o"}, {"set": {"o": "t.o + excluded.o"}}], ids=str)
def test_rows_that_turn_between_deletes_and_upserts_take_few_statements(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Mapping[str, Any]
) -> None:
    """One for each key or turn took 21 times as long as upserts alone; keys are equal as the table has it, still."""
    here.sql(
        "CREATE TABLE t (id VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, v VARCHAR(9) NOT NULL, o BIGINT)",
        "INSERT INTO t SELECT CONCAT('key ', seq), 'old', 5 FROM seq_0_to_99",
    )
    sink = here.sink(tmp_path, create=False, delete_when="x", **given)
    turns = range(2000)
    ids = [f"{('key', 'KEY', 'Key')[at % 3]} {at // 20}" for at in turns]
    rows = pa.table({"id": ids, "v": ["a", None] * 1000, "o": turns, DELETED: [False, True] * 1000})
    votes = sink.vote(1, rows.slice(0, 1999))
    query = Mock(side_effect=pymysql.Connection.query, autospec=True)
    monkeypatch.setattr(pymysql.Connection, "query", lambda *given: query(*given))
    assert sink.commit(1, votes) == [Committed()]
    assert query.call_count < 200
    assert here.sql("SELECT id, v, o FROM t") == [("key 99", "a", 1998)]


@pytest.mark.parametrize("given", [{}, {"delete_when": "false"}, {"strategy": "direct"}], ids=str)
def test_small_batches_go_in_together(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Mapping[str, Any]
) -> None:
    """Each one of its own costs a statement: with 50 rows in each, an epoch took five times as long."""
    sink, query = here.sink(tmp_path, **given), Mock(side_effect=pymysql.Connection.query, autospec=True)
    monkeypatch.setattr(pymysql.Connection, "query", lambda *given: query(*given))
    flag = {DELETED: [False]} if "delete_when" in given else {}
    batches = [pa.record_batch({"id": [at], "v": ["a"], "o": [at], **flag}) for at in range(300)]
    assert sink.run(1, pa.Table.from_batches(batches)) == [Committed()]
    assert query.call_count < 200
    assert here.sql("SELECT count(*), sum(o) FROM t") == [(300, 299 * 150)]


def test_rows_delete_in_a_table_of_another_database_and_of_any_name(here: Here, tmp_path: Path) -> None:
    other, name = here.server.new_database("other"), "se`lect gone.came"
    there = f"{other}.`{name.replace('`', '``')}`"
    here.sql(
        f"CREATE TABLE {there} (id BIGINT PRIMARY KEY, v TEXT, o BIGINT)", f"INSERT INTO {there} VALUES (1, 'a', 1)"
    )
    sink = here.sink(tmp_path, create=False, table=f'{other}."{name}"', delete_when="x", version="o")
    rows = pa.table(
        {"id": [1, 2, 3, 1], "v": ["b", "c", "d", "e"], "o": [2, 3, 4, 5], DELETED: [True, False, True, False]}
    )
    assert [found for found in sink.check(rows.schema) if found.severity == "error"] == []
    assert sink.run(1, rows) == [Committed()]
    assert here.sql(f"SELECT * FROM {there} ORDER BY id") == [(1, "e", 5), (2, "c", 3)]


@pytest.mark.parametrize("strategy", ["staged", "direct"])
@pytest.mark.parametrize(
    "sid",
    [
        "BIGINT AUTO_INCREMENT PRIMARY KEY",
        "UUID DEFAULT uuid() PRIMARY KEY",
        "INT AUTO_INCREMENT, INDEX (sid)",
        "INT DEFAULT nextval(s)",
    ],
)
def test_replace_never_gives_a_row_another_name(here: Here, tmp_path: Path, sid: str, strategy: str) -> None:
    here.sql(
        "CREATE SEQUENCE s",
        f"CREATE TABLE t (id BIGINT UNIQUE, v TEXT, o BIGINT, d INT DEFAULT 7, {', '.join(_GUARD)}, sid {sid})",
        "INSERT INTO t (id, v, o, d) VALUES (1, 'a', 1, 1), (2, 'b', 2, 2)",
    )
    before = here.sql("SELECT id, sid FROM t ORDER BY id")
    sink = here.sink(tmp_path, create=False, mode="replace", strategy=strategy)
    assert sink.run(1, [(1, "c", 3), (2, "d", 4), (3, "e", 5)]) == [Committed()]
    assert here.sql("SELECT id, sid FROM t WHERE id < 3 ORDER BY id") == before
    assert here.sql("SELECT v, o, d FROM t ORDER BY id") == [("c", 3, 7), ("d", 4, 7), ("e", 5, 7)]


def test_columns_that_the_table_lacks_are_added_when_an_epoch_is_opened(here: Here, tmp_path: Path) -> None:
    here.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, o BIGINT)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    sink = here.sink(tmp_path, create=False, on_schema_change="add_columns")
    assert sink.check() == []
    batch = pa.record_batch(
        {"id": [2, 3], "v": ["b", None], "se`lect ü": pa.array([Decimal("1.5"), None]), "o": [3, 4]}
    )
    sink.open(1, batch.schema)  # a driver that died here
    assert sink.run(1, batch) == [Committed()]
    assert here.sql("SELECT * FROM t ORDER BY id") == [
        (1, 1, None, None),
        (2, 3, "b", Decimal("1.5")),
        (3, 4, None, None),
    ]


@pytest.mark.parametrize("later", ["newer rows", "decided"])
def test_a_late_task_of_direct_keeps_nothing(here: Here, tmp_path: Path, later: str) -> None:
    first = here.sink(tmp_path, strategy="direct")
    first.run(1, [(1, "a"), (2, "b")])
    late = task(first, 2, (9, "late, and of no newer row's key"), (1, "late"))
    if later == "decided":
        first.run(2, [(2, "c")])
        here.sql("DELETE FROM t WHERE id = 1")
    else:
        first.at(2).vote(2, [(1, "newer")])
    stands = here.sql("SELECT * FROM t ORDER BY id")
    with pytest.raises(Refused, match="holds newer rows"):
        late.pre_commit()
    assert here.sql("SELECT * FROM t ORDER BY id") == stands


def test_expressions_see_the_row_as_it_was(here: Here, tmp_path: Path) -> None:
    here.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR(99), o BIGINT)")
    said = {"o": "t.o + EXCLUDED . `o`", "v": "CONCAT(t.v, t.o, ' excluded.o ', excluded.v)"}
    sink = here.sink(tmp_path, create=False, set=said)
    assert sink.check() == []
    sink.run(1, [(1, "a", 10), (1, "b", 5)])
    assert here.sql("SELECT v, o FROM t") == [("a10 excluded.o b", 15)]
    (circle,) = here.sink(tmp_path, set={"o": "t.o + LENGTH(t.v)", "v": "CONCAT(t.v, t.o)"}).check()
    assert (circle.severity, "in a circle" in circle.message) == ("error", True)


def test_a_commit_whose_answer_is_lost_counts_once(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = here.sink(tmp_path, set={"o": "t.o + excluded.o"})
    votes = sink.vote(1, [(1, "a", 1), (1, "a", 1)])
    with monkeypatch.context() as patch:
        commit = pymysql.Connection.commit

        def unanswered(self: Any) -> None:
            commit(self)
            raise pymysql.OperationalError(2013, "Lost connection to server during query")

        patch.setattr(pymysql.Connection, "commit", unanswered)
        with pytest.raises(Retryable):
            sink.commit(1, votes)
    assert sink.commit(1, votes) == [AlreadyCommitted()]
    assert here.sql("SELECT * FROM t") == [(1, "a", 2)]


def test_a_locked_row_is_waited_for_and_then_worth_another_try(here: Here, tmp_path: Path) -> None:
    sink = here.sink(tmp_path)
    sink.run(1, [(1, "a")])
    votes = sink.vote(2, [(1, "b")])
    rival = here.server.connect(here.name)
    rival.begin()
    rival.query("SELECT * FROM t WHERE id = 1 FOR UPDATE")
    with pytest.raises(Retryable, match="1205"):
        sink.commit(2, votes)
    rival.close()
    assert sink.commit(2, votes) == [Committed()]
