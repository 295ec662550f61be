"""One pass over a frame: sinks share what they can, and a row's digest does not depend on how it travels."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession, types
from pyspark.sql import functions as F

from exactsink.contract import Event
from exactsink.job.history import JobHistory
from exactsink.protocol.votes import sum_digests
from exactsink.spark import Job
from exactsink.spark.row_hash import row_hash
from exactsink.spark.versions import arrow_table
from tests.e2e.jobs import in_lake, write_job

SINKS = "".join(
    f"""
[sinks.{name}]
backend = "files"
path = "{{folder}}/{name}"
{more}
"""
    for name, more in {
        "flat": "",
        "same": "",
        "struct": 'where = "true"',
        "some": 'where = "id % 2 = 0"',
        "few": 'columns = ["id", "odd.name"]',
    }.items()
)


@pytest.mark.parametrize("with_map", [False, True], ids=["plain", "with a map"])
def test_a_row_has_one_digest_however_it_travels(spark: SparkSession, tmp_path: Path, with_map: bool) -> None:
    rows = spark.range(0, 500, 1, 3).selectExpr(
        "id",
        "CASE WHEN id % 3 = 0 THEN NULL ELSE concat('n', id) END AS `odd.name`",
        "named_struct('a', id, 'b', CASE WHEN id % 5 = 0 THEN NULL ELSE 'x' END) AS inner",
        "array(id, NULL, 7) AS list",
        *(["map('k', id) AS m"] if with_map else []),
    )
    job = Job.from_toml(write_job(tmp_path, SINKS))
    result = job.write(rows, run="r")
    assert result.rows == {"flat": 500, "same": 500, "struct": 500, "some": 250, "few": 500}

    with closing(JobHistory.of(job.config, "r").journal(lambda _: None)) as journal:
        decision = journal.read().decision
    assert decision is not None
    digests = {name: sum_digests([c.digest for c in decision.committables(name)]) for name in decision.sinks}
    assert digests["flat"] == digests["same"] == digests["struct"] != 0
    assert len({digests["flat"], digests["some"], digests["few"]}) == 3

    written = {name: ds.dataset(str(tmp_path / name), format="parquet").to_table() for name in decision.sinks}
    expected = sorted(arrow_table(rows).to_pylist(), key=lambda row: row["id"])
    for name, kept in {"flat": expected, "same": expected, "struct": expected, "some": expected[::2]}.items():
        assert sorted(written[name].to_pylist(), key=lambda row: row["id"]) == kept
    assert sorted(written["few"].to_pylist(), key=lambda row: row["id"]) == [
        {"id": row["id"], "odd.name": row["odd.name"]} for row in expected
    ]


AT, LATER = "timestamp'2026-01-01 00:00:00.000001'", "timestamp'2026-01-01 00:00:00.000002'"
PAIRS = {
    "NULL in another column": ("a INT, b INT", "NULL, 1", "1, NULL"),
    "NULL in a list": ("a ARRAY<INT>", "array(1, NULL)", "array(1)"),
    "NULL elsewhere in a list": ("a ARRAY<INT>", "array(NULL, 1)", "array(1, NULL)"),
    "no list, and an empty one": ("a ARRAY<INT>", "NULL", "array()"),
    "NULL in a struct": ("a STRUCT<x: INT, y: INT>", "struct(1 AS x, NULL AS y)", "struct(NULL AS x, 1 AS y)"),
    "no struct, and one of NULLs": ("a STRUCT<x: INT>", "NULL", "named_struct('x', NULL)"),
    "the sign of zero": ("a DOUBLE", "-0.0D", "0.0D"),
    "the sign of a float's zero in a list": ("a ARRAY<FLOAT>", "array(-0.0F)", "array(0.0F)"),
    "a microsecond beside a map": ("t TIMESTAMP, m MAP<STRING, INT>", f"{AT}, map('a', 1)", f"{LATER}, map('a', 1)"),
    "a microsecond in a map": ("m MAP<STRING, TIMESTAMP>", f"map('a', {AT})", f"map('a', {LATER})"),
    "a key's NULL": ("m MAP<STRING, INT>", "map('a', NULL)", "map()"),
    "values that changed their keys": ("m MAP<STRING, INT>", "map('a', 1, 'b', 2)", "map('a', 2, 'b', 1)"),
    "where a list ends": ("a ARRAY<INT>, b ARRAY<INT>", "array(1), array(2, 3)", "array(1, 2), array(3)"),
    "where a text ends": ("a STRING, b STRING", "'a', 'bc'", "'ab', 'c'"),
    "a list's lists": ("a ARRAY<ARRAY<INT>>", "array(array(1), array(2))", "array(array(1, 2))"),
    "a variant": ("a VARIANT", "parse_json('1')", "parse_json('2')"),
}
SAME = {
    "a map's order": ("m MAP<STRING, INT>", "map('a', 1, 'b', NULL)", "map('b', NULL, 'a', 1)"),
    "NaN": ("a DOUBLE", "double('NaN')", "-double('NaN')"),
}


def hashes(spark: SparkSession, schema: str, first: str, second: str) -> list[int]:
    wanted = spark.createDataFrame([], schema).schema
    names = wanted.fieldNames()
    cast = ", ".join(
        f"CAST({field.name} AS {field.dataType.simpleString()}) AS {field.name}" for field in wanted.fields
    )
    frames = [spark.sql(f"SELECT {cast} FROM (SELECT {values}) AS t({', '.join(names)})") for values in (first, second)]
    fields = frames[0].schema.fields
    hashed = row_hash([field.dataType for field in fields], [F.col(field.name) for field in fields])
    return [frame.select(hashed).collect()[0][0] for frame in frames]


@pytest.mark.parametrize(("schema", "first", "second"), PAIRS.values(), ids=PAIRS)
def test_rows_that_differ_have_other_hashes(spark: SparkSession, schema: str, first: str, second: str) -> None:
    """Taken for the decided rows, a replay's other rows would be committed in their place."""
    if "VARIANT" in schema and not hasattr(types, "VariantType"):
        pytest.skip("Spark has variants from 4.0 on")
    one, other = hashes(spark, schema, first, second)
    assert one != other


