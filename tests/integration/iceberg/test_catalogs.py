"""Catalogs and warehouses: the kit on each, answers that are lost on the way, a database that dies."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from sqlalchemy import event

from exactsink.contract import AlreadyCommitted, Committed, Committer, LineageError, Mark, Retryable
from exactsink.testing import SCENARIOS, ConformanceSuite, Runner
from exactsink.testing.target import ROWS
from exactsink.toolkit import sql
from exactsink.toolkit.storage import ObjectPath, path_of
from exactsink_iceberg.conformance import StrictTarget
from tests.integration.delta import tables as delta
from tests.integration.iceberg.lake import Lake, epochs, interrupted, rows
from tests.servers.cutting_proxy import Trap, cutting_proxy
from tests.servers.postgres import Postgres, own_postgres

PLAYED = {name: [pytest.mark.proof] * (name != "one-vote-lost") for name in SCENARIOS}


@pytest.mark.parametrize("scenario", [pytest.param(name, marks=marks) for name, marks in PLAYED.items()])
def test_the_kit_on_postgres_and_s3(
    s3_runner: Runner, bucket: str, postgres: Postgres, scenario: str, tmp_path: Path
) -> None:
    target = StrictTarget(("kind",), postgres.create_database(f"kit_{abs(hash(tmp_path)):x}"), bucket)
    ConformanceSuite().test_conformance(scenario, target, tmp_path, s3_runner)


def test_epochs_in_postgres_and_s3_beside_another_writer(postgres_lake: Lake) -> None:
    sink = postgres_lake.session(partition_by=("kind",))
    assert sink.with_committer(lambda committer: list(committer.check(ROWS, None))) == []
    sink.put_birth()
    voted = sink.prepare(0, [rows(1, 2), rows(3)])
    loser = sink.write(0, 0, sink.open(0, ROWS), rows(1), attempt=9)
    assert interrupted(sink, 0, voted, lambda: postgres_lake.table().append(rows(9))) == {Committed()}
    assert [participant.ref for participant in sink.listed()] == [loser.ref]
    sink.abort(*sink.listed())
    assert (sink.listed(), sink.mark()) == ([], Mark("ab", 0, frozenset(["ab"])))
    with pytest.raises(LineageError):
        postgres_lake.session("cd").prepare(0, [rows(4)])
    assert postgres_lake.ids() == Counter([1, 2, 3, 9])
    root = path_of(postgres_lake.warehouse)
    assert isinstance(root, ObjectPath)
    names = list(root.listed(deep=True))
    assert sum(name.endswith(".parquet") for name in names) == len(list(postgres_lake.table().scan().plan_files()))
    assert sum("/snap-" in name for name in names) == 2, "the refused one is removed"


@pytest.mark.parametrize("name", ["delta", "iceberg"])
def test_an_upload_that_a_killed_writer_left_in_s3_is_swept(
    postgres_lake: Lake, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("exactsink.toolkit.tabular.table_writer._BUFFERED_BYTES", 1)
    root = path_of(f"{bucket}/large/table" if name == "delta" else postgres_lake.warehouse)
    sink = delta.session(tmp_path, path=str(root)) if name == "delta" else postgres_lake.session()
    writer = sink.writer(0, 0, ROWS, sink.open(0, ROWS))
    texts = pa.array([os.urandom(1 << 20).hex() for _ in range(20)])
    for _ in range(2):  # a part has 16 MiB
        writer.write(pa.record_batch([pa.array(range(20)), texts, pa.array([0.0] * 20)], schema=ROWS))
    assert isinstance(root, ObjectPath)
    assert len(root.uploads()) == 1
    sink.abort(*sink.listed())
    assert (root.uploads(), sink.listed()) == ([], [])


def test_a_driver_that_stalls_with_its_catalogs_lock_keeps_the_next_one_waiting_only_for_a_while(
    postgres_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "_IDLE_SECONDS", 1)
    sink = postgres_lake.session()
    epochs(sink, 0)
    voted, found = sink.prepare(1, [rows(1)]), list[object]()

    def call(committer: Committer) -> None:
        committer.mark()
        engine = vars(getattr(committer, "_real", committer))["_target"].catalog.engine
        event.listen(engine, "commit", lambda _: found or found.extend(sink.commit(1, voted)))
        found.extend(committer.commit(1, voted))

    sink.with_committer(call)
    assert (found, postgres_lake.ids()) == ([Committed(), AlreadyCommitted()], Counter([0, 1]))


def test_a_commit_that_sqlite_refuses_because_of_a_reader_is_not_taken_for_done(lake: Lake) -> None:
    """SQLite keeps the refused transaction open, and the connection that has it would read its own rows."""
    epochs(lake.session(), 0)
    sink = lake.session(uri=f"{lake.uri}?timeout=0.1")
    voted = sink.prepare(1, [rows(1)])
    reading = sqlite3.connect(lake.folder / "catalog.db").execute("SELECT 1 FROM iceberg_tables UNION SELECT 2")
    with closing(reading):
        reading.fetchone()  # there is one row more, so that the file stays locked
        with pytest.raises(Retryable, match="in 2 tries: OperationalError: database is locked"):
            sink.commit_marked(1, voted)
    assert (sink.commit_marked(1, voted), lake.ids()) == ([Committed()], Counter([0, 1]))


def test_a_catalog_whose_answer_is_lost_after_its_work(postgres: Postgres, tmp_path: Path) -> None:
    name = f"lost_{abs(hash(tmp_path)):x}"
    with cutting_proxy(postgres) as proxy:
        lake = Lake(tmp_path, postgres.create_database(name))
        sink = lake.session(uri=proxy.way.url(name))
        sink.put_birth()
        voted = sink.prepare(0, [rows(1, 2), rows(3)])
        trap = Trap(rb"COMMIT")
        assert interrupted(sink, 0, voted, lambda: proxy.set(trap)) == {AlreadyCommitted()}
        assert trap.sprung.is_set()
        assert lake.ids() == Counter([1, 2, 3])
        kill = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        second = sink.prepare(1, [rows(4)])
        before = Trap(rb"COMMIT", before=lambda: postgres.execute(kill))
        assert interrupted(sink, 1, second, lambda: proxy.set(before)) == {Committed()}
        assert before.sprung.is_set()
        assert lake.ids() == Counter([1, 2, 3, 4])


def test_a_catalog_whose_database_is_killed_under_a_commit(tmp_path: Path) -> None:
    with own_postgres() as server:
        lake = Lake(tmp_path, server.create_database("lake"))
        sink = lake.session()
        epochs(sink, 0)
        voted = sink.prepare(1, [rows(1)])
        with pytest.raises(Retryable, match="can't be used"):
            interrupted(sink, 1, voted, lambda: server.stop("immediate"))
        server.start()
        assert (sink.commit(1, voted), lake.ids()) == ([Committed()], Counter([0, 1]))
