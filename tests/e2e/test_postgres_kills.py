"""Postgres and Kafka beside files and SQLite: the driver is killed step after step, its tasks in their writes."""

from __future__ import annotations

import signal
from pathlib import Path

from exactsink.testing import Fault
from tests.e2e import slow_tasks
from tests.e2e.jobs import SPARK, in_lake, in_table, write_job, write_source
from tests.e2e.kafka_flow import Flow
from tests.e2e.lives import KILLED, Lives
from tests.e2e.postgres_job import PARTICIPANTS, ROWS_AN_EPOCH, SLOTS, TWO_FILES, Database
from tests.e2e.prepare_gate import gate_of
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.postgres import PostgresServer
from tests.servers.waiting import wait_until

pytest_plugins = ["tests.servers.fixtures", "tests.e2e.postgres_fixtures", "tests.e2e.kafka_fixtures"]


def test_killed_at_each_step_and_in_recovery_while_every_slot_is_taken(
    tmp_path: Path, lives: Lives, jvm: WarmJvm, own_server: PostgresServer, own_database: Database, flow: Flow
) -> None:
    """Slots held by orphans, or by what is decided, don't keep the next driver from its start.

    No rule of the start looks at a clock: what has stood prepared for a second is treated as after a week.
    """
    write_source(tmp_path, 7 * PARTICIPANTS)
    job = write_job(tmp_path, flow.rows_sink() + own_database.sinks(), source=TWO_FILES)
    held: list[tuple[str, ...]] = []

    def killed(point: str, edge: str, epoch: int | None, first: str | None = None) -> tuple[float, float, int]:
        """Return what `db` and `lake` show then, in epochs, and how many of the job's transactions stand prepared."""
        code, reported = lives.run(job, Fault(point, edge, "kill", epoch), first=first, jvm=jvm)  # type: ignore[arg-type]
        assert code == KILLED, reported
        held.append(tuple(own_database.prepared))
        return own_database.epochs("db"), in_lake(tmp_path).total() / ROWS_AN_EPOCH, len(held[-1])

    with gate_of(own_database) as gate:
        gate.shut()
        life = lives.start(job, jvm=jvm)
        life.until(lambda: gate.waiting == PARTICIPANTS, "tasks in their pre_commit, with Kafka's votes given")
        assert (len(flow.open), flow.held) == (PARTICIPANTS, True)
        life.send(signal.SIGKILL)
        assert life.exit_code() == KILLED
        gate.open()
        wait_until(lambda: len(own_database.prepared) == PARTICIPANTS, "the end of what the dead tasks had begun")
        life.end()

    assert killed("decide", "before", 1) == (1, 1, PARTICIPANTS)
    assert (flow.epochs, len(flow.open)) == (1, PARTICIPANTS)
    assert own_server.execute("SELECT count(*) FROM pg_prepared_xacts") == [(SLOTS,)], "orphans hold every slot"
    assert killed("sweep", "before", None) == (1, 1, PARTICIPANTS)
    assert killed("decide", "after", 1) == (1, 1, PARTICIPANTS)
    assert own_server.execute("SELECT count(*) FROM pg_prepared_xacts") == [(SLOTS,)], "so does what is decided"
    assert held[0] == held[1] != held[2], "the orphans were swept, and the batch was written again"
    assert killed("commit:db", "after", 1)[0] == 2, "committed by the recovery"
    assert killed("recommit", "after", None)[:2] == (2, 2)
    assert (flow.epochs, flow.held) == (2, False)
    assert killed("commit:lake", "before", 2, "commit:db") == (3, 2, 0)
    assert killed("commit:db", "before", 3, "commit:lake") == (3, 4, PARTICIPANTS)
    assert killed(f"commit:{flow.sink}", "before", 4, "commit:db")[0] == 5
    assert (flow.epochs, flow.held) == (4, True)
    assert killed("complete", "before", 4) == (5, 5, 0)
    assert killed("return", "before", 5) == (6, 6, 0)
    assert (flow.epochs, flow.held) == (6, False)
    assert not (tmp_path / "checkpoint" / "commits" / "5").exists(), "Spark has the batch still to do"

    code, reported = lives.run(job, jvm=jvm)
    assert code == 0, reported
    assert own_database.amiss(tmp_path) == {}
    assert flow.amiss_rows(tmp_path) == {}


def test_killed_between_the_commits_of_two_of_three_sinks_all_three_hold_the_epoch_after_the_restart(
    tmp_path: Path, lives: Lives, jvm: WarmJvm, database: Database
) -> None:
    write_source(tmp_path, 2 * PARTICIPANTS)
    job = write_job(tmp_path, database.sinks(later=False), source=TWO_FILES)
    code, reported = lives.run(job, Fault("commit:table", "before", "kill", 1), first="commit:db", jvm=jvm)
    assert code == KILLED, reported
    assert database.epochs("db") == 2, "the epoch is in the first sink"
    assert in_table(tmp_path).total() == ROWS_AN_EPOCH, "and not in the last"

    code, reported = lives.run(job, jvm=jvm)
    assert code == 0, reported
    assert database.epochs("db") == in_lake(tmp_path).total() / ROWS_AN_EPOCH == 2
    assert database.amiss(tmp_path, later=False) == {}


def test_driver_killed_while_its_tasks_write_then_a_task_killed_in_the_middle_of_its_write(
    tmp_path: Path, lives: Lives, jvm: WarmJvm, database: Database, flow: Flow
) -> None:
    write_source(tmp_path, 3 * PARTICIPANTS)

    def job(act: str, partition: int) -> Path:
        spark = SPARK.replace("local[2]", "local[2,4]") + slow_tasks.CONF % (act, partition)
        return write_job(tmp_path, flow.rows_sink() + database.sinks(), slow_tasks.TRANSFORM, TWO_FILES, spark)

    life = lives.start(job("hold", 0), jvm=jvm)
    life.until(slow_tasks.mark(tmp_path, 0).exists, "a task in the middle of its write")
    ends = f".e{slow_tasks.EPOCH}.p0.a{slow_tasks.acting(tmp_path, 0).attempt}"
    begun = {name.split(".g")[0] for name in database.writing if name.endswith(ends)}
    assert begun == {"e2e.db", "e2e.later"}, "its task holds both Postgres sinks' COPY open"
    assert flow.open
    life.send(signal.SIGKILL)
    assert life.exit_code() == KILLED
    life.end()

    code, reported = lives.run(job("die", 1), jvm=jvm)
    assert code == 0, reported
    assert not slow_tasks.acting(tmp_path, 1).has_won(tmp_path)
    assert database.amiss(tmp_path) == {}
    assert flow.amiss_rows(tmp_path) == {}
