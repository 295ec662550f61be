"""What the tests of this folder share: a lake of the test's own, and a proxy before its server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.files_s3.lake import Lake
from tests.servers.s3 import S3, bucket_on
from tests.servers.s3_proxy import S3Proxy, cutting_s3


@pytest.fixture
def lake(s3: S3) -> Iterator[Lake]:
    with bucket_on(s3, "lake") as url:
        yield Lake(f"{url}/lake", s3)


@pytest.fixture
def proxy(lake: Lake, s3: S3) -> Iterator[S3Proxy]:
    with cutting_s3(s3) as proxy:
        yield proxy
