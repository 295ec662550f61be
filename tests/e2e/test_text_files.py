"""JSON lines and CSV through Spark: read back, the rows are the rows, to the microsecond and the quote."""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from exactsink.contract import ConfigError, PreflightError
from exactsink.spark import Job
from exactsink.spark.versions import arrow_schema, arrow_table
from exactsink.toolkit.spark_sql import EXACT_TIMES, text_map
from exactsink.toolkit.tabular import TabularOptions
from exactsink.toolkit.tabular.json_lines import json_lines
from exactsink.toolkit.tabular.lines import shape
from tests.e2e.jobs import LINES, write_job

SINKS = """
[sinks.lines]
backend = "files"
format = "json"
path = "${executor:EXACTSINK_TEST_PLACE}/lines"

[sinks.table]
backend = "files"
format = "csv"
columns = ["id", "text", "at"]
target_file_size = "1 KB"
path = "{folder}/table"
"""
JUDGED = '[sinks.lake]\nbackend = "files"\npath = "{folder}/lake"\non_bad_row = "quarantine"\nquarantine = "lines"\n'
TEXTS = [None, "", 'a,"b"\r\nc', " x ", "a(*)", "back\\slash"]


def test_a_text_that_is_not_utf8_goes_to_the_quarantine_of_parquet(spark: SparkSession, tmp_path: Path) -> None:
    job = Job.from_toml(write_job(tmp_path, JUDGED + LINES))
    job.write(spark.range(9).selectExpr("id", "CAST(IF(id = 4, X'61FF', X'61') AS STRING) AS text"), run="r")
    assert sorted(pq.read_table(tmp_path / "lake")["id"].to_pylist()) == [0, 1, 2, 3, 5, 6, 7, 8]
    [bad] = [json.loads(line) for path in (tmp_path / "lines").glob("*.json") for line in path.read_text().splitlines()]
    assert json.loads(bad["row"]) == {"id": 4, "text": "a\\xff"}


def test_rows_read_back_are_the_rows(spark: SparkSession, tmp_path: Path) -> None:
    place = os.environ["EXACTSINK_TEST_PLACE"]
    job = Job.from_toml(write_job(tmp_path, SINKS.replace("${", "${{").replace("PLACE}", "PLACE}}")))
    given = spark.createDataFrame([(n, text) for n, text in enumerate(TEXTS * 40)], "id BIGINT, text STRING")
    rows = given.selectExpr(
        "id",
        "text",
        "CASE WHEN id = 0 THEN timestamp'1800-01-01 00:00:00' ELSE timestamp_micros(1700000000123456 + id) END AS at",
        "named_struct('then', timestamp_micros(1600000000654321 + id)) AS inner",
        "id AS `a(*)`",
    )
    expected = sorted(tuple(row) for row in rows.collect())
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 20)  # a file ends behind a batch
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")  # 53 minutes and 28 seconds off, in 1800
    try:
        job.write(rows, run="r")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
        spark.conf.set("spark.sql.session.timeZone", "UTC")

    schema = "id BIGINT, text STRING, at TIMESTAMP, inner STRUCT<then: TIMESTAMP>, `a(*)` BIGINT"
    assert sorted(map(tuple, spark.read.schema(schema).json(f"{place}/lines").collect())) == expected

    reading = {"header": True, "escape": '"', "multiLine": True, "lineSep": "\n", "nullValue": "\x01null"}
    table = spark.read.schema("id BIGINT, text STRING, at TIMESTAMP").options(**reading).csv(str(tmp_path / "table"))
    assert sorted(map(tuple, table.collect())) == [row[:3] for row in expected]
    files = list((tmp_path / "table").glob("*.csv"))
    assert len(files) > given.rdd.getNumPartitions(), "files end at their target size"
    with open(files[0], newline="", encoding="utf-8") as file:
        assert next(csv.reader(file)) == ["id", "text", "at"]


VALUES = {
    "integers": ("id, CAST(id - 2 AS TINYINT), CAST(-id AS INT), 9223372036854775807 - id", None),
    "floats": (
        "CAST(value AS DOUBLE), CAST(value AS FLOAT)",
        "('1.1'), ('1e7'), ('-0.0'), ('NaN'), ('-Infinity'), ('1e-4'), ('123456789012'), (NULL)",
    ),
    "texts": (
        "value, CAST(value AS BINARY)",
        (
            r"(NULL), (''), ('\u0000\b\t\n\f\r\u001f\u007f'), ('\"\\/'), ('ü€😀'), (CAST(X'41FFC3' AS STRING)), "
            "(CAST(X'E28241EDA080' AS STRING))"
        ),
    ),
    "moments": (
        "CAST(value AS DATE), CAST(value AS TIMESTAMP), CAST(value AS TIMESTAMP_NTZ)",
        (
            "('2026-11-22 01:02:03'), ('0001-01-01'), ('1800-01-01 00:00:00.000001'), ('-0042-02-03'), "
            "('+12345-02-03 23:59:59.999999'), ('+99999-12-31'), (NULL)"
        ),
    ),
    "others": (
        (
            "CAST(value AS DECIMAL(38, 18)), array(value, NULL), map('k\"', value), value > 1, NULL, "
            "named_struct('x', value, 'y', CAST(NULL AS INT)), make_dt_interval(0, 0, 0, value)"
        ),
        "(0), (1.5), (NULL)",
    ),
}
"""Columns of every kind, and the values that they are made of."""


