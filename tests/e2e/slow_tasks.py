"""A transform whose tasks hold still, or die, in the middle of a write: the first attempt only, and reported in a file.

The session's `spark.e2e.*` say how: `act` ("hold" until the file `go` is there, or "die"), `partitions` whose first
attempts act, and the `folder` of the job.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

EPOCH = 1
TRANSFORM = 'transform = "tests.e2e.slow_tasks:in_the_middle"\n'
"""For `[job]`."""
CONF = """
"spark.e2e.folder" = "{folder}"
"spark.e2e.act" = "%s"
"spark.e2e.partitions" = "%s"
"spark.sql.execution.arrow.maxRecordsPerBatch" = 50
"""
"""For `[spark.conf]`. Small batches: they reach the writer while the task still reads."""


def in_the_middle(frame: DataFrame) -> DataFrame:
    """Pass the frame on, through tasks that act once they have written something."""
    reported = {
        name: frame.sparkSession.conf.get(f"spark.e2e.{name}") or "" for name in ("folder", "act", "partitions")
    }
    act = _Act(Path(reported["folder"]), reported["act"], frozenset(map(int, reported["partitions"].split(","))))
    wide = frame.withColumn("pad", F.repeat(F.lit("x"), 1000))  # Spark hands rows on 64 KiB at a time
    return wide.mapInArrow(act, wide.schema)


@dataclass(frozen=True)
class Acting:
    """What a task reports of itself when it acts."""

    jvm: int
    partition: int
    attempt: int

    def has_won(self, folder: Path) -> bool:
        """Return whether this attempt's files are the ones that readers see."""
        return any((folder / "lake").rglob(f"*.e{EPOCH}.p{self.partition}.a{self.attempt}.parquet"))


def mark(folder: Path, partition: int) -> Path:
    """Name the file that reports that a partition's task acts."""
    return folder / f"acts-{partition}"


def acting(folder: Path, partition: int) -> Acting:
    """Read what that task reported."""
    return Acting(**json.loads(mark(folder, partition).read_text()))


@dataclass(frozen=True)
class _Act:
    folder: Path
    act: str
    partitions: frozenset[int]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        task = TaskContext.get()
        assert task is not None
        here = task.getLocalProperty("streaming.sql.batchId") == str(EPOCH) and task.partitionId() in self.partitions
        if not here:
            return
        if self._is_first(task.partitionId()):
            self._act(task)
        while not mark(self.folder, task.partitionId()).exists():  # not ahead of the first attempt
            _look_again(os.getppid())

    def _is_first(self, partition: int) -> bool:
        try:
            mark(self.folder, partition).with_suffix(".first").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _act(self, task: TaskContext) -> None:
        parent = os.getppid()  # pyspark's daemon; when its JVM is killed it ends, and so do we
        written = f"*.e{EPOCH}.p{task.partitionId()}.a{task.taskAttemptId()}/*"
        while not any((self.folder / "lake" / "_exactsink").glob(written)):
            _look_again(parent)
        reported = mark(self.folder, task.partitionId())
        acts = Acting(_parent(parent), task.partitionId(), task.taskAttemptId())
        reported.with_suffix(".tmp").write_text(json.dumps(asdict(acts)))
        reported.with_suffix(".tmp").rename(reported)
        if self.act == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        while not (self.folder / "go").exists():
            _look_again(parent)


def _look_again(parent: int) -> None:
    if os.getppid() != parent:
        os._exit(1)
    time.sleep(0.02)


def _parent(pid: int) -> int:
    return int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
