"""A transform that holds one task of one epoch in the middle of its batch until its JVM is killed, once.

Its mark is left in the session's `spark.faults.folder`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

__all__ = ["CONF", "EPOCH", "hold", "mark"]

EPOCH = 1
CONF = {"spark.faults.folder": "{folder}", "spark.sql.execution.arrow.maxRecordsPerBatch": "50"}
"""The session's settings. `{folder}` is the play's folder."""
_PARTITION = 1


def mark(folder: Path) -> Path:
    """Return the file that exists once the task holds."""
    return folder / "holds"


def hold(frame: DataFrame) -> DataFrame:
    """Pass the frame on. The task holds after it has passed on its rows."""
    folder = frame.sparkSession.conf.get("spark.faults.folder")
    assert folder is not None
    return frame.mapInArrow(_Hold(mark(Path(folder))), frame.schema)


@dataclass(frozen=True, slots=True)
class _Hold:
    mark: Path

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        task = TaskContext.get()
        assert task is not None
        here = task.getLocalProperty("streaming.sql.batchId") == str(EPOCH) and task.partitionId() == _PARTITION
        if not here or self.mark.exists():
            return
        self.mark.touch()
        parent = os.getppid()  # pyspark's daemon, which ends with its JVM
        while os.getppid() == parent:
            time.sleep(0.02)
        os._exit(1)
