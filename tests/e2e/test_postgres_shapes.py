"""Structs, maps and nested lists of Spark on their way into jsonb: every field and every digit arrives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pydantic import SecretStr
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from exactsink.contract import ConfigError
from exactsink.toolkit.sql import quoted
from exactsink_postgres.backend import PostgresBackend
from exactsink_postgres.encoder import RowEncoder
from exactsink_postgres.options import PostgresOptions, TableName
from exactsink_postgres.tables import chosen_columns, create_table, problems, read_table
from tests.servers.postgres import Postgres

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
BACKEND = PostgresBackend(PostgresOptions(conninfo=SecretStr("host=nowhere"), table="orders"))


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.sql(ROWS)


@pytest.fixture(autouse=True)
def _zone(spark: SparkSession) -> Iterator[None]:
    """Where clocks once differed from UTC by seconds."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    yield
    spark.conf.set("spark.sql.session.timeZone", str(zone))


def schema_of(frame: DataFrame) -> pa.Schema:
    return to_arrow_schema(frame.schema, timezone="Europe/Berlin")


def shaped(frame: DataFrame) -> DataFrame:
    expressions = BACKEND.shape(schema_of(frame))
    assert expressions is not None
    return frame.select(*map(F.expr, expressions))


def test_nested_columns_come_into_jsonb_of_a_new_table_whole(rows: DataFrame, postgres: Postgres) -> None:
    frame = shaped(rows)
    assert frame.columns == rows.columns
    assert frame.select(F.xxhash64(*map(F.expr, map(_name, frame.columns)))).count() == 2
    schema, sent = schema_of(frame), frame.toArrow()
    postgres.create_database("shapes")
    with psycopg.connect(postgres.conninfo("shapes"), autocommit=True) as session:
        session.execute(create_table(TableName.parse("orders"), schema).encode())
        table = read_table(session, TableName.parse("orders"))
        assert table is not None
        assert problems(table, schema) == []
        kinds = {column.name: column.type for column in table.columns}
        assert kinds == {"id": "bigint", "word": "text", "plain": "integer[]", **dict.fromkeys(WANTED, "jsonb")}
        encoder = RowEncoder(str(table), schema, chosen_columns(table, schema))
        with session.cursor().copy(f"COPY {table.sql} FROM STDIN WITH (FORMAT binary)".encode()) as copy:
            copy.write(encoder.header())
            for batch in sent.to_batches():
                copy.write(encoder.encode(batch))
            copy.write(encoder.finish())
        first, second = _stored(session, table.sql, frame.columns)
    assert first == {"id": 1, "word": "it's", "plain": [1, None], **WANTED}
    assert second == {**dict.fromkeys(frame.columns), "id": 2}


def test_a_frame_of_plain_columns_is_left_as_it_is(rows: DataFrame) -> None:
    assert BACKEND.shape(schema_of(rows.select("id", "word", "plain"))) is None


def test_keys_that_json_can_not_have_are_refused(spark: SparkSession) -> None:
    for key in ("X'00'", "date'2020-01-01'", "timestamp'2020-01-01 00:00:00'", "struct(1 AS a)", "array(1)"):
        frame = spark.sql(f"SELECT array(struct(map({key}, 1) AS m)) AS `odd``s`")
        with pytest.raises(ConfigError, match="column odd`s holds a map with keys of type"):
            BACKEND.shape(schema_of(frame))


def _name(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"


def _stored(session: psycopg.Connection, table: str, columns: list[str]) -> list[dict[str, Any]]:
    listed = ", ".join(f"to_jsonb({quoted(name)})::text" for name in columns)
    found = session.execute(f"SELECT {listed} FROM {table} ORDER BY id".encode()).fetchall()
    texts = [dict(zip(columns, row, strict=True)) for row in found]
    return [{name: text and json.loads(text, parse_float=Decimal) for name, text in row.items()} for row in texts]
