"""The kit on targets of the `files` backend, and staged rows, in emulators of clouds, in HDFS and on an SFTP server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import azure.storage.blob  # noqa: F401 - these here once, not in each process that the kit forks
import google.cloud.storage  # noqa: F401
import pytest

from exactsink.testing import ConformanceTarget, Runner
from tests.conformance.store_targets import RenameTarget, StagingOnS3, StoreTarget
from tests.conformance.test_backends import OnPlace, chosen
from tests.servers.azurite import shared_azurite
from tests.servers.fake_gcs import ComposeOnce, FakeGcs, shared_fake_gcs
from tests.servers.hdfs import shared_hdfs
from tests.servers.s3_proxy import cutting_s3
from tests.servers.sftp import own_sftp

_SERVERS: Any = {"azure": ("az", shared_azurite), "gcs": ("gs", shared_fake_gcs), "hdfs": ("webhdfs", shared_hdfs)}
_HDFS = pytest.param("hdfs", marks=pytest.mark.proof)


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Runner]]:
    """Return a URL, and a runner that was started in the environment that leads there."""
    name, basetemp = request.param, tmp_path_factory.getbasetemp()
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        come = server = stack.enter_context(own_sftp() if name == "sftp" else _SERVERS[name][1](basetemp))
        if name == "gcs":
            proxy = stack.enter_context(cutting_s3(server))
            proxy.set(ComposeOnce(server.port))
            come = FakeGcs(server.folder, proxy.port)
        for variable, value in come.environment.items():
            patch.setenv(variable, value)
        url = server.url if name == "sftp" else f"{_SERVERS[name][0]}://{server.new_bucket('kit')}"
        yield url, stack.enter_context(closing(Runner()))


@pytest.mark.parametrize("place", ["azure", "gcs"], indirect=True)
class TestFiles(OnPlace):
    """What a store's own class does; the rest is in `uploads`, which S3 plays."""

    test_conformance = chosen({"loser-swept", "one-vote-lost"})

    @pytest.fixture
    def target(self, place: tuple[str, Runner]) -> ConformanceTarget:
        return StoreTarget(place[0])


@pytest.mark.parametrize("place", ["sftp", _HDFS], indirect=True)
class TestRenames(OnPlace):
    """The scenarios that differ from those in a local folder."""

    test_conformance = chosen({"one-vote-lost", "unknown-after-commit"})

    @pytest.fixture
    def target(self, place: tuple[str, Runner]) -> ConformanceTarget:
        return RenameTarget(place[0])


@pytest.mark.parametrize("place", ["azure", "gcs", _HDFS], indirect=True)
class TestStaging(OnPlace):
    test_conformance = chosen({"one-vote-lost"})

    @pytest.fixture
    def target(self, place: tuple[str, Runner]) -> ConformanceTarget:
        return StagingOnS3("staged", place[0])
