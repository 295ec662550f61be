"""A cluster that keeps fewer copies of the sink's mark than of its rows."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import pytest

from exactsink.contract import Retryable
from exactsink_kafka import committer as committers
from exactsink_kafka.wire import Wire
from tests.integration.kafka.marked import BIRTH, SCHEMA, Site
from tests.servers.kafka_cluster import COPIES, own_cluster


@pytest.mark.proof
def test_a_mark_with_fewer_copies_than_the_rows_is_found_and_named_once_its_broker_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with own_cluster({"offsets.topic.replication.factor": "1", "min.insync.replicas": "1"}) as cluster:
        site = Site(cluster, COPIES, transaction_timeout_seconds=660)
        for _ in range(2):  # before there is such a topic, and after
            with closing(site.committer()) as committer:
                [found, *_] = [one for one in committer.check(SCHEMA, 2) if "__consumer_offsets" in one.message]
            assert "one copy of its partitions (of 3 brokers): a lost disk can lose the mark" in found.message
            assert site.born() == BIRTH
        assert "kafka-reassign-partitions" in found.fix
        cluster.leader("__consumer_offsets").stop("kill")
        monkeypatch.setattr(committers, "Wire", partial(Wire, patience_seconds=5.0))
        with closing(site.committer()) as committer, pytest.raises(Retryable) as failed:
            committer.mark()
        assert f"COORDINATOR_NOT_AVAILABLE (15) for group exactsink.{site.job}.out" in failed.value.what
        assert "--topic __consumer_offsets --unavailable-partitions" in failed.value.next
