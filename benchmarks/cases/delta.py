"""Delta tables: rows per second beside exactsink's Parquet files, and an epoch's commit on a table of many files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import AddAction, create_table_with_add_actions

from benchmarks.epochs import EpochDriver, FrameEpoch
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from benchmarks.warm_spark import PARTITIONS, varied_frame
from exactsink.contract import Backend, JobContext
from exactsink.protocol.sinks import Sink
from exactsink.testing import Session
from exactsink_delta.backend import DeltaBackend, DeltaOptions
from exactsink_files.backend import FilesBackend, FilesOptions

__all__ = ["COMMIT", "ROWS", "beside_files"]

_FILES, _STANDING = 200, 100_000


def beside_files(name: str, table: Callable[[Path], Backend]) -> Callable[[Setting], AbstractContextManager[Plan]]:
    """Return the plan of a table's rows, made in a folder, beside our own Parquet files."""

    @contextmanager
    def plan(setting: Setting) -> Iterator[Plan]:
        rows = setting.scaled(5_000_000)
        frame = varied_frame(setting.spark(), rows)

        def written(backend: Callable[[Path], Backend], folder: Path) -> Work:
            epoch = FrameEpoch(EpochDriver({"out": Sink("out", "out", backend(folder), staging="")}, folder), frame)

            def work() -> Metrics:
                assert list(epoch().values()) == [rows]
                return {"rows": rows}

            return work

        files = partial(written, lambda folder: FilesBackend(FilesOptions(path=str(folder / "target"))))
        variants = [Variant(name, partial(written, table)), Variant("files", files)]
        bounds = [Bound("rows_per_s", name, "files", at_least=0.9), Bound("rows_per_cpu_s", name, "files")]
        yield Plan(variants, bounds, [f"{rows:,} rows (long, string, 100 characters), {PARTITIONS} partitions"])

    return plan


_rows = beside_files("delta", lambda folder: DeltaBackend(DeltaOptions(path=str(folder / "target"))))


@contextmanager
def _commit(setting: Setting) -> Iterator[Plan]:
    count, standing = setting.scaled(_FILES), setting.scaled(_STANDING)
    rows = pa.table({"id": range(count), "kind": [f"k{number}" for number in range(count)]})

    def prepare(folder: Path) -> Work:
        path = str(folder / "table")
        stats = json.dumps({"numRecords": 1, "minValues": {"id": 1}, "maxValues": {"id": 1}, "nullCount": {"id": 0}})
        adds = [AddAction(f"{number}.parquet", 1, {"kind": "k"}, 0, True, stats) for number in range(standing)]
        schema = DeltaTable.create(str(folder / "empty"), rows.schema).schema()
        create_table_with_add_actions(path, schema, adds, partition_by=["kind"])
        DeltaTable(path).create_checkpoint()
        session = Session(
            DeltaBackend(DeltaOptions(path=path)), JobContext("bench", "lake", str(folder), 1, "be"), "be"
        )
        session.put_birth()
        votes = session.prepare(0, [rows])

        def work() -> Metrics:
            session.commit_marked(0, votes)
            return {"files": count}

        return work

    note = f"{count} files of one participant onto {standing:,}; a committer that opens the table for it"
    yield Plan([Variant("commit", prepare)], [Bound("wall_s", "commit", at_most=1)], [note])


ROWS = Benchmark("delta", "Rows a second into a Delta table, committed, beside our own Parquet files.", _rows)
COMMIT = Benchmark("delta_commit", "Commit of 200 files on a table of 100,000.", _commit)
