"""The kit on targets that have something in an object store: the `files` backend's, and SQLite's staged rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from exactsink.testing import ConformanceSuite, ConformanceTarget, Runner
from tests.conformance.store_targets import StagingOnS3, StoreTarget
from tests.conformance.test_backends import chosen
from tests.servers.s3 import S3, bucket_on, own_s3


@pytest.fixture(scope="class")
def url(s3: S3) -> Iterator[str]:
    with bucket_on(s3, "kit") as made:
        yield made


@pytest.fixture(scope="class")
def s3_runner(url: str) -> Iterator[Runner]:
    with closing(Runner()) as runner:
        yield runner


_OF_STORES = {"commits-at-once", "loser-swept", "one-vote-lost", "undecided-invisible"}
"""What is another in a store than in a folder; the rest is the committer's, which is the same, and takes 5 s each."""


class OnS3(ConformanceSuite):
    @pytest.fixture
    def runner(self, s3_runner: Runner) -> Runner:
        """Return one that was started in the environment of `url`: the suite's own has that of an earlier test."""
        return s3_runner


class TestS3(OnS3):
    test_conformance = chosen(_OF_STORES)

    @pytest.fixture
    def target(self, url: str) -> ConformanceTarget:
        return StoreTarget(url)


class TestStagingOnS3(OnS3):
    """What the applier does is the same with local files: for every change, a staged row that is lost."""

    test_conformance = chosen({"one-vote-lost"})

    @pytest.fixture
    def target(self, url: str) -> ConformanceTarget:
        return StagingOnS3("staged", url)


class TestMoto(TestS3):
    """A server that answers otherwise: it keeps all in memory, and takes the repeat of a Complete."""

    test_conformance = chosen(())

    @pytest.fixture(scope="class")
    @classmethod
    def url(cls) -> Iterator[str]:
        with own_s3("moto") as server, bucket_on(server, "kit") as made:
            yield made
