"""The job that `exactsink init` writes for each backend: run as it is, its rows counted by a client of the store."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import psycopg
import pyarrow.dataset as ds
import pytest
import s3fs
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from exactsink.cli.main import main
from exactsink.starters.job import TARGETS
from tests.e2e.drivers import Drivers
from tests.e2e.test_starter import in_lake, rows_of
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.kafka import Kafka
from tests.servers.postgres import Postgres
from tests.servers.s3 import S3

Rows = Callable[[], list[tuple[object, ...]]]
Place = tuple[Mapping[str, str], Rows]
WANTED = [(1, "ada", 12.5), (2, "grace", 7.25)]
SELECT = "SELECT id, customer, amount FROM orders"


@pytest.mark.parametrize("target", [pytest.param(name, marks=[pytest.mark.proof] * (name == "s3")) for name in TARGETS])
def test_each_target_beside_an_upsert_holds_the_rows_of_the_source(
    target: str, tmp_path: Path, drivers: Drivers, jvm: WarmJvm, request: pytest.FixtureRequest
) -> None:
    """A template without an entry in `PLACES` fails: each is run."""
    name = f"init-{uuid.uuid4().hex[:8]}"
    environment, rows = PLACES[target](tmp_path, name, request)
    assert main(["init", str(tmp_path), "--name", name, "--to", target, "--to", "upsert"]) == 0
    shared = {} if target == "s3" else {"jvm": jvm}  # tasks have their JVM's environment, and so its credentials
    code, said = drivers.run(tmp_path / "job.toml", environment=environment, **shared)
    assert code == 0, said
    assert sorted(rows()) == WANTED
    assert rows_of(tmp_path / f"{name}.db", SELECT) == WANTED


def _lake(folder: Path, name: str, request: pytest.FixtureRequest) -> Place:
    return {}, lambda: in_lake(folder)


def _delta(folder: Path, name: str, request: pytest.FixtureRequest) -> Place:
    return {}, lambda: [tuple(row.values()) for row in DeltaTable(folder / "delta").to_pyarrow_table().to_pylist()]


def _iceberg(folder: Path, name: str, request: pytest.FixtureRequest) -> Place:
    uri = f"sqlite:///{folder}/catalog.db"

    def rows() -> list[tuple[object, ...]]:
        table = SqlCatalog("default", uri=uri, warehouse=str(folder / "warehouse")).load_table("shop.orders")
        return [tuple(row.values()) for row in table.scan().to_arrow().to_pylist()]

    return {"ICEBERG_CATALOG": uri}, rows


def _table(folder: Path, name: str, request: pytest.FixtureRequest) -> Place:
    return {}, lambda: rows_of(folder / f"{name}.db", SELECT)


def _topic(folder: Path, name: str, request: pytest.FixtureRequest) -> Place:
    kafka: Kafka = request.getfixturevalue("kafka")
    kafka.make_topic(name)
    return {"KAFKA": kafka.bootstrap}, lambda: [
        tuple(json.loads(row.value or b"").values()) for row in kafka.rows(name)
    ]


def _postgres(folder: Path, name: str, request: pytest.FixtureRequest) -> Place:
    postgres: Postgres = request.getfixturevalue("postgres")
    conninfo = postgres.new_database("init")

    def rows() -> list[tuple[object, ...]]:
        with psycopg.connect(conninfo) as connection:
            return connection.execute(SELECT).fetchall()

    return {"POSTGRES": conninfo}, rows


def _bucket(folder: Path, name: str, request: pytest.FixtureRequest) -> Place:
    s3: S3 = request.getfixturevalue("s3")
    bucket, given = s3.new_bucket("init"), s3.environment

    def rows() -> list[tuple[object, ...]]:
        keys = {"key": given["AWS_ACCESS_KEY_ID"], "secret": given["AWS_SECRET_ACCESS_KEY"]}
        store = s3fs.S3FileSystem(**keys, endpoint_url=s3.endpoint)
        table = ds.dataset(f"{bucket}/{name}", filesystem=store, format="parquet").to_table()
        return [tuple(row.values()) for row in table.select(["id", "customer", "amount"]).to_pylist()]

    return {**given, "AWS_ENDPOINT_URL": s3.endpoint, "BUCKET": bucket}, rows


PLACES = {
    "delta": _delta,
    "files": _lake,
    "iceberg": _iceberg,
    "upsert": _table,
    "kafka": _topic,
    "postgres": _postgres,
    "s3": _bucket,
}
