"""Warm JVMs, one or two a test process, and each test's driver lives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.e2e.lives import Lives
from tests.e2e.warm_jvm import WarmJvm


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
