"""Upserts by portable SQL, on DuckDB's dialect."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import duckdb
import pyarrow as pa
import pytest
import sqlalchemy as sa

from exactsink.contract import Committed, Retryable
from exactsink_idempotent_upsert.generic import database as generic
from exactsink_idempotent_upsert.table import DELETED
from tests.integration.upserts.other_columns import Target, check_later, later_columns, target
from tests.unit.upsert_sink import SCHEMA, upsert


def target_of(folder: Path) -> Target:
    file = folder / "shop.duckdb"

    def sql(statement: str) -> list[tuple[Any, ...]]:
        with closing(duckdb.connect(str(file))) as connection:
            return connection.execute(statement).fetchall()

    return target(lambda given: upsert(folder, **given, url=f"duckdb:///{file}"), sql)


@later_columns
def test_a_batch_of_other_columns_than_the_table_takes_is_no_epoch(tmp_path: Path, later: str) -> None:
    check_later(later, target_of(tmp_path))


@pytest.mark.parametrize(
    ("declared", "values", "fits"),
    [
        ("DECIMAL(38,18)", pa.array(["12345678901234567890.000000000000000001"]).cast(pa.decimal128(38, 18)), True),
        ("DECIMAL(9,2)", pa.array(["9.501"]).cast(pa.decimal128(10, 3)), False),
        ("FLOAT", pa.array([0.1]), False),
        ("TINYINT", pa.array(["7"]), False),
    ],
)
def test_a_value_goes_in_as_it_is_or_is_refused_before_the_first_row(
    tmp_path: Path, declared: str, values: pa.Array, fits: bool
) -> None:
    file = tmp_path / "shop.duckdb"
    with closing(duckdb.connect(str(file))) as connection:
        connection.execute(f"CREATE TABLE t (id BIGINT PRIMARY KEY, v {declared})")
    rows = pa.table({"id": [1], "v": values})
    sink = upsert(tmp_path, url=f"duckdb:///{file}", create=False)
    errors = [finding for finding in sink.check(rows.schema) if finding.severity == "error"]
    assert [declared in finding.message for finding in errors] == ([] if fits else [True])
    if fits:
        sink.run(1, rows)
        with closing(duckdb.connect(str(file))) as connection:
            assert connection.execute("SELECT v FROM t").fetchall() == [(values[0].as_py(),)]


def test_a_marker_that_another_driver_has_replaced_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    """As in a database whose transactions see what others commit; DuckDB's own refuse to go on by themselves."""
    sink = upsert(tmp_path, url=f"duckdb:///{tmp_path / 'shop.duckdb'}")
    sink.run(1, [(1, "a")])
    database = sink.backend._database()
    read = database.last_marker("orders", "table")
    assert read is not None
    assert sink.run(2, [(1, "b")]) == [Committed()]
    with pytest.raises(Retryable), database.transaction() as late:
        assert isinstance(late, generic._Session)
        late._stored = read
        late.store(replace(read, epoch=3))
    stands = database.last_marker("orders", "table")
    assert stands is not None
    assert stands.epoch == 2


def test_check_runs_the_statements_on_no_row(tmp_path: Path) -> None:
    url = f"duckdb:///{tmp_path / 'shop.duckdb'}"
    sink = upsert(tmp_path, url=url)
    sink.run(1, [(1, "a", 1)])
    (found,) = sink.check()
    assert (found.severity, "after the decision" in found.message) == ("warning", True)
    tried = upsert(tmp_path, url=url, set={"o": "t.nosuch + excluded.o"}).check()
    assert [(one.severity, "nosuch" in one.message) for one in tried] == [("error", True), ("warning", False)]
    assert sink.backend._database().last_marker("orders", "table") is not None


@pytest.mark.parametrize("given", [{"set": {"o": "t.o + excluded.o"}}, {"delete_when": "x"}, {}], ids=str)
def test_a_key_that_comes_often_takes_no_more_statements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Mapping[str, Any]
) -> None:
    url = f"duckdb:///{tmp_path / 'shop.duckdb'}"
    sink = upsert(tmp_path, url=url, **given)
    run = Mock(side_effect=sa.Connection.exec_driver_sql, autospec=True)
    monkeypatch.setattr(sa.Connection, "exec_driver_sql", lambda *given: run(*given))
    taken = []
    for epoch, often in enumerate((2, 600), start=1):
        flags = {DELETED: [at % 2 == 0 for at in range(often)]} if "delete_when" in given else {}
        votes = sink.vote(epoch, pa.table({"id": [5] * often, "v": ["a"] * often, "o": [1] * often, **flags}))
        run.reset_mock()
        assert sink.commit(epoch, votes) == [Committed()]
        taken.append(run.call_count)
    assert taken[0] == taken[1]
    with closing(duckdb.connect(str(tmp_path / "shop.duckdb"))) as connection:
        assert connection.execute("SELECT * FROM t").fetchall() == [(5, "a", 602 if "set" in given else 1)]


def test_a_table_that_has_a_key_twice_is_refused(tmp_path: Path) -> None:
    """DuckDB's indexes compare bytes, its `=` compares as the column's collation does."""
    with closing(duckdb.connect(str(tmp_path / "shop.duckdb"))) as connection:
        connection.execute("CREATE TABLE t (id BIGINT, v VARCHAR COLLATE NOCASE PRIMARY KEY, o BIGINT)")
        connection.execute("INSERT INTO t VALUES (1, 'a', 1), (2, 'A', 2)")
    given = {"url": f"duckdb:///{tmp_path / 'shop.duckdb'}", "create": False, "keys": ("v",)}
    found = upsert(tmp_path, **given).check()
    assert [one.severity for one in found if "more than one row of a key" in one.message] == ["error"]
    ordered = upsert(tmp_path, **{**given, "keys": ("id",)}, version="v").check()
    assert [one.severity for one in ordered if "does not compare by its bytes" in one.message] == ["error"]
    assert [one.severity for one in found if "table t compares key v by its collation" in one.message] == ["warning"]


def test_what_may_end_a_decided_epoch_is_named(tmp_path: Path) -> None:
    with closing(duckdb.connect(str(tmp_path / "shop.duckdb"))) as connection:
        connection.execute("CREATE TABLE p (id BIGINT PRIMARY KEY)")
        connection.execute(
            "CREATE TABLE t (id BIGINT UNIQUE, v VARCHAR UNIQUE, o BIGINT REFERENCES p (id), CHECK (o > 0))"
        )
        connection.execute("CREATE TABLE c (id BIGINT REFERENCES t (id))")
    sink = upsert(tmp_path, url=f"duckdb:///{tmp_path / 'shop.duckdb'}", create=False, version="o", delete_when="x")
    found = sink.check(SCHEMA.append(pa.field(DELETED, pa.bool_())))
    assert {one.severity for one in found} == {"warning"}
    said = (
        "unique index t_v_key",
        "CHECK t_",
        "FOREIGN KEY t_o_id_fkey of table t",
        "of table c to t may refuse a delete",
        "deletes a row with its version",
    )
    assert [sum(words in one.message for one in found) for words in said] == [1, 1, 1, 1, 1], found
