"""What the files hold and what a task refuses to write: formats, the lines of text formats, folders, sizes."""

from __future__ import annotations

import csv
import datetime
import re
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.unit.files_sink import SCHEMA, TEXT, Files, files, lines, rows, visible
from tests.unit.judged import judged
from tests.unit.odd_names import ODD_NAMES
from tests.unit.test_table_rows import DIGITS
from tests.unit.test_table_rows import TEXT as BROKEN

from exactsink.contract import Committed, ConfigError, Fatal
from exactsink.toolkit.tabular import parts


def written(root: Path, given: pa.Table, **options: Any) -> list[Path]:
    """Write and commit; return the files in the order of their names."""
    sink = files(root, **options)
    (voted,) = sink.vote(given)
    assert voted.rows == given.num_rows
    assert sink.end(voted) == [Committed()]
    return visible(root)


def names(sink: Files, count: int, form: str) -> list[str]:
    """Name a participant's files in the order that they are written."""
    return [f"{sink.id()}{f'.{n}' if n else ''}.{form}" for n in range(count)]


@pytest.mark.parametrize("compression", [None, "snappy", "zstd", "gzip", "none"])
def test_parquet_holds_the_rows_in_the_order_they_came(tmp_path: Path, compression: str | None) -> None:
    given = rows((3, "c"), (1, None), (2, ""), (9, "x"), (4, "ü"))
    (file,) = written(tmp_path / "new" / "out", given, compression=compression)
    assert file.relative_to(tmp_path / "new" / "out") == Path(names(files(tmp_path), 1, "parquet")[0])
    assert pq.read_table(file) == given
    expected = {None: "SNAPPY", "none": "UNCOMPRESSED"}.get(compression) or str(compression).upper()
    assert pq.read_metadata(file).row_group(0).column(0).compression == expected


def test_parquet_has_dictionaries_where_they_shrink(tmp_path: Path) -> None:
    kinds = {"id": pa.int64(), "na.me": pa.string(), "none": pa.null(), "list": pa.list_(pa.string())}
    values = [(n, f"name-{n % 3}", None, ["x"]) for n in range(1_000)]
    for width, expected in ((3, {"na.me"}), (4, {"id", "na.me", "list.list.element"})):  # nested: Arrow's own choice
        schema = pa.schema(dict(list(kinds.items())[:width]))
        given = rows(*[row[:width] for row in values], schema=schema)
        (file,) = written(tmp_path / str(width), given)
        assert pq.read_table(file) == given
        found = [pq.read_metadata(file).row_group(0).column(place) for place in range(width)]
        chosen = {column.path_in_schema for column in found if "RLE_DICTIONARY" in column.encodings}
        assert chosen - {"none"} == expected


@pytest.mark.parametrize("odd", ODD_NAMES.values(), ids=ODD_NAMES)
def test_odd_names_of_columns_and_values_of_partitions_read_back(tmp_path: Path, odd: str) -> None:
    day = f"p{odd}"  # a folder `..=1` is hidden from readers, as all that begin with a dot
    schema = pa.schema({odd: pa.string(), day: pa.string()})
    given = rows((odd, odd), ("x", odd), ("y", f"{odd}\0"), schema=schema)
    found = written(tmp_path / "lake", given, partition_by=[day])
    assert sorted(tmp_path.iterdir()) == [tmp_path / "lake"]
    assert len({file.parent for file in found}) == 2
    assert {file.parent.parent for file in found} == {tmp_path / "lake"}
    hive = ds.partitioning(pa.schema([schema.field(day)]), flavor="hive")
    read = ds.dataset(tmp_path / "lake", format="parquet", partitioning=hive).to_table().select(schema.names)
    assert sorted(read.to_pylist(), key=str) == sorted(given.to_pylist(), key=str)


def test_partitions_read_back_with_nulls_special_characters_and_dates(tmp_path: Path) -> None:
    kinds = {"name": pa.string(), "id": pa.int64(), "day": pa.date32(), "n": pa.int16(), "ok": pa.bool_()}
    schema, columns = pa.schema(kinds), ["name", "day", "n", "ok"]
    day = datetime.date(2026, 11, 20)
    texts = ["a/b=c", "ü ?%.:", "..", None, "a/b=c", "x", "ü ?%.:", "a/b=c", "\n}[]"]
    given = rows(*[(text, i, day if i % 2 else None, -1, True) for i, text in enumerate(texts)], schema=schema, size=4)
    written(tmp_path, given, partition_by=columns)
    hive = ds.partitioning(pa.schema([schema.field(name) for name in columns]), flavor="hive")
    read = ds.dataset(tmp_path, format="parquet", partitioning=hive).to_table().select(schema.names)
    assert sorted(read.to_pylist(), key=lambda row: row["id"]) == given.to_pylist()
    one = tmp_path / "name=a%2Fb%3Dc" / "day=__HIVE_DEFAULT_PARTITION__" / "n=-1" / "ok=true"
    assert pq.ParquetFile(next(one.iterdir())).schema_arrow.names == ["id"]
    assert (tmp_path / "name=ü %3F%25.%3A" / "day=__HIVE_DEFAULT_PARTITION__").is_dir()
    assert (tmp_path / "name=.." / "day=__HIVE_DEFAULT_PARTITION__").is_dir()
    assert (tmp_path / "name=x" / "day=2026-11-20" / "n=-1" / "ok=true").is_dir()
    assert (tmp_path / "name=%0A}%5B%5D").is_dir()


