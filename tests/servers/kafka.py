"""Apache Kafka brokers for tests: one node in KRaft mode, on 127.0.0.1 only, gone with the last process that uses it.

A server dies with the thread that started it, even if its process is killed. A whole run's shared server is kept by
`python -m tests.servers.kafka FOLDER`. Each user makes topics and transactional ids of its own.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Literal

from confluent_kafka import KafkaException, Producer

from tests.servers.class_archives import BROKER as CLASSES
from tests.servers.class_archives import options
from tests.servers.kafka_jars import BROKER, JarSet, jars, java
from tests.servers.kafka_view import Kafka, Record
from tests.servers.keeper import keep, shared
from tests.servers.ports import Ports
from tests.servers.process import ServerProcess, owned

__all__ = ["Kafka", "KafkaServer", "Record", "own_kafka", "shared_kafka"]

JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # a quick start; a benchmark wants the last one away
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "controlled.shutdown.enable": "false",
    "broker.session.timeout.ms": "1500",  # as long as this, a restarted broker waits for its dead self to be given up
    "broker.heartbeat.interval.ms": "300",
}
_LOGGING = """\
status = ERROR
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1} %m%n
rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out
"""


class KafkaServer(ServerProcess, Kafka):
    """A broker with a new data folder of its own: `start` and `stop` it at will, `remove` it at the end.

    `settings` are the broker's, beside those above. `listeners` are further ones, by name and security protocol; each
    gets a port, see `address`. `formatting` are options of the command that formats the data folder; a node of a
    cluster may take a `copy` of another node's instead. `ports` are the caller's where it must know them before.
    Its next start is of `release`.
    """

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
        formatting: Sequence[str] = (),
        jvm: Sequence[str] = JVM,
        ports: Ports | None = None,
        copy: KafkaServer | None = None,
        release: JarSet = BROKER,
    ) -> None:
        self._jvm, self.release = jvm, release
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **(listeners or {})}
        self._ports = ports or Ports(len(protocols))
        self._numbers = dict(zip(protocols, self._ports.numbers, strict=True))
        super().__init__(self.address("PLAINTEXT"))
        self.folder = Path(tempfile.mkdtemp(prefix="exactsink-kafka-"))
        shown = {**SETTINGS, **self._network(protocols), "log.dirs": str(self.folder / "data"), **(settings or {})}
        (self.folder / "server.properties").write_text("".join(f"{key}={value}\n" for key, value in shown.items()))
        (self.folder / "log4j2.properties").write_text(_LOGGING)
        if copy is not None:
            self._take_copy(copy, shown["node.id"])
            return
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", "server.properties"]
        self._prepare(self._running(*command, *formatting))

    def address(self, listener: str) -> str:
        """Return a listener's host:port, the same after each restart."""
        return f"127.0.0.1:{self._numbers[listener]}"

    def wait_ready(self) -> None:
        """Wait until the broker can begin transactions."""
        super().wait_ready()
        asking = Producer(
            {"bootstrap.servers": self.bootstrap, "transactional.id": "exactsink.tests.ready", "log_level": 0}
        )
        self._wait(lambda: _begins(asking), f"the broker in {self.folder} to begin transactions")

    def stop(self, mode: Literal["kill", "term"] = "term") -> None:
        """Stop, and wait for the end. `kill` is a crash: the next start recovers."""
        self._end(signal.SIGKILL if mode == "kill" else signal.SIGTERM)

    def stall(self) -> None:
        """Suspend its process: it keeps its connections, but answers nothing until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Go on after `stall`."""
        os.kill(self.pid, signal.SIGCONT)

    def _take_copy(self, other: KafkaServer, node: str) -> None:
        """Copy a data folder as if it were formatted for the same cluster, with other ids of node and folder."""
        shutil.copytree(other.folder / "data", self.folder / "data")
        meta = self.folder / "data" / "meta.properties"
        own = {"node.id": node, "directory.id": base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")}
        lines = (line.split("=", 1) for line in meta.read_text().splitlines() if "=" in line)
        meta.write_text("".join(f"{key}={own.get(key, value)}\n" for key, value in lines))

    def _network(self, protocols: Mapping[str, str]) -> dict[str, str]:
        reached = {name: f"{name}://{self.address(name)}" for name in protocols}
        return {
            "listeners": ",".join(reached.values()),
            "advertised.listeners": ",".join(reached[name] for name in protocols if name != "CONTROLLER"),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "controller.quorum.voters": f"1@{self.address('CONTROLLER')}",
        }

    def _command(self) -> Sequence[str]:
        return self._running("kafka.Kafka", "server.properties")

    def _running(self, *words: str) -> Sequence[str]:
        logging = "-Dlog4j2.configurationFile=log4j2.properties"
        return [java(), *options(CLASSES), *self._jvm, logging, "-cp", f"{jars(self.release)}/*", *words]

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._numbers["PLAINTEXT"])) == 0


def _begins(asking: Producer) -> bool:
    try:
        asking.init_transactions(1)
    except KafkaException as failure:
        if not failure.args[0].retriable():
            raise
        return False
    return True


def own_kafka(
    settings: Mapping[str, str] | None = None, jvm: Sequence[str] = JVM
) -> AbstractContextManager[KafkaServer]:
    """Start a broker for one owner, who may stop it and start it again. It takes some seconds to make."""
    return owned(KafkaServer(settings, jvm=jvm))


@contextmanager
def shared_kafka(basetemp: Path) -> Iterator[Kafka]:
    """Share one broker among a run's workers. They make their own topics and ids, and must not change the broker."""
    jars()  # fetched here, where errors are reported and time is left
    with shared(basetemp, "kafka", "tests.servers.kafka") as bootstrap:
        yield Kafka(bootstrap)


if __name__ == "__main__":
    with own_kafka({"broker.session.timeout.ms": "9000"}) as broker:  # Kafka's own: this one is never started again
        keep(Path(sys.argv[1]), "kafka", broker.bootstrap, broker.remove)
