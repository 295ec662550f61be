"""Write to Kafka from one process, in one transaction, beside Kafka's own tool for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
from tests.servers.kafka_jars import TOOLS, jars

from benchmarks.kafka_broker import Target, serving
from benchmarks.kafka_job import VALUE, HandJob
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from benchmarks.producer_performance import LIKE_OURS, run_tool

__all__ = ["BENCHMARK"]

_A_BATCH = 10_000  # as Spark passes them on
_TOOL = "ProducerPerformance"


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    rows = setting.scaled(300, least=10) * _A_BATCH
    jars(TOOLS)  # fetched before the clock runs
    lines = [f"{number:0{VALUE}}" for number in range(_A_BATCH)]
    batch = pa.record_batch({"value": pa.array([line.encode() for line in lines], pa.binary())})
    payloads = setting.folder / "payloads"
    payloads.write_text("\n".join(lines) + "\n")
    with serving() as served:
        target = Target(served)
        variants = [
            Variant("plain", _alone(target, "plain", batch, rows)),
            Variant("fast", _alone(target, "fast", batch, rows)),
            Variant(_TOOL, _tool(target, payloads, rows)),
        ]
        bounds = [
            Bound("records_per_s", "plain", _TOOL),
            Bound("records_per_s", "fast", _TOOL),
            Bound("cpu_s", "plain", _TOOL),
            Bound("cpu_s", "fast", _TOOL),
            Bound("records_per_s", "fast", "plain"),
        ]
        notes = [
            f"{rows:,} records of {VALUE} bytes without a key, in one transaction, from one process",
            f"settings of both: {', '.join(f'{name} {value}' for name, value in LIKE_OURS.items())}",
            "records_per_s: from the first record to the commit's end; starting a JVM is in wall_s and cpu_s alone",
            f"ours: Arrow batches of {_A_BATCH:,} rows in hand; {_TOOL}: the same values from a file, chosen at random",
            *served.notes,
        ]
        yield Plan(variants, bounds, notes)
        target.close()


def _alone(target: Target, chosen: str, batch: pa.RecordBatch, rows: int) -> Callable[[Path], Work]:
    def prepare(folder: Path) -> Work:
        job = HandJob(target.served.options(target.fresh(), writer=chosen))
        epoch, ticket = job.open(1)

        def work() -> Metrics:
            with closing(job.committer):
                writer = job.writer(epoch, ticket, batch.schema)
                started = time.perf_counter()
                for _ in range(rows // batch.num_rows):
                    writer.write(batch)
                vote = writer.pre_commit()
                assert vote.rows == rows
                job.commit(epoch, [vote])
                return {**target.filled(rows, 1), "records_per_s": rows / (time.perf_counter() - started)}

        return work

    return prepare


def _tool(target: Target, payloads: Path, rows: int) -> Callable[[Path], Work]:
    def prepare(folder: Path) -> Work:
        topic = target.fresh()

        def work() -> Metrics:
            speed = run_tool(target.served.server.bootstrap, topic, payloads, rows)
            return {**target.filled(rows, 1), "records_per_s": speed}

        return work

    return prepare


BENCHMARK = Benchmark(
    "kafka_producer_performance", "Records a second in one transaction, beside Kafka's ProducerPerformance.", _open
)
