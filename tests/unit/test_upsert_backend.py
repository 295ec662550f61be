"""Epochs of the upsert backend: each applied once and whole, duplicates settled, what stops it and what fixes that."""

from __future__ import annotations

import pickle
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.unit.fakes import undecided
from tests.unit.upsert_sink import SCHEMA, Sink, commits_seen

from exactsink.contract import Fatal, LineageError, Retryable, Txn


def test_rows_are_inserted_then_updated_and_invisible_before(tmp_path: Path) -> None:
    sink = Sink(tmp_path).open()
    votes = sink.vote(1, [(1, "a"), (2, "b")], [(3, "c")])
    assert sink.rows() == []
    assert sink.commit(1, votes) == ["Committed", "Committed"]
    assert sink.rows() == [(1, "a"), (2, "b"), (3, "c")]
    votes = sink.vote(2, [(2, "B"), (4, "d")], generation=3)
    assert sink.commit(2, votes, generation=3) == ["Committed"]
    assert sink.rows() == [(1, "a"), (2, "B"), (3, "c"), (4, "d")]
    assert sink.log()[3:] == [("update", 2, "B"), ("insert", 4, "d")]
    assert sink.rows("SELECT * FROM exactsink_epochs") == [("orders", "table", "L1", 2, 3)]
    assert sink.staged_files() == []


def test_the_last_of_duplicate_rows_wins_by_partition_then_row(tmp_path: Path) -> None:
    sink = Sink(tmp_path).open()
    votes = sink.vote(1, [(1, "p0 first"), (1, "p0 last"), (2, "p0")], [(2, "p1"), (1, "p1")], [(2, "p2")])
    assert sink.commit(1, votes[::-1]) == ["Committed"] * 3
    assert sink.rows() == [(1, "p1"), (2, "p2")]


def test_order_by_lets_the_greatest_of_an_epoch_win(tmp_path: Path) -> None:
    sink = Sink(tmp_path, order_by="o").open()
    rows = [(1, "newest", 9), (1, "older", 3), (2, "null is lowest", None), (3, "tie, first", 5)]
    votes = sink.vote(1, rows, [(1, "old", 8), (2, "any", -4), (3, "tie, last", 5)])
    sink.commit(1, votes)
    assert sink.rows() == [(1, "newest"), (2, "any"), (3, "tie, last")]


def test_order_by_never_compares_with_what_the_table_held(tmp_path: Path) -> None:
    sink = Sink(tmp_path, order_by="o").open()
    sink.commit(1, sink.vote(1, [(1, "first epoch", 100)]))
    sink.commit(2, sink.vote(2, [(1, "second epoch", 1)]))
    assert sink.rows() == [(1, "second epoch")]


def test_order_by_uses_the_tables_own_equality_of_keys(tmp_path: Path) -> None:
    sink = Sink(tmp_path, keys=("v",), order_by="o", create=False)
    sink.sql("CREATE TABLE t (id, v TEXT COLLATE NOCASE UNIQUE, o)")
    sink.commit(1, sink.vote(1, [(1, "ab", 7), (2, "AB", 3)]))
    assert sink.rows("SELECT id, o FROM t") == [(1, 7)]


def test_rows_of_keys_only_are_inserted_once(tmp_path: Path) -> None:
    sink = Sink(tmp_path, keys=("id", "v", "o")).open()
    sink.commit(1, sink.vote(1, [(1, "a", 1), (1, "a", 1)]))
    sink.commit(2, sink.vote(2, [(1, "a", 1), (2, "b", 2)]))
    assert sink.rows() == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("order_by", [None, "o"])
def test_a_replayed_epoch_is_not_applied_again(tmp_path: Path, order_by: str | None) -> None:
    sink = Sink(tmp_path, order_by=order_by).open()
    votes = sink.vote(1, [(1, "a", 1), (2, "b", 1)])
    again = sink.vote(1, [(1, "a", 1), (2, "b", 1)], generation=2)
    assert sink.commit(1, votes) == ["Committed"]
    assert sink.commit(1, votes) == ["AlreadyCommitted"]
    assert sink.commit(1, again, generation=2) == ["AlreadyCommitted"]
    assert sink.log() == [("insert", 1, "a"), ("insert", 2, "b")]
    assert sink.staged_files() == []


