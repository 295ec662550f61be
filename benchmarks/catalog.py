"""All benchmarks by name."""

from __future__ import annotations

from benchmarks.cases import (
    coordinator,
    epoch,
    files,
    files_stream,
    journal,
    kafka,
    kafka_alone,
    kafka_epochs,
    marks,
    null,
    postgres,
    postgres_loads,
    second_sink,
)
from benchmarks.plan import Benchmark

__all__ = ["CATALOG"]

CATALOG: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        coordinator.BENCHMARK,
        journal.BENCHMARK,
        epoch.BENCHMARK,
        null.BENCHMARK,
        files.BENCHMARK,
        files_stream.BENCHMARK,
        second_sink.BENCHMARK,
        postgres_loads.LOAD,
        postgres_loads.PREPARE,
        postgres_loads.COMMIT,
        postgres.BENCHMARK,
        kafka.BENCHMARK,
        kafka_alone.BENCHMARK,
        kafka_epochs.COMMIT,
        kafka_epochs.EPOCH,
        marks.BENCHMARK,
    )
}
