"""All benchmarks by name."""

from __future__ import annotations

from benchmarks.cases import (
    coordinator,
    delta,
    files,
    growth_epochs,
    growth_journal,
    growth_spark,
    iceberg,
    journal,
    kafka,
    kafka_alone,
    kafka_epochs,
    mariadb_upserts,
    marks,
    object_store,
    observed,
    postgres,
    postgres_loads,
    postgres_upserts,
    s3_journal,
    second_sink,
    sqlite_upserts,
)
from benchmarks.plan import Benchmark

__all__ = ["CATALOG", "GROWTH"]

CATALOG: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        coordinator.BENCHMARK,
        journal.BENCHMARK,
        observed.BENCHMARK,
        files.BENCHMARK,
        delta.ROWS,
        delta.COMMIT,
        iceberg.ROWS,
        iceberg.COMMIT,
        second_sink.BENCHMARK,
        sqlite_upserts.SMALL,
        sqlite_upserts.LARGE,
        postgres_loads.LOAD,
        postgres_loads.PREPARE,
        postgres_loads.COMMIT,
        postgres.BENCHMARK,
        postgres_upserts.SMALL,
        postgres_upserts.LARGE,
        mariadb_upserts.SMALL,
        mariadb_upserts.LARGE,
        kafka.BENCHMARK,
        kafka_alone.BENCHMARK,
        kafka_epochs.COMMIT,
        kafka_epochs.EPOCH,
        marks.BENCHMARK,
        object_store.FILES,
        object_store.CLOUDS,
        object_store.COMMIT,
        object_store.MEMORY,
        s3_journal.BENCHMARK,
    )
}

GROWTH: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        growth_spark.ROWS,
        growth_spark.PARTITIONS,
        growth_spark.SINKS,
        growth_epochs.PARTICIPANTS,
        growth_epochs.LOST,
        growth_journal.DECISIONS,
        growth_journal.EPOCHS,
        growth_journal.STARTS,
    )
}
"""Benchmarks of how cost grows. They are long, so they run only by `growth` or by name."""