SAME = {
    "parquet": ("X'00ff'", "array(1, NULL)", "map('a', 1.5BD)", "named_struct('a', DATE'0001-01-01')"),
    "json": ("X'00ff'", "array(1, NULL)", "map('a', 1.5BD)", "INTERVAL '1 02:03:04.000005' DAY TO SECOND"),
    "csv": ("DATE'0001-01-01'", "INTERVAL '1 02:03:04.000005' DAY TO SECOND"),
}
PLAIN = "true, 1Y, 2S, 3, 4L, 1.1F, 1.1D, 1.50BD, 'a', TIMESTAMP'2020-01-01 00:00:00.000001', TIMESTAMP_NTZ'2020-01-01'"
REFUSED = {
    ("parquet", "INTERVAL '1' DAY"): "is INTERVAL, which Parquet lacks: it would be read back as BIGINT",
    ("parquet", "array(INTERVAL '1' DAY)"): "is INTERVAL",
    ("parquet", "map('a', parse_json('1'))"): "is VARIANT: the sink would hold it as a struct of bytes",
    ("delta", "array(parse_json('1'))"): "is VARIANT: the sink would hold it as a struct of bytes",
    ("json", "make_ym_interval(1)"): "sink a: rows with these columns can't leave the JVM: c interval",
    ("parquet", "ST_GeomFromWKB(X'0101000000000000000000F03F0000000000000040')"): "is GEOMETRY",
    ("parquet", "array()"): "can't leave the JVM: c array<void>",
    ("json", "map()"): "can't leave the JVM: c map<void,void>",
    ("csv", "parse_json('1')"): "which CSV can't hold",
    ("csv", "X'00ff'"): "which CSV can't hold",
}


@pytest.mark.parametrize("form", SAME)
def test_spark_reads_back_the_types_that_were_written(spark: SparkSession, tmp_path: Path, form: str) -> None:
    frame = spark.sql(f"SELECT {PLAIN}, {', '.join(SAME[form])}")
    frame = frame.toDF(*(f"c{n}" for n in range(len(frame.columns))))
    job = Job.from_toml(write_job(tmp_path, f'[sinks.a]\nbackend = "files"\npath = "{tmp_path}/a"\nformat = "{form}"'))
    job.write(frame, run="r")
    reader = spark.read.option("datetimeRebaseMode", "EXCEPTION")  # Spark 3.5's default: refuse old dates of Spark 2
    reader = reader if form == "parquet" else reader.schema(frame.schema).option("header", True)
    read = reader.format(form).load(f"{tmp_path}/a")
    assert [kind for _, kind in read.dtypes] == [kind for _, kind in frame.dtypes]
    assert read.collect() == frame.collect()


@pytest.mark.parametrize(("form", "column"), REFUSED)
def test_types_that_would_come_back_as_others_are_refused(
    spark: SparkSession, tmp_path: Path, form: str, column: str
) -> None:
    try:
        frame = spark.sql(f"SELECT 1 AS id, {column} AS c")
    except PySparkException:
        pytest.skip("this Spark has no such type")
    backend = "delta" if form == "delta" else f'files"\nformat = "{form}'
    job = Job.from_toml(write_job(tmp_path, f'[sinks.a]\npath = "{tmp_path}/a"\nbackend = "{backend}"'))
    with pytest.raises((ConfigError, PreflightError), match=re.escape(REFUSED[form, column])):
        job.write(frame, run="r")


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("leave_out", ["true", "false"])
@pytest.mark.parametrize(("columns", "values"), VALUES.values(), ids=VALUES)
def test_json_lines_are_to_jsons(
    spark: SparkSession, columns: str, values: str | None, leave_out: str, zone: str
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    session.conf.set("spark.sql.jsonGenerator.ignoreNullFields", leave_out)
    frame = session.sql(f"SELECT {columns} FROM {f'VALUES {values} AS t(value)' if values else 'range(5)'}")
    frame = frame.toDF(*(f'c"\\{n}`' for n in range(len(frame.columns))))
    shaped = shape(TabularOptions(path="/out", format="json"), arrow_schema(frame))
    assert shaped is not None
    batches = arrow_table(frame.selectExpr(*shaped)).to_batches(max_chunksize=2)
    found = b"".join(bytes(json_lines(batch)) for batch in batches)
    lines = frame.selectExpr(f"to_json(struct(*), {text_map(EXACT_TIMES)})").collect()
    assert found.decode().split("\n") == [*(line for (line,) in lines), ""]


def test_a_variable_that_an_executor_lacks_stops_the_job_before_its_first_row(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXACTSINK_TEST_LATE", str(tmp_path))  # the workers were started before
    sinks = SINKS.replace("${executor:EXACTSINK_TEST_PLACE}", "${{executor:EXACTSINK_TEST_LATE}}")
    job = Job.from_toml(write_job(tmp_path, sinks))
    rows = spark.range(3).selectExpr("id", "'x' AS text", "current_timestamp() AS at")
    with pytest.raises(PreflightError, match="EXACTSINK_TEST_LATE"):
        job.write(rows, run="r")
    assert not (tmp_path / "table").exists()
