"""A task's memory and vote, by strategy: `python -m benchmarks.task_size` writes 300 MB of rows through each.

Memory is a process's peak resident memory, above a process that only made the rows. A vote's bytes go into the
journal. Both are counted, not timed, so load on the machine does not matter.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import kafka_broker
from benchmarks.cases import postgres_server
from benchmarks.large_file import batches
from exactsink.contract import JobContext
from exactsink.job.registry import Registry, installed_plugins
from exactsink.protocol.wire import plain_committable
from exactsink.testing import Session

_SIZE = 300 * 10**6
_SCHEMA = pa.schema({"value": pa.string(), "id": pa.int64()})


def rows(schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Return the rows: a text of 128 bytes that can't be compressed, and a unique number if the schema has one."""
    first = 0
    for batch in batches(_SIZE):
        numbers = pa.array(range(first, first + batch.num_rows), pa.int64())
        yield pa.record_batch([batch.column(0), numbers][: len(schema)], schema=schema)
        first += batch.num_rows


def task(backend: str, options: Mapping[str, Any], staging: str) -> None:
    """Run the task: write all rows, vote, and print the bytes of the vote and of the memory. "" writes nowhere."""
    vote, schema = 0, _SCHEMA if backend != "kafka" else pa.schema([_SCHEMA.field(0)])
    if backend:
        model = Registry(installed_plugins()).load(backend, backend)
        session = Session(
            model(model.Options.model_validate(options)), JobContext("size", "sink", staging, 1, "size"), "0" * 12
        )
        writer = session.writer(0, 0, schema, session.open(0, schema))
        for batch in rows(schema):
            writer.write(batch)
        vote = len(json.dumps(plain_committable(writer.pre_commit())))
    else:
        for _ in rows(schema):
            pass
    sys.stdout.write(f"{vote} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}\n")


def main() -> None:
    """Measure each strategy in its own process."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        postgres = stack.enter_context(postgres_server.serving())
        kafka = stack.enter_context(kafka_broker.serving())
        table = {"conninfo": postgres.conninfo, "table": "sized", "create": True}
        upsert = {"url": f"sqlite:///{folder}/sized.db", "table": "sized", "keys": ["id"], "create": True}
        lake = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"{folder}/iceberg", "table": "shop.sized"}
        topic = {"bootstrap_servers": kafka.server.bootstrap, "topic": kafka.server.new_topic("sized", 4)}
        ways: dict[str, tuple[str, Mapping[str, Any]]] = {
            "nothing": ("", {}),
            "files, rename": ("files", {"path": f"{folder}/lake"}),
            "files, rename, JSON lines": ("files", {"path": f"{folder}/lines", "format": "json"}),
            "delta, append": ("delta", {"path": f"{folder}/delta"}),
            "iceberg, append": ("iceberg", lake),
            "kafka, transactions": ("kafka", topic),
            "postgres, two_phase": ("postgres", table),
            "postgres, staged": ("postgres", {**table, "table": "staged", "strategy": "staged"}),
            "idempotent_upsert, staged": ("idempotent_upsert", upsert),
            "idempotent_upsert, direct": ("idempotent_upsert", {**upsert, "table": "d", "strategy": "direct"}),
        }
        bare = 0
        for name, (backend, options) in ways.items():
            words = [backend, json.dumps(options), str(folder / "staging")]
            done = subprocess.run(
                [sys.executable, "-m", __spec__.name, *words], check=True, stdout=subprocess.PIPE, text=True
            )
            vote, peak = map(int, done.stdout.split())
            bare = bare or peak
            sys.stdout.write(f"{name}: {(peak - bare) / 10**6:.0f} MB above a bare process, a vote of {vote} bytes\n")
            sys.stdout.flush()


if __name__ == "__main__":
    task(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]) if sys.argv[1:] else main()
