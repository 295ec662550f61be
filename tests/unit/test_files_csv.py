"""CSV: lines that the JVM makes, a header per file, and what CSV can't hold."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.files_target import MINE, SCHEMA, VALUE, a_backend, a_txn, batches, commit, visible, vote

from exactsink.contract import Committed, ConfigError, Fatal
from exactsink_files.backend import FilesOptions

OPTIONS = (
    "'escape', '\"', 'ignoreLeadingWhiteSpace', 'false', 'ignoreTrailingWhiteSpace', 'false', "
    "'timestampFormat', 'yyyy-MM-dd''T''HH:mm:ss.SSSSSSXXXXX', 'timestampNTZFormat', 'yyyy-MM-dd''T''HH:mm:ss.SSSSSS'"
)


def test_shape_makes_the_lines_in_sql_and_names_them_by_their_header(tmp_path: Path) -> None:
    backend = a_backend(tmp_path, format="csv")
    assert backend.shape(SCHEMA) == [f"to_csv(struct(*), map('sep', ',', {OPTIONS})) AS `id,name`"]
    odd = pa.schema({name: pa.int64() for name in ("a`b", 'c "d"', "day", "", "f_1")})
    shaped = a_backend(tmp_path, format="csv", delimiter="\t", partition_by=["day"]).shape(odd)
    fields = '`a``b`, `c "d"`, ``, `f_1`'
    header = '"a``b"\t"c ""d"""\t""\tf_1'
    assert shaped == [f"to_csv(struct({fields}), map('sep', '\t', {OPTIONS})) AS `{header}`", "`day`"]
    plain = a_backend(tmp_path, format="csv", header=False, delimiter="'").shape(SCHEMA)
    assert plain == [f"to_csv(struct(*), map('sep', '''', {OPTIONS})) AS value"]


def test_the_options_stay_when_they_are_read_again() -> None:
    options = FilesOptions(path="/x", format="csv", header=False, delimiter="\t")
    assert FilesOptions.model_validate(options.model_dump()) == options
    assert FilesOptions(path="/x", format="csv").header


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_every_file_begins_with_the_header_and_is_read_back(tmp_path: Path, kind: pa.DataType) -> None:
    schema = pa.schema({'id,"a ""b"""': kind, "day": pa.int32()})
    lines = [("1,", 1), ('2,""', 1), ('3,"x,""y""\r\nz"', 2), ('4,"\n"', 1), ("5, ü", 1)]
    backend = a_backend(tmp_path, format="csv", partition_by=["day"], target_file_size="20 B")
    assert commit(backend, vote(backend, batches(*lines, schema=schema, size=3))) == [Committed()]
    found = {}
    for file in visible(tmp_path):
        with open(file, newline="", encoding="utf-8") as text:
            found[str(file.relative_to(tmp_path))] = list(csv.reader(text))
    head, name = ["id", 'a "b"'], a_txn().id
    assert found == {
        f"day=1/{name}.csv": [head, ["1", ""], ["2", ""]],
        f"day=1/{name}.1.csv": [head, ["4", "\n"], ["5", " ü"]],
        f"day=2/{name}.csv": [head, ["3", 'x,"y"\r\nz']],
    }
    assert (tmp_path / "day=1" / f"{name}.csv").read_bytes() == b'id,"a ""b"""\n1,\n2,""\n'


def test_without_a_header_the_file_is_the_lines(tmp_path: Path) -> None:
    backend = a_backend(tmp_path, format="csv", header=False)
    commit(backend, vote(backend, batches(("1;a",), ("2;b",), schema=VALUE, size=1)))
    assert [file.read_bytes() for file in visible(tmp_path)] == [b"1;a\n2;b\n"]


@pytest.mark.parametrize(
    ("kind", "cast"),
    [
        (pa.struct({"x": pa.int8()}), "to_json(`c`)"),
        (pa.map_(pa.string(), pa.int8()), "to_json(`c`)"),
        (pa.list_(pa.int8()), "to_json(`c`)"),
        (pa.binary(), "base64(`c`)"),
        (pa.large_binary(), "base64(`c`)"),
    ],
)
def test_types_that_csv_cannot_hold_are_refused_with_the_cast(tmp_path: Path, kind: pa.DataType, cast: str) -> None:
    schema = pa.schema({"id": pa.int64(), "c": kind})
    with pytest.raises(ConfigError, match=r"column c is of type .* which CSV can't hold") as caught:
        a_backend(tmp_path, format="csv").shape(schema)
    assert cast in caught.value.next
    assert a_backend(tmp_path, format="json").shape(schema) == ["to_json(struct(*)) AS value"]


def test_a_lone_column_that_may_be_null_is_refused_as_readers_skip_empty_lines(tmp_path: Path) -> None:
    day = pa.field("day", pa.int32())
    backend = a_backend(tmp_path, format="csv", partition_by=["day"])
    with pytest.raises(ConfigError, match="NULL would be an empty line") as caught:
        backend.shape(pa.schema([pa.field("a", pa.string()), day]))
    assert "coalesce(`a`, '')" in caught.value.next
    shaped = backend.shape(pa.schema([pa.field("a", pa.string(), nullable=False), day]))
    assert shaped == [f"to_csv(struct(`a`), map('sep', ',', {OPTIONS})) AS `a`", "`day`"]


def test_names_that_the_shape_cannot_carry_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has a \* in its name"):
        a_backend(tmp_path, format="csv").shape(pa.schema({"a(*)": pa.int64(), "b": pa.int64()}))
    value = pa.schema({name: pa.int64() for name in ("value", "b", "c")})
    with pytest.raises(ConfigError, match="name of the lines' column"):
        a_backend(tmp_path, format="csv", header=False, partition_by=["value"]).shape(value)
    shaped = a_backend(tmp_path, format="csv", partition_by=["value"]).shape(value)
    assert shaped == [f"to_csv(struct(`b`, `c`), map('sep', ',', {OPTIONS})) AS `b,c`", "`value`"]


def test_rows_that_are_not_lines_are_refused(tmp_path: Path) -> None:
    backend = a_backend(tmp_path, format="csv")
    (found,) = backend.committer(MINE).check(SCHEMA, None)
    assert "takes one text column, id, beside" in found.message
    with pytest.raises(Fatal, match="takes one text column"):
        vote(backend, batches((1, "x")))
    (found,) = a_backend(tmp_path, format="csv", header=False).committer(MINE).check(pa.schema({"id": pa.string()}), 1)
    assert "takes one text column, value, beside" in found.message
    lines = pa.schema({"id,name": pa.string()})
    assert list(backend.committer(MINE).check(lines, None)) == []
    with pytest.raises(Fatal, match="column id,name holds 1 nulls"):
        vote(backend, batches(("1,a",), (None,), schema=lines), a_txn(1))
