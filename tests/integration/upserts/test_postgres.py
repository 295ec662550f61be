"""Upserts into PostgreSQL: the options mean what they do on a dictionary, and what is refused is refused in time."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
import pytest
from psycopg import sql

from exactsink.contract import JobContext
from exactsink.testing import Session
from exactsink_idempotent_upsert.backend import UpsertBackend
from exactsink_idempotent_upsert.options import UpsertOptions
from tests.integration.upserts.meaning import CASES, COLUMNS, TABLE, Case, Row, Target, check
from tests.servers.postgres import Postgres

pytest_plugins = ["tests.servers.fixtures"]

_COUNT = itertools.count()
_TOKEN = "0123456789abcdef"


@pytest.fixture(scope="session")
def upserts(postgres: Postgres) -> str:
    """One database for this worker's upserts, each in a schema of its own."""
    name = f"upserts_{os.getpid()}"
    return postgres.create_database(name)


class Sink:
    """A schema of a test's own, and a sink that upserts into its table."""

    def __init__(self, url: str) -> None:
        self.schema = f"s{next(_COUNT)}"
        self._url = url
        self._server = psycopg.connect(url.replace("postgresql+psycopg", "postgresql"), autocommit=True)
        self.run(f"CREATE SCHEMA {self.schema}; SET search_path = {self.schema}")

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        cursor = self._server.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    def make(self, columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        self.run(f"CREATE TABLE {TABLE} ({', '.join(f'{name} {kind}' for name, kind in columns.items())})")
        for row in rows:
            values = sql.SQL(", ").join(map(sql.Literal, row.values())).as_string(self._server)
            self.run(f"INSERT INTO {TABLE} ({', '.join(row)}) VALUES ({values})")

    def backend(self, **given: Any) -> UpsertBackend:
        place = {"url": self._url, "table": f"{self.schema}.{TABLE}", "keys": ("k",), "busy_timeout_seconds": 5}
        return UpsertBackend(UpsertOptions.model_validate({**place, **given}))

    def session(self, given: Mapping[str, Any]) -> Session:
        options = {**given, "table": f"{self.schema}.{TABLE}"}
        made = Session(self.backend(**options), JobContext(f"j-{self.schema}", "out", "", 1, "l1"), _TOKEN)
        made.put_birth()
        return made

    def read(self) -> list[tuple[Any, ...]]:
        return self.run(f"SELECT {', '.join(COLUMNS)} FROM {TABLE}")

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def sink(upserts: str) -> Any:
    made = Sink(upserts)
    yield made
    made.close()


_STAGED = [case for case in CASES if case.options["strategy"] == "staged"]


@pytest.mark.parametrize("case", _STAGED, ids=str)
def test_options_mean_what_they_do_on_a_dictionary(sink: Sink, case: Case) -> None:
    check(case, Target(sink.session, sink.make, sink.read))