def test_null_empty_and_the_name_of_null_share_one_file(tmp_path: Path) -> None:
    given = rows((1, ""), (2, None), (3, "__HIVE_DEFAULT_PARTITION__"), (4, ""), size=4)
    (file,) = written(tmp_path, given, partition_by=["name"])
    assert file.parent.name == "name=__HIVE_DEFAULT_PARTITION__"
    assert pq.ParquetFile(file).read()["id"].to_pylist() == [1, 2, 3, 4]


def test_row_groups_are_full_and_memory_bounds_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def groups(root: Path, **options: Any) -> list[list[int]]:
        found = [pq.read_metadata(file) for file in written(root, given, **options)]
        return [[m.row_group(i).num_rows for i in range(m.num_row_groups)] for m in found]

    monkeypatch.setattr(parts, "ROW_GROUP_ROWS", 10)
    given = rows(*[(i, "rare" if i in (0, 24) else "many") for i in range(25)], size=3)
    assert groups(tmp_path / "a") == [[12, 12, 1]]
    monkeypatch.setattr(parts, "BUFFERED_BYTES", 3 * given.to_batches()[1].nbytes)
    assert groups(tmp_path / "c", partition_by=["name"]) == [[11, 12], [1, 1]]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_every_csv_file_begins_with_the_header_and_is_read_back(tmp_path: Path, kind: pa.DataType) -> None:
    schema = pa.schema({'id,"a ""b"""': kind, "day": pa.int32()})
    given = [("1,", 1), ('2,""', 1), ('3,"x,""y""\r\nz"', 2), ('4,"\n"', 1), ("5, ü", 1)]
    table = rows(*given, schema=schema, size=3)
    found = {}
    for file in written(tmp_path, table, format="csv", partition_by=["day"], target_file_size="20 B"):
        with open(file, newline="", encoding="utf-8") as text:
            found[str(file.relative_to(tmp_path))] = list(csv.reader(text))
    head, (first, other, second) = ["id", 'a "b"'], names(files(tmp_path), 3, "csv")
    assert found == {
        f"day=1/{first}": [head, ["1", ""], ["2", ""]],
        f"day=1/{second}": [head, ["4", "\n"], ["5", " ü"]],
        f"day=2/{other}": [head, ["3", 'x,"y"\r\nz']],
    }
    assert (tmp_path / "day=1" / first).read_bytes() == b'id,"a ""b"""\n1,\n2,""\n'


@pytest.mark.parametrize(("options", "size"), [({"format": "json"}, "84 B"), (TEXT, "36 B")])
@pytest.mark.parametrize(("count", "files_of"), [(10, [4, 4, 2]), (8, [4, 4])])
def test_lines_end_a_file_at_the_batch_that_reaches_the_size(
    tmp_path: Path, options: dict[str, Any], size: str, count: int, files_of: list[int]
) -> None:
    given = [f"röw {n:03}" for n in range(count)]
    read = written(tmp_path, lines(*given), target_file_size=size, **options)
    in_order = [tmp_path / name for name in names(files(tmp_path), len(files_of), options["format"])]
    assert read == sorted(in_order)
    found = [file.read_bytes().decode().splitlines() for file in in_order]
    assert [len(part) for part in found] == files_of
    wanted = [f'{{"value":"{line}"}}' for line in given] if options["format"] == "json" else given
    assert [line for part in found for line in part] == wanted


def _batch(kind: str, nth: int) -> pa.RecordBatch:
    """Make a batch of 80 to 800 KB in memory; those of `changing` shrink to nothing, and later not at all."""
    random = Random(nth)
    ids = pa.array(range(nth * 10_000, (nth + 1) * 10_000))
    if kind == "wide":
        return pa.record_batch({"id": ids[:200], "s": [random.randbytes(2_000).hex() for _ in range(200)]})
    if kind == "words":
        return pa.record_batch({"id": ids, "s": random.choices([f"word {n}" for n in range(300)], k=10_000)})
    noise = kind == "random" or (kind == "changing" and nth >= 25)
    return pa.record_batch({"x": pa.array(random.getrandbits(62) if noise else 7 for _ in range(10_000))})


