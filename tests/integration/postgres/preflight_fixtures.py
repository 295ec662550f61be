"""Servers to look at before the first row, one of each a module: a test module names this in its `pytest_plugins`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.postgres.preflight_checks import SLOTS
from tests.servers.postgres import PostgresServer, own_postgres

__all__ = ["held", "server", "weak"]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with own_postgres({"max_prepared_transactions": str(SLOTS), "max_connections": "20"}) as server:
        server.create_database("shop")
        server.create_database("other")
        server.execute("CREATE TABLE flights (id bigint, kind text)", "shop")
        server.execute("CREATE TABLE flights (id bigint, kind text)", "other")
        server.execute("CREATE ROLE writer LOGIN")
        server.execute("GRANT INSERT ON flights TO writer", "shop")
        yield server


@pytest.fixture(scope="module")
def weak() -> Iterator[PostgresServer]:
    """A server as it should not be. It can become a replica: the test that does so is the last one to use it."""
    weak = {"max_prepared_transactions": "0", "fsync": "off", "full_page_writes": "off", "track_activities": "off"}
    with own_postgres(weak) as server:
        server.execute("CREATE TABLE flights (id bigint, kind text)")
        yield server


@pytest.fixture
def held(server: PostgresServer) -> Iterator[list[str]]:
    """Gids prepared by a test, rolled back after it."""
    yield []
    for gid, database in server.execute("SELECT gid, database FROM pg_prepared_xacts"):
        server.execute(f"ROLLBACK PREPARED '{gid}'", database)
