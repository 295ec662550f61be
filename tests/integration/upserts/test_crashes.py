"""Drivers are killed, or the server crashes, while jobs upsert: each row's state counts what was applied to it."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias, get_args

import pyarrow as pa
import pymysql
import pytest

from exactsink.contract import Event
from exactsink.protocol.sinks import Sink
from exactsink.testing import Fault, Script, run_scenario
from exactsink.testing.driver_run import run_driver
from exactsink.testing.scenarios.matrix import Edge
from exactsink_idempotent_upsert.backend import UpsertBackend
from exactsink_idempotent_upsert.mysql import database as mysql
from exactsink_idempotent_upsert.options import UpsertOptions
from exactsink_postgres.public import Marks
from tests.servers.mariadb import MariaDB, MariaDBServer, own_mariadb
from tests.servers.postgres import Postgres, PostgresServer, own_postgres

Server: TypeAlias = "MariaDBServer | PostgresServer"
Run: TypeAlias = Callable[[str], Iterable[Any]]

_EPOCHS, _PARTITIONS, _ROWS, _KEYS = 4, 2, 300, 40
_POINTS = ("vote", "decide", "commit:totals")
_INSIDE, _ANSWER_LOST = ("commit:totals", "inside"), ("commit:totals", "answer lost")
_AT = [("vote", "before"), ("vote", "after"), ("decide", "after"), ("commit:totals", "before")]
_AT += [("commit:totals", "after"), _ANSWER_LOST]


def _place(server: Postgres | MariaDB) -> tuple[str, Run]:
    """Make a database; return its URL, and what runs SQL there."""
    name = server.new_database("crashes")
    if isinstance(server, MariaDB):
        return server.url(name), lambda statement: server.execute(statement, database=name)
    name = name.split(" dbname=")[1].split()[0]
    return server.url(name), lambda statement: server.execute(statement, name)


def _sink(url: str, staging: str, strategy: str = "staged") -> Sink:
    """Return a sink that counts where it is staged."""
    given = {"url": url, "table": "totals", "keys": ("id",), "strategy": strategy}
    given |= {"set": {"total": "totals.total + excluded.total"}} if strategy == "staged" else {}
    return Sink("totals", "idempotent_upsert", UpsertBackend(UpsertOptions.model_validate(given)), staging)


def _batches(job: int) -> list[list[pa.Table]]:
    """Each job comes to the keys from another side; most of them come several times in an epoch."""
    step = (7, -11)[job]
    numbers = iter(range(job, 10**6))
    return [
        [pa.Table.from_pylist([{"id": step * next(numbers) % _KEYS, "total": 1 + job} for _ in range(_ROWS)])]
        * _PARTITIONS
        for _ in range(_EPOCHS)
    ]


def _play(job: int, url: str, folder: Path, faults: Sequence[Fault]) -> list[str]:
    script = Script(f"job{job}", folder / str(job), {"totals": _sink(url, "")}, _batches(job))
    return list(run_scenario(script, faults).problems)


@pytest.mark.proof
@pytest.mark.parametrize("database", ["postgres", "mariadb"])
def test_two_jobs_with_killed_drivers_count_each_row_once(
    request: pytest.FixtureRequest, tmp_path: Path, database: str
) -> None:
    url, run = _place(request.getfixturevalue(database))
    faults = [[Fault(point, edge, "kill", epoch) for epoch, point in enumerate(_POINTS)] for edge in get_args(Edge)]
    run("CREATE TABLE totals (id bigint PRIMARY KEY, total bigint)")
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        played = [pool.submit(_play, job, url, tmp_path, faults[job]) for job in (0, 1)]
        assert [one.result() for one in played] == [[], []]
    expected = Counter[int]()
    for row in (row for job in (0, 1) for batch in _batches(job) for table in batch for row in table.to_pylist()):
        expected[row["id"]] += row["total"]
    assert dict(run("SELECT id, total FROM totals")) == dict(expected)


class Crash:
    """Kills the server once, at a point of the first epoch. It is back at once, or when the next driver run begins."""

    def __init__(self, server: Server, at: tuple[str, str], stays_down: bool, patch: pytest.MonkeyPatch) -> None:
        self.server, self.at, self.stays_down = server, at, stays_down
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
            self.server.start()
            self.down = False
        self.in_commit = (event.name, event.edge) == ("commit:totals", "before")
        if event.edge:
            self.probe(event.name, event.edge, event.epoch)

    def probe(self, point: str, edge: str, epoch: int | None) -> None:
        if not self.left or (point, edge, epoch) != (*self.at, 0):
            return
        self.left, self.down = False, self.stays_down
        self.server.crash()
        if not self.stays_down:
            self.server.start()


@pytest.fixture(scope="module", params=[own_mariadb, own_postgres], ids=["mariadb", "postgres"])
def own_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with request.param() as server:
        yield server


@pytest.mark.parametrize("stays_down", [False, pytest.param(True, marks=pytest.mark.proof)], ids=["back", "down"])
@pytest.mark.parametrize("at", [_INSIDE, *(pytest.param(at, marks=pytest.mark.proof) for at in _AT)], ids="-".join)
@pytest.mark.parametrize("strategy", ["staged", pytest.param("direct", marks=pytest.mark.proof)])
def test_server_that_crashes_is_waited_for_and_each_row_counts_once(
    own_server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
    at: tuple[str, str],
    stays_down: bool,
) -> None:
    if at == _ANSWER_LOST and isinstance(own_server, PostgresServer):
        pytest.skip("PostgreSQL's answers are lost in tests/integration/postgres/test_crashes.py")
    url, run = _place(own_server)
    run(
        "CREATE TABLE totals (id BIGINT PRIMARY KEY, total BIGINT, exactsink_epoch BIGINT, exactsink_generation BIGINT)"
    )
    sinks = {"totals": _sink(url, str(tmp_path / "staging"), strategy)}
    parts = [range(number * 60, (number + 1) * 60) for number in range(_PARTITIONS)]
    batches = [[pa.table({"id": part, "total": [total] * 60}) for part in parts] for total in (1, 10)]
    crash = Crash(own_server, at, stays_down, monkeypatch)
    assert run_driver(Script("crashes", tmp_path, sinks, batches), crash) == 0
    assert (crash.left, crash.down) == (False, False)
    found = run("SELECT id, total FROM totals ORDER BY id")
    assert found == [(number, 11 if strategy == "staged" else 10) for number in range(_PARTITIONS * 60)]
