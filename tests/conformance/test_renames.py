"""The kit on targets of the `files` backend whose files get their names by a rename: on an SFTP server, and in HDFS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from exactsink.testing import ConformanceTarget, Runner
from tests.conformance.store_targets import RenameTarget, StagingOnS3
from tests.conformance.test_backends import OnPlace, chosen
from tests.servers.hdfs import shared_hdfs
from tests.servers.sftp import own_sftp

_OF_RENAMES = {"one-vote-lost", "unknown-after-commit"}
"""The scenarios that differ from those in a local folder."""


@pytest.fixture(scope="module", params=["sftp", pytest.param("hdfs", marks=pytest.mark.proof)])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Runner]]:
    """Return a URL, and a runner that was started in the environment that leads there."""
    shared = own_sftp() if request.param == "sftp" else shared_hdfs(tmp_path_factory.getbasetemp())
    with shared as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        with closing(Runner()) as runner:
            yield server.url if request.param == "sftp" else f"webhdfs://{server.new_bucket('kit')}", runner


class TestFiles(OnPlace):
    test_conformance = chosen(_OF_RENAMES)

    @pytest.fixture
    def target(self, place: tuple[str, Runner]) -> ConformanceTarget:
        return RenameTarget(place[0])


@pytest.mark.proof
@pytest.mark.parametrize("place", ["hdfs"], indirect=True)
class TestStaging(OnPlace):
    test_conformance = chosen({"one-vote-lost"})

    @pytest.fixture
    def target(self, place: tuple[str, Runner]) -> ConformanceTarget:
        return StagingOnS3("staged", place[0])
