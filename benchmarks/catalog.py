"""All benchmarks by name."""

from __future__ import annotations

from benchmarks.cases import coordinator, epoch, files, journal, null, second_sink
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
        second_sink.BENCHMARK,
    )
}
