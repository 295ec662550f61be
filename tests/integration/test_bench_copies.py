"""Copies that `exactsink bench` makes beside a sink's own target on a server: played with kills, counted, removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import conninfo_to_dict

from exactsink.bench.runs import Copy, prepare
from exactsink.bench.target import BenchTarget, Place
from exactsink.bench.watch import count
from exactsink.bench.ways import Base, base_of, find_ways
from exactsink.job.registry import Registry, installed_plugins
from exactsink.protocol.sinks import Sink
from exactsink.testing import Fault, Script
from exactsink.testing.driver_run import run_driver
from exactsink.testing.faults import FaultTrigger
from exactsink.testing.processes import KILLED, FreshProcess, ask, ended, start
from exactsink.testing.scenario import in_doubt
from tests.servers.kafka import Kafka
from tests.servers.mariadb import MariaDB
from tests.servers.postgres import Postgres
from tests.servers.waiting import wait_until

_JOB = '[job]\nname = "shop"\ncheckpoint = "{folder}/checkpoint"\n[sinks.out]\n'
_PLACES = """SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp_'
UNION ALL SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"""


@dataclass(frozen=True)
class _Drivers:
    """The play, for a fresh process that has no threads: the drivers are its forks."""

    target: BenchTarget
    place: Place
    sink: Sink
    batches: Sequence[Sequence[pa.Table]]

    def __call__(self) -> tuple[int, int]:
        """Run two epochs, then one whose driver is killed; return the rows before that, and what is in doubt after."""
        assert ended(start(lambda: run_driver(self._script(2), None))) == 0
        rows = ask(lambda: count(self.target, self.place, 20))
        trigger = FaultTrigger(Fault("vote", "after", epoch=2), self._script(3).folder / "fired")
        assert ended(start(lambda: run_driver(self._script(3), trigger))) == KILLED
        return rows, ask(lambda: in_doubt(self._script(0))[self.sink.name])

    def _script(self, epochs: int) -> Script:
        folder = self.place.folder / self.place.job / "drivers"
        folder.mkdir(parents=True, exist_ok=True)
        return Script(self.place.job, folder, {self.sink.name: self.sink}, self.batches[:epochs], chunk=1000)


def _play(base: Base, row: Callable[[int], dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Play a job on a copy for each way, and drop it (twice) with what its killed driver has left in doubt."""
    registry, found = Registry(installed_plugins()), {}
    ways = find_ways(base, registry)
    assert ways.skipped == {}
    parts = [pa.Table.from_pylist([row(5 * part + number) for number in range(5)]) for part in range(6)]
    batches = [parts[number : number + 2] for number in range(0, len(parts), 2)]
    for number, way in enumerate(ways.measured):
        place = Place(f"{base.prefix}-{number}", "sink-0", base.folder)
        try:
            [sink] = prepare(base, [Copy(way, place)], registry).sinks.values()
            with FreshProcess(_Drivers(way.target, place, sink, batches)) as played:
                found[way.name] = played.answer()
        finally:
            for _ in range(2):
                way.target.drop(place)
    return found


@pytest.mark.parametrize("backend", ["postgres", pytest.param("idempotent_upsert", marks=pytest.mark.proof)])
def test_tables(postgres: Postgres, tmp_path: Path, backend: str) -> None:
    """Copies of strategy direct get the columns that it needs. None is left, and the sink's own table stays empty."""
    name = postgres.new_database("bench")
    postgres.execute("CREATE TABLE flights (id bigint PRIMARY KEY, kind text, n int DEFAULT 0)", name)
    place = conninfo_to_dict(name)
    options = {
        "postgres": f'conninfo = "{postgres.conninfo(name)}"\n',
        "idempotent_upsert": f'url = "postgresql:///{place.pop("dbname")}?{urlencode(place)}"\nkeys = ["id"]\n',
    }
    sink = f'backend = "{backend}"\ntable = "flights"\n{options[backend]}'
    (tmp_path / "job.toml").write_text(_JOB.format(folder=tmp_path) + sink)
    before = sorted(postgres.execute(_PLACES, name))
    found = _play(base_of(str(tmp_path / "job.toml")), lambda number: {"id": number, "kind": "k"})
    assert found == {f"out {way}": (20, 2) for way in ("staged", "two_phase" if backend == "postgres" else "direct")}
    assert (sorted(postgres.execute(_PLACES, name)), postgres.execute("TABLE flights", name)) == (before, [])


@pytest.mark.proof
def test_upserted_tables(mariadb: MariaDB, tmp_path: Path) -> None:
    name = mariadb.new_database("bench")
    mariadb.execute("CREATE TABLE flights (id BIGINT PRIMARY KEY, kind TEXT)", database=name)
    sink = f'backend = "idempotent_upsert"\nurl = "{mariadb.url(name)}"\ntable = "flights"\nkeys = ["id"]\n'
    (tmp_path / "job.toml").write_text(_JOB.format(folder=tmp_path) + sink)
    base = base_of(str(tmp_path / "job.toml"))
    found = _play(base, lambda number: {"id": number, "kind": "k"})
    assert found == {"out staged": (20, 2), "out direct": (20, 2)}
    own = base.prefix.replace("-", "_")
    assert [one for (one,) in mariadb.execute("SHOW DATABASES") if own in one] == []
    assert mariadb.execute("SHOW TABLES", database=name) == [("flights",)]


def test_topics(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.new_topic("bench", partitions=2)
    sink = f'backend = "kafka"\nbootstrap_servers = "{kafka.bootstrap}"\ntopic = "{topic}"\n'
    (tmp_path / "job.toml").write_text(_JOB.format(folder=tmp_path) + sink)
    base = base_of(str(tmp_path / "job.toml"))
    found = _play(base, lambda number: {"value": str(number)})
    assert found == {"out plain": (20, 2), "out fast": (20, 2)}
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    wait_until(lambda: not any(base.prefix in name for name in admin.list_topics(timeout=30).topics), "no topic")
    assert not [one for one in admin.list_consumer_groups().result(30).valid if base.prefix in one.group_id]
