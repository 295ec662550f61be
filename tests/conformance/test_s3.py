"""The kit on targets that have something in S3: the `files` backend's, and SQLite's, whose rows are staged there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from exactsink.testing import ConformanceSuite, ConformanceTarget, Runner
from exactsink.toolkit.storage import ObjectPath
from exactsink_files.conformance_s3 import S3Target
from exactsink_idempotent_upsert.conformance import StagedTarget
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


@dataclass(frozen=True)
class StagingOnS3(StagedTarget):
    """SQLite's table, with a staging folder of its own a scenario, below a URL in S3."""

    url: str

    previous = ConformanceTarget.previous  # not given: the recordings are of local files

    def staging(self, folder: Path) -> str:
        return f"{self.url}/{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}/staging"

    def foreign(self, folder: Path) -> None:
        ObjectPath.of(f"{self.staging(folder)}/somebody's own.arrow").create(b"somebody's")


class OnS3(ConformanceSuite):
    @pytest.fixture
    def runner(self, s3_runner: Runner) -> Runner:
        """Return one that was started in the environment of `url`: the suite's own has that of an earlier test."""
        return s3_runner


class TestS3(OnS3):
    test_conformance = chosen(_OF_STORES)

    @pytest.fixture
    def target(self, url: str) -> ConformanceTarget:
        return S3Target(url)


class TestStagingOnS3(OnS3):
    """What the applier does is the same with local files: for every change, a staged row that is kept, and one lost."""

    test_conformance = chosen({"killed-after-pre_commit", "one-vote-lost"})

    @pytest.fixture
    def target(self, url: str) -> ConformanceTarget:
        return StagingOnS3("staged", url)
