"""One file past what a store takes in one request: 5 GB, sent in parts, whole after its commit."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.large_file import batches

from exactsink.contract import Committed, JobContext
from exactsink.testing import Session
from exactsink.toolkit.storage import ObjectPath
from exactsink_files.backend import FilesBackend, FilesOptions
from tests.servers.s3 import own_s3

_MOST_OF_A_PUT = 5 * 2**30
_SCHEMA = pa.schema({"text": pa.string()})


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_file_of_more_than_5_gb_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    with own_s3() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        bucket = server.new_bucket("soak")
        backend = FilesBackend(FilesOptions(path=f"s3://{bucket}/lake"))
        session = Session(backend, JobContext("soak", "lake", "", 1, "soak"), "0" * 12)
        session.put_birth()
        writer = session.writer(0, 0, _SCHEMA, session.open(0, _SCHEMA))
        given = hashlib.blake2b()
        for batch in batches(_MOST_OF_A_PUT + 2**28):
            writer.write(batch)
            given.update(_text(batch))
        committable = writer.pre_commit()
        target = ObjectPath.of(f"s3://{bucket}/lake")
        assert not _parquet(target)
        assert session.commit_marked(0, [committable]) == [Committed()]
        [(name, size)] = _parquet(target).items()
        assert size > _MOST_OF_A_PUT
        found = hashlib.blake2b()
        with (target / name).reading() as file:
            for batch in pq.ParquetFile(file).iter_batches():
                found.update(_text(batch))
        assert found.digest() == given.digest()
        assert session.listed() == []


def _parquet(target: ObjectPath) -> dict[str, int]:
    """List the files that readers see, and their sizes."""
    return {name: found.size for name, found in target.listed().items() if name.endswith(".parquet")}


def _text(batch: pa.RecordBatch) -> memoryview:
    """Return the column's bytes, one row after the other."""
    column = batch.column(0)
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return memoryview(data)[ends[0] : ends[-1]]
