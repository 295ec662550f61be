"""Files in S3: rows per second, the commit of many uploads, and a task's memory for one large file.

`cloud_files` writes the same rows to emulators of Azure and Google Cloud Storage, and to HDFS.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
from tests.servers.azurite import own_azurite
from tests.servers.fake_gcs import own_fake_gcs
from tests.servers.hdfs import own_hdfs

from benchmarks.peers.ours import job_of_file, stream_job
from benchmarks.peers.sides import SPARK, Sides, bounded
from benchmarks.peers.source import ROWS, Source, epochs_of, make_source
from benchmarks.peers.spark_sinks import stream_into
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from benchmarks.s3_server import s3_server, s3a_settings
from exactsink.contract import JobContext
from exactsink.testing import Session
from exactsink.toolkit.storage import ObjectPath
from exactsink_files.backend import FilesBackend, FilesOptions

if TYPE_CHECKING:
    from tests.servers.s3 import S3Server

__all__ = ["CLOUDS", "COMMIT", "FILES", "MEMORY", "bucket", "counted"]

_LOCAL, _SPARK = "ours, local", "Spark stream sink, s3a"
_UPLOADS = 200
_MEMORY = 1 << 30


@contextmanager
def _files(setting: Setting) -> Iterator[Plan]:
    source = make_source(ROWS, setting.folder / "source", *epochs_of(setting.scale, 8, 500_000))
    with s3_server() as server:
        spark = setting.spark()
        for name, value in s3a_settings(server).items():
            spark.conf.set(name, value)
        sides = Sides(source.rows, {server.pid: "server"})
        variants = [
            Variant(
                "ours",
                _ours(setting, source, sides, lambda folder: f"s3://{bucket(server, folder)}/out"),
                counted(server),
            ),
            Variant(
                _LOCAL,
                _ours(setting, source, sides, lambda folder: str(folder / "out")),
                lambda folder: _rows_below(folder / "out"),
            ),
            Variant(_SPARK, _by_spark(setting, source, sides, server), counted(server)),
        ]
        bounds = [*bounded("ours", _LOCAL, 0.8), *bounded("ours", _SPARK, 1.2)]
        bounds += [Bound("own_us_a_row", "ours", other) for other in (_LOCAL, _SPARK)]
        notes = [source.note, "versitygw on the same disk; checkpoints are local on all sides", _NO_COMMITTER]
        yield Plan(variants, bounds, notes)


_NO_COMMITTER = (
    "Spark's stream sink writes final names by itself and lists them in _spark_metadata: it asks no committer; a batch "
    "write comes to S3A's committers by spark-hadoop-cloud only, which there is for 4.0.0: see benchmarks.s3_committers"
)


def bucket(server: S3Server, folder: Path) -> str:
    """Return the bucket of a round's folder."""
    name = f"b{uuid.uuid5(uuid.NAMESPACE_URL, str(folder)).hex[:20]}"
    (server.folder / "data" / name).mkdir(exist_ok=True)
    return name


def _rows_of(url: Callable[[Path], str], folder: Path) -> int:
    return _rows_at(url(folder))


def _ours(setting: Setting, source: Source, sides: Sides, path: Callable[[Path], str]) -> Callable[[Path], Work]:
    def prepare(folder: Path) -> Work:
        make = partial(job_of_file, folder, "files", path=path(folder))
        return _timed(sides, lambda: stream_job(setting.spark(), source, make))

    return prepare


def _by_spark(setting: Setting, source: Source, sides: Sides, server: S3Server) -> Callable[[Path], Work]:
    def prepare(folder: Path) -> Work:
        options = {"path": f"s3a://{bucket(server, folder)}/out"}
        return _timed(sides, lambda: stream_into(setting.spark(), source, folder, "parquet", options))

    return prepare


def _timed(sides: Sides, run: Callable[[], object]) -> Work:
    """Add the CPU time of all processes but the server, because local disks have no server."""

    def work() -> Metrics:
        run()
        return {}

    timed = sides.timed(SPARK, work)

    def with_own() -> Metrics:
        figures = timed()
        return {**figures, "own_us_a_row": figures["us_a_row"] - figures.get("server_us_a_row", 0.0)}

    return with_own


def counted(server: S3Server) -> Callable[[Path], int]:
    """Return a function that counts the rows of a round, in the visible files."""
    return lambda folder: _rows_below(server.folder / "data" / bucket(server, folder) / "out")


def _rows_below(target: Path) -> int:
    files = [file for file in target.iterdir() if file.suffix == ".parquet"]
    return sum(pq.read_metadata(file).num_rows for file in files)


