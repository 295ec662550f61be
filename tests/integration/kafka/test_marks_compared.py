"""Journal and topic that don't belong together any more: what destroys the mark, or goes back, stops the job."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from exactsink.contract import InDoubtError
from exactsink.protocol.votes import EpochPlan, Vote
from exactsink_kafka.backend import KafkaBackend
from tests.integration.kafka.marked import Driver, Site
from tests.servers.kafka import own_kafka


@pytest.mark.proof
def test_a_broker_put_back_from_a_backup_stops_the_job_and_no_row_comes_twice(tmp_path: Path) -> None:
    with own_kafka() as broker:
        driver, data = Driver(Site(broker), tmp_path / "journal"), broker.folder / "data"
        driver.run(0)
        broker.stop()
        shutil.copytree(data, tmp_path / "backup")
        broker.start()
        driver.run(1, 2)
        broker.stop()
        shutil.rmtree(data)
        shutil.copytree(tmp_path / "backup", data)
        broker.start()
        with pytest.raises(InDoubtError, match=r"its target holds epoch 0 .*, the journal expects epoch 2") as stopped:
            driver.run(3)
        assert stopped.value.exit_code == 3
        assert "the target is an older copy, and lacks rows of epochs 1 to 2" in str(stopped.value)
        assert driver.site.values() == [b"0"]


def test_a_topic_that_is_made_again_under_a_running_query_stops_it_at_the_next_epoch(driver: Driver) -> None:
    site = driver.site

    class Again(Driver):
        """The topic is deleted and made again while the second epoch's coordinator stands."""

        def _writing(self, backend: KafkaBackend, epoch: int) -> Callable[[EpochPlan], Sequence[Vote]]:
            if epoch == 1:
                site.made_again()
            return super()._writing(backend, epoch)

    with pytest.raises(InDoubtError, match="its target holds no mark, the journal expects epoch 0") as stopped:
        Again(site, driver.folder).run(0, 1)
    assert "its mark is gone" in stopped.value.why
    assert site.values() == []
