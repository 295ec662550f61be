"""A standalone cluster of Spark's own: a master and workers on two addresses, which do not see the driver's folder."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from tests.e2e.processes import Process
from tests.e2e.warm_jvm import SPARK_HOME
from tests.servers.ports import Ports

EPOCH = 1
TASKS = 400
WATCHED = 'transform = "tests.e2e.standalone:watched"\n'
SPREAD = 'transform = "tests.e2e.standalone:spread"\n'
COME_AND_GO = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "0ms",
    "spark.task.maxFailures": "20",
}
"""Spark's settings: executors that are idle for a second end, and slow tasks get a second attempt."""
_ADDRESSES = ("127.0.0.1", "127.0.0.2")
_CLASS = str(SPARK_HOME / "bin" / "spark-class")


class Cluster:
    """A master, and on each address a worker with an executor of `cores`; all of them see the folder `marks`."""

    def __init__(self, folder: Path, hidden: Path, ports: Ports, stack: ExitStack, cores: int) -> None:
        self.marks = folder / "marks"
        self.marks.mkdir(parents=True)
        self.master = f"spark://127.0.0.1:{ports.numbers[0]}"
        at = ["--host", "127.0.0.1", "--port", str(ports.numbers[0]), "--webui-port", "0"]
        master = Process([_CLASS, "org.apache.spark.deploy.master.Master", *at], folder / "master" / "log")
        stack.callback(master.end)
        self.workers = []
        for address in _ADDRESSES:
            home = folder / address
            hides = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$1" && shift && exec "$@"', "sh", str(hidden)]
            at = ["--host", address, "--cores", str(cores), "--memory", "1g", "--webui-port", "0"]
            worker = [_CLASS, "org.apache.spark.deploy.worker.Worker", *at, "--work-dir", str(home), self.master]
            own = {"SPARK_LOCAL_IP": address, "SPARK_LOCAL_DIRS": str(home)}
            self.workers.append(Process([*hides, *worker], home / "log", own))
            stack.callback(self.workers[-1].end)
        for worker_there in self.workers:
            worker_there.until(partial(_registered, worker_there), "registering with its master")

    @property
    def conf(self) -> dict[str, str]:
        """Return Spark's settings: an executor counts as lost when it is silent for 15 s."""
        silent = {"spark.network.timeout": "15s", "spark.network.timeoutInterval": "2s"}
        return {
            **silent,
            "spark.executor.heartbeatInterval": "2s",
            "spark.executor.memory": "600m",
            "spark.driver.host": "127.0.0.1",
            "spark.e2e.marks": str(self.marks),
        }

    def first(self) -> tuple[Process, Attempt]:
        """Return the first attempt of the watched task, and the worker whose executor runs it."""
        first = Attempt(**json.loads((self.marks / "first").read_text()))
        [worker] = [each for each in self.workers if first.jvm in each.members()]
        return worker, first


@contextmanager
def standalone(folder: Path, hidden: Path, cores: int = 1) -> Iterator[Cluster]:
    """Start a cluster whose workers find `hidden` empty, each in a mount namespace of its own."""
    with ExitStack() as stack:
        ports = Ports(1)
        stack.callback(ports.close)
        yield Cluster(folder, hidden, ports, stack, cores)


def _registered(worker: Process) -> bool:
    return "Successfully registered with master" in worker.reported


@dataclass(frozen=True)
class Attempt:
    """An attempt of a task, and its executor's JVM."""

    jvm: int
    id: int


def stop(worker: Process) -> list[int]:
    """Stop a worker, its executor and their Python as a suspended machine is; return their process ids."""
    os.kill(worker.pid, signal.SIGSTOP)  # first: it starts and ends the others
    stopped = [pid for pid in worker.members() if pid != worker.pid]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    return stopped


def executors(worker: Process) -> list[int]:
    """Return the process ids of a worker's executors."""
    return [pid for pid in worker.members() if is_alive(pid, "CoarseGrainedExecutorBackend")]


def is_alive(pid: int, program: str = "") -> bool:
    """Return whether a process runs, and runs this program. A zombie does not."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return program.encode() in (line := Path("/proc", str(pid), "cmdline").read_bytes()) and line != b""
    return False


def watched(frame: DataFrame) -> DataFrame:
    """Pass the frame on; the first attempt of partition 0 reports itself."""
    marks = frame.sparkSession.conf.get("spark.e2e.marks")
    assert marks is not None
    return frame.mapInArrow(partial(_watched, Path(marks)), frame.schema)


def spread(frame: DataFrame) -> DataFrame:
    """Make many small tasks of an epoch."""
    return frame.repartition(TASKS)


def _watched(marks: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    task = TaskContext.get()
    assert task is not None
    if (task.getLocalProperty("streaming.sql.batchId"), task.partitionId()) == (str(EPOCH), 0):
        daemon = Path("/proc", str(os.getppid()), "stat").read_text()  # pyspark's, the child of its JVM
        first = Attempt(int(daemon.rpartition(")")[2].split()[1]), task.taskAttemptId())
        with suppress(FileExistsError), open(marks / "first", "x") as file:
            file.write(json.dumps(asdict(first)))
    yield from batches
