"""A broker that is killed between a commit's answer and its markers: the mark comes with the rows all the same."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count

import pyarrow as pa
import pytest

from exactsink.contract import AlreadyCommitted, Committed, JobContext, Mark
from exactsink.testing import Session
from exactsink_kafka.backend import KafkaBackend
from exactsink_kafka.committer import KafkaCommitter
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.transactions import Transaction
from tests.servers.kafka import KafkaServer, own_kafka
from tests.servers.waiting import wait_until

PARTITIONS = 60
TOKEN = "0123456789ab"


@pytest.fixture
def server() -> Iterator[KafkaServer]:
    with own_kafka() as made:
        yield made


def test_a_mark_whose_coordinator_was_killed_before_its_markers_stands_when_commit_returns(server: KafkaServer) -> None:
    topic = server.new_topic("marked", PARTITIONS)
    options = KafkaOptions(bootstrap_servers=server.bootstrap, topic=topic)
    ctx = JobContext("crashed", "out", "", 1, "00aa11bb22cc")
    session = Session(KafkaBackend(options), ctx, TOKEN)
    schema = pa.schema([("value", pa.binary()), ("partition", pa.int32())])
    rows = pa.table({"value": [b"row"] * PARTITIONS, "partition": range(PARTITIONS)}, schema)
    down = threading.Event()
    with closing(KafkaCommitter(options, ctx)) as committer:
        committer.put_birth()
        await_markers = committer._await_markers

        def killing(ended: Iterable[Transaction], state: str) -> None:
            ended = list(ended)
            reported = committer._wire.describe(one.id for one in ended).values()
            if not down.is_set() and "PrepareCommit" in {one.state for one in reported}:
                server.stop("kill")
                down.set()
            await_markers(ended, state)

        committer._await_markers = killing  # type: ignore[method-assign]
        epochs = count()
        with ThreadPoolExecutor(1) as pool:
            while not down.is_set():  # until the markers were not quicker
                epoch = next(epochs)
                votes = session.prepare(epoch, [rows])
                reported = pool.submit(committer.commit, epoch, votes)
                wait_until(lambda reported=reported: reported.done() or down.is_set(), "a commit")  # type: ignore[misc]
            server.start()  # here: the server dies with the thread that starts it
            assert reported.result(120)[0] in (Committed(), AlreadyCommitted())
        assert committer.mark() == Mark("00aa11bb22cc", epoch, frozenset([TOKEN]))
    assert len(server.rows(topic)) == PARTITIONS * (epoch + 1)
