"""The MariaDB server crashes around the protocol's points, in a job whose rows count what was applied to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from exactsink.contract import Event
from exactsink.protocol.sinks import Sink
from exactsink.testing.driver_run import Script, run_driver
from exactsink_idempotent_upsert.backend import UpsertBackend, UpsertOptions
from exactsink_idempotent_upsert.mysql import database as mysql
from tests.servers.mariadb import MariaDBServer, own_mariadb

_INSIDE, _ANSWER_LOST = ("commit:totals", "inside"), ("commit:totals", "answer lost")
_AT = [("vote", "before"), ("decide", "after"), ("commit:totals", "before"), ("commit:totals", "after"), _ANSWER_LOST]
_PARTITIONS, _ROWS = 2, 60


class Crash:
    """Kills the server once, at a point of the first epoch. It is back at once, or when the next driver run begins."""

    def __init__(self, server: MariaDBServer, at: tuple[str, str], stays_down: bool, patch: pytest.MonkeyPatch) -> None:
        self.server, self.at, self.stays_down = server, at, stays_down
        self.left, self.down, self.in_commit = True, False, False
        store, commit = mysql._Session.store, pymysql.Connection.commit

        def crash_inside(session: mysql._Session, marker: Any) -> None:
            self.probe(*_INSIDE, marker.epoch)
            store(session, marker)

        def lose_the_answer(connection: pymysql.Connection[Any]) -> None:
            commit(connection)
            if self.in_commit and self.left and at == _ANSWER_LOST:
                self.probe(*at, 0)
                raise pymysql.OperationalError(2013, "Lost connection to server during query")

        patch.setattr(mysql._Session, "store", crash_inside)
        patch.setattr(pymysql.Connection, "commit", lose_the_answer)

    def __call__(self, event: Event) -> None:
        if self.down and event.name == "claim":
            self.server.start()
            self.down = False
        self.in_commit = (event.name, event.edge) == ("commit:totals", "before")
        if event.edge:
            self.probe(event.name, event.edge, event.epoch)

    def probe(self, point: str, edge: str, epoch: int | None) -> None:
        if not self.left or (point, edge, epoch) != (*self.at, 0):
            return
        self.left = False
        self.server.stop("kill")
        if self.stays_down:
            self.down = True
        else:
            self.server.start()


@pytest.fixture(scope="module")
def own_server() -> Iterator[MariaDBServer]:
    with own_mariadb() as server:
        yield server


@pytest.mark.parametrize("stays_down", [False, pytest.param(True, marks=pytest.mark.proof)], ids=["back", "down"])
@pytest.mark.parametrize("at", [_INSIDE, *(pytest.param(at, marks=pytest.mark.proof) for at in _AT)], ids="-".join)
@pytest.mark.parametrize("strategy", ["staged", pytest.param("direct", marks=pytest.mark.proof)])
def test_server_that_crashes_is_waited_for_and_each_row_counts_once(
    own_server: MariaDBServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
    at: tuple[str, str],
    stays_down: bool,
) -> None:
    name = own_server.new_database("crashes")
    guard = "exactsink_epoch BIGINT, exactsink_generation BIGINT"
    own_server.execute(f"CREATE TABLE totals (id BIGINT PRIMARY KEY, total BIGINT, {guard})", database=name)
    counting = {"set": {"total": "totals.total + excluded.total"}} if strategy == "staged" else {}
    given = {"url": own_server.url(name), "table": "totals", "keys": ("id",), "strategy": strategy, **counting}
    backend = UpsertBackend(UpsertOptions.model_validate(given))
    sink = Sink("totals", "idempotent_upsert", backend, str(tmp_path / "staging"), ("id", "total"))
    parts = [range(number * _ROWS, (number + 1) * _ROWS) for number in range(_PARTITIONS)]
    batches = [[pa.table({"id": part, "total": [total] * _ROWS}) for part in parts] for total in (1, 10)]
    crash = Crash(own_server, at, stays_down, monkeypatch)
    assert run_driver(Script("crashes", tmp_path, {"totals": sink}, batches), crash) == 0
    assert (crash.left, crash.down) == (False, False)
    total = 11 if counting else 10
    found = own_server.execute("SELECT id, total FROM totals ORDER BY id", database=name)
    assert found == [(number, total) for number in range(_PARTITIONS * _ROWS)]
