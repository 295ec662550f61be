"""Writing to Kafka from one process, in one transaction, beside Kafka's own tool for that."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
from tests.servers.kafka_jars import TOOLS, jars, java

from benchmarks.kafka_broker import Target, serving
from benchmarks.kafka_job import VALUE, HandJob
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work

__all__ = ["BENCHMARK"]

_A_BATCH = 10_000  # as Spark hands them over
_TOOL = "ProducerPerformance"
_TIMEOUT_MS = 900_000
_TELLS = re.compile(r"(?P<rows>\d+) records sent, (?P<speed>[\d.]+) records/sec")
_LIKE_OURS = {  # Java's names for the settings that our writers take
    "acks": "all",
    "enable.idempotence": "true",
    "batch.size": "262144",
    "linger.ms": "20",
    "compression.type": "none",
    "buffer.memory": "67108864",
}


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    rows = setting.scaled(300, least=10) * _A_BATCH
    tools = jars(TOOLS)
    lines = [f"{number:0{VALUE}}" for number in range(_A_BATCH)]
    batch = pa.record_batch({"value": pa.array([line.encode() for line in lines], pa.binary())})
    payloads = setting.folder / "payloads"
    payloads.write_text("\n".join(lines) + "\n")
    with serving() as served:
        target = Target(served)
        variants = [
            Variant("plain", _alone(target, "plain", batch, rows)),
            Variant("fast", _alone(target, "fast", batch, rows)),
            Variant(_TOOL, _tool(target, tools, payloads, rows)),
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
            f"settings of both: {', '.join(f'{name} {value}' for name, value in _LIKE_OURS.items())}",
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


def _tool(target: Target, tools: Path, payloads: Path, rows: int) -> Callable[[Path], Work]:
    def prepare(folder: Path) -> Work:
        topic = target.fresh()
        settings = {
            "bootstrap.servers": target.served.server.bootstrap,
            **_LIKE_OURS,
            "transaction.timeout.ms": str(_TIMEOUT_MS),
        }
        command = [java(), "-Xmx1g", "-cp", f"{tools}/*", "org.apache.kafka.tools.ProducerPerformance"]
        command += ["--topic", topic, "--num-records", str(rows), "--throughput", "-1"]
        command += ["--payload-file", str(payloads), "--transactional-id", topic]
        command += ["--transaction-duration-ms", str(_TIMEOUT_MS)]  # longer than it takes: one transaction
        command += ["--command-property", *(f"{name}={value}" for name, value in settings.items())]

        def work() -> Metrics:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            reported = list(_TELLS.finditer(done.stdout))
            if done.returncode != 0 or not reported or int(reported[-1]["rows"]) != rows:
                raise RuntimeError(f"{_TOOL} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            return {**target.filled(rows, 1), "records_per_s": float(reported[-1]["speed"])}

        return work

    return prepare


BENCHMARK = Benchmark(
    "kafka_producer_performance", "Records a second in one transaction, beside Kafka's ProducerPerformance.", _open
)
