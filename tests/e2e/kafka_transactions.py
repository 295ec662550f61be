"""A broker's transactions as its administrator sees them, by a client of the tests' own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass

from kafka import KafkaAdminClient
from kafka.admin import TransactionDescription
from kafka.errors import KafkaError

from tests.servers.kafka import Kafka
from tests.servers.waiting import wait_until

__all__ = ["OPEN", "Transaction", "transactions"]

OPEN = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})


@dataclass(frozen=True, slots=True, order=True)
class Transaction:
    """What the coordinator says of a transactional id. `started` in Unix seconds, None when nothing is open."""

    id: str
    producer_id: int
    producer_epoch: int
    state: str
    started: float | None
    timeout: float

    @property
    def ref(self) -> str:
        """Name this use of the id, as committables do."""
        return f"{self.id}/{self.producer_id}/{self.producer_epoch}"


def transactions(broker: Kafka, prefix: str) -> Mapping[str, Transaction]:
    """Return all ids with this prefix that the broker knows, whatever became of their last transactions."""
    answers: list[Mapping[str, Transaction]] = []

    def answered() -> bool:
        # It is just coming up, or an id went between the two questions: ask again.
        with suppress(KafkaError, OSError), closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
            answers.append(_asked(admin, f"{re.escape(prefix)}.*"))
        return bool(answers)

    wait_until(answered, f"an answer about the transactions of {prefix}")
    return answers[-1]


def _asked(admin: KafkaAdminClient, pattern: str) -> Mapping[str, Transaction]:
    found = admin.list_transactions(transactional_id_pattern=pattern)
    ids = [listed.transactional_id for listings in found.values() for listed in listings]
    described = admin.describe_transactions(ids) if ids else {}
    return {name: _of(name, reported) for name, reported in described.items()}


def _of(id: str, reported: TransactionDescription) -> Transaction:
    started = reported.transaction_start_time_ms / 1000 if reported.transaction_start_time_ms > 0 else None
    timeout = reported.transaction_timeout_ms / 1000
    return Transaction(id, reported.producer_id, reported.producer_epoch, reported.state.value, started, timeout)
