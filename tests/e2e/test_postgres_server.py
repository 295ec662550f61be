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
