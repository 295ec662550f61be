"""A database for tests of `two_phase`, and a job of its own for each: a test module names this in `pytest_plugins`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from tests.integration.postgres.branches import Branches
from tests.servers.postgres import Postgres

__all__ = ["branches", "two_phase_database"]

_COUNT = itertools.count()


@pytest.fixture(scope="session")
def two_phase_database(postgres: Postgres) -> str:
    """One database for this worker's tests; they report themselves apart by their jobs."""
    return postgres.new_database("two_phase")


@pytest.fixture
def branches(two_phase_database: str) -> Iterator[Branches]:
    """A job of the test's own, without a table. What it leaves prepared is rolled back."""
    mine = Branches(two_phase_database, f"w{os.getpid()}-{next(_COUNT)}")  # names are the whole server's
    yield mine
    mine.clean()
