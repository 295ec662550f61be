"""On real servers: a row is judged bad exactly where its writer refuses it, and the table takes all others."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from exactsink.contract import Committed, Fatal, JobContext
from exactsink.testing import Session
from exactsink_idempotent_upsert.backend import UpsertBackend, UpsertOptions
from exactsink_postgres.backend import PostgresBackend, PostgresOptions
from tests.servers.mariadb import MariaDB
from tests.servers.postgres import Postgres
from tests.unit.judged import judged

GOOD: Mapping[str, Any] = {
    "id": 0,
    "small": 7,
    "code": "üüü",
    "name": "n",
    "price": Decimal("999.990"),
    "at": dt.datetime(2026, 1, 2, 3, 4, 5, 678000),
}
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int64()),
        ("code", pa.string()),
        ("name", pa.string()),
        ("price", pa.decimal128(10, 3)),
        ("at", pa.timestamp("us")),
        ("uuid", pa.string()),
        ("tags", pa.list_(pa.string())),
    ]
)
BAD: tuple[Mapping[str, Any], ...] = (
    {"small": 40_000},
    {"code": "four"},
    {"name": None},
    {"price": Decimal("0.001")},
    {"price": Decimal("1000.000")},
    {"at": dt.datetime(2026, 1, 2, 3, 4, 5, 678001)},
    {"id": None},
)
ONLY_POSTGRES: tuple[Mapping[str, Any], ...] = ({"name": "a\0b"}, {"uuid": "no"}, {"tags": ["a", "b\0"]})
TABLE = "id bigint PRIMARY KEY, small smallint, code varchar(3), name {text} NOT NULL, price decimal(5, 2), at {time}"


def _rows(bad: tuple[Mapping[str, Any], ...], schema: pa.Schema) -> pa.Table:
    """Return good rows and bad ones in turns; every value is NULL once, where it may be."""
    nulls = [{name: None} for name in ("small", "code", "price", "at")]
    given = [{}, *(change for pair in zip(bad, [*nulls, {}, {}, {}, {}, {}, {}], strict=False) for change in pair)]
    return pa.Table.from_pylist([{**GOOD, "id": n, **change} for n, change in enumerate(given)], schema=schema)


def _check(sink: Session, rows: pa.Table, bad: int) -> Mapping[int, str]:
    sink.put_birth()
    found, vote = judged(sink, rows)
    assert len(found) == bad, found
    assert vote.rows == rows.num_rows - bad
    assert sink.commit_marked(1, [vote]) == [Committed()]
    return found


@pytest.fixture
def conninfo(postgres: Postgres) -> str:
    made = postgres.new_database("judged")
    with psycopg.connect(made, autocommit=True) as session:
        columns = TABLE.format(text="text", time="timestamp(3)")
        session.execute(f"CREATE TABLE t ({columns}, uuid uuid, tags text[])".encode())
        session.execute("CREATE TABLE c (id bigint UNIQUE CHECK (id > 0), doc jsonb)")
    return made


def _postgres(conninfo: str, table: str = "t", strategy: str = "staged") -> Session:
    options = {"conninfo": conninfo, "table": table, "strategy": strategy}
    return Session(PostgresBackend(PostgresOptions.model_validate(options)), JobContext("j", "s", "", 1, "l"), "ab")


def test_postgres(conninfo: str) -> None:
    found = _check(_postgres(conninfo), _rows(BAD + ONLY_POSTGRES, SCHEMA), len(BAD) + len(ONLY_POSTGRES))
    assert found[1] == "table public.t, column small: 40000 does not go in: smallint holds -32768 to 32767"
    assert found[5] == "table public.t, column name: it is NOT NULL, and the row has NULL"


def test_upserts_into_postgres(conninfo: str) -> None:
    url = conninfo_url(conninfo)
    options = UpsertOptions.model_validate({"url": url, "table": "t", "keys": ("id",), "delete_when": "false"})
    sink = Session(UpsertBackend(options), JobContext("j", "s", "", 1, "l"), "ab")
    rows = _rows(BAD + ONLY_POSTGRES, SCHEMA)
    with_flag = rows.append_column("exactsink_delete", pa.array([False] * rows.num_rows))
    _check(sink, with_flag, len(BAD) + len(ONLY_POSTGRES))


@pytest.mark.parametrize(("kind", "bad", "good"), [(pa.float64(), math.nan, 1.5), (pa.string(), "a\0b", "a")])
def test_what_rows_are_ordered_by_is_judged_where_the_table_lacks_it(
    conninfo: str, kind: pa.DataType, bad: object, good: object
) -> None:
    given = {"url": conninfo_url(conninfo), "table": "t", "keys": ("id",), "order_by": "o", "exclude": ("o",)}
    sink = Session(UpsertBackend(UpsertOptions.model_validate(given)), JobContext("j", "s", "", 1, "l"), "ab")
    _check(sink, pa.table({"id": [1, 1, 1], "name": ["a", "b", "c"], "o": pa.array([good, bad, None], kind)}), 1)


def conninfo_url(conninfo: str) -> str:
    given = psycopg.conninfo.conninfo_to_dict(conninfo)
    rest = "&".join(f"{name}={value}" for name, value in given.items() if name != "dbname")
    return f"postgresql+psycopg:///{given['dbname']}?{rest}"


def test_what_the_server_alone_knows_is_not_judged_and_stops_before_the_decision(conninfo: str) -> None:
    sink = _postgres(conninfo, "c")
    sink.put_birth()
    schema = pa.schema([("id", pa.int64()), ("doc", pa.string())])
    ticket = sink.open(1, schema)
    validator = sink.backend.validator(schema, sink.with_committer(lambda committer: committer.row_rules(schema)))
    for partition, row in enumerate([{"id": -1}, {"id": 1, "doc": "{"}]):
        table = pa.Table.from_pylist([row], schema=schema)
        assert list(validator.bad_rows(table.to_batches()[0])) == []
        with pytest.raises(Fatal):
            sink.write(1, partition, ticket, table)


def test_check_names_what_is_not_judged_where_there_is_a_quarantine(conninfo: str) -> None:
    sink = _postgres(conninfo, "c", "two_phase")
    schema = pa.schema([("id", pa.int64()), ("doc", pa.string())])
    for quarantine, said in ((None, []), ("bad", ["CHECK c_id_check, constraint c_id_key, column doc, jsonb"])):
        committer = sink.backend.committer(replace(sink.ctx, quarantine=quarantine))
        found = [finding.message for finding in committer.check(schema, 2) if "not quarantined" in finding.message]
        committer.close()
        assert found == [
            f"table public.c: only the server can check these: {names}: a row that they refuse stops the job, and is "
            "not quarantined"
            for names in said
        ]


def test_mariadb(mariadb: MariaDB, tmp_path: Path) -> None:
    name = mariadb.new_database("judged")
    columns = TABLE.format(text="text CHARACTER SET utf8mb3", time="datetime(3)")
    mariadb.execute(f"CREATE TABLE t ({columns})", database=name)
    options = UpsertOptions.model_validate({"url": mariadb.url(name), "table": "t", "keys": ("id",)})
    sink = Session(UpsertBackend(options), JobContext("j", "s", str(tmp_path), 1, "l"), "ab")
    schema = pa.schema([field for field in SCHEMA if field.name not in ("uuid", "tags")])
    found = _check(sink, _rows((*BAD, {"name": "\U0001f600"}), schema), len(BAD) + 1)
    assert "takes characters of three bytes at most" in found[15]
