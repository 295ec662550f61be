"""What tests on Spark share: a session in the test process, or warm JVMs and each test's driver runs on them.

`tests/conftest.py` names this module, for the pages' tests too. Imports are made late: most tests need no Spark.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.servers.kafka import Kafka
from tests.servers.postgres import Postgres, PostgresServer, own_postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.e2e.drivers import Drivers, ForkServer
    from tests.e2e.kafka_job import KafkaSink
    from tests.e2e.postgres_job import Database
    from tests.e2e.warm_jvm import WarmJvm


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session as `exactsink run` makes it; its executors know a folder as `EXACTSINK_TEST_PLACE`."""
    from exactsink.spark import Job
    from exactsink.spark.session import make_session
    from tests.e2e.jobs import write_job
    from tests.e2e.processes import QUICK_JAVA

    folder = tmp_path_factory.mktemp("session")
    os.environ["EXACTSINK_TEST_PLACE"] = str(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)
        session = make_session(Job.from_toml(write_job(folder)).config)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    yield session
    session.stop()
    del os.environ["EXACTSINK_TEST_PLACE"]


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmJvm]:
    from tests.e2e.warm_jvm import WarmJvm

    with closing(WarmJvm(tmp_path_factory.mktemp("jvm"))) as started:
        yield started


@pytest.fixture(scope="session")
def other_jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmJvm]:
    """Drivers of one job at the same time need a JVM each: Spark has one context in a JVM."""
    from tests.e2e.warm_jvm import WarmJvm

    with closing(WarmJvm(tmp_path_factory.mktemp("other"))) as started:
        yield started


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    from tests.e2e.drivers import ForkServer

    with closing(ForkServer()) as started:
        yield started


@pytest.fixture
def drivers(tmp_path: Path, fork_server: ForkServer) -> Iterator[Drivers]:
    from tests.e2e.drivers import Drivers

    with ExitStack() as stack:
        yield Drivers(tmp_path, stack, fork_server)


@pytest.fixture
def database(postgres: Postgres) -> Iterator[Database]:
    """A test's own database on the server that all tests share."""
    from tests.e2e.postgres_job import database_of

    with database_of(postgres) as made:
        yield made


@pytest.fixture(scope="session")
def own_server() -> Iterator[PostgresServer]:
    """A server for the tests that stop it, or fill its slots: they take turns. A test leaves it running."""
    from tests.e2e.postgres_job import SLOTS

    with own_postgres({"max_prepared_transactions": str(SLOTS)}) as server:
        yield server


@pytest.fixture
def own_database(own_server: PostgresServer) -> Iterator[Database]:
    """A test's own database there."""
    from tests.e2e.postgres_job import database_of

    with database_of(own_server) as made:
        yield made


@pytest.fixture
def kafka_sink(kafka: Kafka) -> KafkaSink:
    """A test's own output topic on the broker that all tests share."""
    from tests.e2e.kafka_job import kafka_sink_of

    return kafka_sink_of(kafka)
