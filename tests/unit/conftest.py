"""What unit tests of the command line share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.unit.manual_job import Job

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
