"""What the tests of this folder share: each is played on every cloud, by way of a proxy that can break."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from exactsink.toolkit.storage import ObjectPath
from tests.integration.clouds.cloud import AZURE, GCS, HDFS, S3, Cloud, Kind
from tests.servers.azurite import shared_azurite
from tests.servers.fake_gcs import ComposeOnce, shared_fake_gcs
from tests.servers.hdfs import shared_hdfs
from tests.servers.s3 import shared_s3
from tests.servers.s3_proxy import cutting_s3

SERVERS = {"azure": (AZURE, shared_azurite), "gcs": (GCS, shared_fake_gcs), "hdfs": (HDFS, shared_hdfs)}
SERVERS["s3"] = S3, shared_s3
PARAMS = ["azure", "gcs", "s3", pytest.param("hdfs", marks=pytest.mark.proof)]


@pytest.fixture(scope="module", params=PARAMS)
def emulator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Kind, Any]]:
    kind, shared = SERVERS[request.param]
    with shared(tmp_path_factory.getbasetemp()) as server:
        yield kind, server


async def _soon(self: object, seconds: float) -> None:
    """Wait before a client of S3 repeats a request, for a fiftieth of its time: all of its ten take half a minute."""
    await asyncio.sleep(seconds / 50)


@pytest.fixture
def cloud(emulator: tuple[Kind, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    kind, server = emulator
    url = f"{kind.scheme}://{server.new_bucket('lake')}/lake"
    with cutting_s3(server) as proxy:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("aiobotocore.endpoint.AioEndpoint._sleep", _soon)
        aside = ObjectPath.of(url, skip_instance_cache=True)
        aside.exists()  # it is connected now, and stays so
        for name, value in kind.server(server.folder, proxy.port).environment.items():
            monkeypatch.setenv(name, value)
        if kind is GCS:
            proxy.set(ComposeOnce(server.port))
        if kind is HDFS:  # whose address is in the URL
            url = url.replace(f":{server.port}/", f":{proxy.port}/")
        yield Cloud(kind, url, server, proxy, aside)
