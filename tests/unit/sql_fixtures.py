"""An empty database of each kind, and stores in it: a test module names this one in its `pytest_plugins`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.postgres import Postgres
from tests.unit.sql_stores import JOB, OpenStore

from exactsink.protocol.journal.stores.sql import SqlStore

__all__ = ["open_sql_store", "sql_url"]

pytest_plugins = ["tests.servers.fixtures"]


@pytest.fixture(params=["sqlite", "postgres"])
def sql_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/new/journal.db"
    server: Postgres = request.getfixturevalue("postgres")
    return server.create_database(f"journal_{uuid.uuid4().hex}")


@pytest.fixture
def open_sql_store(sql_url: str) -> Iterator[OpenStore]:
    """Open stores of the database; they are closed at the end."""
    opened = []

    def open_store(job: str = JOB) -> SqlStore:
        opened.append(SqlStore(sql_url, job))
        return opened[-1]

    yield open_store
    for each in opened:
        each.close()