@pytest.mark.parametrize("kind", ["wide", "words", "random", "changing"])
def test_parquet_ends_a_file_near_its_size_whatever_the_rows_are(tmp_path: Path, kind: str) -> None:
    """Rows that wait for their row group count."""
    given = pa.Table.from_batches([_batch(kind, nth) for nth in range(8 if kind == "wide" else 40)])
    found = written(tmp_path, given, target_file_size="256 KB", compression="zstd")
    in_order = sorted(found, key=lambda file: int(f"0{re.findall(r'a1(?:[.]([0-9]+))?[.]parquet', file.name)[0]}"))
    sizes = [file.stat().st_size / (256 << 10) for file in in_order]
    assert len(sizes) > 3
    assert all(0.7 < size < 1.5 for size in sizes[:-1]), sizes
    assert max(pq.read_metadata(file).num_row_groups for file in in_order) <= 3
    assert pa.concat_tables(map(pq.read_table, in_order)) == given


def test_a_flush_that_memory_asks_for_ends_full_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = rows(*[(n, f"name {n % 2}") for n in range(40)], size=10)
    monkeypatch.setattr(parts, "BUFFERED_BYTES", given.to_batches()[0].nbytes)  # passed by every second batch
    found = written(tmp_path, given, partition_by=["name"], target_file_size="100 B")
    assert [pq.read_metadata(file).num_rows for file in found] == [10] * 4


TOO_LONG = [{"c": "x" * 260}, {f"c{i}": "y" * 240 for i in range(20)}]


@pytest.mark.parametrize("row", TOO_LONG, ids=["name", "path"])
def test_names_that_no_commit_could_give_are_refused_before_the_vote(tmp_path: Path, row: dict[str, str]) -> None:
    writer = files(tmp_path, partition_by=list(row)).begin(table := pa.Table.from_pylist([row | {"id": 1}]))
    with pytest.raises(Fatal, match="longer than the file system accepts"):
        writer.write(table.to_batches()[0])


FAR = pa.array([20_000_000], pa.int32()).cast(pa.date32())
UNREADABLE = {
    "text": (pa.array(["x"]), BROKEN, "column text: Invalid UTF8"),
    "list": (pa.array([["x"]]), pa.ListArray.from_arrays([0, 1], BROKEN), "column list: .*Invalid UTF8"),
    "digits": (pa.array([1], DIGITS.type), DIGITS, "column digits: Decimal value"),
    "day": (pa.array([1], pa.int32()).cast(pa.date32()), FAR, "day has a date outside the years 0 to 9999"),
    "name": (pa.array(["p"]), BROKEN, "column name: Invalid UTF8"),
}


def test_rows_that_no_reader_could_read_are_judged_and_refused(tmp_path: Path) -> None:
    columns = [
        pa.concat_arrays([bad if row == place else good for row in range(len(UNREADABLE) + 1)])
        for place, (good, bad, _) in enumerate(UNREADABLE.values())
    ]
    sink = files(tmp_path / "lake", partition_by=["day", "name"])
    found, _ = judged(sink, pa.table(columns, names=list(UNREADABLE)))
    assert all(re.search(why, found[place]) for place, (_, _, why) in enumerate(UNREADABLE.values()))
    lines = files(tmp_path / "lines", format="json", partition_by=["name"])
    assert not lines.backend.traits.validates_rows, "JSON lines hold a replacement character, as Spark's own do"
    with pytest.raises(Fatal, match="can't hold a row: column name: Invalid UTF8"):
        lines.vote(pa.table({"id": [1], "name": BROKEN}))


TIMES = "'timestampFormat', concat('yyyy-MM-dd', char(39), 'T', char(39), 'HH:mm:ss.SSSSSSXXXXX'), "
TIMES += "'timestampNTZFormat', concat('yyyy-MM-dd', char(39), 'T', char(39), 'HH:mm:ss.SSSSSS')"
CSV = f"'escape', '\"', 'ignoreLeadingWhiteSpace', 'false', 'ignoreTrailingWhiteSpace', 'false', {TIMES}"


def numbers(*names: str) -> pa.Schema:
    return pa.schema({name: pa.int64() for name in names})


def shape(schema: pa.Schema, form: str = "csv", **options: Any) -> list[str] | None:
    return files(Path("/out"), format=form, **options).backend.shape(schema)


ODD = numbers("a`b", 'c "d"', "day", "", "f_1")
FIELDS, HEADER = '`a``b`, `c "d"`, ``, `f_1`', '"a``b"\t"c ""d"""\t""\tf_1'


def to_csv(fields: str, name: str, mark: str = ",") -> str:
    return f"to_csv(struct({fields}), map('sep', '{mark}', {CSV})) AS `{name}`"


