"""The job of `exactsink init`, and one that counts, each with its driver killed: on any version of Spark.

`tests/matrix` plays it on other versions than this environment's.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pyarrow.dataset as ds

from exactsink.starters.job import write_first_job
from exactsink.testing import Fault
from tests.e2e.drivers import Drivers
from tests.e2e.jobs import LINES, write_job, write_source
from tests.e2e.warm_jvm import WarmJvm


def rows_of(table: Path, select: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(table)) as connection:
        return sorted(connection.execute(select).fetchall())


def test_job_of_init_killed_between_its_sinks(tmp_path: Path, drivers: Drivers, jvm: WarmJvm) -> None:
    write_first_job(str(tmp_path), "orders")
    for number in (2, 3):
        rows = f"id,customer,amount\n{number}0,barbara,{number}.5\n"
        (tmp_path / "incoming" / f"orders-{number}.csv").write_text(rows)
    job = tmp_path / "job.toml"
    drivers.killed(job, Fault("commit:table", "before", "kill", 1), first="commit:lake", jvm=jvm)
    assert len(rows_of(tmp_path / "orders.db", "SELECT id FROM orders")) < len(in_lake(tmp_path))
    drivers.killed(job, Fault("decide", "before", "kill", 2), jvm=jvm)
    drivers.whole(job, jvm=jvm)
    wanted = [(1, "ada", 12.5), (2, "grace", 7.25), (20, "barbara", 2.5), (30, "barbara", 3.5)]
    assert in_lake(tmp_path) == wanted
    assert rows_of(tmp_path / "orders.db", "SELECT id, customer, amount FROM orders") == wanted


def in_lake(folder: Path) -> list[tuple[object, ...]]:
    found = ds.dataset(str(folder / "lake"), format="parquet").to_table(columns=["id", "customer", "amount"])
    return sorted(tuple(row.values()) for row in found.to_pylist())


def test_stateful_query_killed_when_it_had_committed(tmp_path: Path, drivers: Drivers, jvm: WarmJvm) -> None:
    write_source(tmp_path, 3)
    counted = "frame.groupBy('kind').count().selectExpr('*', 'map(kind, count) AS tags')"
    (tmp_path / "counting.py").write_text(f"def by_kind(frame):\n    return {counted}\n")
    sink = """
[sinks.counts]
backend = "idempotent_upsert"
url = "sqlite:///{folder}/counts.db"
table = "counts"
keys = ["kind"]
columns = ["kind", "count"]
create = true
"""
    job = write_job(tmp_path, sink + LINES, 'transform = "counting:by_kind"\noutput_mode = "update"\n')
    drivers.killed(job, Fault("return", "before", "kill", 1), jvm=jvm)
    assert not (tmp_path / "checkpoint" / "commits" / "1").exists()
    drivers.whole(job, jvm=jvm)
    counts = rows_of(tmp_path / "counts.db", "SELECT kind, count FROM counts")
    assert counts == [("k0", 3 * 167), ("k1", 3 * 167), ("k2", 3 * 166)]
    lines = [json.loads(line) for path in (tmp_path / "lines").glob("*.json") for line in path.read_text().splitlines()]
    assert Counter((line["kind"], line["count"]) for line in lines) == Counter(
        (f"k{kind}", batches * (167, 167, 166)[kind]) for kind in range(3) for batches in (1, 2, 3)
    )
    assert all(line["tags"] == {line["kind"]: line["count"]} for line in lines)
