"""One warm JVM for all pages of a test process; one PostgreSQL and one Kafka for those of all processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.e2e.warm_jvm import WarmJvm
from tests.servers.kafka import Kafka, shared_kafka
from tests.servers.postgres import Postgres, shared_postgres


class LazyJvm:
    """A JVM that is started by the first page that needs one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jvm: WarmJvm | None = None

    def address(self) -> dict[str, str]:
        if self._jvm is None:
            self._jvm = WarmJvm(self._folder)
        return dict(self._jvm.address)

    def settle(self) -> None:
        """End what a killed driver left in it."""
        if self._jvm is not None:
            self._jvm.settle()

    def close(self) -> None:
        if self._jvm is not None:
            self._jvm.close()


class LazyPostgres:
    """The run's server, which is started by the first page that needs one."""

    def __init__(self, basetemp: Path) -> None:
        self._basetemp = basetemp
        self._server: Postgres | None = None
        self._until_end = ExitStack()

    def environment(self, database: str) -> dict[str, str]:
        """Make a database; give libpq's variables that lead there."""
        if self._server is None:
            self._server = self._until_end.enter_context(shared_postgres(self._basetemp))
        self._server.create_database(database)
        return {"PGHOST": str(self._server.folder), "PGUSER": "postgres", "PGDATABASE": database}

    def close(self) -> None:
        self._until_end.close()


class LazyKafka:
    """The run's broker, which is started by the first page that needs one."""

    def __init__(self, basetemp: Path) -> None:
        self._basetemp = basetemp
        self._broker: Kafka | None = None
        self._until_end = ExitStack()

    def environment(self) -> dict[str, str]:
        """Return where the broker is. Pages name topics of their own."""
        if self._broker is None:
            self._broker = self._until_end.enter_context(shared_kafka(self._basetemp))
        return {"KAFKA": self._broker.bootstrap}

    def close(self) -> None:
        self._until_end.close()


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LazyJvm]:
    with closing(LazyJvm(tmp_path_factory.mktemp("jvm"))) as lazy:
        yield lazy


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LazyPostgres]:
    with closing(LazyPostgres(tmp_path_factory.getbasetemp())) as lazy:
        yield lazy


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LazyKafka]:
    with closing(LazyKafka(tmp_path_factory.getbasetemp())) as lazy:
        yield lazy
