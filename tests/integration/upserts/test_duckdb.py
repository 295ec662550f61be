"""Upserts by portable SQL, on DuckDB's dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

from exactsink.contract import Committed, Retryable
from tests.integration.upserts.meaning import COLUMNS, TABLE, Case, Row, Target, check, few_cases
from tests.unit.upsert_sink import upsert


def target_of(folder: Path) -> Target:
    file = folder / "shop.duckdb"

    def sql(statement: str) -> list[tuple[Any, ...]]:
        with closing(duckdb.connect(str(file))) as connection:
            return connection.execute(statement).fetchall()

    def make(columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        sql(f"CREATE TABLE {TABLE} ({', '.join(f'{name} {kind}' for name, kind in columns.items())})")
        for row in rows:
            values = ", ".join("NULL" if value is None else repr(value) for value in row.values())
            sql(f"INSERT INTO {TABLE} ({', '.join(row)}) VALUES ({values})")

    def read() -> list[tuple[Any, ...]]:
        return sql(f"SELECT {', '.join(COLUMNS)} FROM {TABLE}")

    url = f"duckdb:///{file}"
    return Target(lambda given: upsert(folder, **{**given, "create": False, "url": url}), make, read)


@few_cases("staged")
def test_options_mean_what_they_do_on_a_dictionary(tmp_path: Path, case: Case) -> None:
    check(case, target_of(tmp_path))


def test_two_drivers_that_apply_an_epoch_at_once_are_noticed(tmp_path: Path) -> None:
    """Each reads the marker before the other one has replaced it."""
    sink = upsert(tmp_path, url=f"duckdb:///{tmp_path / 'shop.duckdb'}")
    sink.run(1, [(1, "a")])
    database = sink.backend._database()
    marker = database.last_marker("orders", "table")
    assert marker is not None
    with pytest.raises(Retryable), database.explained("race"), database.transaction() as late:
        late.marker("orders", "table")
        assert sink.run(2, [(1, "b")]) == [Committed()]
        late.store(marker)
    assert database.last_marker("orders", "table") != marker
