"""Skeleton: one Kafka transaction per participant, ended by the driver with EndTxn version 5.

Where the ids' pool lives: `open_epoch` sizes it and puts it into the ticket; a writer takes slot `attempt % slots` of
its own claim's names. Deadline: `transaction.timeout.ms` after the first record. Who settles what: `commit` from
(producer id, epoch), and where EndTxn answers 90 or 49, by reading at the recorded offset.

The misfit: the broker lists transactions by id, and a pooled id holds no epoch, partition or attempt. See `in_doubt`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from pydantic import Field, SecretStr

from exactsink.backend import Backend, BackendOptions, Committer, Writer
from exactsink.model import Committable, Finding, InDoubt, JobContext, Outcome, Traits, Txn, Undecided


class KafkaOptions(BackendOptions):
    bootstrap_servers: str
    topic: str
    password: SecretStr | None = None
    transaction_timeout_seconds: float = Field(default=900, gt=0)
    slots_per_participant: int = Field(default=4, ge=2)
    strategy: Literal["transactions"] = "transactions"


@dataclass(frozen=True)
class KafkaTicket:
    """What every task's writer needs of the pool; a repeated epoch under one claim takes a fresh round of slots."""

    first_slot: int
    slots: int


@dataclass(frozen=True)
class KafkaVote:
    """The payload of a committable."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    first_offsets: tuple[tuple[int, int], ...]  # (partition, first offset): evidence once the id has moved on


class KafkaWriter(Writer):
    def __init__(self, options: KafkaOptions, txn: Txn, schema: pa.Schema, ticket: bytes) -> None:
        self._options = options
        self._txn = txn
        self._schema = schema
        self._ticket = ticket

    def write(self, batch: pa.RecordBatch) -> None:
        raise NotImplementedError  # at the first: Producer, init_transactions, begin_transaction; then produce, poll

    def pre_commit(self) -> Committable:
        raise NotImplementedError  # flush, every delivery report, stats: producer id and epoch; drop, never close()

    def abort(self) -> None:
        raise NotImplementedError  # drop the producer: the sweep ends it with EndTxn v5, one version for all


class KafkaCommitter(Committer):
    def __init__(self, options: KafkaOptions, ctx: JobContext) -> None:
        self._options = options
        self._ctx = ctx
        self._rounds = 0

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        # describe_configs: transaction.max.timeout.ms >= ours, transactional.id.expiration.ms >= the longest pause of
        # the job (which the contract does not tell); describe_topics: it exists; participants None: no bounded pool
        raise NotImplementedError

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        raise NotImplementedError  # no call; KafkaTicket of round self._rounds + 1

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        # find_coordinator + EndTxn v5 commit: 0 committed (on a repeat as well), 48 Lost, 51 Retryable, 90 and 49: read
        # committed at first_offsets: visible AlreadyCommitted, hidden Lost, before the log's start Unknown
        raise NotImplementedError

    def abort(self, undecided: Undecided) -> None:
        # each entry's ref is the transactional id with producer id and epoch, as listed: EndTxn v5 abort
        raise NotImplementedError

    def in_doubt(self) -> Iterable[InDoubt]:
        # list_transactions, ids that begin with "{job}.{sink}.g"; describe_transactions: state, pid, epoch, start
        # time. The id names a slot: no epoch; ref is "{transactional id}/{pid}/{producer epoch}", as in the vote
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError  # the admin client


class KafkaBackend(Backend):
    Options = KafkaOptions
    options: KafkaOptions

    @property
    def strategy(self) -> str:
        return self.options.strategy

    @property
    def target(self) -> str:
        return f"kafka:{self.options.topic}"  # not the servers: that list changes; votes carry the cluster's id

    @property
    def traits(self) -> Traits:
        return Traits(can_lose_votes=True)

    def shape(self, schema: pa.Schema) -> list[str] | None:
        return None if "value" in schema.names else ["to_json(struct(*)) AS value"]

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return KafkaWriter(self.options, txn, schema, ticket)

    def committer(self, ctx: JobContext) -> Committer:
        return KafkaCommitter(self.options, ctx)


SAMPLE: Backend = KafkaBackend(KafkaOptions(bootstrap_servers="localhost:9092", topic="orders"))
