"""A session of a `files` sink in a test's folder, the rows of its one epoch, and what readers find."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.assessed import commit_assessed

from exactsink.contract import AlreadyCommitted, Committable, Committed, Finding, JobContext, Outcome, Writer
from exactsink.testing import Session
from exactsink_files.backend import FilesBackend, FilesOptions

EPOCH = 7
SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string()})
LINES = pa.schema({"value": pa.string()})
TEXT = {"format": "csv", "header": False}
"""Lines as they are given."""
DAYS = pa.schema({"value": pa.string(), "day": pa.int32()})
STANDS = {Committed, AlreadyCommitted}


class Files(Session):
    """A session of job `job` into sink `sink`, unless it is another's, for the one epoch."""

    def id(self, partition: int = 0) -> str:
        return self.txn(EPOCH, partition).id

    def vote(self, *partitions: pa.Table) -> list[Committable]:
        return self.prepare(EPOCH, partitions)

    def begin(self, rows: pa.Table, partition: int = 0) -> Writer:
        return self.writer(EPOCH, partition, rows.schema, self.open(EPOCH, rows.schema))

    def end(self, *voted: Committable) -> list[Outcome]:
        return commit_assessed(self, EPOCH, voted)

    def check(self, schema: pa.Schema = SCHEMA) -> list[Finding]:
        return list(self.backend.committer(self.ctx).check(schema, None))


def kinds(outcomes: Sequence[Outcome]) -> list[type]:
    return [type(outcome) for outcome in outcomes]


def swept(sink: Files) -> None:
    sink.abort(*sink.listed())


def files(root: Path, job: str = "job", sink: str = "sink", **options: Any) -> Files:
    backend = FilesBackend(FilesOptions(path=str(root), **options))
    return Files(backend, JobContext(job, sink, staging="", generation=3), "ab12")


def rows(*given: Sequence[Any], schema: pa.Schema = SCHEMA, size: int = 2) -> pa.Table:
    """Make rows that come in batches of `size`."""
    columns = [pa.array(column, field.type) for column, field in zip(zip(*given, strict=True), schema, strict=True)]
    return pa.Table.from_batches(pa.table(columns, schema=schema).to_batches(max_chunksize=size))


def lines(*given: str) -> pa.Table:
    return rows(*[(line,) for line in given], schema=LINES)


def two_files(root: Path, participants: int = 1) -> tuple[Files, list[Committable]]:
    """Vote with participants of two files each, in partition folders that do not exist yet."""
    sink = files(root, partition_by=["day"], **TEXT)
    return sink, sink.vote(*[rows((f"{n}", 1), (f"{n}", 2), schema=DAYS) for n in range(participants)])


def assert_two_files(root: Path, participants: int = 1) -> None:
    found = sorted((path.parent.name, path.read_text()) for path in visible(root))
    assert found == sorted((f"day={day}", f"{n}\n") for n in range(participants) for day in (1, 2))
    assert temps(root) == []


def visible(root: Path) -> list[Path]:
    """List what a reader sees."""
    return sorted(p for p in root.rglob("*") if p.is_file() and "_exactsink" not in p.relative_to(root).parts)


def temps(root: Path) -> list[str]:
    """Name the participants' folders, and what else lies there beside the sinks' marks."""
    return sorted(name for name in os.listdir(root / "_exactsink") if not re.fullmatch(r"[a-z-]+\.[a-z-]+", name))


def marks(root: Path) -> list[str]:
    """Name what is in the mark folder, with the hash of a manifest left out."""
    folder = root / "_exactsink" / "job.sink"
    return sorted(re.sub(r"\.[0-9a-f]{16}\.", ".SET.", name) for name in os.listdir(folder))
