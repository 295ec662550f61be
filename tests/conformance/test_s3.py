"""The kit on targets that have something in an object store: the `files` backend's, and SQLite's staged rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from exactsink.testing import ConformanceTarget, Runner
from tests.conformance.store_targets import StagingOnS3, StoreTarget
from tests.conformance.test_backends import OnPlace, chosen
from tests.servers.s3 import S3, bucket_on, own_s3


@pytest.fixture(scope="class")
def place(s3: S3) -> Iterator[tuple[str, Runner]]:
    """Return a URL, and a runner that was started in the environment that leads there."""
    with bucket_on(s3, "kit") as url, closing(Runner()) as runner:
        yield url, runner


_OF_STORES = {"commits-at-once", "loser-swept", "one-vote-lost", "undecided-invisible"}
"""What is another in a store than in a folder; the rest is the committer's, which is the same, and takes 5 s each."""


class TestS3(OnPlace):
    test_conformance = chosen(_OF_STORES)

    @pytest.fixture
    def target(self, place: tuple[str, Runner]) -> ConformanceTarget:
        return StoreTarget(place[0])


class TestStagingOnS3(OnPlace):
    """What the applier does is the same with local files: for every change, a staged row that is lost."""

    test_conformance = chosen({"one-vote-lost"})

    @pytest.fixture
    def target(self, place: tuple[str, Runner]) -> ConformanceTarget:
        return StagingOnS3("staged", place[0])


class TestMoto(TestS3):
    """A server that answers otherwise: it keeps all in memory, and takes the repeat of a Complete."""

    test_conformance = chosen(())

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls) -> Iterator[tuple[str, Runner]]:
        with own_s3("moto") as server, bucket_on(server, "kit") as url, closing(Runner()) as runner:
            yield url, runner
