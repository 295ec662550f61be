"""The lines of text formats, which the JVM makes: JSON and CSV in SQL, and what neither can hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.files_sink import SCHEMA, files, rows

from exactsink.contract import ConfigError, Fatal

TIMES = "'timestampFormat', 'yyyy-MM-dd''T''HH:mm:ss.SSSSSSXXXXX', "
TIMES += "'timestampNTZFormat', 'yyyy-MM-dd''T''HH:mm:ss.SSSSSS'"
CSV = f"'escape', '\"', 'ignoreLeadingWhiteSpace', 'false', 'ignoreTrailingWhiteSpace', 'false', {TIMES}"


def numbers(*names: str) -> pa.Schema:
    return pa.schema({name: pa.int64() for name in names})


def shape(schema: pa.Schema, form: str = "csv", **options: Any) -> list[str] | None:
    return files(Path("/out"), format=form, **options).backend.shape(schema)


ODD = numbers("a`b", 'c "d"', "day", "", "f_1")
FIELDS, HEADER = '`a``b`, `c "d"`, ``, `f_1`', '"a``b"\t"c ""d"""\t""\tf_1'


def csv(fields: str, name: str, mark: str = ",") -> str:
    return f"to_csv(struct({fields}), map('sep', '{mark}', {CSV})) AS `{name}`"


def test_lines_are_made_in_sql_and_csv_is_named_by_its_header() -> None:
    assert shape(SCHEMA, "parquet") is None
    assert shape(SCHEMA, "json") == ["to_json(struct(*)) AS value"]
    odd = numbers("a`b", "c.d", "e")
    assert shape(odd, "json", partition_by=["a`b"]) == ["to_json(struct(`c.d`, `e`)) AS value", "`a``b`"]
    assert shape(SCHEMA) == [csv("*", "id,name")]
    assert shape(SCHEMA, header=False, delimiter="'") == [f"to_csv(struct(*), map('sep', '''', {CSV})) AS value"]
    assert shape(ODD, delimiter="\t", partition_by=["day"]) == [csv(FIELDS, HEADER, "\t"), "`day`"]
    assert shape(numbers("value", "b", "c"), partition_by=["value"]) == [csv("`b`, `c`", "b,c"), "`value`"]


TIME = pa.timestamp("us")


@pytest.mark.parametrize("kind", [TIME, pa.timestamp("us", "UTC"), pa.list_(TIME), pa.struct({"t": TIME})], ids=str)
def test_json_lines_keep_the_microseconds_of_times_at_any_depth(kind: pa.DataType) -> None:
    assert shape(pa.schema([("t", kind)]), "json") == [f"to_json(struct(*), map({TIMES})) AS value"]


NESTED = [pa.struct({"x": pa.int8()}), pa.map_(pa.string(), pa.int8()), pa.list_(pa.int8())]


@pytest.mark.parametrize("kind", [*NESTED, pa.binary(), pa.large_binary()])
def test_types_that_csv_cannot_hold_are_refused_with_the_cast(kind: pa.DataType) -> None:
    with pytest.raises(ConfigError, match=r"column c is of type .* which CSV can't hold") as caught:
        shape(pa.schema({"id": pa.int64(), "c": kind}))
    assert ("to_json(`c`)" if kind in NESTED else "base64(`c`)") in caught.value.next


def test_a_lone_column_that_may_be_null_is_refused_as_readers_skip_empty_lines() -> None:
    with pytest.raises(ConfigError, match="NULL would be an empty line") as caught:
        shape(numbers("a", "day"), partition_by=["day"])
    assert "coalesce(`a`, '')" in caught.value.next
    sure = pa.schema([pa.field("a", pa.string(), nullable=False), ("day", pa.int32())])
    assert shape(sure, partition_by=["day"]) == [csv("`a`", "a"), "`day`"]


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (numbers("a(*)", "b"), {}, r"has a \* in its name"),
        (numbers("value", "b", "c"), {"header": False, "partition_by": ["value"]}, "name of the lines' column"),
        (numbers("value", "b"), {"form": "json", "partition_by": ["value"]}, "name of the lines' column"),
        (SCHEMA, {"form": "json", "partition_by": ["no"]}, "is not in the rows"),
        (SCHEMA, {"form": "json", "partition_by": ["id", "name"]}, "all columns are partition columns"),
    ],
)
def test_names_that_the_shape_cannot_carry_are_refused(schema: pa.Schema, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        shape(schema, **options)


@pytest.mark.parametrize(
    ("form", "options", "named"), [("csv", {}, "id"), ("csv", {"header": False}, "value"), ("json", {}, "value")]
)
def test_rows_that_are_not_lines_are_refused(tmp_path: Path, form: str, options: Any, named: str) -> None:
    sink = files(tmp_path, format=form, **options)
    (found,) = sink.check()
    assert f"takes one text column, {named}, beside" in found.message
    with pytest.raises(Fatal, match="takes one text column"):
        sink.vote(rows((1, "x")))
    column = pa.schema({named if named == "value" else "id,name": pa.string()})
    assert sink.check(column) == []
    with pytest.raises(Fatal, match=f"column {column.names[0]} holds 1 nulls"):
        sink.vote(rows(("1",), (None,), schema=column))
