"""The kit on the `files` backend's target in S3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from exactsink.testing import SCENARIOS, ConformanceSuite, ConformanceTarget, Runner
from exactsink_files.conformance import S3Target
from tests.conformance.test_backends import _OF_BACKENDS, chosen
from tests.servers.s3 import S3

_SLOW = {name for name in SCENARIOS if name.startswith(("killed-", "stalled-")) and name.endswith(("-vote", "-write"))}


@pytest.fixture(scope="module")
def url(s3: S3) -> Iterator[str]:
    """Set the environment of this process, which the kit's processes have from it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        yield f"s3://{s3.new_bucket('kit')}"


@pytest.fixture(scope="module")
def runner(url: str) -> Iterator[Runner]:
    with closing(Runner()) as runner:
        yield runner


class TestS3(ConformanceSuite):
    test_conformance = chosen(_OF_BACKENDS)

    @pytest.fixture
    def target(self, url: str) -> ConformanceTarget:
        return S3Target(url)
