"""The `kafka` backend: its traits, and the shape of rows before they become Arrow."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

from exactsink.contract import Backend, Committer, ConfigError, JobContext, Traits, Txn, Validator, Writer
from exactsink_kafka.committer import KafkaCommitter
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.records import shaped
from exactsink_kafka.validator import RecordValidator, made_records
from exactsink_kafka.writer import KafkaWriter

__all__ = ["KafkaBackend", "KafkaOptions"]


class KafkaBackend(Backend):
    """Write rows as records of a topic. Consumers with isolation.level=read_committed get each epoch exactly once."""

    Options = KafkaOptions
    options: KafkaOptions

    @property
    def strategy(self) -> str:
        return self.options.strategy

    @property
    def on_schema_change(self) -> Literal["fail", "add_columns", "allow"]:
        """Return the option with JSON, else `allow`: only in JSON are columns the fields of a value with a schema."""
        return self.options.on_schema_change if self.options.value_format == "json" else "allow"

    @property
    def target(self) -> str:
        """Name the topic, but not the brokers, because their list changes. Each vote carries the cluster's id."""
        return f"kafka:{self.options.topic or '*'}"

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(self.options.bootstrap_servers.split(","))

    @property
    def traits(self) -> Traits:
        """Return traits: the broker drops a prepared transaction after its timeout."""
        return Traits(
            can_lose_votes=True,
            max_commit_seconds=self.options.commit_seconds,
            prepared_seconds=self.options.transaction_timeout_seconds,
            marks=self.options.marked_topic is not None,
            validates_rows=True,
        )

    def shape(self, schema: pa.Schema) -> list[str] | None:
        """Return Spark's expressions for the record's columns. Raises ConfigError for rows that fit no record."""
        return shaped(self.options, schema)

    def shape_in_task(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return made_records(self.options, rows)

    def check_epoch_column(self, name: str) -> None:
        if self.options.value_format != "json":
            raise ConfigError(
                f"epoch_column = {name!r}: a record of columns has no place for it",
                next=f'set epoch_header = "{name}" instead; or value_format = "json"',
            )

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return KafkaWriter(self.options, txn, schema, ticket)

    def validator(self, schema: pa.Schema, rules: bytes) -> Validator:
        return RecordValidator(self.options, schema)

    def committer(self, ctx: JobContext) -> Committer:
        return KafkaCommitter(self.options, ctx)
