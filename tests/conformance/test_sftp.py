"""The kit on the `files` backend's target on an SFTP server."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from exactsink.contract import Backend, Committable
from exactsink.testing import ConformanceSuite, ConformanceTarget, Runner
from exactsink_files.backend import FilesBackend, FilesOptions
from exactsink_files.conformance import FilesTarget
from tests.conformance.test_backends import chosen
from tests.servers.sftp import Sftp, own_sftp

_OF_RENAMES = {"one-vote-lost", "unknown-after-commit"}
"""What is another than in a folder of this machine."""


@dataclass(frozen=True)
class SftpTarget(FilesTarget):
    """A folder of its own a scenario, below a URL whose files are found in `files` here, too."""

    url: str = ""
    files: Path = Path()

    def backend(self, folder: Path) -> Backend:
        path = f"{self.url}/{self._here(folder).name}/lake"
        return FilesBackend(FilesOptions.model_validate({"path": path, "partition_by": ["kind"]}))

    def order(self, folder: Path) -> Iterable[Sequence[int]]:
        return super().order(self._here(folder))

    def lose_votes(self, folder: Path, committables: Sequence[Committable]) -> None:
        super().lose_votes(self._here(folder), committables)

    def destroy_evidence(self, folder: Path, committables: Sequence[Committable]) -> None:
        super().destroy_evidence(self._here(folder), committables)

    def foreign(self, folder: Path) -> None:
        before = os.umask(0)  # the server's user may be another
        try:
            super().foreign(self._here(folder))
        finally:
            os.umask(before)

    def foreign_stands(self, folder: Path) -> bool:
        return super().foreign_stands(self._here(folder))

    previous = ConformanceTarget.previous  # not given: none was released

    def _here(self, folder: Path) -> Path:
        return self.files / str(folder).strip("/").replace("/", "-")


@pytest.fixture(scope="module")
def server() -> Iterator[Sftp]:
    """Set the environment of this process, which the kit's processes have from it."""
    with own_sftp() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(scope="module")
def sftp_runner(server: Sftp) -> Iterator[Runner]:
    with closing(Runner()) as runner:
        yield runner


class TestSftp(ConformanceSuite):
    test_conformance = chosen(_OF_RENAMES)

    @pytest.fixture
    def runner(self, sftp_runner: Runner) -> Runner:
        return sftp_runner

    @pytest.fixture
    def target(self, server: Sftp) -> ConformanceTarget:
        return SftpTarget("parquet", url=server.url, files=server.files)
