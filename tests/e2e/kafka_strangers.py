"""Others on a job's broker, whose transactional ids look much like the job's own: none of them may be hurt by it."""

from __future__ import annotations

import uuid

from confluent_kafka import KafkaException, Producer

from tests.e2e.kafka_transactions import Transaction, transactions
from tests.servers.kafka import Kafka

__all__ = ["KafkaStrangers"]

_LOOKALIKES = (
    "e2e-b.{sink}.g1-{token}.s0",  # another job, whose name begins like this one's
    "e2e.{sink}-b.g1-{token}.s0",  # a sink that this job does not have
    "e2e.{sink}.g1-theirs.s0",  # nobody's id, though it begins like one
)
_TIMEOUT = 900  # seconds: the most that a broker allows


class KafkaStrangers:
    """Open transactions of other producers, in a topic of theirs."""

    def __init__(self, broker: Kafka, sink: str) -> None:
        self._broker = broker
        self._sink = sink
        self._topic = broker.new_topic("theirs", 1)
        self._ids = [like.format(sink=sink, token=uuid.uuid4().hex[:8]) for like in _LOOKALIKES]
        self._producers: list[Producer] = []
        self._begun: dict[str, Transaction] = {}

    def arrive(self) -> None:
        """Let them begin what they will never end, side by side."""
        for name in self._ids:
            settings = {"transactional.id": name, "transaction.timeout.ms": _TIMEOUT * 1000, "linger.ms": 0}
            producer = Producer({"bootstrap.servers": self._broker.bootstrap, "log_level": 0, **settings})
            self._producers.append(producer)
            producer.init_transactions()
            producer.begin_transaction()
            producer.produce(self._topic, b"theirs")
        for producer in self._producers:
            producer.flush()
        self._begun = self._standing()
        assert [begun.state for begun in self._begun.values()] == ["Ongoing"] * len(_LOOKALIKES)

    def hurt(self) -> list[str]:
        """Return whose transaction is not the one that was begun, and open, any more."""
        standing = self._standing()
        return [name for name, begun in self._begun.items() if standing.get(name) != begun]

    def leave(self) -> None:
        """End them: what is open counts against the broker."""
        for producer in self._producers:
            try:
                producer.abort_transaction(10)
            except KafkaException:  # a broker that is down, or a hurt one: the test has reported
                continue

    def _standing(self) -> dict[str, Transaction]:
        found = {**transactions(self._broker, f"e2e.{self._sink}"), **transactions(self._broker, f"e2e-b.{self._sink}")}
        return {name: found[name] for name in self._ids if name in found}
