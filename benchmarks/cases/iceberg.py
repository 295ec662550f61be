"""Iceberg tables: rows a second beside our own Parquet files, and the commit of an epoch on a table of many files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table

from benchmarks.cases.delta import beside_files
from benchmarks.plan import Benchmark, Bound, Metrics, Plan, Setting, Variant, Work
from exactsink.contract import JobContext
from exactsink.testing import Session
from exactsink_iceberg.backend import IcebergBackend, IcebergOptions
from exactsink_iceberg.tables import SinkTable
from exactsink_iceberg.votes import BOUNDS, NUMBERS, VotedFile, data_file

__all__ = ["COMMIT", "ROWS"]

_FILES, _STANDING, _OF_A_MANIFEST = 200, 100_000, 2_000


def _options(folder: Path, **more: Any) -> IcebergOptions:
    """Return a table's options, its catalog in SQLite."""
    given = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": str(folder / "lake"), "table": "shop.orders"}
    return IcebergOptions.model_validate({**given, **more})


@contextmanager
def _commit(setting: Setting) -> Iterator[Plan]:
    count, standing = setting.scaled(_FILES), setting.scaled(_STANDING)
    rows = pa.table({"id": range(count), "kind": [f"k{number}" for number in range(count)]})

    def prepare(folder: Path) -> Work:
        options = _options(folder, partition_by=["kind"])
        session = Session(IcebergBackend(options), JobContext("bench", "lake", str(folder), 1, "be"), "be")
        session.put_birth()
        votes = session.prepare(0, [rows])
        with closing(SinkTable(options, "bench", "lake")) as target:
            for first in range(0, standing, _OF_A_MANIFEST):
                _append(target.standing(), range(first, min(first + _OF_A_MANIFEST, standing)))

        def work() -> Metrics:
            session.commit_marked(0, votes)
            return {"files": count}

        return work

    note = f"{count} files of one participant onto {standing:,}, {_OF_A_MANIFEST:,} a manifest; a catalog in SQLite"
    yield Plan([Variant("commit", prepare)], [Bound("wall_s", "commit", at_most=1)], [note])


def _append(table: Table, numbers: range) -> None:
    """Append files that do not exist: a commit reads none of them."""
    with table.transaction() as change, change.update_snapshot().fast_append() as snapshot:
        for number in numbers:
            voted = VotedFile(
                path=f"{table.location()}/data/{number}.parquet",
                size=1,
                rows=1,
                sha256="",
                spec=table.spec().spec_id,
                partition=["k"],
                numbers={name: {} for name in NUMBERS},
                bounds={name: {} for name in BOUNDS},
                offsets=[],
            )
            snapshot.append_data_file(data_file(voted))


ROWS = Benchmark(
    "iceberg",
    "Rows a second into an Iceberg table, committed, beside our own Parquet files.",
    beside_files("iceberg", lambda folder: IcebergBackend(_options(folder))),
)
COMMIT = Benchmark("iceberg_commit", "Commit of 200 files on an Iceberg table of 100,000.", _commit)
