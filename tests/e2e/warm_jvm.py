"""One JVM for many driver runs: they attach to it, and what a dead one left in it is ended before the next."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pyspark
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters

from exactsink.spark.arrow_settings import UNCHECKED
from tests.e2e.processes import Process
from tests.servers.spark_versions import spark_home

SPARK_HOME = Path(pyspark.__file__).parent
_CONF = ("--conf", "spark.python.daemon.module=tests.e2e.python_daemon")


class WarmJvm:
    """A `spark-submit pyspark-shell` of the tests' own, with further `options` of spark-submit.

    `python` is an interpreter with another Spark (tests/servers/spark_versions.py), whose drivers have it, too.
    It ends with its input, so also when the tests are killed.
    """

    def __init__(self, folder: Path, *options: str, python: Path | None = None) -> None:
        self._closed = False
        folder.mkdir(parents=True, exist_ok=True)
        info = folder / "gateway"
        environment = {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(info), "SPARK_LOCAL_DIRS": str(folder), **UNCHECKED}
        if python is not None:
            environment["PYSPARK_PYTHON"] = str(python)
        home = SPARK_HOME if python is None else spark_home(python)
        command = [str(home / "bin" / "spark-submit"), "--conf", f"spark.local.dir={folder}", *_CONF]
        self._process = Process([*command, *options, "pyspark-shell"], folder / "jvm.log", environment)
        try:
            self._process.until(info.exists, "reporting its port")
        except BaseException:
            self.close()
            raise
        reported = info.read_bytes()
        self._port, length = struct.unpack(">ii", reported[:8])
        self._secret = reported[8 : 8 + length].decode()

    @property
    def address(self) -> Mapping[str, str]:
        """What a driver run needs in its environment to attach."""
        return {"PYSPARK_GATEWAY_PORT": str(self._port), "PYSPARK_GATEWAY_SECRET": self._secret}

    @property
    def reported(self) -> str:
        """Return what it logged."""
        return self._process.reported

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def workers(self) -> Sequence[int]:
        """Return the process ids of the Python workers that it started."""
        return [pid for pid in self._process.members() if pid != self.pid]

    def wait_idle(self) -> None:
        """Wait until no task runs in it any more."""
        with self._gateway() as gateway:
            context = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(
                gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
            )
            self._process.until(lambda: not len(context.statusTracker().getActiveJobIds()), "an end of its tasks")

    def settle(self) -> None:
        """End what dead driver runs left: queries, tasks, the Spark context. One still at work would be cut off."""
        if self._closed:
            return
        with self._gateway() as gateway:
            left = gateway.jvm.org.apache.spark.sql.SparkSession.getDefaultSession()
            if left.isDefined():
                for query in left.get().streams().active():
                    query.stop()
                left.get().stop()

    def stop_context(self) -> None:
        """Stop the driver's Spark context, as a cluster's master does that ends an application."""
        with self._gateway() as gateway:
            gateway.jvm.org.apache.spark.SparkContext.getOrCreate().stop()

    def kill(self) -> None:
        self._closed = True
        os.kill(self.pid, signal.SIGKILL)

    def _gateway(self) -> AbstractContextManager[ClientServer]:
        java = JavaParameters(port=self._port, auth_token=self._secret)
        return closing(ClientServer(java, PythonParameters(port=0, eager_load=False)))

    def close(self) -> None:
        self._closed = True
        self._process.end(patience=10)