@contextmanager
def _clouds(setting: Setting) -> Iterator[Plan]:
    source = make_source(ROWS, setting.folder / "source", *epochs_of(setting.scale, 8, 500_000))
    with ExitStack() as stack:
        servers: dict[str, tuple[str, Any]] = {_S3: ("s3", stack.enter_context(s3_server()))}
        for name, (scheme, own) in _EMULATORS.items():
            servers[name] = scheme, stack.enter_context(own())
        for _, server in servers.values():  # before Spark's JVM starts, because its workers inherit them
            stack.enter_context(patch.dict(os.environ, server.environment))
        sides = Sides(source.rows, {server.pid: "server" for _, server in servers.values()})
        variants = []
        for name, (scheme, server) in servers.items():
            url = cache(partial(_new_url, scheme, server))
            variants.append(Variant(name, _ours(setting, source, sides, url), partial(_rows_of, url)))
        bounds = [bound for name in _EMULATORS for bound in bounded(name, _S3)]
        notes = [source.note, "servers on the same disk and cores, GCS in memory; checkpoints are local on all sides"]
        yield Plan(variants, bounds, notes)


_S3 = "S3, versitygw 1.8.0"
_EMULATORS: Mapping[str, tuple[str, Callable[[], Any]]] = {
    "Azure, Azurite 3.37.0": ("az", own_azurite),
    "GCS, fake-gcs-server 1.54.0": ("gs", own_fake_gcs),
    "HDFS, MiniDFSCluster 3.4.2": ("webhdfs", own_hdfs),
}


def _new_url(scheme: str, server: Any, folder: Path) -> str:
    """Return where a round writes; the cache of it keeps one for each round's `folder`."""
    return f"{scheme}://{server.new_bucket('bench')}/out"


def _rows_at(url: str) -> int:
    target = ObjectPath.of(url, skip_instance_cache=True)
    files = [name for name in target.listed(deep=True) if name.endswith(".parquet") and not name.startswith("_")]
    return sum(pq.read_metadata(io.BytesIO((target / name).read_bytes())).num_rows for name in files)


@contextmanager
def _commit(setting: Setting) -> Iterator[Plan]:
    count = setting.scaled(_UPLOADS)
    table = pa.table({"kind": [f"k{number}" for number in range(count)], "id": range(count)})
    with s3_server() as server:

        def prepare(folder: Path) -> Work:
            options = FilesOptions(path=f"s3://{bucket(server, folder)}/out", partition_by=["kind"])
            context = JobContext("bench", "lake", str(folder), 1, "bench")
            session = Session(FilesBackend(options), context, "0" * 12)
            session.put_birth()
            votes = session.prepare(0, [table])

            def work() -> Metrics:
                session.commit_marked(0, votes)
                return {"uploads": count}

            return work

        yield Plan(
            [Variant("commit", prepare, None)],
            [Bound("wall_s", "commit", at_most=1)],
            [f"{count} uploads of one part, one participant; a committer that reads the mark, looks, completes, marks"],
        )


@contextmanager
def _memory(setting: Setting) -> Iterator[Plan]:
    size = setting.scaled(_MEMORY)
    with s3_server() as server:

        def prepare(folder: Path) -> Work:
            url = f"s3://{bucket(server, folder)}/out"

            def work() -> Metrics:
                started = time.perf_counter()
                rows, peak = _task(size, url)
                took = time.perf_counter() - started
                dropped, bare = _task(size, "")
                assert rows == dropped
                return {"rows": rows, "wall_s": took, "peak_mb": peak, "bare_peak_mb": bare, "above_mb": peak - bare}

            return work

        yield Plan(
            [Variant("one file", prepare)],
            [Bound("above_mb", "one file", at_most=300), *(Bound(f"{of}peak_mb", "one file") for of in ("", "bare_"))],
            [f"{size / 1e9:.2f} GB of random text, one participant, Parquet; peak RSS, and a bare process"],
        )


def _task(size: int, url: str) -> tuple[int, float]:
    """Return the rows of a task's process, and its peak RSS in MB."""
    command = [sys.executable, "-m", "benchmarks.large_file", str(size), url]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rows, peak = map(int, done.stdout.split())
    return rows, peak / 1e6


FILES = Benchmark("s3_files", "Parquet into S3 through Spark, beside local files and Spark's own sink by S3A.", _files)
CLOUDS = Benchmark("cloud_files", "Parquet through Spark to S3, Azure, GCS and HDFS, on emulators.", _clouds)
COMMIT = Benchmark("s3_commit", "Commit of 200 uploads.", _commit)
MEMORY = Benchmark("s3_memory", "Peak memory of a task that writes one large file to S3.", _memory)
