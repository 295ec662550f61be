"""Iceberg tables: what other writers do to a table, and answers of the catalog that are lost."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException

from exactsink.toolkit.roads import Marker
from exactsink_iceberg.options import IcebergOptions
from exactsink_iceberg.tables import SinkTable

ROWS = pa.schema([("id", pa.int64()), ("kind", pa.string())])


@pytest.fixture
def target(tmp_path: Path) -> SinkTable:
    made = SinkTable(
        IcebergOptions.model_validate(
            {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": str(tmp_path), "table": "shop.orders"}
        ),
        "shop",
        "lake",
    )
    made.put_birth("ab")
    made.create(ROWS)
    return made


def epoch(number: int) -> Marker:
    return Marker("shop", "lake", "ab", number, 0, f"c{number}")


def put(target: SinkTable, *numbers: int) -> None:
    for number in numbers:
        assert target.put(target.standing(), epoch(number), []) == ""


def shown(target: SinkTable) -> int:
    found = target.marker(target.table())
    assert found is not None
    return found.epoch


def test_a_rollback_shows_the_epoch_that_it_brought_back(target: SinkTable) -> None:
    put(target, 1, 2, 3)
    second = target.standing().snapshots()[1].snapshot_id
    target.standing().manage_snapshots().rollback_to_snapshot(second).commit()
    assert shown(target) == 2
    target.standing().append(pa.table({"id": [1], "kind": ["k"]}, schema=ROWS))
    assert shown(target) == 2


def test_the_mark_outlives_expiry_and_other_writers(target: SinkTable) -> None:
    put(target, 1, 2)
    for _ in range(3):
        target.standing().append(pa.table({"id": [1], "kind": ["k"]}, schema=ROWS))
    target.standing().maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()
    assert len(target.standing().snapshots()) == 1
    assert shown(target) == 2


def test_a_table_that_was_made_again_has_the_birth_alone(target: SinkTable) -> None:
    put(target, 1)
    target.catalog.drop_table("shop.orders")
    target.create(ROWS)
    assert shown(target) == -1


def test_another_writer_in_between_refuses_the_snapshot(target: SinkTable) -> None:
    read = target.standing()
    target.standing().append(pa.table({"id": [1], "kind": ["k"]}, schema=ROWS))
    assert "branch main" in target.put(read, epoch(1), [])
    assert shown(target) == -1
    assert target.standing().scan().count() == 1


@pytest.mark.parametrize("error", [CommitFailedException("409"), ConnectionError("gone")], ids=["409", "gone"])
def test_a_lost_answer_leaves_the_table_readable_with_the_mark(
    target: SinkTable, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    real = target.catalog.commit_table

    def lost(*asked: Any) -> None:
        real(*asked)
        raise error

    monkeypatch.setattr(target.catalog, "commit_table", lost)
    assert str(error) in target.put(target.standing(), epoch(1), [])
    monkeypatch.undo()
    assert shown(target) == 1
    assert target.standing().scan().count() == 0
