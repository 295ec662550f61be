"""Catalogs and warehouses: the kit on each, answers that are lost on the way, a database that dies."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from exactsink.contract import AlreadyCommitted, Committed, LineageError, Mark, Retryable
from exactsink.testing import ConformanceSuite, Runner
from exactsink.testing.target import ROWS
from exactsink.toolkit.storage import ObjectPath, path_of
from exactsink_iceberg import writer as writer_module
from exactsink_iceberg.conformance import StrictTarget
from tests.integration.iceberg.lake import Lake, epochs, interrupted, rows
from tests.servers.cutting_proxy import Trap, cutting_proxy
from tests.servers.postgres import Postgres, own_postgres

STORES = (
    *("births-at-once", "commit-replayed", "commits-at-once", "foreign-untouched", "killed-inside-sweep"),
    *("judged-again", "loser-swept", "other-process", "second-journal", "undecided-invisible", "unknown-after-commit"),
)


@pytest.fixture(scope="module")
def runner(bucket: str) -> Iterator[Runner]:
    """The process has the bucket in its environment."""
    with closing(Runner()) as made:
        yield made


@pytest.mark.parametrize(
    "scenario", ["one-vote-lost", *(pytest.param(name, marks=pytest.mark.proof) for name in STORES)]
)
def test_the_kit_on_postgres_and_s3(
    runner: Runner, bucket: str, postgres: Postgres, scenario: str, tmp_path: Path
) -> None:
    uri = postgres.create_database(f"kit_{abs(hash(tmp_path)):x}")
    target = StrictTarget(("kind",), uri, bucket)
    ConformanceSuite().test_conformance(scenario, target, tmp_path, runner)


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


def test_an_upload_that_a_killed_writer_left_in_s3_is_swept(
    postgres_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_BUFFERED_BYTES", 1)
    sink = postgres_lake.session()
    texts = pa.array([os.urandom(1 << 20).hex() for _ in range(20)])
    writer = sink.writer(0, 0, ROWS, sink.open(0, ROWS))
    writer.write(pa.record_batch([pa.array(range(20)), texts, pa.array([0.0] * 20)], schema=ROWS))
    root = path_of(postgres_lake.warehouse)
    assert isinstance(root, ObjectPath)
    assert len(root.uploads()) == 1
    sink.abort(*sink.listed())
    assert (root.uploads(), sink.listed()) == ([], [])


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
        assert sink.commit(1, voted) == [Committed()]
        assert lake.ids() == Counter([0, 1])
