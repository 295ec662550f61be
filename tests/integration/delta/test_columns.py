"""Columns of Delta tables: their types, what does not fit, and what is added."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path

import polars
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from benchmarks.peer_faults.spark_tables import DELTA, rows_in_spark
from deltalake import DeltaTable, TableFeatures, write_deltalake

from exactsink.contract import Committed, Fatal, LineageError, PreflightError
from exactsink.testing.target import ROWS
from exactsink.toolkit.tabular import table_writer
from tests.integration.delta.tables import asked, epochs, found, read, rows, session, table
from tests.unit.judged import judged


def test_rows_of_every_type_come_back_and_readers_pass_over_files(tmp_path: Path) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
    inside = pa.struct([("x", pa.timestamp("us", "Europe/Berlin"))])
    columns = [
        ("id", pa.int64()), ("at", pa.timestamp("us", "Europe/Berlin")), ("plain", pa.timestamp("us")),
        ("price", pa.decimal128(9, 2)), ("many", pa.list_(inside)), ("named", pa.map_(pa.string(), pa.int32())),
        ("raw", pa.binary()), ("small", pa.int8()), ("share", pa.float32()), ("text", pa.large_string()),
        ("day", pa.date32()), ("ok", pa.bool_()),
    ]  # fmt: skip
    row = {
        "id": 1, "at": moment, "plain": moment.replace(tzinfo=None), "price": Decimal("1.50"), "many": [{"x": moment}],
        "named": [("a", 1)], "raw": b"\0", "small": 2, "share": 0.5, "text": "t", "day": date(2026, 1, 2), "ok": True,
    }  # fmt: skip
    empty = {**dict.fromkeys(row), "id": 2, "text": "x" * 99}
    given = pa.Table.from_pylist([row, empty], schema=pa.schema(columns))
    sink = session(tmp_path, partition_by=("day", "ok", "small"))
    assert list(sink.with_committer(lambda committer: committer.check(given.schema, None))) == []
    sink.commit(0, sink.prepare(0, [given]))
    read_back = table(tmp_path).to_pyarrow_table().sort_by("id").to_pylist()
    assert read_back == [row, empty]
    in_polars = polars.read_delta(str(tmp_path / "table")).sort("id")  # it takes partitions from the folders
    assert in_polars.select("day", "ok", "small").rows() == [(row["day"], True, 2), (None, None, None)]
    again = session(tmp_path, job="again", mode="overwrite_partitions")
    again.commit(0, again.prepare(0, [given]))
    assert table(tmp_path).to_pyarrow_table().sort_by("id").to_pylist() == read_back, "partitions of any type"
    assert asked(tmp_path, """SELECT id FROM lake WHERE "at" = '2026-01-02 03:04:05.678901+00'""") == [(1,)]
    actions = pa.table(table(tmp_path).get_add_actions(flatten=True)).sort_by("min.id").to_pylist()
    assert [(a["num_records"], a["min.id"], a["max.text"], a["null_count.raw"]) for a in actions] == [
        (1, 1, "t", 0),
        (1, 2, None, 1),
    ]
    assert actions[0]["min.at"] == actions[0]["max.at"] == moment
    assert [(a["partition.day"], a["partition.ok"]) for a in actions] == [(date(2026, 1, 2), True), (None, None)]


@pytest.mark.proof
def test_spark_with_deltas_jar_reads_epochs_added_columns_and_replaced_partitions(tmp_path: Path) -> None:
    odd, run = "a/b c%=é", session(tmp_path, job="run", mode="overwrite_partitions")
    sink = session(tmp_path, partition_by=("kind",), on_schema_change="add_columns")
    sink.commit(0, sink.prepare(0, [rows(1), rows(2, kind=odd), rows(3, kind=None)]))
    sink.commit(1, sink.prepare(1, [rows(4, kind=odd).append_column("note", pa.array(["n"]))]))
    run.commit(0, run.prepare(0, [rows(5)]))
    wheres = ("true", f"kind = '{odd}'", "kind IS NULL", "note = 'n'", "id = 5", "id = 1")
    read_back = rows_in_spark(DELTA, *((str(tmp_path / "table"), where) for where in wheres))
    assert [sorted(row["id"] for row in each) for each in read_back] == [[2, 3, 4, 5], [2, 4], [3], [4], [5], []]
    assert {row["id"]: row["note"] for row in read_back[0]} == {2: None, 3: None, 4: "n", 5: None}


def test_many_row_groups_of_many_partitions_keep_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_writer, "_BUFFERED_BYTES", 1_000)
    kinds = [f"k{number % 7}" for number in range(500)]
    many = pa.table({"id": range(500), "kind": kinds, "amount": [0.0] * 500}, schema=ROWS)
    sink = session(tmp_path, partition_by=("kind",))
    sink.commit(0, sink.prepare(0, [many]))
    assert read(tmp_path) == Counter(range(500))
    for action in pa.table(table(tmp_path).get_add_actions(flatten=True)).to_pylist():
        ids = pq.ParquetFile(tmp_path / "table" / action["path"]).read(columns=["id"])["id"].to_pylist()
        assert (ids, action["min.id"], action["max.id"]) == (sorted(ids), min(ids), max(ids))
        assert {row % 7 for row in ids} == {int(action["partition.kind"][1:])}


@pytest.mark.parametrize("feature", ["ColumnMapping", "RowTracking", "IdentityColumns", "DeletionVectors"])
def test_what_a_plain_writer_does_not_give_is_refused_by_name(tmp_path: Path, feature: str) -> None:
    made = DeltaTable.create(tmp_path / "table", ROWS)
    made.alter.add_feature(getattr(TableFeatures, feature), allow_protocol_versions_increase=True)
    name = feature[0].lower() + feature[1:]
    assert found(tmp_path) == [f"error: the table requires this of its writers: {name}"]


def test_preflight_names_what_does_not_fit_and_a_start_refuses_it(tmp_path: Path) -> None:
    assert found(tmp_path, create=False) == [f"error: {tmp_path / 'table'} is not a Delta table"]
    (tmp_path / "table" / "_exactsink").mkdir(parents=True)
    assert found(tmp_path) == []
    (tmp_path / "table" / "rows.parquet").touch()
    assert [line.partition(", and ")[2] for line in found(tmp_path)] == ["VACUUM would delete its files: rows.parquet"]
    shutil.rmtree(tmp_path / "table")
    (tmp_path / "table").touch()
    assert found(tmp_path) == [f"error: {tmp_path / 'table'} is not a folder"]
    (tmp_path / "table").unlink()
    odd = pa.schema([("a b", pa.int64()), ("gap", pa.duration("s")), ("X", pa.null()), ("x", pa.float64())])
    assert [line.split(",")[0] for line in found(tmp_path, odd, partition_by=("x", "y"))] == [
        "error: Delta has no type for column gap",
        "error: Delta has no type for column X",
        "error: partition column x is double",
        "error: the rows have no column y",
        "error: Delta can't have a column 'a b'",
    ]
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False), ("kind", pa.string()), ("note", pa.string())])
    DeltaTable.create(tmp_path / "table", strict, partition_by=["kind"])
    assert found(tmp_path, pa.schema([("amount", pa.float64()), ("note", pa.int32())]), partition_by=("note",)) == [
        "error: the table is partitioned by ['kind']",
        "error: the table has no column amount",
        "error: column note is int32, the table's is string",
        "error: the rows have no column id",
        "error: the rows have no column kind",
    ]
    fitting = pa.schema([("kind", pa.string()), ("id", pa.int64())])
    assert found(tmp_path, fitting) == []
    with pytest.raises(PreflightError, match="column id is string"):
        session(tmp_path).open(0, pa.schema([("id", pa.string()), ("kind", pa.string())]))
    for key in ("setTransactionRetention", "logRetention", "deletedFileRetention"):
        table(tmp_path).alter.set_table_properties({f"delta.{key}Duration": "interval 2 days"})
    table(tmp_path).alter.add_constraint({"positive": "id > 0"})
    assert [line.split(" is ")[0] for line in found(tmp_path, fitting)] == [
        "error: the table requires this of its writers: delta.constraints.positive",
        "error: delta.setTransactionRetentionDuration",
        "warning: delta.logRetentionDuration",
        "warning: delta.deletedFileRetentionDuration",
    ]


def test_a_column_that_the_table_lacks_is_refused_or_added_when_an_epoch_is_opened(tmp_path: Path) -> None:
    epochs(session(tmp_path), 0)
    wider = rows(1).append_column("note", pa.array([{"a": 1}]))
    statement = "ALTER TABLE delta.`file://.*/table` ADD COLUMN `note` struct<`a`: bigint>; .* on_schema_change = "
    with pytest.raises(PreflightError, match=f"the table has no column note\n.*{statement}"):
        session(tmp_path).prepare(1, [wider])
    adds = {"on_schema_change": "add_columns"}
    sink, added = session(tmp_path, **adds), "warning: the table has no column note: the first epoch adds it"
    assert found(tmp_path, wider.schema, **adds) == [added]
    with pytest.raises(LineageError):
        session(tmp_path, "cd", **adds).prepare(1, [wider])
    assert "note" not in table(tmp_path).schema().to_json(), "another journal's start changes nothing"
    voted = sink.prepare(1, [wider])
    sink.open(1, wider.schema)  # as after a crash: it is there by now
    assert sink.commit(1, voted) == [Committed()]
    assert sorted(asked(tmp_path, "SELECT id, note FROM lake")) == [(0, None), (1, {"a": 1})]
    inside = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    with pytest.raises(PreflightError, match="3 problems") as refused:
        sink.open(2, pa.schema([*ROWS, ("note", inside), ("ID", pa.int64()), ("a b", pa.int64())]))
    assert [re.split(" is struct|  +", line)[1] for line in str(refused.value).splitlines()[2:5]] == [
        "column note",
        "the table has no column ID, and id differs from it only in case",
        "Delta can't have a column 'a b', or not two of this name",
    ]
    assert "on_schema_change" not in str(refused.value), "it is set"


def test_rows_that_a_column_cannot_hold_are_found_one_by_one(tmp_path: Path) -> None:
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False), ("kind", pa.string()), ("small", pa.int8())])
    DeltaTable.create(tmp_path / "table", strict, partition_by=["kind"])
    loose = pa.schema([("id", pa.int64()), ("kind", pa.string_view()), ("small", pa.int8())])
    given = pa.table({"id": [1, None, 3, 4], "kind": ["a", "b", "", "c"], "small": [1, 2, 3, 4]}, schema=loose)
    bad, _ = judged(session(tmp_path), given)
    assert bad == {1: "column id is NOT NULL", 2: "Delta stores an empty text in a partition as NULL, in column kind"}


def test_columns_that_changed_under_a_decided_epoch_stop_it(tmp_path: Path) -> None:
    sink = session(tmp_path)
    voted = sink.prepare(0, [rows(1)])
    other = rows(7).set_column(0, "id", pa.array(["seven"]))
    for changed, by in ((other, []), (rows(7), ["kind"])):
        write_deltalake(tmp_path / "table", changed, mode="overwrite", schema_mode="overwrite", partition_by=by)
        with pytest.raises(Fatal, match="can't take decided rows"):
            sink.commit(0, voted)
    table(tmp_path).restore(0)
    assert sink.commit(0, voted) == [Committed()]
    assert read(tmp_path) == Counter([1])
