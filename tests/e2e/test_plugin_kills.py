"""One job commits Kafka, Postgres, files, SQLite and a third party's backend together, killed at every point."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

import pytest

from exactsink.testing import Fault
from tests.docs.installed import main as install
from tests.e2e import slow_tasks
from tests.e2e.drivers import KILLED, Driver, Drivers
from tests.e2e.jobs import PARTICIPANTS, SPARK, TWO_FILES, Row, write_job, write_source
from tests.e2e.kafka_job import KafkaSink
from tests.e2e.postgres_job import Database, gate_of
from tests.e2e.processes import ROOT
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.redis import RedisServer, own_redis
from tests.servers.waiting import wait_until

_CACHE = """
[sinks.cache]
backend = "redis"
url = "%s"
prefix = "e2e"
keys = ["id"]
columns = ["id", "kind", "amount"]
count_by = ["id"]
"""
_LEFT_FOR = {"claim": "after", "recommit": "after", "sweep": "before"}
"""A start has work at these points when the driver before it was killed at this edge of its decision."""
_IN_EPOCH = ("open_epoch", "vote", "decide", "commit:db", "commit:lake", "commit:table", "commit:cache")
_AT_END = ("complete", "return")


def _kills(kafka: str) -> Iterator[Fault]:
    """Yield every point that a driver comes to, before and after, in an epoch of its own where it is in one."""
    epoch = slow_tasks.EPOCH
    for point, edge in product((*_LEFT_FOR, *_IN_EPOCH, f"commit:{kafka}", *_AT_END), ("before", "after")):
        epoch += 1
        if point in _LEFT_FOR:
            yield Fault("decide", _LEFT_FOR[point], "kill", epoch)  # type: ignore[arg-type]
        yield Fault(point, edge, "kill", None if point in _LEFT_FOR else epoch)  # type: ignore[arg-type]


def _amiss(cache: RedisServer, folder: Path) -> Mapping[str, object]:
    """Return what the plugin's sink holds otherwise than the source gave it: each row once, each put once."""
    lines = [line for path in (folder / "source").glob("*.json") for line in path.read_text().splitlines()]
    wanted = Counter[Row]((row["id"], row["kind"], row["amount"]) for row in map(json.loads, lines))
    names = cache.execute("KEYS", "{e2e}:row:*")
    rows = [json.loads(text) for text in cache.execute("MGET", *names)]
    puts = Counter({int(key): int(count) for key, count in cache.execute("HGETALL", "{e2e}:count:id").items()})
    held = Counter[Row]({(row["id"], row["kind"], row["amount"]): puts.pop(row["id"], 0) for row in rows})
    found = {
        "missing": sorted((wanted - held).elements())[:5],
        "too often": sorted((held - wanted).elements())[:5],
        "counted, and not there": puts,
        "other keys": sorted({*cache.execute("KEYS", "*")} - {*names, "{e2e}:count:id", "{e2e}:marker:e2e.cache"}),
    }
    return {what: found for what, found in found.items() if found}


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_each_row_is_in_each_sink_once_whichever_point_the_driver_is_killed_at(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, database: Database, kafka_sink: KafkaSink
) -> None:
    """`make test` has the same with four of the backends (test_kills.py), and the plugin's kit (tests/plugins)."""
    site = tmp_path / "site"
    install(ROOT / "examples/plugins/exactsink-redis", site)
    faults = list(_kills(kafka_sink.name))
    write_source(tmp_path, PARTICIPANTS * (slow_tasks.EPOCH + 2 + sum(fault.epoch is not None for fault in faults)))
    spark = f'{SPARK}"spark.executorEnv.PYTHONPATH" = "{site}"\n{slow_tasks.CONF % ("hold", 0)}'
    how = {"jvm": jvm, "environment": {"PYTHONPATH": str(site)}}

    def killed(driver: Driver) -> None:
        driver.send(signal.SIGKILL)
        assert driver.exit_code() == KILLED
        driver.end()

    with own_redis() as cache:
        sinks = kafka_sink.sink() + database.sinks() + (_CACHE % cache.url)
        job = write_job(tmp_path, sinks, slow_tasks.TRANSFORM, TWO_FILES, spark)
        with gate_of(database) as gate:
            gate.shut()
            driver = drivers.start(job, **how)
            driver.until(lambda: gate.waiting == PARTICIPANTS, "tasks in their pre_commit")
            killed(driver)
            gate.open()
            wait_until(lambda: len(database.prepared) == PARTICIPANTS, "the end of what the dead tasks had begun")
        driver = drivers.start(job, **how)
        driver.until(slow_tasks.mark(tmp_path, 0).exists, "a task in the middle of its write")
        killed(driver)
        for fault in faults:
            drivers.killed(job, fault, **how)
        drivers.whole(job, **how)
        assert _amiss(cache, tmp_path) == {}
    assert database.amiss(tmp_path) == {}
    assert kafka_sink.amiss(tmp_path) == {}
