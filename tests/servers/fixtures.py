"""The servers as fixtures: a test module names this one in its `pytest_plugins`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from exactsink.testing import Runner
from tests.servers.kafka import Kafka, shared_kafka
from tests.servers.mariadb import MariaDB, shared_mariadb
from tests.servers.postgres import Postgres, shared_postgres
from tests.servers.s3 import S3, bucket_on, shared_s3


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """The Kafka that all workers of this run share: make topics and transactional ids, and leave the broker alone."""
    with shared_kafka(tmp_path_factory.getbasetemp()) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    """The MariaDB that all workers of this run share: make databases, and leave the server alone."""
    with shared_mariadb(tmp_path_factory.getbasetemp()) as server:
        yield server


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """The PostgreSQL that all workers of this run share: make databases, and leave the server alone."""
    with shared_postgres(tmp_path_factory.getbasetemp()) as server:
        yield server


@pytest.fixture(scope="session")
def newest_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """PostgreSQL 18 beside it, shared as `postgres` is: temporal keys, virtual generated columns, NOT ENFORCED."""
    with shared_postgres(tmp_path_factory.getbasetemp(), "18") as server:
        yield server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """The S3 server that all workers of this run share: make buckets, and leave the server alone."""
    with shared_s3(tmp_path_factory.getbasetemp()) as server:
        yield server


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
