"""Azurite, Microsoft's emulator of Azure Blob Storage, for tests: on a folder and a free port of 127.0.0.1."""

from __future__ import annotations

import base64
import fcntl
import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path

import pytest

from tests.servers.keeper import keep, shared_at
from tests.servers.ports import Ports
from tests.servers.process import AtPort, ServerProcess, owned

_VERSION = "3.37.0"
_ACCOUNT, _KEY = "exactsink", base64.b64encode(b"exactsink-tests-only").decode()


class Azurite(AtPort):
    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables with which the SDK connects to this server."""
        endpoint = f"BlobEndpoint=http://127.0.0.1:{self.port}/{_ACCOUNT};"
        account = f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={_KEY};"
        return {"AZURE_STORAGE_CONNECTION_STRING": account + endpoint}

    def new_bucket(self, stem: str) -> str:
        """Make a container with a unique name, and return the name."""
        from azure.storage.blob import BlobServiceClient

        name = f"{stem}-{uuid.uuid4().hex[:12]}"
        text = self.environment["AZURE_STORAGE_CONNECTION_STRING"]
        with BlobServiceClient.from_connection_string(text) as client:
            client.create_container(name)
        return name


class AzuriteServer(ServerProcess, Azurite):
    """A server with a new folder of its own."""

    def __init__(self) -> None:
        self._program = _installed()
        self._ports = Ports(1)
        super().__init__(Path(tempfile.mkdtemp(prefix="exactsink-azurite-")), self._ports.numbers[0])

    def _command(self) -> Sequence[str | Path]:
        quiet = ("--silent", "--disableTelemetry", "--skipApiVersionCheck")
        place = ("--location", self.folder / "data", "--blobHost", "127.0.0.1", "--blobPort", str(self.port))
        return [_node(), self._program, *quiet, *place]

    def _environment(self) -> Mapping[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder), "AZURITE_ACCOUNTS": f"{_ACCOUNT}:{_KEY}"}

    def _answers(self) -> bool:
        with suppress(OSError), closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)) as connection:
            connection.request("GET", "/")
            return connection.getresponse().status < 500
        return False


def _node() -> str:
    return shutil.which("node") or "node"


def _installed() -> Path:
    """Return the program. If it is missing, install it by npm, once per machine and version."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "exactsink"
    folder = cache / f"azurite-{_VERSION}"
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f"{folder.name}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            new = Path(tempfile.mkdtemp(prefix=f"{folder.name}.new-", dir=cache))
            command = ["npm", "install", "--no-audit", "--no-fund", "--silent", f"azurite@{_VERSION}"]
            subprocess.run(command, cwd=new, check=True, stdin=subprocess.DEVNULL, timeout=540)
            new.rename(folder)
    return folder / "node_modules/azurite/dist/src/blob/main.js"


def own_azurite() -> AbstractContextManager[AzuriteServer]:
    """Run a server that the caller may stop. It is removed at the end."""
    return owned(AzuriteServer())


def shared_azurite(basetemp: Path) -> AbstractContextManager[Azurite]:
    """Return the server that all workers of a test run share; `basetemp` is pytest's."""
    try:
        _installed()
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"Azurite can't be installed: {error}")
    return shared_at(basetemp, "azurite", __name__, Azurite)


if __name__ == "__main__":
    with own_azurite() as kept:
        keep(Path(sys.argv[1]), "azurite", f"{kept.folder}\n{kept.port}", kept.remove)
