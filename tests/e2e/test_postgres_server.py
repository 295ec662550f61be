"""The server crashes around the commits, its answers get lost on the way: the job ends well by itself."""

from __future__ import annotations

import signal
from pathlib import Path

from exactsink.testing import Fault
from tests.e2e.drivers import Drivers
from tests.e2e.jobs import PARTICIPANTS, TWO_FILES, write_job, write_source
from tests.e2e.postgres_job import Database
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.cutting_proxy import Trap, cutting_proxy
from tests.servers.postgres import PostgresServer, wait_until


def test_server_that_crashes_before_during_and_between_the_commits_is_waited_for(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, own_server: PostgresServer, own_database: Database
) -> None:
    write_source(tmp_path, 5 * PARTICIPANTS)
    ends: list[int] = []

    def crash_after_the_first() -> None:
        wait_until(lambda: len(own_database.prepared) < PARTICIPANTS, "the first COMMIT PREPARED")
        ends.append(len(own_database.prepared))
        own_server.stop("immediate")

    with cutting_proxy(own_server) as proxy:
        trap = proxy.set(Trap(rb"COMMIT PREPARED '[^']+\.e3\.", nth=2, before=crash_after_the_first))
        job = write_job(tmp_path, own_database.sinks(proxy.way), source=TWO_FILES)
        decided, committing = Fault("decide", "after", "stall", 1), Fault("commit:db", "before", "stall", 2)
        driver = drivers.start(job, decided, committing, jvm=jvm)

        driver.stopped()
        assert driver.unfired == [committing]
        assert len(own_database.prepared) == PARTICIPANTS
        own_server.stop("immediate")
        own_server.start()
        driver.send(signal.SIGCONT)

        driver.until(lambda: driver.unfired == [], "a second epoch's decision")
        driver.stopped()
        own_server.stop("immediate")
        driver.send(signal.SIGCONT)
        driver.until(lambda: _retried(driver.reported, "db", 2), "an attempt at a commit while the server is down")
        own_server.start()

        driver.until(trap.sprung.is_set, "a crash between two COMMIT PREPARED")
        assert ends == [PARTICIPANTS - 1]
        own_server.start()
        assert driver.exit_code() == 0, driver.reported
    assert own_database.amiss(tmp_path) == {}, driver.reported


def test_commit_whose_answer_is_lost_and_prepared_rows_that_an_administrator_rolls_back(
    tmp_path: Path, drivers: Drivers, jvm: WarmJvm, database: Database
) -> None:
    """Gone from the list of what stands prepared, both look alike: the one is committed, the other is written again."""
    write_source(tmp_path, 5 * PARTICIPANTS)
    with cutting_proxy(database.server) as proxy:
        prepared = proxy.set(Trap(rb"COMMIT PREPARED '[^']+\.e1\."))
        job = write_job(tmp_path, database.sinks(proxy.way), source=TWO_FILES)
        committing, decided = Fault("commit:later", "before", "stall", 2), Fault("decide", "after", "stall", 3)
        driver = drivers.start(job, committing, decided, jvm=jvm)
        driver.stopped()
        assert prepared.sprung.is_set()
        assert _retried(driver.reported, "db", 1), driver.reported

        applied = proxy.set(Trap(rb"[\x00-\x1f]COMMIT\x00"))
        driver.send(signal.SIGCONT)
        driver.until(lambda: driver.unfired == [], "the next epoch's decision")
        driver.stopped()
        assert applied.sprung.is_set()
        assert _retried(driver.reported, "later", 2), driver.reported
        assert "vote_lost" not in driver.reported

        lost = database.prepared[0]
        database.execute(f"ROLLBACK PREPARED '{lost}'")
        driver.send(signal.SIGCONT)
        assert driver.exit_code() == 0, driver.reported
    assert f"vote_lost job=e2e epoch=3 sink=db txn={lost}" in driver.reported
    assert driver.reported.count("vote_lost") == 1
    assert database.amiss(tmp_path) == {}


def _retried(reported: str, sink: str, epoch: int) -> bool:
    return f"commit_retried job=e2e epoch={epoch} sink={sink}" in reported
