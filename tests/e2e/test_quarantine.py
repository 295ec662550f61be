"""Rows that a sink can't hold go to its quarantine in the same epoch, whenever the driver is killed."""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from exactsink.contract import ConfigError
from exactsink.spark import Job
from exactsink.spark.routes import Passes
from exactsink.spark.session import read_source
from exactsink.testing import Fault
from tests.e2e.drivers import Drivers
from tests.e2e.jobs import PARTICIPANTS, TABLE, TWO_FILES, write_job
from tests.e2e.kafka_job import KafkaSink
from tests.e2e.postgres_job import Database
from tests.e2e.warm_jvm import WarmJvm

ROWS_A_FILE = 200
_QUARANTINED = 'on_bad_row = "quarantine"\nquarantine = "{to}"'
_SINKS = """
[sinks.db]
backend = "postgres"
conninfo = "{conninfo}"
table = "db"
columns = ["id", "kind", "amount"]
on_bad_row = "quarantine"
quarantine = "bad"

[sinks.table]
backend = "idempotent_upsert"
url = "sqlite:///{{folder}}/table.db"
table = "rows"
keys = ["id"]
columns = ["id", "kind", "amount"]
where = "id % 3 > 0"
on_bad_row = "quarantine"
quarantine = "bad"

[sinks.bad]
backend = "files"
path = "{{folder}}/bad"
format = "json"
partition_by = ["sink"]

[sinks.bad-records]
backend = "postgres"
conninfo = "{conninfo}"
table = "bad_records"
create = true
strategy = "staged"
after = "db"
"""
_KINDS = {0: "k" * 5000, 1: "long", 2: "nul\0"}


def _row(number: int) -> Mapping[str, Any]:
    """Every tenth row is bad in some sink, and every sixtieth in two of them or three."""
    kind = _KINDS.get(number // 10 % 6, "ok") if number % 10 == 0 else "ok"
    amount = None if number % 10 == 0 and number // 10 % 6 in (2, 3) else number / 4
    return {"id": number, "kind": kind, "amount": amount, "tags": {"n": number}}


def _bad_in(row: Mapping[str, Any]) -> set[str]:
    found = {"db"} if len(row["kind"]) > 3 or "\0" in row["kind"] else set()
    found |= {"table"} if row["id"] % 3 and row["amount"] is None else set()
    return found | ({"out"} if len(row["kind"]) > 4000 else set())


def _write_source(folder: Path, files: int) -> list[Mapping[str, Any]]:
    (folder / "source").mkdir()
    rows = [_row(number) for number in range(files * ROWS_A_FILE)]
    for file in range(files):
        path = folder / "source" / f"{file}.json"
        some = rows[file * ROWS_A_FILE : (file + 1) * ROWS_A_FILE]
        path.write_text("".join(json.dumps(row) + "\n" for row in some))
        os.utime(path, (1_700_000_000 + file, 1_700_000_000 + file))
    return rows


def _job(folder: Path, database: Database, kafka_sink: KafkaSink) -> Path:
    database.execute("CREATE TABLE db (id bigint, kind varchar(3), amount float8)")
    with closing(sqlite3.connect(folder / "table.db")) as connection:
        connection.execute("CREATE TABLE rows (id BIGINT PRIMARY KEY, kind TEXT, amount DOUBLE NOT NULL)")
    limit = 'producer = {{ "message.max.bytes" = 4000 }}\n' + _QUARANTINED.format(to="bad-records")
    sinks = _SINKS.format(conninfo=database.server.conninfo(database.name))
    return write_job(folder, sinks + kafka_sink.sink(more=limit), source=TWO_FILES)


def _held(folder: Path, database: Database, kafka_sink: KafkaSink) -> Mapping[str, Counter[int]]:
    """Return which rows each sink's readers see, by id."""
    with closing(sqlite3.connect(folder / "table.db")) as connection:
        table = Counter(row for (row,) in connection.execute("SELECT id FROM rows"))
    records = Counter(json.loads(record.value or b"")["id"] for record in kafka_sink.broker.rows(kafka_sink.topic))
    return {"db": Counter(row for (row,) in database.execute("SELECT id FROM db")), "table": table, "out": records}


def _quarantined(folder: Path, database: Database) -> list[Mapping[str, Any]]:
    lines = [
        {**json.loads(line), "sink": path.parent.name.removeprefix("sink=")}
        for path in (folder / "bad").glob("sink=*/*.json")
        for line in path.read_text().splitlines()
    ]
    names = ("id", "sink", "epoch", "reason", "row")
    return lines + [
        dict(zip(names, row, strict=True)) for row in database.execute(f"SELECT {', '.join(names)} FROM bad_records")
    ]


def _check(folder: Path, source: list[Mapping[str, Any]], database: Database, kafka_sink: KafkaSink) -> None:
    """Hold each sink's rows and its quarantined ones against the source's, one by one."""
    held, bad = _held(folder, database, kafka_sink), _quarantined(folder, database)
    names = {"db": "db", "table": "table", "out": kafka_sink.name}
    for short, name in names.items():
        for_sink = [row for row in source if short != "table" or row["id"] % 3]
        apart = {row["id"]: row for row in for_sink if short in _bad_in(row)}
        mine = [row for row in bad if row["sink"] == name]
        assert apart, f"the source has rows that are bad in {name}"
        assert held[short] == Counter(row["id"] for row in for_sink if row["id"] not in apart)
        shown = [json.loads(row["row"]) for row in mine]
        if short == "out":  # as its writer would have got it: the record
            shown = [json.loads(row["value"]) for row in shown]
        assert sorted(row["id"] for row in shown) == sorted(apart)
        assert all(row["kind"] == apart[row["id"]]["kind"] for row in shown)
        assert all(row["reason"] and row["epoch"] >= 0 for row in mine)
    assert len({row["id"] for row in bad}) == len(bad) == sum(len(_bad_in(row)) for row in source)


_FEW = [("decide", "after"), ("commit:bad-records", "before")]


def _play(
    folder: Path,
    drivers: Drivers,
    jvm: WarmJvm,
    database: Database,
    kafka_sink: KafkaSink,
    points: list[tuple[str, str]],
) -> None:
    source = _write_source(folder, (len(points) + 1) * PARTICIPANTS)
    job = _job(folder, database, kafka_sink)
    for epoch, (point, edge) in enumerate(points):
        drivers.killed(job, Fault(point, edge, "kill", epoch), jvm=jvm)  # type: ignore[arg-type]
    drivers.whole(job, jvm=jvm)
    _check(folder, source, database, kafka_sink)
    assert database.prepared == database.staged == kafka_sink.open == []


def test_every_row_is_in_its_sink_or_in_its_quarantine_exactly_once(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, database: Database, kafka_sink: KafkaSink
) -> None:
    _play(tmp_path, drivers, jvm, database, kafka_sink, _FEW)


_TWO_TABLES = TABLE + _QUARANTINED.format(to="bad")
_TWO_TABLES += """
[sinks.bad]
backend = "idempotent_upsert"
url = "sqlite:///{folder}/bad.db"
table = "bad"
keys = ["id"]
create = true
"""
_LAKE = """
[sinks.lake]
backend = "files"
path = "{folder}/lake"
"""


def _tables(folder: Path) -> tuple[Counter[int], Counter[int]]:
    """Return the ids in the table and in its quarantine."""
    with closing(sqlite3.connect(folder / "table.db")) as connection:
        table = Counter(row for (row,) in connection.execute("SELECT id FROM rows"))
    with closing(sqlite3.connect(folder / "bad.db")) as connection:
        return table, Counter(json.loads(row)["id"] for (row,) in connection.execute("SELECT row FROM bad"))


def _make_table(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "table.db")) as connection:
        connection.execute("CREATE TABLE rows (id BIGINT PRIMARY KEY, kind TEXT, amount DOUBLE NOT NULL)")


