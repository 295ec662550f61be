"""S3 servers for tests: versitygw on a folder, on 127.0.0.1, and gone with the last process that uses them.

With EXACTSINK_TESTS_S3=minio in the environment it is MinIO, which answers otherwise where servers differ. A server
dies with the process that started it; one that a whole run shares is kept by `python -m tests.servers.s3 FOLDER`.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Literal

from tests.servers.go_programs import GoProgram
from tests.servers.keeper import keep, shared
from tests.servers.ports import Ports
from tests.servers.waiting import PATIENCE, wait_until

__all__ = ["MINIO", "PROGRAM", "VERSITYGW", "S3", "S3Server", "own_s3", "shared_s3"]

VERSITYGW = GoProgram("github.com/versity/versitygw/cmd/versitygw", "v1.8.0")
MINIO = GoProgram("github.com/minio/minio", "v0.0.0-20260212201848-7aac2a2c5b7c")
PROGRAM = {"versitygw": VERSITYGW, "minio": MINIO}[os.environ.get("EXACTSINK_TESTS_S3") or "versitygw"]
KEY, SECRET, REGION = "exactsink", "exactsink-tests-only", "us-east-1"
_MINIO_SETTINGS = {
    "MINIO_ROOT_USER": KEY,
    "MINIO_ROOT_PASSWORD": SECRET,
    "MINIO_REGION": REGION,
    "MINIO_BROWSER": "off",
    "MINIO_UPDATE": "off",
}


class S3:
    """A running server, as those see it who may use it but not stop it. `folder` holds each bucket as a folder."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process needs in its environment to come here, as botocore reads it."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def new_bucket(self, stem: str) -> str:
        """Make a bucket that no other test has; return its name."""
        name = f"{stem}-{uuid.uuid4().hex[:12]}"
        (self.folder / "data" / name).mkdir()
        return name


class S3Server(S3):
    """A server with a new folder of its own: `start` and `stop` it at will, `remove` it at the end."""

    def __init__(self) -> None:
        self._path = PROGRAM.path()
        self._ports = Ports(1)
        super().__init__(Path(tempfile.mkdtemp(prefix="exactsink-s3-")), self._ports.numbers[0])
        for name in ("data", "iam"):
            (self.folder / name).mkdir()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is stopped"
        return self._process.pid

    def start(self) -> None:
        """Start, and wait until it answers."""
        assert self._process is None, "the server runs"
        tied = ["setpriv", "--pdeathsig", "KILL", "--"]
        command = [*tied, str(self._path), *self._arguments(), str(self.folder / "data")]
        with open(self.folder / "log", "ab") as log:
            self._process = process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={"PATH": os.environ["PATH"], "HOME": str(self.folder), **_MINIO_SETTINGS},
                start_new_session=True,
            )
        wait_until(lambda: self._answers(process), f"the S3 server in {self.folder} to answer")

    def _arguments(self) -> list[str]:
        address = f"127.0.0.1:{self.port}"
        if PROGRAM is MINIO:
            return ["server", "--quiet", "--address", address]
        keys = ["--access", KEY, "--secret", SECRET, "--region", REGION]
        return ["--port", address, *keys, "--quiet", "--keep-alive", "posix"]

    def stop(self, mode: Literal["kill", "term"] = "kill") -> None:
        """Stop, and wait until it is gone. `kill` is a crash: what it had answered for stays. Idempotent."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL if mode == "kill" else signal.SIGTERM)
            self._process.wait(PATIENCE)
            self._process = None

    def remove(self) -> None:
        """Stop, and remove all that is kept. Idempotent."""
        try:
            self.stop()
        finally:
            self._ports.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self, process: subprocess.Popen[bytes]) -> bool:
        if process.poll() is not None:
            self._process = None
            log = (self.folder / "log").read_text(errors="replace")[-4000:]
            raise RuntimeError(f"the server ended with {process.returncode}:\n{log}")
        with suppress(OSError), closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)) as connection:
            connection.request("GET", "/")
            return connection.getresponse().status < 500  # MinIO listens before it can serve
        return False


@contextmanager
def own_s3() -> Iterator[S3Server]:
    """Return a running server that the caller may stop, gone at the end."""
    server = S3Server()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@contextmanager
def shared_s3(basetemp: Path) -> Iterator[S3]:
    """Return the server that all workers of a test run share; `basetemp` is pytest's."""
    with shared(basetemp, "s3", __name__) as address:
        folder, port = address.split("\n")
        yield S3(Path(folder), int(port))


if __name__ == "__main__":
    with own_s3() as kept:
        keep(Path(sys.argv[1]), "s3", f"{kept.folder}\n{kept.port}", kept.remove)
