"""One job with all sinks: its driver killed with SIGKILL where Spark has to go on, its tasks killed in their writes.

What a driver does by itself at each point is played in simulation, and in the kit.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from exactsink.testing import Fault
from tests.e2e import jobs, slow_tasks
from tests.e2e.drivers import KILLED, Drivers
from tests.e2e.jobs import PARTICIPANTS, ROWS_AN_EPOCH, SPARK, TABLES, TWO_FILES, in_lake, write_job, write_source
from tests.e2e.kafka_job import AS_THEY_COME, KafkaSink
from tests.e2e.postgres_job import SLOTS, Database, gate_of
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.mariadb import MariaDB
from tests.servers.pgbouncer import own_pgbouncer
from tests.servers.postgres import Postgres, PostgresServer
from tests.servers.waiting import wait_until


@pytest.fixture(params=["alone", pytest.param("PgBouncer", marks=pytest.mark.proof)])
def way(request: pytest.FixtureRequest, own_server: PostgresServer) -> Iterator[Postgres]:
    """How the job reaches the server."""
    pooler = own_pgbouncer(own_server, "transaction") if request.param == "PgBouncer" else nullcontext(own_server)
    with pooler as made:
        yield made


def test_killed_where_only_spark_goes_on_and_in_recovery_while_every_slot_is_taken(
    tmp_path: Path,
    drivers: Drivers,
    jvm: WarmJvm,
    own_server: PostgresServer,
    way: Postgres,
    own_database: Database,
    kafka_sink: KafkaSink,
) -> None:
    """Slots held by orphans, or by what is decided, don't keep the next driver from its start.

    No rule of the start looks at a clock: what has stood prepared for a second is treated as after a week.
    """
    write_source(tmp_path, 4 * PARTICIPANTS)
    job = write_job(tmp_path, kafka_sink.sink() + own_database.sinks(way), source=TWO_FILES)
    held: list[tuple[str, ...]] = []

    def killed(point: str, edge: str, epoch: int) -> tuple[float, float, int]:
        """Return what `db` and `lake` show then, in epochs, and how many of the job's transactions stand prepared."""
        drivers.killed(job, Fault(point, edge, "kill", epoch), jvm=jvm)  # type: ignore[arg-type]
        held.append(tuple(own_database.prepared))
        return own_database.epochs("db"), in_lake(tmp_path).total() / ROWS_AN_EPOCH, len(held[-1])

    def in_kafka() -> tuple[float, int, bool]:
        """Return what a reader sees, in epochs, how many transactions are open, and whether they hold readers."""
        return kafka_sink.epochs, len(kafka_sink.open), kafka_sink.held

    orphans = (PARTICIPANTS, True)
    with gate_of(own_database) as gate:
        gate.shut()
        driver = drivers.start(job, jvm=jvm)
        driver.until(lambda: gate.waiting == PARTICIPANTS, "tasks in their pre_commit, with Kafka's votes given")
        assert in_kafka() == (0, *orphans)
        driver.send(signal.SIGKILL)
        assert driver.exit_code() == KILLED
        gate.open()
        wait_until(lambda: len(own_database.prepared) == PARTICIPANTS, "the end of what the dead tasks had begun")
        driver.end()

    assert killed("decide", "before", 1) == (1, 1, PARTICIPANTS)
    assert in_kafka() == (1, *orphans)
    assert own_server.execute("SELECT count(*) FROM pg_prepared_xacts") == [(SLOTS,)], "orphans hold every slot"
    assert killed("decide", "after", 1) == (1, 1, PARTICIPANTS)
    assert own_server.execute("SELECT count(*) FROM pg_prepared_xacts") == [(SLOTS,)], "so does what is decided"
    assert held[0] != held[1], "the orphans were swept, and the batch was written again"
    assert killed("commit:db", "after", 1)[0] == 2, "committed by the recovery"
    assert killed("return", "before", 2) == (3, 3, 0)
    assert in_kafka() == (3, 0, False), "the sweep lets readers go"
    assert not (tmp_path / "checkpoint" / "commits" / "2").exists(), "Spark has the batch still to do"
    drivers.whole(job, jvm=jvm)
    assert own_database.amiss(tmp_path) == {}
    assert kafka_sink.amiss(tmp_path) == {}