@pytest.mark.parametrize(("schema", "first", "second"), SAME.values(), ids=SAME)
def test_rows_that_are_equal_have_one_hash(spark: SparkSession, schema: str, first: str, second: str) -> None:
    one, other = hashes(spark, schema, first, second)
    assert one == other


def test_a_part_of_a_sinks_votes_is_written_again_under_adaptive_execution(spark: SparkSession, tmp_path: Path) -> None:
    """The lost sink takes one narrow column of two sinks' rows: alone it would be cut into other partitions."""
    session = spark.newSession()
    sizes = {"advisoryPartitionSizeInBytes": "100k", "coalescePartitions.minPartitionSize": "1k"}
    for name, value in {**sizes, "coalescePartitions.parallelismFirst": "false"}.items():
        session.conf.set(f"spark.sql.adaptive.{name}", value)
    session.conf.set("spark.sql.shuffle.partitions", 8)
    rows = session.range(0, 5_000, 1, 2).selectExpr("id", "sha2(cast(id AS string), 256) AS pad").repartition("id")
    sinks = SINKS[: SINKS.index("[sinks.same]")] + '[sinks.lake]\nbackend = "files"\npath = "{folder}/lake"\n'
    voted: list[int] = []

    def lose(event: Event) -> None:
        if (event.name, event.edge) == ("decide", "after") and not voted:
            files = sorted((tmp_path / "lake" / "_exactsink").rglob("*.tmp"))
            voted.append(len(files))
            files[0].unlink()

    reported: list[Event] = []
    path = write_job(tmp_path, sinks + 'columns = ["id"]\n')
    Job.from_toml(path, [lose, reported.append]).write(rows, run="r")
    assert 1 < voted[0] < 8, "nothing is coalesced, or nothing stays"
    assert [event.fields["participants"] for event in reported if event.name == "redecided"] == [1]
    assert in_lake(tmp_path) == Counter(range(5_000))