def test_an_older_epoch_never_overwrites_a_newer_one(tmp_path: Path) -> None:
    sink = Sink(tmp_path).open()
    stalled = sink.vote(4, [(1, "old")])
    sink.commit(5, sink.vote(5, [(1, "new")], generation=2), generation=2)
    assert sink.commit(4, stalled) == ["AlreadyCommitted"]
    assert sink.log() == [("insert", 1, "new")]
    assert sink.rows("SELECT epoch, generation FROM exactsink_epochs") == [(5, 2)]


def test_two_jobs_with_unrelated_epochs_share_a_table(tmp_path: Path) -> None:
    orders = Sink(tmp_path).open()
    refunds = Sink(tmp_path, job="refunds", lineage="L2")
    orders.commit(900, orders.vote(900, [(1, "orders")]))
    assert refunds.commit(3, refunds.vote(3, [(1, "refunds"), (2, "refunds")])) == ["Committed"]
    assert orders.rows() == [(1, "refunds"), (2, "refunds")]


def test_two_sinks_of_a_job_keep_a_marker_each(tmp_path: Path) -> None:
    first = Sink(tmp_path).open()
    second = Sink(tmp_path, sink="other", table="u")
    for sink in (first, second):
        votes = sink.vote(1, [(1, "a")])
        assert sink.commit(1, votes) == ["Committed"]
        assert sink.commit(1, votes) == ["AlreadyCommitted"]
    assert first.rows("SELECT v FROM u") == [("a",)]


def test_a_marker_of_another_journal_stops_everything(tmp_path: Path) -> None:
    sink = Sink(tmp_path).open()
    foreign = sink.vote(7, [(1, "mine")])
    other = Sink(tmp_path, lineage="L2")
    other.commit(3, other.vote(3, [(1, "theirs")]))
    with pytest.raises(LineageError, match="another journal"):
        sink.commit(7, foreign)
    with pytest.raises(LineageError, match="another journal"):
        sink.committer().open_epoch(8, SCHEMA, None)
    assert sink.log() == [("insert", 1, "theirs")]


@pytest.mark.parametrize("damage", ["gone", "shorter", "other bytes"])
def test_a_staged_file_that_is_not_what_was_voted_leaves_the_epoch_unknown(tmp_path: Path, damage: str) -> None:
    sink = Sink(tmp_path).open()
    votes = sink.vote(1, [(1, "a")], [(2, "b")])
    staged = sink.staging / sink.staged_files()[1]
    whole = staged.read_bytes()
    if damage == "gone":
        staged.unlink()
    else:
        staged.write_bytes(whole[:-8] if damage == "shorter" else whole.replace(b"b", b"X"))
    outcomes = sink.outcomes(1, votes)
    assert [type(outcome).__name__ for outcome in outcomes] == ["Unknown", "Unknown"]
    assert all(staged.name in outcome.evidence for outcome in outcomes)  # type: ignore[union-attr]
    assert sink.log() == []
    staged.write_bytes(whole)
    assert sink.commit(1, votes) == ["Committed", "Committed"]


def test_a_null_key_is_refused_before_the_vote(tmp_path: Path) -> None:
    sink = Sink(tmp_path).open()
    with pytest.raises(Fatal, match="key column id is NULL"):
        sink.vote(1, [(1, "a"), (None, "b")])
    left = [txn for found in sink.committer().in_doubt() if (txn := Txn.parse(found.ref))]
    assert [txn.epoch for txn in left] == [1]
    sink.committer().abort(undecided(*left))
    assert sink.staged_files() == []