def _wanted(source: list[Mapping[str, Any]]) -> tuple[Counter[int], Counter[int]]:
    bad = Counter(row["id"] for row in source if row["amount"] is None)
    return Counter(row["id"] for row in source) - bad, bad


def _by_parity(frame: DataFrame) -> Mapping[str, DataFrame]:
    return {"table": frame.where("id % 20 = 0").repartition(3), "lake": frame.where("id % 20 > 0")}


def test_a_route_gives_no_frame_to_a_quarantine(tmp_path: Path, spark: SparkSession) -> None:
    source = [row for row in _write_source(tmp_path, 2) if row["id"] % 20 == 0]
    _make_table(tmp_path)
    job = Job.from_toml(write_job(tmp_path, _TWO_TABLES + _LAKE))
    job.start(read_source(job.config, spark), route=_by_parity).awaitTermination()
    job.close()
    assert _tables(tmp_path) == _wanted(source)
    sinks = {**job.sinks, "lake": replace(job.sinks["lake"], quarantine="bad")}
    with pytest.raises(ConfigError, match="table, lake share quarantine bad"):
        Passes(read_source(job.config, spark), sinks, _by_parity)


_POINTS = ("open_epoch", "vote", "decide", "commit:db", "commit:table", "commit:bad", "commit:bad-records", "complete")


@pytest.mark.proof
@pytest.mark.parametrize("point", [*_POINTS, "commit:{name}"])
def test_the_same_when_the_driver_is_killed_at_each_point(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, database: Database, kafka_sink: KafkaSink, point: str
) -> None:
    name = point.format(name=kafka_sink.name)
    _play(tmp_path, drivers, jvm, database, kafka_sink, [(name, "before"), (name, "after")])
