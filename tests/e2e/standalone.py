"""A Spark standalone cluster of the tests' own: a master, and a worker on each of two local addresses."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

from tests.e2e.processes import Process
from tests.e2e.warm_jvm import SPARK_HOME

_URL = re.compile(r"spark://127\.0\.0\.1:\d+")
_HOSTS = ("127.0.0.1", "127.0.0.2")  # a speculative copy goes to another host than the first attempt's


class Standalone:
    """Start it, and wait until both workers, with one core each, are there. `close` ends all of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with ExitStack() as stack:
            master = self._daemon("master.Master", _HOSTS[0], "--port", "0")
            stack.callback(master.end)
            master.until(lambda: _URL.search(master.reported) is not None, "reporting its address")
            self.url = _URL.findall(master.reported)[0]
            for host in _HOSTS:
                place = ["--work-dir", str(folder / host), "--cores", "1", "--memory", "1g", self.url]
                stack.callback(self._daemon("worker.Worker", host, *place).end)
            master.until(lambda: master.reported.count("Registering worker") == len(_HOSTS), "its workers")
            self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()

    def _daemon(self, name: str, host: str, *arguments: str) -> Process:
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
        environment = {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_DIRS": str(self._folder),
            "SPARK_LOCAL_IP": host,
        }
        command += ["--host", host, "--webui-port", "0", *arguments]
        return Process(command, self._folder / f"{name}-{host}.log", environment)
