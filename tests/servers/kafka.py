"""Apache Kafka brokers for tests: one node in KRaft mode, on 127.0.0.1 only, gone with the last process that uses it.

A server dies with the thread that started it, also when its process is killed. One that a whole run shares is kept by
`python -m tests.servers.kafka FOLDER`. Each user makes topics and transactional ids of its own.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from confluent_kafka import KafkaException, Producer

from tests.servers.kafka_jars import jars, java
from tests.servers.kafka_view import Kafka, Record
from tests.servers.keeper import keep, shared
from tests.servers.ports import Ports
from tests.servers.waiting import PATIENCE, wait_until

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


class KafkaServer(Kafka):
    """A broker with a new data folder of its own: `start` and `stop` it at will, `remove` it at the end.

    `settings` are the broker's, beside those above. `listeners` are further ones, by name and security protocol; each
    gets a port, see `address`. `formatting` are options of the command that formats the data folder; a node of a
    cluster may take a `copy` of another node's instead. `ports` are the caller's where it must know them before.
    """

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
        formatting: Sequence[str] = (),
        jvm: Sequence[str] = JVM,
        ports: Ports | None = None,
        copy: KafkaServer | None = None,
    ) -> None:
        self._program = [java(), *jvm, "-Dlog4j2.configurationFile=log4j2.properties", "-cp", f"{jars()}/*"]
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **(listeners or {})}
        self._ports = ports or Ports(len(protocols))
        self._numbers = dict(zip(protocols, self._ports.numbers, strict=True))
        super().__init__(self.address("PLAINTEXT"))
        self.folder = Path(tempfile.mkdtemp(prefix="exactsink-kafka-"))
        self._process: subprocess.Popen[bytes] | None = None
        shown = {**SETTINGS, **self._network(protocols), "log.dirs": str(self.folder / "data"), **(settings or {})}
        (self.folder / "server.properties").write_text("".join(f"{key}={value}\n" for key, value in shown.items()))
        (self.folder / "log4j2.properties").write_text(_LOGGING)
        if copy is not None:
            self._take_copy(copy, shown["node.id"])
            return
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", "server.properties"]
        if self._run([*command, *formatting]).wait() != 0:
            log = self.log()
            self.remove()
            raise RuntimeError(f"the broker's data folder could not be formatted:\n{log}")

    def address(self, listener: str) -> str:
        """Return a listener's host:port, the same after each restart."""
        return f"127.0.0.1:{self._numbers[listener]}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is stopped"
        return self._process.pid

    def start(self) -> None:
        """Start, and wait until it can begin transactions. Not in a thread that ends before the server may."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start, and don't wait."""
        assert self._process is None, "the server runs"
        # Dies with this thread; setpriv becomes the server, so the process id is the server's.
        self._process = self._run(["kafka.Kafka", "server.properties"], ["setpriv", "--pdeathsig", "KILL", "--"])

    def wait_ready(self) -> None:
        """Wait until it can begin transactions."""
        process = self._process
        assert process is not None, "the server is stopped"
        wait_until(lambda: self._listens(process), f"the broker in {self.folder} to listen")
        asking = Producer(
            {"bootstrap.servers": self.bootstrap, "transactional.id": "exactsink.tests.ready", "log_level": 0}
        )
        wait_until(lambda: self._begins(process, asking), f"the broker in {self.folder} to begin transactions")

    def stop(self, mode: Literal["kill", "term"] = "term") -> None:
        """Stop, and wait until it is gone. `kill` is a crash: the next start recovers."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL if mode == "kill" else signal.SIGTERM)
            self._process.send_signal(signal.SIGCONT)  # one that was stalled
            self._process.wait(PATIENCE)
            self._process = None

    def stall(self) -> None:
        """Stop all its threads where they are: it keeps its connections and answers nothing, until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Go on after `stall`."""
        os.kill(self.pid, signal.SIGCONT)

    def remove(self) -> None:
        """Stop, and remove all that is kept. Idempotent."""
        try:
            self.stop("kill")
        finally:
            self._ports.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        """Return the end of what the broker wrote: warnings and errors."""
        return (self.folder / "log").read_text(errors="replace")[-6000:]

    def _take_copy(self, other: KafkaServer, node: str) -> None:
        """Have a data folder as if formatted for the same cluster: only the node's and the folder's ids differ."""
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

    def _listens(self, process: subprocess.Popen[bytes]) -> bool:
        self._check(process)
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._numbers["PLAINTEXT"])) == 0

    def _begins(self, process: subprocess.Popen[bytes], asking: Producer) -> bool:
        self._check(process)
        try:
            asking.init_transactions(1)
        except KafkaException as failure:
            if not failure.args[0].retriable():
                raise
            return False
        return True

    def _check(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is not None:
            self._process = None
            raise RuntimeError(f"the broker ended with {process.returncode}:\n{self.log()}")

    def _run(self, command: Sequence[str], before: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(
                [*before, *self._program, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is for pytest: it stops the server when it has torn down its tests
            )


@contextmanager
def own_kafka(settings: Mapping[str, str] | None = None, jvm: Sequence[str] = JVM) -> Iterator[KafkaServer]:
    """Return a started broker to one owner, who may stop it and start it again. It takes some seconds to make."""
    server = KafkaServer(settings, jvm=jvm)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@contextmanager
def shared_kafka(basetemp: Path) -> Iterator[Kafka]:
    """Return the broker that all workers of this test run share; `basetemp` is pytest's. The last user's end stops it.

    Each user makes topics and transactional ids of its own, and must not change what belongs to the whole broker.
    """
    jars()  # here, where an error is seen and time is left
    with shared(basetemp, "kafka", "tests.servers.kafka") as bootstrap:
        yield Kafka(bootstrap)


if __name__ == "__main__":
    with own_kafka({"broker.session.timeout.ms": "9000"}) as broker:  # Kafka's own: this one is never started again
        keep(Path(sys.argv[1]), "kafka", broker.bootstrap, broker.remove)
