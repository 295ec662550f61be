"""Structs, maps and nested lists of Spark on their way into jsonb: every field and every digit arrives."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from pydantic import SecretStr
from pyspark.sql import SparkSession

from exactsink.contract import ConfigError
from exactsink.spark import Job
from exactsink_postgres.backend import PostgresBackend
from exactsink_postgres.options import PostgresOptions
from tests.e2e.jobs import write_job
from tests.servers.postgres import Postgres

SINK = """
[sinks.orders]
backend = "postgres"
conninfo = "CONNINFO"
table = "orders"
create = true
"""
ROWS = """
    SELECT 1L AS id, 'it''s' AS word, array(1, NULL) AS plain,
        struct(CAST(NULL AS INT) AS none, CAST('12345678901234567890.0123456789' AS DECIMAL(38,10)) AS d,
            9007199254740993L AS l, timestamp'1800-01-01 00:00:00.000001' AS t, X'00ff' AS b,
            timestamp_ntz'2020-01-02 03:04:05.123456' AS n, date'2020-01-02' AS `da y`) AS `s ``'\u2603`,
        map('a', 1.5BD, 'b', NULL) AS m, array(array(1, NULL), NULL) AS aa, array(struct(1 AS x), NULL) AS a,
        array(map(1, struct(NULL AS y))) AS am, parse_json('{"v": [1.50]}') AS v
    UNION ALL SELECT 2L, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
"""
WANTED = {
    "s `'\u2603": {
        "none": None,
        "d": Decimal("12345678901234567890.0123456789"),
        "l": 9007199254740993,
        "t": "1800-01-01T00:00:00.000001+00:53:28",
        "b": "AP8=",
        "n": "2020-01-02T03:04:05.123456",
        "da y": "2020-01-02",
    },
    "m": {"a": Decimal("1.5"), "b": None},
    "aa": [[1, None], None],
    "a": [{"x": 1}, None],
    "am": [{"1": {"y": None}}],
    "v": {"v": [Decimal("1.5")]},
}
_COLUMNS = "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
_OF_TABLE = "attrelid = 'orders'::regclass AND attnum > 0"


def test_nested_columns_come_into_jsonb_of_a_new_table_whole(
    spark: SparkSession, tmp_path: Path, postgres: Postgres
) -> None:
    conninfo = postgres.new_database("shapes")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")  # whose clocks once differed from UTC by seconds
    try:
        rows = spark.sql(ROWS)
        Job.from_toml(write_job(tmp_path, SINK.replace("CONNINFO", conninfo))).write(rows, run="r")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    with psycopg.connect(conninfo) as session:
        kinds = dict(session.execute(f"{_COLUMNS} WHERE {_OF_TABLE}".encode()).fetchall())
        assert kinds == {"id": "bigint", "word": "text", "plain": "integer[]", **dict.fromkeys(WANTED, "jsonb")}
        listed = sql.SQL(", ").join(sql.SQL("to_jsonb({})::text").format(sql.Identifier(name)) for name in rows.columns)
        found = session.execute(sql.SQL("SELECT {} FROM orders ORDER BY id").format(listed)).fetchall()
    first, second = [[text and json.loads(text, parse_float=Decimal) for text in row] for row in found]
    assert dict(zip(rows.columns, first, strict=True)) == {"id": 1, "word": "it's", "plain": [1, None], **WANTED}
    assert dict(zip(rows.columns, second, strict=True)) == {**dict.fromkeys(rows.columns), "id": 2}


def test_plain_columns_stay_as_they_are_and_keys_that_json_can_not_have_are_refused() -> None:
    shape = PostgresBackend(PostgresOptions(conninfo=SecretStr("host=nowhere"), table="orders")).shape
    assert shape(pa.schema([("id", pa.int64()), ("plain", pa.list_(pa.int32()))])) is None
    with pytest.raises(ConfigError, match="column odd`s holds a map with keys of type"):
        shape(pa.schema([("odd`s", pa.list_(pa.struct([("m", pa.map_(pa.binary(), pa.int32()))])))]))
