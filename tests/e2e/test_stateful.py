"""Dedup, a windowed count and a stream-stream join in one query give, with kills at named points, the same rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import pyspark
import pytest

from exactsink.testing import Fault
from tests.e2e.drivers import Drivers, ForkServer
from tests.e2e.jobs import LINES, SPARK, write_job, write_source
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.spark_versions import oldest_spark, python_with_spark

pytestmark = [pytest.mark.proof, pytest.mark.timeout(3600)]

_BATCHES = 9
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
_STORES: Mapping[str, Mapping[str, object]] = {"files": {}, "rocksdb": _ROCKS, "changes": {**_ROCKS, **_CHANGES}}
_FROM_3_5 = {f"{_STATE}.stateSchemaCheck": False}
"""Spark 4.0 takes a join's column for one that may be NULL, 3.5 did not, and the check compares that, too."""
_MOVED = {f"{store} from 3.5": {**_STORES[store], **_FROM_3_5} for store in ("files", "rocksdb")}
_EPOCHS = [
    ("open_epoch after", "vote after"),
    ("decide before",),
    ("decide after", "claim after", "recommit after", "sweep after"),
    ("commit:lines after",),
    ("complete after",),
    ("return before",),
]
"""The driver's points at which an epoch is killed, from epoch 3 on."""


@pytest.mark.parametrize("store", _STORES)
def test_stateful_query_gives_the_rows_of_a_run_without_kills(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, store: str
) -> None:
    """Every second driver has a JVM of its own, which dies with it."""
    job = _job(tmp_path / "killed", store)
    kills = [(epoch, *kill.split()) for epoch, kills in enumerate(_EPOCHS, start=3) for kill in kills]
    for number, (epoch, point, edge) in enumerate(kills):
        at_start = point in ("claim", "recommit", "sweep")
        fault = Fault(point, edge, "kill", None if at_start else epoch)  # type: ignore[arg-type]
        drivers.killed(job, fault, **({"jvm": jvm} if number % 2 else {}))
    drivers.whole(job, jvm=jvm)
    _compare(tmp_path, job, drivers, jvm, store)


@pytest.mark.skipif(pyspark.__version__ <= "4.0.0", reason="no Spark reads a newer one's checkpoint")
@pytest.mark.parametrize("store", _MOVED)
def test_a_checkpoint_goes_from_the_oldest_spark_to_this_one(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, store: str
) -> None:
    """Each Spark is killed in an epoch that is decided, and the next one commits that epoch."""
    job = _job(tmp_path / "killed", store)
    for epoch, spark in ((3, oldest_spark()), (5, "4.0.0")):
        python = python_with_spark(spark)
        with ExitStack() as stack:
            forks = stack.enter_context(closing(ForkServer(str(python))))
            old = stack.enter_context(closing(WarmJvm(tmp_path / spark, python=python)))
            Drivers(tmp_path / spark, stack, forks, old).killed(job, Fault("decide", "after", "kill", epoch))
    drivers.whole(job, jvm=jvm)
    _compare(tmp_path, job, drivers, jvm, store)


def _job(folder: Path, store: str) -> Path:
    write_source(folder, _BATCHES)
    (folder / "stateful.py").write_text(_QUERY)
    conf = "".join(f'"{name}" = {json.dumps(value)}\n' for name, value in {**_STORES, **_MOVED}[store].items())
    return write_job(folder, LINES, 'transform = "stateful:all_three"\n', spark=SPARK + conf)


def _compare(folder: Path, job: Path, drivers: Drivers, jvm: WarmJvm, store: str) -> None:
    """Compare a job's rows to those of a run without kills."""
    unharmed = _job(folder / "unharmed", store)
    drivers.whole(unharmed, jvm=jvm)
    wanted = _lines(unharmed.parent)
    assert _lines(job.parent) == wanted
    kinds = Counter(kind for _, kind in wanted.elements())
    assert (kinds["once"], kinds["joined"]) == (1300, _BATCHES * 500 - 700)
    assert kinds["k0"] == kinds["k1"] > 0


def _lines(folder: Path) -> Counter[tuple[int, str]]:
    found = [json.loads(line) for path in (folder / "lines").glob("*.json") for line in path.read_text().splitlines()]
    return Counter((row["id"], row["kind"]) for row in found)
