"""Kafka: ours beside Flink's exactly-once sink, Spark's own sink, Kafka's tool; and beside ours at least once.

A line of its own for each codec, beside the same peers with the same codec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
from tests.servers.kafka_jars import TOOLS, jars

from benchmarks.kafka_broker import Served, Target, serving
from benchmarks.kafka_yardsticks import AtLeastOnce
from benchmarks.peers.flink.session import VERSIONS, Flink, flink
from benchmarks.peers.ours import job_of_file, job_of_sink, stream_job
from benchmarks.peers.sides import FLINK, SPARK, TOOL, Sides, bounded
from benchmarks.peers.source import RECORDS, Source, epochs_of, make_source
from benchmarks.peers.spark_kafka import COORDINATES, why_not
from benchmarks.peers.spark_sinks import stream_into, stream_through
from benchmarks.peers.spike.session import kafka_spike
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from benchmarks.producer_performance import LIKE_OURS, run_tool
from exactsink.protocol.sinks import Sink

__all__ = ["KAFKA", "KAFKA_LZ4", "KAFKA_ZSTD"]

_PAYLOADS = 10_000
_FLINK, _SPARK, _TOOL, _ONCE = "Flink KafkaSink", "Spark Kafka sink", "ProducerPerformance", "ours, at least once"
_TIMEOUT = {"transaction.timeout.ms": "900000"}
_SPIKE = "writer in the JVM (spike)"
_LARGER = "ours, epochs four times as large"


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    with _opened(setting, LIKE_OURS) as (variants, bounds, notes):
        bounds += [*bounded("ours", _TOOL, 1.0)]
        bounds += [Bound(metric, "ours", _ONCE, at_most=1.1) for metric in ("wall_s", "cpu_s")]
        bounds += [*bounded(_LARGER, _FLINK), *bounded(_LARGER, "ours")]
        bounds += [*bounded("ours", _SPIKE), *bounded(_SPIKE, _FLINK), *bounded("ours", f"{_FLINK}, generator")]
        notes += [
            f"{_ONCE}: our own writer, idempotent, without a transaction and without a commit by the driver",
            f"{_SPIKE}: from Spark's rows into Flink's client of Kafka; no Arrow, Python, hash, journal or recovery",
        ]
        yield Plan(variants.named(), bounds, notes)


def _open_with(codec: str) -> Callable[[Setting], AbstractContextManager[Plan]]:
    @contextmanager
    def opened(setting: Setting) -> Iterator[Plan]:
        with _opened(setting, {**LIKE_OURS, "compression.type": codec}) as (variants, bounds, notes):
            yield Plan(variants.named("ours", _FLINK, _TOOL, _SPARK), [*bounds, *bounded("ours", _TOOL)], notes)

    return opened


@contextmanager
def _opened(setting: Setting, producer: Mapping[str, str]) -> Iterator[tuple[_Variants, list[Bound], list[str]]]:
    jars(TOOLS)  # fetched before the clock runs
    source = make_source(RECORDS, setting.folder / "source", *epochs_of(setting.scale, 8, 500_000))
    spark = setting.spark()
    with serving() as served, flink(setting.folder / "flink") as peer:
        target = Target(served)
        missing = why_not(spark, served.server.bootstrap, served.server.new_topic("trial", 1))
        variants = _Variants(setting, source, target, peer, producer, with_spark=not missing)
        bounds = [
            Bound("rows_per_s", "ours", _FLINK, at_least=0.6),
            Bound("rows_per_cpu_s", "ours", _FLINK, at_least=0.65),
        ]
        if not missing:
            bounds += [Bound("rows_per_s", "ours", _SPARK), Bound("rows_per_cpu_s", "ours", _SPARK, at_least=0.8)]
        notes = [
            source.note,
            f"Flink and {_TOOL}: {', '.join(f'{name} {value}' for name, value in producer.items())}, as ours has it",
            f"{_TOOL}: {_PAYLOADS:,} of the values, at random, without keys, from one process, in one transaction",
            f"{_TOOL}: rows_per_s is what it says itself, without its JVM's start, which is in wall_s and cpu_s",
            f"Flink: {', '.join(VERSIONS)}",
            f"{_SPARK}: {COORDINATES}, at least once" + (f"; left out: {missing}" if missing else ""),
            *served.notes,
        ]
        yield variants, bounds, notes
        target.close()


class _Variants:
    """All that writes to a topic."""

    def __init__(
        self,
        setting: Setting,
        source: Source,
        target: Target,
        peer: Flink,
        producer: Mapping[str, str],
        *,
        with_spark: bool,
    ) -> None:
        self._producer = producer
        self._with_spark = with_spark
        self._spark = setting.spark()
        self._source = source
        self._target = target
        self._served: Served = target.served
        self._peer = peer
        self._spike = kafka_spike(self._spark, setting.folder / "spike")
        self._sides = Sides(source.rows, {peer.pid: "flink", target.served.server.pid: "server"})
        self._payloads = setting.folder / "payloads"
        first = pq.ParquetFile(next(source.folder.glob("*.parquet")))
        values = next(first.iter_batches(_PAYLOADS)).column("value").to_pylist()
        self._payloads.write_text("\n".join(values) + "\n")

    def named(self, *names: str) -> list[Variant]:
        """Return these variants, or all."""
        sinks = {"ours": self._ours, _FLINK: self._flink, _SPIKE: self._in_jvm, _TOOL: self._tool, _ONCE: self._once}
        sinks |= {_SPARK: self._sink_of_spark} if self._with_spark else {}
        sinks |= {f"{_FLINK}, generator": self._flink_generator}
        sinks |= {_LARGER: partial(self._ours, epochs=self._source.in_larger_epochs())}
        chosen = {name: prepare for name, prepare in sinks.items() if name in (names or sinks)}
        return [Variant(name, prepare, lambda folder: self._target.records()) for name, prepare in chosen.items()]

    def _filled(self, done: object = None) -> Metrics:
        return self._target.filled(self._source.rows)

    def _ours(self, folder: Path, epochs: Source | None = None) -> Work:
        options = {"bootstrap_servers": self._served.server.bootstrap, "topic": self._target.fresh()}
        producer = {"compression.type": self._producer["compression.type"]}
        spark, source = self._spark, epochs or self._source
        return self._sides.timed(
            SPARK,
            lambda: self._filled(
                stream_job(spark, source, lambda: job_of_file(folder, "kafka", producer=producer, **options))
            ),
        )

    def _once(self, folder: Path) -> Work:
        sink = Sink("target", "kafka", AtLeastOnce(self._served.options(self._target.fresh())), staging="")
        spark, source = self._spark, self._source
        return self._sides.timed(
            SPARK, lambda: self._filled(stream_job(spark, source, lambda: job_of_sink(folder, sink)))
        )

    def _in_jvm(self, folder: Path) -> Work:
        settings = {**self._producer, **_TIMEOUT, "bootstrap.servers": self._served.server.bootstrap}
        body, spark, source = self._spike(settings, self._target.fresh()), self._spark, self._source
        return self._sides.timed(SPARK, lambda: self._filled(stream_through(spark, source, folder, body)))

    def _flink(self, folder: Path) -> Work:
        return self._by_flink(self._source.flink, folder)

    def _flink_generator(self, folder: Path) -> Work:
        return self._by_flink(self._source.generator, folder)

    def _by_flink(self, rows: dict[str, object], folder: Path) -> Work:
        topic = self._target.fresh()
        job = {**rows, "sink": "kafka", "brokers": self._served.server.bootstrap, "topic": topic, "prefix": topic}
        job |= {"checkpoints": folder / "checkpoints"}
        job |= {f"producer__{name.replace('.', '__')}": value for name, value in {**self._producer, **_TIMEOUT}.items()}
        return self._sides.timed(FLINK, lambda: self._filled(self._peer.run(**job)))

    def _sink_of_spark(self, folder: Path) -> Work:
        options = {"kafka.bootstrap.servers": self._served.server.bootstrap, "topic": self._target.fresh()}
        options |= {f"kafka.{name}": value for name, value in self._producer.items()}
        spark, source = self._spark, self._source
        return self._sides.timed(SPARK, lambda: self._filled(stream_into(spark, source, folder, "kafka", options)))

    def _tool(self, folder: Path) -> Work:
        topic = self._target.fresh()

        def work() -> Metrics:
            speed = run_tool(self._served.server.bootstrap, topic, self._payloads, self._source.rows, self._producer)
            return {**self._filled(), "rows_per_s": speed}

        return self._sides.timed(TOOL, work)


KAFKA = Benchmark(
    "kafka", "Kafka, exactly once, beside Flink, Kafka's own tool, Spark's sink, and ours at least once.", _open
)
KAFKA_LZ4, KAFKA_ZSTD = (
    Benchmark(f"kafka_{codec}", f"Kafka with {codec}, beside the same peers with {codec}.", _open_with(codec))
    for codec in ("lz4", "zstd")
)
