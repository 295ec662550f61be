"""Jobs that read a topic by Spark's own Kafka source, write to another topic and into files, and what these hold."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it has no __all__
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)
from pyspark.sql import DataFrame

from tests.e2e.jobs import SPARK, Row, write_job
from tests.servers.kafka import Kafka
from tests.servers.kafka_jars import JarSet, jars
from tests.servers.waiting import wait_until

SPARK_VERSION = "4.0.0"
_PACKAGES = JarSet(
    f"spark-kafka-{SPARK_VERSION}",
    (
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}",
        f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{SPARK_VERSION}",
        "org.apache.kafka:kafka-clients:3.9.0",
        "org.apache.commons:commons-pool2:2.12.0",
    ),
    alone=True,  # a repository named in Spark's own POM is not reached from everywhere
)
_JOB = """
[source]
format = "kafka"
options = {{{{ "kafka.bootstrap.servers" = "{bootstrap}", subscribe = "{source}", startingOffsets = "earliest", \
maxOffsetsPerTrigger = {rows}{more} }}}}
[sinks.{name}]
backend = "kafka"
bootstrap_servers = "{bootstrap}"
topic = "{target}"
value_format = "json"
report_offsets_to = "{name}"
[sinks.lake]
backend = "files"
path = "{{folder}}/lake"
"""


def kafka_jars() -> str:
    """Return the source's jars as spark-submit's `--jars` takes them."""
    return ",".join(str(jar) for jar in sorted(Path(jars(_PACKAGES)).glob("*.jar")))


def carried(frame: DataFrame) -> DataFrame:
    """Carry each record's own place into the sinks: the transform of these jobs."""
    return frame.selectExpr("partition", "offset", "CAST(key AS STRING) AS k", "CAST(value AS STRING) AS v")


@dataclass(frozen=True)
class Piped:
    """A job's folder, its source's topic and its sink's, which names the sink and the group of the offsets, too."""

    folder: Path
    broker: Kafka
    source: str
    target: str

    def job(self, rows: int = 200, trigger: str = "available_now", more: str = "", **of: str) -> Path:
        """Write the job's file: epochs of at most so many rows, `more` options of the source."""
        text = _JOB.format(
            bootstrap=self.broker.bootstrap,
            source=self.source,
            target=of.get("target", self.target),
            name=self.target,
            rows=rows,
            more=more,
        )
        head = f'transform = "tests.e2e.kafka_source:carried"\ntrigger = "{trigger}"\nrestarts = 0\n'
        return write_job(self.folder, text, head, "", SPARK)

    def fill(self, keys: Sequence[str], partitions: Sequence[int] = (0, 1), **client: object) -> None:
        """Append a record for each key, to the partitions in turn; its value numbers it."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, **client})
        for number, key in enumerate(keys):
            partition = partitions[number % len(partitions)]
            producer.produce(self.source, key=key, value=f"{key} {number}", partition=partition)
        assert producer.flush(30) == 0

    def grow(self, partitions: int) -> None:
        admin = self.broker.admin()
        admin.create_partitions([NewPartitions(self.source, partitions)])[self.source].result(30)
        wait_until(
            lambda: len(admin.list_topics(self.source, timeout=30).topics[self.source].partitions) == partitions,
            f"{self.source} to have {partitions} partitions",
        )

    def lose(self, before: int) -> None:
        """Let the broker delete the records of both partitions up to this offset."""
        admin = self.broker.admin()  # kept until the answers are there
        for answer in admin.delete_records([TopicPartition(self.source, n, before) for n in (0, 1)]).values():
            answer.result(30)

    def make_again(self, rows: int) -> None:
        """Delete the source's topic, and make one of its name that has so many rows."""
        self.broker.delete_topic(self.source)
        self.broker.make_topic(self.source)
        self.fill([f"again {number}" for number in range(rows)])

    def compact(self) -> None:
        """Let the broker compact the source from now on."""
        entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
        topic = ConfigResource(ResourceType.TOPIC, self.source, incremental_configs=[entry])
        admin = self.broker.admin()
        admin.incremental_alter_configs([topic])[topic].result(30)

    def read(self) -> Counter[Row]:
        """Return every committed record of the source that is there now."""
        return Counter(
            (record.partition, record.offset, _text(record.key), _text(record.value))
            for record in self.broker.rows(self.source)
        )

    def written(self) -> Counter[Row]:
        """Return every committed row of the target."""
        rows = (json.loads(record.value or b"") for record in self.broker.rows(self.target))
        return Counter(map(_row, rows))

    def in_lake(self) -> Counter[Row]:
        """Return every row that readers of the files see."""
        if not list((self.folder / "lake").glob("*.parquet")):
            return Counter()
        return Counter(map(_row, ds.dataset(str(self.folder / "lake"), format="parquet").to_table().to_pylist()))

    def amiss(self) -> Mapping[str, object]:
        """Hold both sinks' rows against the source's, one by one, and the offsets reported: empty when all is well."""
        wanted, ends = self.read(), self.broker.ends(self.source)
        found: dict[str, object] = {"held": self.broker.held(self.target)}
        for sink, seen in (("target", self.written()), ("lake", self.in_lake())):
            found[f"{sink} lacks"] = sorted((wanted - seen).elements())[:5]
            found[f"{sink} has too often"] = sorted((seen - wanted).elements())[:5]
        found["reported"] = {} if self.reported() == ends else {"group": self.reported(), "source": ends}
        return {what: value for what, value in found.items() if value}

    def reported(self) -> Mapping[int, int]:
        """Return what stands in the consumer group, by partition of the source."""
        admin = self.broker.admin()
        answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(self.target)])[self.target].result(30)
        return {place.partition: place.offset for place in answer.topic_partitions}

    def ahead(self) -> Sequence[Row]:
        """List the rows before the offsets that the group reports which a sink has not: none, at any moment."""
        reported, seen = self.reported(), self.written() & self.in_lake()
        return sorted(row for row in self.read() if _offset(row) < reported.get(_partition(row), 0) and row not in seen)


def piped(folder: Path, broker: Kafka, **configs: str) -> Piped:
    """Make the topics of a job in this folder; `configs` are the source's."""
    return Piped(folder, broker, broker.new_topic("source", 2, 1, **configs), broker.new_topic("target", 2))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _row(row: Mapping[str, object]) -> Row:
    return row["partition"], row["offset"], row["k"], row["v"]


def _partition(row: Row) -> int:
    return row[0]  # type: ignore[return-value]


def _offset(row: Row) -> int:
    return row[1]  # type: ignore[return-value]