def test_lines_are_made_in_sql_and_csv_is_named_by_its_header() -> None:
    assert shape(SCHEMA, "parquet") is None
    assert shape(SCHEMA) == [to_csv("*", "id,name")]
    assert shape(SCHEMA, header=False, delimiter="'") == [f"to_csv(struct(*), map('sep', char(39), {CSV})) AS value"]
    assert shape(ODD, delimiter="\t", partition_by=["day"]) == [to_csv(FIELDS, HEADER, "\t"), "`day`"]
    assert shape(numbers("value", "b", "c"), partition_by=["value"]) == [to_csv("`b`, `c`", "b,c"), "`value`"]


AT, TEXTS = pa.timestamp("us", "UTC"), pa.struct({"value": pa.string()})
NULLS = "to_json(named_struct('x', CAST(NULL AS STRING))) <> '{}' AS `exactsink: nulls are written`"


def test_json_takes_columns_as_they_are_and_the_jvms_text_for_the_others() -> None:
    plain = {"a`b": pa.int8(), "s": pa.string(), "b": pa.bool_(), "d": pa.date32(), "t": AT}
    quoted = ["`a``b`", "`s`", "`b`", "`d`", "`t`"]
    assert shape(pa.schema(plain), "json") == [*quoted, NULLS]
    assert shape(pa.schema(plain), "json", partition_by=["s"]) == [quoted[0], *quoted[2:], NULLS, "`s`"]
    odd = "IF(abs(`c`) >= 1e-3 AND abs(`c`) < 1e7 OR `c` = 0, NULL, IF(`c` - `c` = 0, CAST(`c` AS STRING), "
    odd += "concat('\"', CAST(`c` AS STRING), '\"'))) AS `exactsink: text of the float before`"
    assert shape(pa.schema({"c": pa.float32()}), "json") == ["`c`", odd, NULLS]
    to_json = f"to_json({{}}, map({TIMES}))"
    for kind, text in {
        pa.list_(AT): f"'value', {to_json.format('`c`')}",
        TEXTS: f"'value', {to_json.format('`c`')}",
        pa.timestamp("us", "Europe/Berlin"): f"'member', {to_json.format('struct(`c`)')}",
        pa.decimal128(3): f"'member', {to_json.format('struct(`c`)')}",
        pa.binary(): f"'member', {to_json.format('struct(`c`)')}",
    }.items():
        assert shape(pa.schema({"c": kind}), "json") == [f"named_struct({text}) AS `c`", NULLS]


def test_json_lines_of_plain_rows(tmp_path: Path) -> None:
    schema = pa.schema({"t": AT, "id": pa.int64(), "day": pa.int32(), "x": TEXTS})
    given = rows((None, 1, 1, None), (0, 2, 2, {"value": "1.5"}), (10**6, None, 1, None), schema=schema)
    one, two = written(tmp_path, given, format="json", partition_by=["day"])
    assert one.read_text() == '{"id":1}\n{"t":"1970-01-01T00:00:01.000000Z"}\n'
    assert two.read_text() == '{"t":"1970-01-01T00:00:00.000000Z","id":2,"x":1.5}\n'


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
    assert shape(sure, partition_by=["day"]) == [to_csv("`a`", "a"), "`day`"]


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (numbers("a(*)", "b"), {}, r"has a \* in its name"),
        (numbers("value", "b", "c"), {"header": False, "partition_by": ["value"]}, "name of the lines' column"),
        (SCHEMA, {"form": "json", "partition_by": ["no"]}, "is not in the rows"),
        (numbers("exactsink: nulls are written"), {"form": "json"}, "begin with `exactsink:` are taken"),
    ],
)
def test_names_that_the_shape_cannot_carry_are_refused(schema: pa.Schema, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        shape(schema, **options)


@pytest.mark.parametrize(
    ("form", "options", "message"),
    [
        ("csv", {}, "takes one text column, id, beside"),
        ("csv", {"header": False}, "takes one text column, value, beside"),
        ("json", {}, r"can't write the columns as they are: id \(double\)"),
    ],
)
def test_rows_that_are_not_shaped_are_refused(tmp_path: Path, form: str, options: Any, message: str) -> None:
    sink = files(tmp_path, format=form, **options)
    schema = pa.schema({"id": pa.float64(), "name": pa.string()})
    (found,) = sink.check(schema)
    assert re.search(message, found.message)
    with pytest.raises(Fatal, match=message):
        sink.vote(rows((1.0, "x"), schema=schema))
    if form == "csv":
        column = pa.schema({"value" if options else "id,name": pa.string()})
        assert sink.check(column) == []
        with pytest.raises(Fatal, match=f"column {column.names[0]} holds 1 nulls"):
            sink.vote(rows(("1",), (None,), schema=column))
