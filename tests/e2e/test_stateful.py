"""Dedup, a windowed count and a stream-stream join in one query give, with kills at named points, the same rows."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from exactsink.testing import Fault
from tests.e2e.drivers import Drivers
from tests.e2e.jobs import LINES, SPARK, write_job, write_source
from tests.e2e.warm_jvm import WarmJvm

pytestmark = [pytest.mark.proof, pytest.mark.timeout(3600)]

_BATCHES = 8
_QUERY = """
from pyspark.sql.functions import expr


def all_three(frame):
    timed = frame.selectExpr("id", "kind", "timestamp_seconds(id) AS at").withWatermark("at", "100 seconds")
    once = timed.selectExpr("id % 1300 AS id", "'once' AS kind").dropDuplicates(["id"])
    counted = timed.groupBy(expr("window(at, '50 seconds')"), "kind").count().selectExpr("count AS id", "kind")
    later = frame.selectExpr("id AS there")
    joined = frame.join(later, expr("there = id + 700")).selectExpr("id", "'joined' AS kind")
    return once.union(counted).union(joined).selectExpr("id", "kind", "map('n', 1) AS tags")
"""
_STATE = "spark.sql.streaming.stateStore"
_ROCKS = {f"{_STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"}
_CHANGES = {f"{_STATE}.rocksdb.changelogCheckpointing.enabled": True, f"{_STATE}.checkpointFormatVersion": 2}
_STORES = {"files": {}, "rocksdb": _ROCKS, "changes": {**_ROCKS, **_CHANGES}}
_KILLS = [("vote", "after"), ("decide", "before"), ("decide", "after"), ("commit:lines", "after"), ("return", "before")]


@pytest.mark.parametrize("store", _STORES)
def test_stateful_query_gives_the_rows_of_a_run_without_kills(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, store: str
) -> None:
    """Every second driver has a JVM of its own, which dies with it."""
    conf = "".join(f'"{name}" = {json.dumps(value)}\n' for name, value in _STORES[store].items())
    for folder in (tmp_path / "whole", tmp_path / "killed"):
        write_source(folder, _BATCHES)
        (folder / "stateful.py").write_text(_QUERY)
        job = write_job(folder, LINES, 'transform = "stateful:all_three"\n', spark=SPARK + conf)
        for epoch, (point, edge) in enumerate(_KILLS if folder.name == "killed" else [], start=3):
            own = {} if epoch % 2 else {"jvm": jvm}
            drivers.killed(job, Fault(point, edge, "kill", epoch), **own)  # type: ignore[arg-type]
        drivers.whole(job, jvm=jvm)
    whole, killed = (_lines(tmp_path / name) for name in ("whole", "killed"))
    assert killed == whole
    kinds = Counter(kind for _, kind in whole.elements())
    assert (kinds["once"], kinds["joined"]) == (1300, _BATCHES * 500 - 700)
    assert kinds["k0"] == kinds["k1"] > 0


def _lines(folder: Path) -> Counter[tuple[int, str]]:
    found = [json.loads(line) for path in (folder / "lines").glob("*.json") for line in path.read_text().splitlines()]
    return Counter((row["id"], row["kind"]) for row in found)
