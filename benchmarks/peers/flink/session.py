"""A JVM with a warm Flink cluster: started once, given jobs one by one. Its jars are fetched once, by Maven."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers.kafka_jars import JarSet, jars, java

from benchmarks.peers.java import COMPILER, compile_java
from benchmarks.plan import KnownFault

__all__ = ["JVM", "PEER", "VERSIONS", "Flink", "command_of", "flink"]

_FLINK = "2.2.1"
_XA_FAULT = "currentXid not null"
"""Flink's JDBC sink sometimes fails so at a checkpoint, because of its own race."""
_GROUP = "org.apache.flink"
VERSIONS = (
    f"{_GROUP}:flink-clients:{_FLINK}",
    f"{_GROUP}:flink-connector-files:{_FLINK}",
    f"{_GROUP}:flink-connector-base:{_FLINK}",
    f"{_GROUP}:flink-json:{_FLINK}",
    f"{_GROUP}:flink-table-api-java:{_FLINK}",
    f"{_GROUP}:flink-table-runtime:{_FLINK}",
    f"{_GROUP}:flink-parquet:2.2.0",  # 2.2.1 was not published
    f"{_GROUP}:flink-connector-kafka:5.0.0-2.2",
    f"{_GROUP}:flink-connector-jdbc-core:4.0.0-2.0",
    f"{_GROUP}:flink-connector-jdbc-postgres:4.0.0-2.0",
    "org.apache.hadoop:hadoop-client-api:3.4.1",
    "org.apache.hadoop:hadoop-client-runtime:3.4.1",
    "org.postgresql:postgresql:42.7.14",
)
"""Flink's class path, with the dependencies of these."""

PEER = JarSet(f"flink-{_FLINK}", (*VERSIONS, COMPILER, "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"))
JVM = ("-Xmx3g", "--add-opens=java.base/java.util=ALL-UNNAMED", "--add-opens=java.base/java.lang=ALL-UNNAMED")
_LOGGING = """\
status = ERROR
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1} %m%n
rootLogger.level = WARN
rootLogger.appenderRef.err.ref = err
"""


@dataclass(frozen=True, slots=True)
class Flink:
    """A running Flink. Its process dies with the thread that started it."""

    process: subprocess.Popen[str]
    folder: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def run(self, **job: object) -> float:
        """Run a job to its end, and return its seconds. `job` has `Peer.java`'s options, with `__` for dots."""
        before = (self.folder / "log").stat().st_size
        self._send({name.replace("__", "."): value for name, value in job.items()})
        answer = self._answer()
        word, _, rest = answer.partition(" ")
        if word != "done":
            reported = (self.folder / "log").read_bytes()[before:].decode(errors="replace")
            fault = KnownFault if _XA_FAULT in answer + reported else RuntimeError
            raise fault(f"Flink: {answer}\n{self.log()}")
        return float(rest) / 1000

    def log(self) -> str:
        """Return the end of what Flink wrote: warnings and errors."""
        return (self.folder / "log").read_text(errors="replace")[-6000:]

    def wait_ready(self) -> None:
        """Wait until it takes jobs."""
        if self._answer() != "ready":
            raise RuntimeError(f"Flink does not start:\n{self.log()}")

    def _send(self, job: dict[str, object]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\t".join(f"{name}={value}" for name, value in job.items()) + "\n")
        self.process.stdin.flush()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def flink(folder: Path) -> Iterator[Flink]:
    """Compile `Peer.java`, start it, and end it with the block. Makes `folder` for classes, log and temporary files."""
    folder.mkdir()
    command = ["setpriv", "--pdeathsig", "KILL", "--", *command_of("Peer", folder, JVM)]
    with open(folder / "log", "ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=folder, text=True
        )
    try:
        started = Flink(process, folder)
        started.wait_ready()
        yield started
    finally:
        process.kill()
        process.communicate()


def command_of(main: str, folder: Path, jvm: Sequence[str]) -> list[str]:
    """Compile the jobs into a new folder. Return the command that starts one of their classes and logs to stderr."""
    path = f"{jars(PEER)}/*"
    classes = folder / "classes"
    compile_java(Path(__file__).parent, path, classes)
    (folder / "log4j2.properties").write_text(_LOGGING)
    logging = f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"
    return [java(), *jvm, f"-Djava.io.tmpdir={folder}", logging, "-cp", f"{classes}:{path}", main]
