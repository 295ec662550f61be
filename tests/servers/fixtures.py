"""The servers as fixtures of all tests: tests/conftest.py names this module as a plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from typing import Any

import pytest

from exactsink.testing import Runner
from tests.servers.kafka import shared_kafka
from tests.servers.mariadb import shared_mariadb
from tests.servers.postgres import shared_postgres
from tests.servers.s3 import S3, bucket_on, shared_s3


def _shared(start: Callable[..., AbstractContextManager[Any]], *release: str) -> Any:
    """Make a fixture of the server that all workers of this run share: use your own part of it, and leave it alone."""

    @pytest.fixture(scope="session")
    def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
        with start(tmp_path_factory.getbasetemp(), *release) as running:
            yield running

    return server


kafka = _shared(shared_kafka)
mariadb = _shared(shared_mariadb)
postgres = _shared(shared_postgres)
newest_postgres = _shared(shared_postgres, "18")  # temporal keys, virtual generated columns, NOT ENFORCED
s3 = _shared(shared_s3)


@pytest.fixture(scope="module")
def bucket(s3: S3) -> Iterator[str]:
    """A bucket of the module's own, as a URL; the environment has the way there."""
    with bucket_on(s3, "module") as made:
        yield made


@pytest.fixture(scope="module")
def s3_runner(bucket: str) -> Iterator[Runner]:
    """The process has the bucket's way in its environment. A scenario has taken 280 s at a load of 30."""
    with closing(Runner(limit_seconds=900)) as made:
        yield made
