"""Targets of the `kafka` backend for the conformance kit: one for each writer. Each scenario has its own topic.

KAFKA_BOOTSTRAP_SERVERS names the brokers. They must accept a client without a login.
"""

from __future__ import annotations

import hashlib
import json
import os
from base64 import urlsafe_b64decode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from exactsink.contract import Backend, Committable, ConfigError, Txn
from exactsink.testing import ConformanceTarget
from exactsink_kafka import columns_client  # noqa: F401 - here once, not in each process that the kit forks
from exactsink_kafka.backend import KafkaBackend
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.transactions import Voted
from exactsink_kafka.wire import Wire

__all__ = ["KafkaTarget", "targets", "targets_on"]

_A_BROKER = (
    "set KAFKA_BOOTSTRAP_SERVERS to brokers for tests, host:port, of Apache Kafka 3.7 or newer, that take a client "
    "without a login and let it make topics"
)
_ANSWER_SECONDS = 30
_TRIAL_SECONDS = 5
_LARGE = 1_000_000  # bytes: the most that librdkafka accepts
_PARTITIONS = 3
_RECORDINGS = Path(__file__).with_name("conformance.json")
_LOOK_ALIKES = (  # after the job's name: ids of another job, of another sink, and ids that only resemble the sink's own
    "-x.out.g1-abcdef012345.s0",
    ".out-x.g1-abcdef012345.s0",
    ".out.something",
    ".out.gx",
    ".out.g1-abcdef012345.s00",
    ".out.g1-abcdef012345.s0.more",
    ".out.g1-ABCDEF.s0",
)


def targets() -> Mapping[str, ConformanceTarget]:
    """Return the targets by name, on the brokers of the environment. Raises ConfigError if brokers are unusable."""
    servers = os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "")
    if not servers:
        raise ConfigError("no Kafka for the kit", why="KAFKA_BOOTSTRAP_SERVERS is not set", next=_A_BROKER)
    client, name = _Brokers(servers).admin(), f"exactsink-kit-{uuid4().hex}"
    try:
        trial = client.create_topics([NewTopic(name, _PARTITIONS)], validate_only=True, request_timeout=_TRIAL_SECONDS)
        trial[name].result(_ANSWER_SECONDS)
    except KafkaException as error:
        raise ConfigError(f"no Kafka for the kit at {servers}", why=error.args[0].str(), next=_A_BROKER) from None
    return targets_on(servers)


def targets_on(bootstrap: str) -> Mapping[str, ConformanceTarget]:
    """Return the targets by name, on these brokers."""
    return {writer: KafkaTarget(writer, bootstrap) for writer in ("plain", "fast")}


