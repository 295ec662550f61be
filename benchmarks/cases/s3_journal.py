"""A journal in S3: the start after 100,000 epochs beside the start after ten, in time and in requests."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from tests.servers.s3 import own_s3
from tests.servers.s3_proxy import cutting_s3

from benchmarks.cases.journal import append, build, start
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from benchmarks.s3_server import Requests
from exactsink.protocol.journal.stores.objects import ObjectStore
from exactsink.toolkit.storage import ObjectPath

__all__ = ["BENCHMARK"]

_KEEP = 1_000
_TIMES = 5
_EPOCHS = 50


@contextmanager
def _open(setting: Setting) -> Iterator[Plan]:
    keep = setting.scaled(_KEEP, least=20)
    sizes = [10, keep, 100 * keep]
    with own_s3() as server, cutting_s3(server) as proxy, patch.dict(os.environ, proxy.environment):
        requests = proxy.set(Requests())
        built = {size: server.new_bucket("built") for size in sizes}
        for size, bucket in built.items():
            build(_store(bucket), size, keep)

        def prepared(size: int) -> Variant:
            def prepare(folder: Path) -> Work:
                bucket = server.new_bucket("round")
                for part in (server.folder / "data" / built[size]).iterdir():
                    if not part.name.startswith("."):  # the server's own
                        shutil.copytree(part, server.folder / "data" / bucket / part.name)
                return lambda: _work(bucket, size, keep, requests)

            return Variant(f"{size:,}", prepare)

        few, kept, many = (f"{size:,}" for size in sizes)
        bounds = [Bound(metric, many, kept, at_most=1.5) for metric in ("start_ms", "start_requests", "epoch_ms")]
        bounds += [Bound("epoch_requests", many, at_most=3)]
        bounds += [Bound(metric, many, few) for metric in ("start_ms", "start_requests")]
        bounds += [Bound("start_requests", name) for name in (few, many)]
        notes = [f"versitygw behind a proxy that counts; {keep:,} epochs are kept; a copy of the journal each round"]
        yield Plan([prepared(size) for size in sizes], bounds, notes)


def _work(bucket: str, size: int, keep: int, requests: Requests) -> Metrics:
    """Start, and decide some epochs. Measure the time and the requests of each."""
    _store(bucket).newest()  # the first request connects
    before, began = requests.count, time.perf_counter()
    for _ in range(_TIMES):
        journal, generation = start(_store(bucket), keep)
    started, started_at = requests.count, time.perf_counter()
    for epoch in range(size, size + _EPOCHS):
        append(journal, epoch, generation)
    decided, decided_at = requests.count, time.perf_counter()
    return {
        "start_ms": (started_at - began) / _TIMES * 1000,
        "start_requests": (started - before) / _TIMES,
        "epoch_ms": (decided_at - started_at) / _EPOCHS * 1000,
        "epoch_requests": (decided - started) / _EPOCHS,
    }


def _store(bucket: str) -> ObjectStore:
    return ObjectStore(ObjectPath.of(f"s3://{bucket}/journal"))


BENCHMARK = Benchmark("s3_journal", "A journal in S3: a start, and epochs, after 100,000 epochs and after ten.", _open)
