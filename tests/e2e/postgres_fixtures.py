"""Databases for a job's Postgres sinks as fixtures: a test module names this one in its `pytest_plugins`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.postgres_job import SLOTS, Database, database_of
from tests.servers.postgres import Postgres, PostgresServer, own_postgres

__all__ = ["database", "own_database", "own_server"]


@pytest.fixture
def database(postgres: Postgres) -> Iterator[Database]:
    """A test's own database on the server that all tests share, with strangers in it."""
    with database_of(postgres) as made:
        yield made


@pytest.fixture(scope="session")
def own_server() -> Iterator[PostgresServer]:
    """A server for the tests that stop it, or fill its slots: they take turns. A test leaves it running."""
    with own_postgres({"max_prepared_transactions": str(SLOTS)}) as server:
        yield server


@pytest.fixture
def own_database(own_server: PostgresServer) -> Iterator[Database]:
    """A test's own database there. The strangers have no open sessions: they would not survive a stop."""
    with database_of(own_server, sessions=False) as made:
        yield made
