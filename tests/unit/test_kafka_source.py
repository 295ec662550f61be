"""What is set for Spark's own Kafka source, which sinks write into it, and what its errors ask of a person."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from exactsink.contract import Fatal, Retryable
from exactsink.job.config.model import SourceSection
from exactsink.job.side_by_side import own_targets
from exactsink.spark.errors import tasks_of
from exactsink.spark.kafka_source import source_error, with_isolation

_BROKERS = {"kafka.bootstrap.servers": "b1:9092, B2:9092"}
_LOST = "KafkaIllegalStateException: Some data may have been lost because they are not available in Kafka any more;"


def sinks(servers: str, *targets: str) -> Any:
    options = SimpleNamespace(bootstrap_servers=servers)
    return {target: SimpleNamespace(backend=SimpleNamespace(target=target, options=options)) for target in targets}


@pytest.mark.parametrize("key", ["kafka.isolation.level", "Kafka.Isolation.Level"])
def test_what_the_job_says_of_isolation_stands(key: str) -> None:
    said = SourceSection(format="kafka", options={key: "read_uncommitted"})
    assert with_isolation(said) == {key: "read_uncommitted"}
    assert with_isolation(SourceSection(format="rate", options={"rowsPerSecond": 1})) == {"rowsPerSecond": 1}
    assert with_isolation(SourceSection(format="kafka")) == {"kafka.isolation.level": "read_committed"}


@pytest.mark.parametrize(
    "reads",
    [
        {"subscribe": "clicks, orders"},
        {"SUBSCRIBE": "orders"},
        {"subscribePattern": "ord.*"},
        {"assign": json.dumps({"orders": [0, 1]})},
    ],
)
def test_a_sink_that_writes_into_what_the_job_reads_is_found(reads: dict[str, str]) -> None:
    source = SourceSection(format="kafka", options={**_BROKERS, **reads})
    wrong = sinks("other:9092,b2:9092", "kafka:orders", "kafka:sums", "kafka:*", "file:///orders")
    assert [(name, found.severity) for name, found in own_targets(source, wrong)] == [("kafka:orders", "error")]
    mirrored = sinks("elsewhere:9092", "kafka:orders")
    assert [found.severity for _, found in own_targets(source, mirrored)] == ["warning"]


def test_other_sources_are_looked_at_by_their_folder_alone() -> None:
    assert list(own_targets(None, sinks("b1:9092", "kafka:orders"))) == []
    files = SourceSection(format="json", options={**_BROKERS, "subscribe": "orders"})
    assert list(own_targets(files, sinks("b1:9092", "kafka:orders"))) == []
    here = SourceSection(format="json", path=os.getcwd())
    assert list(own_targets(here, sinks("b1:9092", "kafka:orders"))) == []
    store = SourceSection(format="json", path="s3a://shop/lake/")
    assert [found.severity for _, found in own_targets(store, sinks("", "s3://shop/lake", "s3://shop/la"))] == ["error"]


@pytest.mark.parametrize(
    ("says", "kind", "next_one"),
    [
        (_LOST, Fatal, "failOnDataLoss"),
        ("[KAFKA_DATA_LOSS.START_OFFSET_RESET] Some", Fatal, "failOnDataLoss"),
        ("Kafka data source in Trigger.AvailableNow should provide the same topic partitions", Fatal, "1 second"),
        ("org.apache.kafka.common.errors.UnknownTopicOrPartitionException: gone", Retryable, "kafka-topics"),
    ],
)
def test_what_sparks_source_says_becomes_what_to_do(says: str, kind: type[Exception], next_one: str) -> None:
    found = source_error(StreamingQueryException(f"a first line\n\tcaused by: {says}\nand more"))
    assert type(found) is kind
    assert next_one in found.next  # type: ignore[union-attr]
    with pytest.raises(kind), tasks_of(3):
        raise StreamingQueryException(says)


def test_a_tasks_java_error_is_named() -> None:
    assert source_error(StreamingQueryException("a disk is full")) is None
    text = "An error occurred while calling o1.collect.\nCaused by: java.lang.IllegalArgumentException: letter T\n at x"
    with pytest.raises(Retryable, match="IllegalArgumentException: letter T"), tasks_of(3):
        raise StreamingQueryException(text)
