"""The kit on targets of the `files` backend, and staged rows, in the emulators of Azure and Google Cloud Storage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import azure.storage.blob  # noqa: F401 - these here once, not in each process that the kit forks
import google.cloud.storage  # noqa: F401
import pytest

from exactsink.testing import ConformanceTarget, Runner
from tests.conformance.store_targets import StagingOnS3, StoreTarget
from tests.conformance.test_backends import OnPlace, chosen
from tests.servers.azurite import shared_azurite
from tests.servers.fake_gcs import ComposeOnce, FakeGcs, shared_fake_gcs
from tests.servers.s3_proxy import cutting_s3

_OF_CLOUDS = {"loser-swept", "one-vote-lost"}
"""What a store's own class does; the rest is in `uploads`, which S3 plays."""


@pytest.fixture(scope="module", params=["azure", "gcs"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Runner]]:
    """Return a URL, and a runner that was started in the environment that leads there."""
    azure, basetemp = request.param == "azure", tmp_path_factory.getbasetemp()
    with (shared_azurite if azure else shared_fake_gcs)(basetemp) as server, cutting_s3(server) as proxy:  # type: ignore[arg-type]
        url = f"{'az' if azure else 'gs'}://{server.new_bucket('kit')}"
        if not azure:
            proxy.set(ComposeOnce(server.port))
        come = server if azure else FakeGcs(server.folder, proxy.port)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in come.environment.items():
                patch.setenv(name, value)
            with closing(Runner()) as runner:
                yield url, runner


class TestFiles(OnPlace):
    test_conformance = chosen(_OF_CLOUDS)

    @pytest.fixture
    def target(self, place: tuple[str, Runner]) -> ConformanceTarget:
        return StoreTarget(place[0])


class TestStaging(OnPlace):
    test_conformance = chosen({"one-vote-lost"})

    @pytest.fixture
    def target(self, place: tuple[str, Runner]) -> ConformanceTarget:
        return StagingOnS3("staged", place[0])
