"""PgBouncer in front of the server: session and transaction mode keep the promise, and what can't is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from exactsink.contract import Fatal, Retryable
from tests.integration.postgres.sinks import Branches, Staged, rows
from tests.servers.pgbouncer import PgBouncer, own_pgbouncer
from tests.servers.postgres import Postgres, wait_until

pytest_plugins = ["tests.servers.fixtures"]


@pytest.fixture(scope="module", params=["session", "transaction"])
def pooler(request: pytest.FixtureRequest, postgres: Postgres) -> Iterator[PgBouncer]:
    with own_pgbouncer(postgres, request.param) as pooler:
        yield pooler


def through(pooler: PgBouncer, sink: Any) -> Any:
    """Return the same sink as its job reaches it through the pooler."""
    database = psycopg.conninfo.conninfo_to_dict(sink.conninfo)["dbname"]
    return replace(sink, conninfo=pooler.conninfo(str(database)))


def test_x(pooler: PgBouncer, branches: Branches) -> None:
    table = through(pooler, branches).table()
    epoch = table.prepare_many(3)
    assert table.commit(*epoch) == ["Committed"] * 3
    assert table.commit(*epoch) == ["AlreadyCommitted"] * 3
    settings = "SELECT current_setting('lock_timeout'), current_setting('synchronous_commit')"
    print(table.run(settings))
