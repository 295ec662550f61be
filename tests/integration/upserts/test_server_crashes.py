"""A server crashes around the protocol's points, in a job whose rows count what was applied to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pymysql
import pytest
from psycopg.conninfo import conninfo_to_dict

from exactsink.contract import Event
from exactsink.protocol.sinks import Sink
from exactsink.testing.driver_run import Script, run_driver
from exactsink_idempotent_upsert.backend import UpsertBackend, UpsertOptions
from exactsink_idempotent_upsert.mysql import database as mysql
from exactsink_postgres.public import Marks
from tests.servers.mariadb import MariaDBServer, own_mariadb
from tests.servers.postgres import PostgresServer, own_postgres

_INSIDE, _ANSWER_LOST = ("commit:totals", "inside"), ("commit:totals", "answer lost")
_AT = [("vote", "before"), ("vote", "after"), ("decide", "after"), ("commit:totals", "before")]
_AT += [("commit:totals", "after"), _ANSWER_LOST]
_PARTITIONS, _ROWS = 2, 60


class Place(NamedTuple):
    """A database of a server's own, how it is asked, and how the server crashes and starts."""

    url: str
    run: Callable[[str], Sequence[Any]]
    kill: Callable[[], None]
    start: Callable[[], None]


class Crash:
    """Kills the server once, at a point of the first epoch. It is back at once, or when the next driver run begins."""

    def __init__(self, place: Place, at: tuple[str, str], stays_down: bool, patch: pytest.MonkeyPatch) -> None:
        self.place, self.at, self.stays_down = place, at, stays_down
        self.left, self.down, self.in_commit = True, False, False
        store, add, commit = mysql._Session.store, Marks.add, pymysql.Connection.commit

        def crash_inside(session: mysql._Session, marker: Any) -> None:
            self.probe(*_INSIDE, marker.epoch)
            store(session, marker)

        def crash_beside(marks: Marks, epoch: int, *mark: str) -> None:
            self.probe(*_INSIDE, epoch)
            add(marks, epoch, *mark)

        def lose_the_answer(connection: pymysql.Connection[Any]) -> None:
            commit(connection)
            if self.in_commit and self.left and at == _ANSWER_LOST:
                self.probe(*at, 0)
                raise pymysql.OperationalError(2013, "Lost connection to server during query")

        patch.setattr(mysql._Session, "store", crash_inside)
        patch.setattr(Marks, "add", crash_beside)
        patch.setattr(pymysql.Connection, "commit", lose_the_answer)

    def __call__(self, event: Event) -> None:
        if self.down and event.name == "claim":
            self.place.start()
            self.down = False
        self.in_commit = (event.name, event.edge) == ("commit:totals", "before")
        if event.edge:
            self.probe(event.name, event.edge, event.epoch)

    def probe(self, point: str, edge: str, epoch: int | None) -> None:
        if not self.left or (point, edge, epoch) != (*self.at, 0):
            return
        self.left = False
        self.place.kill()
        if self.stays_down:
            self.down = True
        else:
            self.place.start()


@pytest.fixture(scope="module", params=[own_mariadb, own_postgres], ids=["mariadb", "postgres"])
def server(request: pytest.FixtureRequest) -> Iterator[MariaDBServer | PostgresServer]:
    with request.param() as server:
        yield server


@pytest.fixture
def place(server: MariaDBServer | PostgresServer) -> Place:
    if isinstance(server, MariaDBServer):
        name = server.new_database("crashes")
        return Place(
            server.url(name), partial(server.execute, database=name), partial(server.stop, "kill"), server.start
        )
    name = str(conninfo_to_dict(server.new_database("crashes"))["dbname"])
    return Place(
        server.url(name), partial(server.execute, database=name), partial(server.stop, "immediate"), server.start
    )


@pytest.mark.parametrize("stays_down", [False, pytest.param(True, marks=pytest.mark.proof)], ids=["back", "down"])
@pytest.mark.parametrize("at", [_INSIDE, *(pytest.param(at, marks=pytest.mark.proof) for at in _AT)], ids="-".join)
@pytest.mark.parametrize("strategy", ["staged", pytest.param("direct", marks=pytest.mark.proof)])
def test_server_that_crashes_is_waited_for_and_each_row_counts_once(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, at: tuple[str, str], stays_down: bool
) -> None:
    if at == _ANSWER_LOST and place.url.startswith("postgresql"):
        pytest.skip("tests/integration/postgres/test_crashes.py lets it wait for a standby then")
    guard = "exactsink_epoch BIGINT, exactsink_generation BIGINT"
    place.run(f"CREATE TABLE totals (id BIGINT PRIMARY KEY, total BIGINT, {guard})")
    counting = {"set": {"total": "totals.total + excluded.total"}} if strategy == "staged" else {}
    given = {"url": place.url, "table": "totals", "keys": ("id",), "strategy": strategy, **counting}
    backend = UpsertBackend(UpsertOptions.model_validate(given))
    sink = Sink("totals", "idempotent_upsert", backend, str(tmp_path / "staging"), ("id", "total"))
    parts = [range(number * _ROWS, (number + 1) * _ROWS) for number in range(_PARTITIONS)]
    batches = [[pa.table({"id": part, "total": [total] * _ROWS}) for part in parts] for total in (1, 10)]
    crash = Crash(place, at, stays_down, monkeypatch)
    assert run_driver(Script("crashes", tmp_path, {"totals": sink}, batches), crash) == 0
    assert (crash.left, crash.down) == (False, False)
    total = 11 if counting else 10
    found = place.run("SELECT id, total FROM totals ORDER BY id")
    assert found == [(number, total) for number in range(_PARTITIONS * _ROWS)]
