"""What unit tests of the command line share, and those of files on disks without hard links."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.unit.manual_job import Job
from tests.unit.os_faults import refused
from tests.unit.two_sinks import Shop

from exactsink.cli.main import main


@dataclass(frozen=True)
class Ended:
    """What came of a command."""

    code: int
    out: str
    err: str

    @property
    def body(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run a command of the command line in this process."""

    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        return Ended(main(arguments), *capsys.readouterr())

    return run


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def in_doubt(shop: Shop) -> Shop:
    """Epoch 0 is in both sinks. Epoch 1 is decided and in neither: the table refuses it, and its driver is dead."""
    shop.epochs(0)
    shop.close_table()
    shop.epochs(1)
    return shop


@pytest.fixture
def mute() -> Iterator[int]:
    """The port of a server that takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        yield server.getsockname()[1]


@pytest.fixture(params=["links", "no links"])
def links(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """Run on a file system with hard links, and on one without."""
    if request.param == "links":
        yield
        return
    with refused(tmp_path, "link", errno.EPERM):
        yield
