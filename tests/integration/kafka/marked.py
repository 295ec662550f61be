"""A sink whose mark is looked at on a real broker: drivers of any claim, by hand or with a journal, without Spark."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka.admin import NewTopic
from kafka import TopicPartition

from exactsink.contract import Event, JobContext, Mark
from exactsink.protocol.commit import Retry
from exactsink.protocol.coordinator import Batch, Coordinator
from exactsink.protocol.events import Events
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.stores.local import LocalStore
from exactsink.protocol.participant import no_probe, write_partition
from exactsink.protocol.sinks import Sink
from exactsink.protocol.votes import EpochPlan, Vote
from exactsink.testing import Session
from exactsink.testing.driver_run import hashed
from exactsink.toolkit.waiting import backoff
from exactsink_kafka.backend import KafkaBackend
from exactsink_kafka.committer import KafkaCommitter
from exactsink_kafka.group import MarkKeeper, group_of
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.wire import Wire
from tests.servers.kafka_view import Kafka
from tests.servers.waiting import wait_until

SCHEMA = pa.schema([("value", pa.binary())])
LINEAGE, TOKEN = "00aa11bb22cc", "0123456789ab"
BIRTH = Mark(LINEAGE)


class Site:
    """One job's sink `out`, with drivers of any claim."""

    def __init__(self, kafka: Kafka, copies: int = 1, **given: Any) -> None:
        self.kafka = kafka
        self.job = f"job-{uuid.uuid4().hex[:12]}"
        self.topic = kafka.new_topic("marked", 2, copies)
        standard = {"bootstrap_servers": kafka.bootstrap, "topic": self.topic, "transaction_timeout_seconds": 60}
        self.options = KafkaOptions.model_validate({**standard, **given})

    def session(self, token: str = TOKEN, generation: int = 1, lineage: str = LINEAGE) -> Session:
        ctx = JobContext(self.job, "out", "", generation, lineage)
        return Session(KafkaBackend(self.options), ctx, token)

    def committer(self, **claim: Any) -> KafkaCommitter:
        return KafkaCommitter(self.options, self.session(**claim).ctx)

    def keeper(self, wire: Wire, **claim: Any) -> MarkKeeper:
        return MarkKeeper(self.options, self.session(**claim).ctx, wire)

    def wire(self) -> Any:
        return closing(Wire(self.options, f"test {uuid.uuid4().hex}"))

    def born(self, lineage: str = LINEAGE) -> Mark:
        with closing(self.committer(lineage=lineage)) as committer:
            return committer.put_birth()

    def mark(self) -> Mark | None:
        with closing(self.committer()) as committer:
            return committer.mark()

    def stored(self) -> tuple[int, dict[str, Any]]:
        """Read all of the group's offsets as tools do: one number, and the text beside it."""
        group = group_of(self.job, "out")
        with self.wire() as wire:  # confluent-kafka reads past the end of such a text, now and then
            [(place, found)] = wire.admin.list_group_offsets(group)[group].items()
        assert place == TopicPartition(self.options.marked_topic, 0)
        return found.offset, json.loads(found.metadata)

    def forget(self) -> None:
        """Delete the group with its offsets, as an administrator does."""
        client, group = self.kafka.admin(), group_of(self.job, "out")
        client.delete_consumer_groups([group])[group].result(30)

    def made_again(self) -> None:
        """Delete the topic and make it again."""
        self.kafka.delete_topic(self.topic)
        client = self.kafka.admin()
        client.create_topics([NewTopic(self.topic, 2, 1)])[self.topic].result(30)
        with self.wire() as wire:
            wait_until(lambda: self.topic in wire.topics([self.topic]), "the topic to be there")
        wait_until(lambda: self.mark() is None, "the group's offsets to be gone")

    def values(self) -> list[bytes]:
        return sorted(row.value or b"" for row in self.kafka.rows(self.topic))


def rows(*values: str) -> pa.Table:
    return pa.table({"value": pa.array([value.encode() for value in values])}, SCHEMA)


class Driver:
    """A job without Spark: the real coordinator, one participant an epoch, and its journal in a folder."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site = site
        self.folder = folder

    def run(self, *epochs: int, hear: Sequence[Callable[[Event], None]] = ()) -> None:
        """Claim, and run these epochs, each with one row of its number; close whatever comes."""
        backend = KafkaBackend(self.site.options)
        sinks = {"out": Sink("out", "kafka", backend, "", max_participants=2)}
        coordinator = Coordinator(
            self.site.job,
            sinks,
            Journal(LocalStore(self.folder), wait=backoff),
            Events(self.site.job, hear),
            driver="test",
            retry=Retry(3, lambda attempt: None),
            save_state=lambda state: None,
        )
        with closing(coordinator):
            coordinator.start("query", lambda epoch: True)
            for epoch in epochs:
                previous = f"batch {epoch - 1}" if epoch else ""
                write = self._writing(backend, epoch)
                coordinator.run_epoch(Batch(epoch, f"batch {epoch}", {"out": SCHEMA}, write, previous=previous))

    def _writing(self, backend: KafkaBackend, epoch: int) -> Callable[[EpochPlan], Sequence[Vote]]:
        def write(plan: EpochPlan) -> Sequence[Vote]:
            batches = [{"out": (batch, hashed(batch))} for batch in rows(f"{epoch}").to_batches()]
            return list(write_partition(plan, {"out": backend}, 0, epoch, batches, no_probe))

        return write
