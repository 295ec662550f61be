"""What the files hold: formats, partition folders, row groups, and what a task refuses before it votes."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.unit.files_target import (
    COLUMNS,
    SCHEMA,
    VALUE,
    a_backend,
    a_txn,
    assert_all_committed,
    batches,
    commit,
    json_votes,
    visible,
    vote,
)

from exactsink.contract import Committed, ConfigError, Fatal
from exactsink_files import writer as writer_module


@pytest.mark.parametrize("compression", [None, "snappy", "zstd", "gzip", "none"])
def test_parquet_holds_the_rows_in_the_order_they_came(tmp_path: Path, compression: str | None) -> None:
    backend = a_backend(tmp_path / "new" / "out", compression=compression)
    parts = batches((3, "c"), (1, None), (2, ""), (9, "x"), (4, "ü"))
    voted = vote(backend, parts)
    assert voted.rows == 5
    assert commit(backend, voted) == [Committed()]
    (file,) = visible(tmp_path / "new" / "out")
    assert file == tmp_path / "new" / "out" / f"{a_txn().id}.parquet"
    assert pq.read_table(file) == pa.Table.from_batches(parts)
    expected = {None: "SNAPPY", "none": "UNCOMPRESSED"}.get(compression) or str(compression).upper()
    assert pq.read_metadata(file).row_group(0).column(0).compression == expected


def test_partitions_read_back_with_nulls_special_characters_and_dates(tmp_path: Path) -> None:
    backend = a_backend(tmp_path, partition_by=["name", "day", "n", "ok"])
    kinds = {"name": pa.string(), "id": pa.int64(), "day": pa.date32(), "n": pa.int16(), "ok": pa.bool_()}
    schema = pa.schema(kinds)
    day = datetime.date(2026, 11, 20)
    names = ["a/b=c", "ü ?%.:", "..", None, "a/b=c", "x", "ü ?%.:", "a/b=c", "\n}[]"]
    rows = [(name, i, day if i % 2 else None, -1, True) for i, name in enumerate(names)]
    assert commit(backend, vote(backend, batches(*rows, schema=schema, size=4))) == [Committed()]
    hive = ds.partitioning(pa.schema([schema.field(name) for name in ("name", "day", "n", "ok")]), flavor="hive")
    read = ds.dataset(tmp_path, format="parquet", partitioning=hive).to_table().select(schema.names)
    written = pa.Table.from_batches(batches(*rows, schema=schema))
    assert sorted(read.to_pylist(), key=lambda row: row["id"]) == written.to_pylist()
    one = tmp_path / "name=a%2Fb%3Dc" / "day=__HIVE_DEFAULT_PARTITION__" / "n=-1" / "ok=true"
    assert pq.ParquetFile(next(one.iterdir())).schema_arrow.names == ["id"]
    assert (tmp_path / "name=ü %3F%25.%3A" / "day=__HIVE_DEFAULT_PARTITION__").is_dir()
    assert (tmp_path / "name=.." / "day=__HIVE_DEFAULT_PARTITION__").is_dir()
    assert (tmp_path / "name=x" / "day=2026-11-20" / "n=-1" / "ok=true").is_dir()
    assert (tmp_path / "name=%0A}%5B%5D").is_dir()


def test_null_empty_and_the_name_of_null_share_one_file(tmp_path: Path) -> None:
    backend = a_backend(tmp_path, partition_by=["name"])
    rows = [(1, ""), (2, None), (3, "__HIVE_DEFAULT_PARTITION__"), (4, "")]
    commit(backend, vote(backend, batches(*rows, size=4)))
    (file,) = visible(tmp_path)
    assert file.parent.name == "name=__HIVE_DEFAULT_PARTITION__"
    assert pq.ParquetFile(file).read()["id"].to_pylist() == [1, 2, 3, 4]


def test_unsorted_values_over_many_batches_keep_their_order_per_file(tmp_path: Path) -> None:
    backend = a_backend(tmp_path, partition_by=["name", "n"])
    schema = pa.schema({**COLUMNS, "n": pa.int64()})
    rows = [(i, f"v{i * 7 % 5}", i % 3) for i in range(3000)]
    commit(backend, vote(backend, batches(*rows, schema=schema, size=700)))
    files = visible(tmp_path)
    assert len(files) == 15
    for file in files:
        name, n = file.parent.parent.name.removeprefix("name="), int(file.parent.name.removeprefix("n="))
        read = pq.ParquetFile(file).read()["id"].to_pylist()
        assert read == [row[0] for row in rows if row[1:] == (name, n)]


def test_row_groups_are_full_and_memory_bounds_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def groups(root: Path, parts: list[pa.RecordBatch], **options: Any) -> list[list[int]]:
        backend = a_backend(root, **options)
        commit(backend, vote(backend, parts))
        found = [pq.read_metadata(file) for file in visible(root)]
        return [[m.row_group(i).num_rows for i in range(m.num_row_groups)] for m in found]

    monkeypatch.setattr(writer_module, "ROW_GROUP_ROWS", 10)
    rows = [(i, "rare" if i in (0, 24) else "many") for i in range(25)]
    assert groups(tmp_path / "a", batches(*rows, size=3)) == [[12, 12, 1]]
    one = batches(*rows, size=3)[1].nbytes
    monkeypatch.setattr(writer_module, "BUFFERED_BYTES", 3 * one)
    assert groups(tmp_path / "c", batches(*rows, size=3), partition_by=["name"]) == [[11, 12], [1, 1]]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_json_writes_the_values_as_lines(tmp_path: Path, kind: pa.DataType) -> None:
    backend = a_backend(tmp_path, format="json")
    values = ['{"a":1}', "{}", '{"a":"ü"}', "", '{"b":[1]}']
    voted = vote(backend, batches(*[(v,) for v in values], schema=pa.schema({"value": kind})))
    assert commit(backend, voted) == [Committed()]
    (file,) = visible(tmp_path)
    assert file.name == f"{a_txn().id}.json"
    assert file.read_bytes() == ("\n".join(values) + "\n").encode()


def test_json_partitions_are_folders(tmp_path: Path) -> None:
    _, voted = json_votes(tmp_path)
    assert commit(a_backend(tmp_path), *voted) == [Committed(), Committed()]
    assert_all_committed(tmp_path)


def test_json_refuses_nulls_and_other_columns(tmp_path: Path) -> None:
    backend = a_backend(tmp_path, format="json")
    with pytest.raises(Fatal, match="1 nulls"):
        vote(backend, batches(("{}",), (None,), schema=VALUE))
    with pytest.raises(Fatal, match="one text column, value"):
        vote(backend, batches((1, "x")), a_txn(1))


def test_shape_makes_the_json_in_sql(tmp_path: Path) -> None:
    assert a_backend(tmp_path).shape(SCHEMA) is None
    assert a_backend(tmp_path, format="json").shape(SCHEMA) == ["to_json(struct(*)) AS value"]
    odd = pa.schema({"a`b": pa.int64(), "c.d": pa.int64(), "e": pa.int64()})
    shaped = a_backend(tmp_path, format="json", partition_by=["a`b"]).shape(odd)
    assert shaped == ["to_json(struct(`c.d`, `e`)) AS value", "`a``b`"]
    with_value = pa.schema({**COLUMNS, "value": pa.string()})
    for columns, schema in [(["no"], SCHEMA), (["id", "name"], SCHEMA), (["value"], with_value)]:
        with pytest.raises(ConfigError):
            a_backend(tmp_path, format="json", partition_by=columns).shape(schema)


def test_names_that_no_commit_could_give_are_refused_before_the_vote(tmp_path: Path) -> None:
    backend = a_backend(tmp_path, partition_by=["name"])
    with pytest.raises(Fatal, match="longer than the file system takes"):
        vote(backend, batches((1, "x" * 260)))
    deep = a_backend(tmp_path, partition_by=[f"c{i}" for i in range(20)])
    schema = pa.schema({**{f"c{i}": pa.string() for i in range(20)}, "id": pa.int64()})
    with pytest.raises(Fatal, match="longer than the file system takes"):
        vote(deep, batches((*("y" * 240,) * 20, 1), schema=schema), a_txn(1))
    dated = a_backend(tmp_path, partition_by=["day"])
    days = pa.record_batch({"id": [1], "day": pa.array([20_000_000], pa.int32()).cast(pa.date32())})
    with pytest.raises(Fatal, match="outside the years"):
        vote(dated, [days], a_txn(2))


@pytest.mark.parametrize(
    "kind",
    [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.list_(pa.timestamp("us")), pa.struct({"t": pa.timestamp("us")})],
    ids=str,
)
def test_json_lines_keep_the_microseconds_of_times_at_any_depth(kind: pa.DataType, tmp_path: Path) -> None:
    (line,) = a_backend(tmp_path, format="json").shape(pa.schema([("t", kind)])) or ()
    assert "'timestampFormat', 'yyyy-MM-dd''T''HH:mm:ss.SSSSSSXXXXX'" in line
    assert "'timestampNTZFormat', 'yyyy-MM-dd''T''HH:mm:ss.SSSSSS'" in line
