"""Two jobs that upsert into one table, their drivers killed: each row's state counts what was applied to it."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest

from exactsink.protocol.sinks import Sink
from exactsink.testing import Fault, Script, run_scenario
from exactsink.testing.scenarios.matrix import Edge
from exactsink_idempotent_upsert.backend import UpsertBackend
from exactsink_idempotent_upsert.options import UpsertOptions
from tests.servers.mariadb import MariaDB
from tests.servers.postgres import Postgres

pytest_plugins = ["tests.servers.fixtures"]

_EPOCHS, _PARTITIONS, _ROWS, _KEYS = 4, 2, 300, 40
_POINTS = ("vote", "decide", "commit:totals")


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
    given = {"url": url, "table": "totals", "keys": ("id",), "set": {"total": "totals.total + excluded.total"}}
    backend = UpsertBackend(UpsertOptions.model_validate(given))
    sinks = {"totals": Sink("totals", "idempotent_upsert", backend, "", ("id", "total"))}
    report = run_scenario(Script(f"job{job}", folder / str(job), sinks, _batches(job)), faults)
    return list(report.problems)


@pytest.fixture(params=["postgres", "mariadb"])
def place(request: pytest.FixtureRequest) -> tuple[str, Callable[[str], Iterable[Any]]]:
    """A database's URL, and SQL there."""
    server: Postgres | MariaDB = request.getfixturevalue(request.param)
    if isinstance(server, MariaDB):
        name = server.new_database("two_jobs")
        return server.url(name), lambda statement: server.execute(statement, database=name)
    url = server.create_database("two_upserting_jobs")
    return url, lambda statement: server.execute(statement, "two_upserting_jobs")


@pytest.mark.proof
def test_two_jobs_with_killed_drivers_count_each_row_once(
    place: tuple[str, Callable[[str], Iterable[Any]]], tmp_path: Path
) -> None:
    url, sql = place
    faults = [[Fault(point, edge, "kill", epoch) for epoch, point in enumerate(_POINTS)] for edge in get_args(Edge)]
    sql("CREATE TABLE totals (id bigint PRIMARY KEY, total bigint)")
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        played = [pool.submit(_play, job, url, tmp_path, faults[job]) for job in (0, 1)]
        assert [one.result() for one in played] == [[], []]
    expected: Counter[int] = Counter()
    for table in (table for job in (0, 1) for batch in _batches(job) for table in batch):
        for row in table.to_pylist():
            expected[row["id"]] += row["total"]
    assert dict(sql("SELECT id, total FROM totals")) == dict(expected)