@dataclass(frozen=True)
class KafkaTarget(ConformanceTarget):
    """A topic to which nothing else writes: each record that its readers get is one application."""

    writer: str
    bootstrap: str
    holds_readers: ClassVar[bool] = True

    def backend(self, folder: Path) -> Backend:
        self._brokers.make_topic(_topic(folder))
        given = {"bootstrap_servers": self.bootstrap, "topic": _topic(folder), "writer": self.writer}
        return KafkaBackend(KafkaOptions.model_validate({**given, "value_format": "json", "key": ("kind",)}))

    def job_prefix(self, folder: Path) -> str:
        """Return a prefix for each scenario, because all scenarios share the cluster's transactional ids."""
        return f"{_digest(folder)}-"

    def shaped(self, rows: pa.Table) -> pa.Table:
        values = pa.array([json.dumps(row) for row in rows.to_pylist()], pa.string())
        return pa.table({"key": rows["kind"], "value": values})

    def unfit(self, rows: pa.Table) -> pa.Table:
        large = pc.binary_join_element_wise(rows["value"], "x" * _LARGE, "")
        return rows.set_column(1, rows.field("value"), large)

    def applied(self, folder: Path) -> Counter[int]:
        return Counter(row for ids in self.order(folder) for row in ids)

    def order(self, folder: Path) -> Iterable[Sequence[int]]:
        """Read every partition as a read_committed consumer, up to the first open transaction."""
        return self._brokers.read(_topic(folder))

    def lose_votes(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Abort the first transaction, as the broker does after its timeout; begin another use of the others' ids."""
        first, *others = [Voted.load(committable).transaction for committable in committables]
        with closing(self._brokers.wire()) as wire:
            codes = wire.end([first], commit=False)
        assert codes == [0], codes
        for other in others:
            self._brokers.move_on(other.id)

    def destroy_evidence(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Delete the topic, make it again, and begin another use of the ids."""
        for committable in committables:
            self._brokers.move_on(Voted.load(committable).transaction.id)
        self._brokers.delete_topic(_topic(folder))
        self._brokers.make_topic(_topic(folder))

    def foreign(self, folder: Path) -> None:
        topic = f"{_topic(folder)}-theirs"
        self._brokers.make_topic(topic)
        for name in _foreign_ids(folder):
            self._brokers.leave_open(name, topic, [(0, "k0", '{"id": 1}')])
        (folder / "foreign.json").write_text(json.dumps(self._brokers.still_open(_foreign_ids(folder))))

    def foreign_stands(self, folder: Path) -> bool:
        begun = json.loads((folder / "foreign.json").read_text())
        ids = _foreign_ids(folder)
        return len(begun) == len(ids) and self._brokers.still_open(ids) == begun

    def previous(self, folder: Path) -> Sequence[Committable]:
        return [self._prepare(folder, recording) for recording in json.loads(_RECORDINGS.read_text())]

    def _prepare(self, folder: Path, recording: Mapping[str, Any]) -> Committable:
        """Write as an earlier release did, with this cluster and this producer in the payload."""
        job, topic = self.job_prefix(folder) + "kit", _topic(folder)
        txn = Txn.parse(recording["txn"] % {"job": job})
        assert txn is not None
        name = recording["id"] % {"job": job}
        offsets = self._brokers.leave_open(name, topic, recording["records"])
        with closing(self._brokers.wire()) as wire:
            found = wire.describe([name])[name].transaction
        here = {
            "id": name,
            "producer_id": found.producer_id,
            "producer_epoch": found.producer_epoch,
            "topic": topic,
            "first_offsets": json.dumps(offsets),
            **self._brokers.names(topic),
        }
        payload, ref = (recording[field] % here for field in ("payload", "store_ref"))
        return Committable(txn, len(recording["records"]), payload.encode(), recording["version"], store_ref=ref)

    @property
    def _brokers(self) -> _Brokers:
        return _Brokers(self.bootstrap)


@dataclass(frozen=True)
class _Brokers:
    """Operates a cluster with public clients; only ends and descriptions of transactions go through `Wire`."""

    bootstrap: str

    def admin(self) -> AdminClient:
        return AdminClient(self._settings())

    def wire(self) -> Wire:
        return Wire(KafkaOptions(bootstrap_servers=self.bootstrap), "exactsink-kit")

    def make_topic(self, topic: str) -> None:
        """Make a topic, and wait until each of its partitions has a leader."""
        client = self.admin()
        client.create_topics([NewTopic(topic, _PARTITIONS)])[topic].result(_ANSWER_SECONDS)
        while True:
            found = client.list_topics(timeout=_ANSWER_SECONDS).topics.get(topic)
            if found and [p.leader >= 0 for p in found.partitions.values()] == [True] * _PARTITIONS:
                return

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and wait until it is gone."""
        client = self.admin()
        client.delete_topics([topic])[topic].result(_ANSWER_SECONDS)
        while topic in client.list_topics(timeout=_ANSWER_SECONDS).topics:
            client.poll(0.01)

    def names(self, topic: str) -> Mapping[str, str]:
        """Return the cluster's own id, and the topic's."""
        client = self.admin()
        cluster = client.describe_cluster().result(_ANSWER_SECONDS).cluster_id
        uuid = str(client.describe_topics(TopicCollection([topic]))[topic].result(_ANSWER_SECONDS).topic_id)
        return {"cluster": cluster, "topic_id": str(UUID(bytes=urlsafe_b64decode(uuid + "==")))}

    def leave_open(self, id: str, topic: str, records: Iterable[Sequence[Any]]) -> Mapping[int, int]:
        """Write (partition, key, value) in a transaction that nobody ends; return each partition's first offset."""
        offsets: dict[int, int] = {}

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                raise KafkaException(error)
            offsets.setdefault(message.partition(), message.offset())

        producer = self._producer(id)
        producer.begin_transaction()
        for partition, key, value in records:
            producer.produce(topic, value, key, partition, on_delivery=delivered)
        if producer.flush(_ANSWER_SECONDS):
            raise TimeoutError(f"{topic} took no records")
        return offsets

    def move_on(self, id: str) -> None:
        """Begin another use of a transactional id: the broker aborts its open transaction and forgets its last end."""
        self._producer(id)

    def still_open(self, ids: Iterable[str]) -> list[str]:
        """Return the open transactions of these ids: id, producer id and epoch."""
        with closing(self.wire()) as wire:
            found = wire.describe(ids).values()
        return sorted(one.transaction.ref for one in found if one.state == "Ongoing")

    def read(self, topic: str) -> list[list[int]]:
        """Return the ids in each partition, in their order, up to the first open transaction."""
        settings = {
            "group.id": "exactsink-kit",  # never joined: partitions are assigned
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
        with closing(Consumer(self._settings() | settings)) as consumer:
            found = consumer.list_topics(topic, timeout=_ANSWER_SECONDS).topics[topic].partitions
            ids: dict[int | None, list[int]] = {partition: [] for partition in found}
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in found])
            unread: set[int | None] = set(found)
            while unread:
                message = consumer.poll(_ANSWER_SECONDS)
                if message is None:
                    raise TimeoutError(f"no end of {topic} came")
                error = message.error()
                if error is None:
                    ids[message.partition()].append(json.loads(message.value() or b"")["id"])
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
                else:
                    raise KafkaException(error)
        return list(ids.values())

    def _producer(self, id: str) -> Producer:
        """Return a producer that has the transactional id. Drop it; closing it would abort."""
        producer = Producer(self._settings() | {"transactional.id": id})
        producer.init_transactions(_ANSWER_SECONDS)
        return producer

    def _settings(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, "log_level": 0}  # failures are raised


def _foreign_ids(folder: Path) -> list[str]:
    return ["somebody's own " + _digest(folder), *(f"{_digest(folder)}-kit{rest}" for rest in _LOOK_ALIKES)]


def _topic(folder: Path) -> str:
    return f"exactsink-kit-{_digest(folder)}"


def _digest(folder: Path) -> str:
    return hashlib.sha256(str(folder).encode()).hexdigest()[:16]
