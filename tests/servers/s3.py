"""S3 servers for tests: versitygw on a folder, on 127.0.0.1, and gone with the last process that uses them.

With EXACTSINK_TESTS_S3=minio in the environment, it is MinIO, which answers differently in some cases. moto keeps
all in memory. A server dies with the process that started it. A server that a whole run shares is kept by
`python -m tests.servers.s3 FOLDER`.
"""

from __future__ import annotations

import http.client
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import Literal

import pytest

from tests.servers.go_programs import GoProgram
from tests.servers.keeper import keep, shared_at
from tests.servers.ports import Ports
from tests.servers.process import AtPort, ServerProcess, owned

VERSITYGW = GoProgram("github.com/versity/versitygw/cmd/versitygw", "v1.8.0")
MINIO = GoProgram("github.com/minio/minio", "v0.0.0-20260212201848-7aac2a2c5b7c")
KIND = os.environ.get("EXACTSINK_TESTS_S3") or "versitygw"
KEY, SECRET, REGION = "exactsink", "exactsink-tests-only", "us-east-1"
_MINIO_SETTINGS = {
    "MINIO_ROOT_USER": KEY,
    "MINIO_ROOT_PASSWORD": SECRET,
    "MINIO_REGION": REGION,
    "MINIO_BROWSER": "off",
    "MINIO_UPDATE": "off",
}


class S3(AtPort):
    """A running server whose `folder` holds each bucket as a folder."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables with which botocore connects to this server."""
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
        """Make a bucket with a unique name, and return the name."""
        name = f"{stem}-{uuid.uuid4().hex[:12]}"
        (self.folder / "data" / name).mkdir()
        return name


class S3Server(ServerProcess, S3):
    """A server with its own new folder: `start` and `stop` it at will, `remove` it at the end."""

    def __init__(self, kind: str = KIND) -> None:
        self._kind = kind
        self._ports = Ports(1)
        super().__init__(Path(tempfile.mkdtemp(prefix="exactsink-s3-")), self._ports.numbers[0])
        for name in ("data", "iam"):
            (self.folder / name).mkdir()

    def stop(self, mode: Literal["kill", "term"] = "kill") -> None:
        """Stop, and wait for the end. `kill` is a crash: acknowledged data stays. Idempotent."""
        self._end(signal.SIGKILL if mode == "kill" else signal.SIGTERM)

    def new_bucket(self, stem: str) -> str:
        """Make a bucket with a unique name, and return the name."""
        name = super().new_bucket(stem)
        if self._kind == "moto":
            with closing(http.client.HTTPConnection("127.0.0.1", self.port)) as connection:
                connection.request("PUT", f"/{name}")
                assert connection.getresponse().status == 200
        return name

    def _command(self) -> Sequence[str | Path]:
        address, data = f"127.0.0.1:{self.port}", self.folder / "data"
        if self._kind == "moto":
            return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        if self._kind == "minio":
            return [MINIO.path(), "server", "--quiet", "--address", address, data]
        keys = ["--access", KEY, "--secret", SECRET, "--region", REGION]
        return [VERSITYGW.path(), "--port", address, *keys, "--quiet", "--keep-alive", "posix", data]

    def _environment(self) -> Mapping[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder), **_MINIO_SETTINGS}

    def _answers(self) -> bool:
        with suppress(OSError), closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)) as connection:
            connection.request("GET", "/")
            return connection.getresponse().status < 500  # MinIO listens before it can serve
        return False


def own_s3(kind: str = KIND) -> AbstractContextManager[S3Server]:
    """Run a server that the caller may stop. It is removed at the end."""
    return owned(S3Server(kind))


def shared_s3(basetemp: Path) -> AbstractContextManager[S3]:
    """Return the server that all workers of a test run share; `basetemp` is pytest's."""
    return shared_at(basetemp, "s3", __name__, S3)


if __name__ == "__main__":
    with own_s3() as kept:
        keep(Path(sys.argv[1]), "s3", f"{kept.folder}\n{kept.port}", kept.remove)


@contextmanager
def bucket_on(server: S3, stem: str) -> Iterator[str]:
    """Make a bucket, and return its URL. The environment of this process has the way there."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield f"s3://{server.new_bucket(stem)}"
