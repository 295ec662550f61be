"""The kit on the `files` backend's target in S3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from exactsink.testing import ConformanceSuite, ConformanceTarget, Runner
from exactsink_files.conformance_s3 import S3Target
from tests.conformance.test_backends import chosen
from tests.servers.s3 import S3


@pytest.fixture(scope="module")
def url(s3: S3) -> Iterator[str]:
    """Set the environment of this process, which the kit's processes have from it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        yield f"s3://{s3.new_bucket('kit')}"


@pytest.fixture(scope="module")
def s3_runner(url: str) -> Iterator[Runner]:
    with closing(Runner()) as runner:
        yield runner


_OF_STORES = {
    *("commit-replayed", "commits-at-once", "foreign-untouched", "loser-swept", "one-vote-lost", "other-process"),
    *("others-untouched", "undecided-invisible", "unknown-after-commit"),
}
"""What is another in a store than in a folder; the rest is the committer's, which is the same, and takes 5 s each."""


class TestS3(ConformanceSuite):
    test_conformance = chosen(_OF_STORES)

    @pytest.fixture
    def runner(self, s3_runner: Runner) -> Runner:
        """Return one that was started in the environment of `url`: the suite's own has that of an earlier test."""
        return s3_runner

    @pytest.fixture
    def target(self, url: str) -> ConformanceTarget:
        return S3Target(url)
