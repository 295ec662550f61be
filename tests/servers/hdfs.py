"""HDFS for tests: Hadoop's MiniDFSCluster, a NameNode and a DataNode in one JVM, on free ports of 127.0.0.1."""

from __future__ import annotations

import json
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.request import urlopen

from tests.servers.kafka import JVM
from tests.servers.kafka_jars import JarSet, jars, java
from tests.servers.keeper import keep, shared_at
from tests.servers.ports import Ports
from tests.servers.process import AtPort, ServerProcess, owned

_JARS = JarSet("hadoop-minicluster-3.4.2", ("org.apache.hadoop:hadoop-minicluster:3.4.2",))
_MAIN = """
class Cluster {
    public static void main(String[] given) throws Exception {
        var data = new java.io.File(given[0]);
        var made = new org.apache.hadoop.hdfs.MiniDFSCluster.Builder(new org.apache.hadoop.conf.Configuration(), data);
        made.nameNodeHttpPort(Integer.parseInt(given[1])).nameNodePort(Integer.parseInt(given[2])).format(!data.exists());
        var cluster = made.build();
        cluster.waitActive();
        System.out.println("HDFS IS READY");
        Thread.sleep(Long.MAX_VALUE);
    }
}
"""


class Hdfs(AtPort):
    """A running cluster, for users who must not stop it. `port` is the NameNode's HTTP port."""

    environment: Mapping[str, str] = {}

    def new_bucket(self, stem: str) -> str:
        """Return the cluster's address with the unique name of a folder."""
        return f"127.0.0.1:{self.port}/{stem}-{uuid.uuid4().hex[:12]}"


class HdfsServer(ServerProcess, Hdfs):
    """A cluster with a new folder of its own."""

    def __init__(self) -> None:
        self._jars = jars(_JARS)
        self._ports = Ports(2)
        self._numbers = self._ports.numbers
        super().__init__(Path(tempfile.mkdtemp(prefix="exactsink-hdfs-")), self._numbers[0])
        (self.folder / "Cluster.java").write_text(_MAIN)

    def launch(self) -> None:
        (self.folder / "log").unlink(missing_ok=True)
        super().launch()

    def synced_blocks(self) -> tuple[int, int]:
        """Return how many blocks the DataNode has written, and how often it synced a block, some seconds ago."""
        with urlopen(f"http://127.0.0.1:{self.port}/jmx?qry=Hadoop:service=DataNode,name=DataNodeActivity*") as answer:
            [found] = json.load(answer)["beans"]
        return found["BlocksWritten"], found["FsyncCount"]

    def _command(self) -> Sequence[str | Path]:
        start: list[str | Path] = [java(), *JVM, "-cp", f"{self._jars}/*", self.folder / "Cluster.java"]
        return [*start, self.folder / "data", *map(str, self._numbers)]

    def _answers(self) -> bool:
        return "HDFS IS READY" in (self.folder / "log").read_text(errors="replace")


def own_hdfs() -> AbstractContextManager[HdfsServer]:
    """Run a cluster that the caller may stop. It is removed at the end."""
    return owned(HdfsServer())


def shared_hdfs(basetemp: Path) -> AbstractContextManager[Hdfs]:
    """Return the cluster that all workers of a test run share; `basetemp` is pytest's."""
    return shared_at(basetemp, "hdfs", __name__, Hdfs)


if __name__ == "__main__":
    with own_hdfs() as kept:
        keep(Path(sys.argv[1]), "hdfs", f"{kept.folder}\n{kept.port}", kept.remove)
