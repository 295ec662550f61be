"""Types of rows that a column would not keep whole: each reported with the cast and the statement that fix it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pyarrow as pa
import pytest

from exactsink.contract import Finding
from exactsink_postgres.commands import TableName
from exactsink_postgres.tables import Table, problems, read_table
from tests.servers.postgres import Postgres

pytest_plugins = ["tests.servers.fixtures"]


@pytest.fixture(scope="module")
def session(postgres: Postgres) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres.new_database("misfits"), autocommit=True, prepare_threshold=None) as connection:
        yield connection


def table_of(session: psycopg.Connection, columns: str) -> Table:
    session.execute(f"DROP TABLE IF EXISTS t; CREATE TABLE t ({columns})".encode())
    table = read_table(session, TableName.parse("t"))
    assert table is not None
    return table


def errors(table: Table, **fields: pa.DataType) -> list[Finding]:
    return [finding for finding in problems(table, pa.schema(fields)) if finding.severity == "error"]


MISFITS = [
    ("timestamptz", pa.timestamp("us"), "no time zone", "CAST(`c` AS TIMESTAMP)", "timestamp"),
    (
        "timestamp",
        pa.timestamp("us", "UTC"),
        "forget the time zone",
        "CAST(`c` AS TIMESTAMP_NTZ)",
        "timestamp with time zone",
    ),
    ("real", pa.float64(), "digits would be lost", "CAST(`c` AS FLOAT)", "double precision"),
    ("integer", pa.string(), "string does not go into integer", "CAST(`c` AS INT)", "text"),
    ("integer", pa.float32(), "float does not go into integer", "CAST(`c` AS INT)", "real"),
    ("integer", pa.decimal128(9, 2), "does not go into integer", "CAST(`c` AS INT)", "numeric(9,2)"),
    ("text", pa.int64(), "int64 does not go into text", "CAST(`c` AS STRING)", "bigint"),
    ("text", pa.binary(), "binary does not go into text", "CAST(`c` AS STRING)", "bytea"),
    ("bytea", pa.string(), "string does not go into bytea", "CAST(`c` AS BINARY)", "text"),
    ("date", pa.timestamp("us"), "does not go into date", "CAST(`c` AS DATE)", "timestamp"),
    ("timestamp", pa.date32(), "does not go into timestamp", "CAST(`c` AS TIMESTAMP_NTZ)", "date"),
    ("boolean", pa.int32(), "int32 does not go into boolean", "CAST(`c` AS BOOLEAN)", "integer"),
    ("numeric(9,2)", pa.float64(), "double does not go into", "CAST(`c` AS DECIMAL(9,2))", "double precision"),
    ("uuid", pa.binary(15), "does not go into uuid", None, "bytea"),
    ("jsonb", pa.int64(), "int64 does not go into jsonb", None, "bigint"),
    ("timestamptz", pa.bool_(), "bool does not go into timestamp", None, "boolean"),
    ("integer", pa.date32(), "does not go into integer", None, "date"),
    ("integer[]", pa.int32(), "an array takes lists", "array(`c`)", "integer"),
    ("jsonb", pa.list_(pa.int32()), "only an array takes lists", "to_json(`c`)", "integer[]"),
    ("integer[]", pa.list_(pa.string()), "does not go into integer[]", "CAST(`c` AS ARRAY<INT>)", "text[]"),
    ("text[]", pa.list_(pa.list_(pa.string())), "does not go into text[]", "CAST(`c` AS ARRAY<STRING>)", None),
    ("integer", pa.struct([("json", pa.string())]), "only text, json and jsonb take JSON", None, "jsonb"),
    (
        "interval year to month",
        pa.duration("us"),
        "drops some fields",
        "CAST(`c` AS INTERVAL DAY TO SECOND)",
        "interval",
    ),
    ("point", pa.string(), "no type of the rows goes into such a column", None, "text"),
    ("timetz", pa.time64("us"), "no type of the rows goes into such a column", None, "time"),
]


@pytest.mark.parametrize(("kind", "type", "why", "cast", "altered"), MISFITS)
def test_what_would_lose_something_is_reported_with_the_cast_and_the_statement(
    session: psycopg.Connection, kind: str, type: pa.DataType, why: str, cast: str | None, altered: str | None
) -> None:
    table = table_of(session, f"c {kind}")
    (finding,) = errors(table, c=type)
    assert finding.message.startswith("table public.t, column c: the rows' ")
    assert why in finding.message
    fixes = [f"write {cast} in the frame"] if cast else []
    fixes += [f'ALTER TABLE "public"."t" ALTER COLUMN "c" TYPE {altered}'] if altered else []
    assert finding.fix == ", or ".join(fixes)


def test_nothing_but_null_is_refused_where_null_may_not_be(session: psycopg.Connection) -> None:
    table = table_of(session, "c int NOT NULL")
    (finding,) = errors(table, c=pa.null())
    assert "nothing but NULL" in finding.message
    assert errors(replace(table, columns=(replace(table.columns[0], not_null=False),)), c=pa.null()) == []