def test_driver_killed_while_its_tasks_write_then_a_task_killed_in_the_middle_of_its_write(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, database: Database, kafka_sink: KafkaSink
) -> None:
    write_source(tmp_path, 3 * PARTICIPANTS)

    def job(act: str, partition: int) -> Path:
        spark = SPARK.replace("local[2]", "local[2,4]") + slow_tasks.CONF % (act, partition)
        return write_job(
            tmp_path, kafka_sink.sink(AS_THEY_COME) + TABLES + database.sinks(), slow_tasks.TRANSFORM, TWO_FILES, spark
        )

    driver = drivers.start(job("hold", 0), jvm=jvm)
    driver.until(slow_tasks.mark(tmp_path, 0).exists, "a task in the middle of its write")
    ends = f".e{slow_tasks.EPOCH}.p0.a{slow_tasks.acting(tmp_path, 0).attempt}"
    begun = {name.split(".g")[0] for name in database.writing if name.endswith(ends)}
    assert begun == {"e2e.db", "e2e.later"}, "its task holds both Postgres sinks' COPY open"
    assert kafka_sink.open
    driver.send(signal.SIGKILL)
    assert driver.exit_code() == KILLED
    driver.end()

    drivers.whole(job("die", 1), jvm=jvm)
    assert not slow_tasks.acting(tmp_path, 1).has_won(tmp_path)
    assert database.amiss(tmp_path) == {}
    assert kafka_sink.amiss(tmp_path) == {}


_STARTS = ("claim", "recommit", "sweep")
_POINTS = ("open_epoch", "vote", "decide", "complete", "return")
_COMMITS = [f"commit:{name}" for name in ("kafka", "iceberg", "delta", "db", "lake")]


@pytest.mark.proof
@pytest.mark.parametrize("point", [*_STARTS, *_POINTS, *_COMMITS])
def test_tables_beside_kafka_and_postgres_killed_before_and_after_each_point_of_the_driver(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, database: Database, kafka_sink: KafkaSink, point: str
) -> None:
    write_source(tmp_path, 3 * PARTICIPANTS)
    job = write_job(tmp_path, kafka_sink.sink() + TABLES + database.sinks(), source=TWO_FILES)
    if point in _STARTS:
        drivers.killed(job, Fault("decide", "after", "kill", 1), jvm=jvm)
    for epoch, edge in enumerate(("before", "after")):
        place = (point.replace("kafka", kafka_sink.name), edge, "kill", None if point in _STARTS else epoch)
        drivers.killed(job, Fault(*place), jvm=jvm)  # type: ignore[arg-type]
    drivers.whole(job, jvm=jvm)
    assert database.amiss(tmp_path) == {}
    assert kafka_sink.amiss(tmp_path) == {}


@pytest.mark.proof
@pytest.mark.parametrize("strategy", ["staged", "direct"])
def test_upserts_into_mariadb_killed_before_and_after_the_decision_and_the_commit(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, mariadb: MariaDB, strategy: str
) -> None:
    write_source(tmp_path, 4 * PARTICIPANTS)
    database = mariadb.new_database("e2e")
    sinks = jobs.SINKS.replace("sqlite:///{folder}/table.db", mariadb.url(database)) + f'strategy = "{strategy}"\n'
    job = write_job(tmp_path, sinks, "allow_early_rows = true\n", TWO_FILES)
    for epoch, (point, edge) in enumerate((p, e) for p in ("decide", "commit:table") for e in ("before", "after")):
        drivers.killed(job, Fault(point, edge, "kill", epoch), jvm=jvm)  # type: ignore[arg-type]
    drivers.whole(job, jvm=jvm)
    source = ds.dataset(str(tmp_path / "source"), format="json").to_table().to_pylist()
    found = mariadb.execute("SELECT id, kind, amount FROM `rows`", database=database)
    assert Counter(found) == Counter((row["id"], row["kind"], row["amount"]) for row in source)
    assert in_lake(tmp_path) == Counter(row["id"] for row in source)
