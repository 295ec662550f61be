"""The kit on the `files` backend's target on an SFTP server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from exactsink.testing import ConformanceSuite, ConformanceTarget, Runner
from exactsink_files.conformance_sftp import SftpTarget
from tests.conformance.test_backends import chosen
from tests.servers.sftp import Sftp, own_sftp

_OF_RENAMES = {"commit-replayed", "commits-at-once", "one-vote-lost", "unknown-after-commit"}
"""What is another than in a folder of this machine."""


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
