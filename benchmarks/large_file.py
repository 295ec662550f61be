"""The memory of a task's process: `python -m benchmarks.large_file BYTES [URL]` writes one file, or drops its rows.

It prints the number of rows, and its peak resident memory in bytes.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator

import pyarrow as pa

from exactsink.contract import JobContext
from exactsink.testing import Session
from exactsink_files.backend import FilesBackend, FilesOptions

_ROWS = 10_000  # the rows of a batch of Spark's
_WIDTH = 128


def batches(size: int) -> Iterator[pa.RecordBatch]:
    """Return batches of so many bytes in all, with text that can't be compressed."""
    offsets = pa.py_buffer(memoryview(bytes(pa.array(range(0, (_ROWS + 1) * _WIDTH, _WIDTH), pa.int32()).buffers()[1])))
    for _ in range(size // (_ROWS * _WIDTH)):
        text = os.urandom(_ROWS * _WIDTH // 2).hex().encode()
        yield pa.record_batch({"text": pa.StringArray.from_buffers(_ROWS, offsets, pa.py_buffer(text))})


def main(size: int, url: str) -> None:
    rows = 0
    if url:
        session = Session(FilesBackend(FilesOptions(path=url)), JobContext("bench", "lake", "", 1, "bench"), "0" * 12)
        schema = pa.schema({"text": pa.string()})
        writer = session.writer(0, 0, schema, session.open(0, schema))
        for batch in batches(size):
            writer.write(batch)
            rows += batch.num_rows
        writer.pre_commit()
    else:
        rows = sum(batch.num_rows for batch in batches(size))
    sys.stdout.write(f"{rows} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:3] or [""])