def test_a_busy_database_is_worth_another_try(tmp_path: Path) -> None:
    sink = Sink(tmp_path, busy_timeout_seconds=0).open()
    votes = sink.vote(1, [(1, "a")])
    with closing(sqlite3.connect(sink.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Retryable, match="locked") as busy:
            sink.commit(1, votes)
    assert "nothing is lost" in str(busy.value)
    assert sink.commit(1, votes) == ["Committed"]


def test_a_file_that_vanished_is_not_made_anew(tmp_path: Path) -> None:
    sink = Sink(tmp_path).open()
    votes = sink.vote(1, [(1, "a")])
    aside = sink.file.rename(tmp_path / "aside.db")
    with pytest.raises(Retryable, match="unable to open"):
        sink.commit(1, votes)
    assert not sink.file.exists()
    aside.rename(sink.file)
    assert sink.commit(1, votes) == ["Committed"]


def test_only_create_makes_the_file(tmp_path: Path) -> None:
    sink = Sink(tmp_path, create=False)
    with pytest.raises(Retryable, match="unable to open"):
        sink.committer().open_epoch(1, SCHEMA, None)
    assert not sink.file.exists()


REBUILT = "DROP TABLE t; CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, o)"
REFUSING = {
    "not null": ("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT NOT NULL, o)", "NOT NULL constraint failed: t.v"),
    "check": ("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, o, CONSTRAINT has_v CHECK (v IS NOT NULL))", "has_v"),
    "silent": ("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT NOT NULL ON CONFLICT IGNORE, o)", "dropped 1 rows"),
}


@pytest.mark.parametrize("order_by", [None, "o"])
@pytest.mark.parametrize("kind", list(REFUSING))
def test_a_row_that_the_table_refuses_stops_with_nothing_lost(tmp_path: Path, kind: str, order_by: str | None) -> None:
    made, said = REFUSING[kind]
    sink = Sink(tmp_path, create=False, order_by=order_by)
    sink.sql(made)
    votes = sink.vote(1, [(1, "a", 1)], [(2, None, 2)])
    with pytest.raises(Fatal) as refused:
        sink.commit(1, votes)
    for part in (said, "table t", "decided", "staged", "nothing is lost", "start the job again"):
        assert part in str(refused.value)
    assert sink.rows() == []
    assert sink.rows("SELECT * FROM exactsink_epochs") == []
    assert len(sink.staged_files()) == 2
    sink.sql(REBUILT)
    assert sink.commit(1, votes) == ["Committed", "Committed"]
    assert sink.rows() == [(1, "a"), (2, None)]


@pytest.mark.parametrize("gone", ["t", "exactsink_epochs"])
def test_a_table_that_vanished_is_named_and_not_made_in_the_commit(tmp_path: Path, gone: str) -> None:
    sink = Sink(tmp_path).open(log=False)
    votes = sink.vote(1, [(1, "a")])
    sink.sql(f"DROP TABLE {gone}")
    with pytest.raises(Fatal, match=f"no such table: main.{gone}"):
        sink.commit(1, votes)
    sink.committer().open_epoch(1, SCHEMA, None)
    assert sink.commit(1, votes) == ["Committed"]


def test_abort_drops_only_what_it_is_given(tmp_path: Path) -> None:
    sink = Sink(tmp_path).open()
    votes = sink.vote(1, [(1, "a")], [(2, "b")], [(3, "c")])
    other = Sink(tmp_path, job="refunds")
    other.staging = sink.staging
    (theirs,) = other.vote(1, [(9, "z")])
    committer = sink.committer(2)
    assert {found.ref for found in committer.in_doubt()} == {vote.ref for vote in votes}
    for _ in range(2):
        committer.abort(undecided(votes[1].txn))
    assert {found.ref for found in committer.in_doubt()} == {votes[0].ref, votes[2].ref}
    assert [found.ref for found in other.committer().in_doubt()] == [theirs.ref]
    assert sink.commit(1, [votes[0], votes[2]]) == ["Committed", "Committed"]
    assert sink.rows() == [(1, "a"), (3, "c")]


def test_a_commit_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a synced write-ahead log keeps the last commit."""
    sink = Sink(tmp_path).open()
    votes = sink.vote(1, [(1, "a")])
    with monkeypatch.context() as patch:
        seen = commits_seen(patch)
        sink.commit(1, votes)
    assert seen == [["wal", 3]]


def test_nothing_shows_the_url_and_the_backend_travels_whole(tmp_path: Path) -> None:
    sink = Sink(tmp_path / "secret-place").backend
    twin = pickle.loads(pickle.dumps(sink))
    assert (twin.options, twin.target, twin.strategy) == (sink.options, sink.target, "staged")
    for shown in (repr(sink), repr(sink.options), str(sink.options), sink.options.model_dump_json()):
        assert "secret-place" not in shown
    assert sink.target == f"sqlite:///{tmp_path}/secret-place/shop.db#t"


EXECUTOR = """
import pickle, sys
import pyarrow as pa
backend = pickle.loads(sys.stdin.buffer.read())
backend.check_batch(pa.record_batch({"id": [1]}))
print(sorted({"sqlalchemy", "pluggy", "exactsink_files"} & set(sys.modules)))
"""


def test_an_executor_needs_no_sqlalchemy(tmp_path: Path) -> None:
    given = pickle.dumps(Sink(tmp_path).backend)
    done = subprocess.run([sys.executable, "-c", EXECUTOR], input=given, capture_output=True, check=True)
    assert done.stdout == b"[]\n"
