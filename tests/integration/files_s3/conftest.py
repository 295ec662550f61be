"""What the tests of this folder share: a lake of the test's own, and a proxy before its server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from exactsink.toolkit.storage import ObjectPath
from tests.integration.clouds import cloud
from tests.integration.files_s3.lake import Lake
from tests.servers.s3 import S3, bucket_on
from tests.servers.s3_proxy import S3Proxy, cutting_s3


@pytest.fixture
def lake(s3: S3) -> Iterator[Lake]:
    with bucket_on(s3, "lake") as bucket, cutting_s3(s3) as proxy:
        url = f"{bucket}/lake"
        yield Lake(cloud.S3, url, s3, proxy, ObjectPath.of(url, skip_instance_cache=True))


@pytest.fixture
def proxy(lake: Lake) -> S3Proxy:
    return lake.proxy  # type: ignore[no-any-return]
