"""Iceberg's own REST catalog of its tests, over SQLite and local files. Its data in its folder survives a crash.

Its jars come from Maven (35 MB, once per machine), with a compiler for the few lines that start it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

from tests.servers.kafka_jars import JarSet, jars, java
from tests.servers.ports import Ports
from tests.servers.process import ServerProcess

_ICEBERG = "org.apache.iceberg:iceberg-core:1.10.0"
_SERVER = (
    "org.eclipse.jetty:jetty-servlet:11.0.26",
    "org.xerial:sqlite-jdbc:3.50.3.0",
    "org.slf4j:slf4j-simple:2.0.17",
)
_JARS = JarSet("iceberg-rest-1.10.0", (_ICEBERG, f"{_ICEBERG}:tests", *_SERVER, "org.eclipse.jdt:ecj:3.33.0"))


class RestCatalog(ServerProcess):
    """A catalog with its own new folder, on its own port."""

    def __init__(self) -> None:
        self._jars = jars(_JARS)
        self.folder = Path(tempfile.mkdtemp(prefix="exactsink-rest-"))
        self._ports = Ports(1)
        self.port = self._ports.numbers[0]
        self.uri = f"http://127.0.0.1:{self.port}"
        compiler = [java(), "-cp", f"{self._jars}/*", "org.eclipse.jdt.internal.compiler.batch.Main", "-17", "-nowarn"]
        self._prepare([*compiler, "-d", self.folder, Path(__file__).with_name("RestCatalog.java")])

    def _command(self) -> Sequence[str | Path]:
        return [java(), "-Xmx256m", "-cp", f"{self.folder}:{self._jars}/*", "RestCatalog", str(self.port), self.folder]

    def _answers(self) -> bool:
        with suppress(OSError), urlopen(f"{self.uri}/v1/config", timeout=10) as answer:
            return bool(answer.status == 200)
        return False
