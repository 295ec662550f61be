"""What tests on Spark share: a session in the test process, or warm JVMs and each test's driver runs on them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from exactsink.spark import Job
from exactsink.spark.session import make_session
from tests.e2e.jobs import write_job
from tests.e2e.lives import Lives
from tests.e2e.warm_jvm import WarmJvm


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session as `exactsink run` makes it; its executors know a folder as `EXACTSINK_TEST_PLACE`."""
    folder = tmp_path_factory.mktemp("session")
    os.environ["EXACTSINK_TEST_PLACE"] = str(folder)
    session = make_session(Job.from_toml(write_job(folder)).config, folder)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    yield session
    session.stop()
    del os.environ["EXACTSINK_TEST_PLACE"]


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmJvm]:
    with closing(WarmJvm(tmp_path_factory.mktemp("jvm"))) as started:
        yield started


@pytest.fixture(scope="session")
def other_jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmJvm]:
    """Drivers of one job at the same time need a JVM each: Spark has one context in a JVM."""
    with closing(WarmJvm(tmp_path_factory.mktemp("other"))) as started:
        yield started


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    with ExitStack() as stack:
        yield Lives(tmp_path, stack)
