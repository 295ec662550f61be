"""Tasks that upsert before the decision: no older write goes over a newer one; the marker says what is decided."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.fakes import undecided
from tests.unit.upsert_sink import SCHEMA, Sink, commits_seen, direct, task

from exactsink.contract import Fatal, Finding, JobContext, LineageError, Refused, Retryable

GUARDED = "SELECT id, v, exactsink_epoch, exactsink_generation FROM t ORDER BY id"
MARKERS = "SELECT epoch, generation FROM exactsink_epochs"


def check(sink: Sink, distribution: str | int = 1, participants: int | None = None) -> list[Finding]:
    ctx = JobContext(sink.job, sink.sink, str(sink.staging), distribution=distribution)
    return list(sink.backend.committer(ctx).check(SCHEMA, participants))


def test_rows_show_when_their_task_votes_and_the_marker_when_they_are_decided(tmp_path: Path) -> None:
    sink = direct(tmp_path).open()
    votes = sink.vote(1, [(1, "a"), (2, "b"), (1, "last")], [(3, "c")])
    assert sink.rows(GUARDED) == [(1, "last", 1, 1), (2, "b", 1, 1), (3, "c", 1, 1)]
    assert sink.rows(MARKERS) == []
    assert [vote.rows for vote in votes] == [3, 1]
    assert sink.commit(1, votes) == ["Committed"] * 2
    assert sink.commit(1, votes) == ["AlreadyCommitted"] * 2
    assert sink.rows(MARKERS) == [(1, 1)]
    sink.commit(2, sink.vote(2, [(1, "z")], generation=4), generation=4)
    assert sink.rows(GUARDED) == [(1, "z", 2, 4), (2, "b", 1, 1), (3, "c", 1, 1)]
    assert not sink.staging.exists()


def test_a_task_shows_nothing_before_its_vote_and_all_of_it_then(tmp_path: Path) -> None:
    sink = direct(tmp_path).open()
    task(sink, 1, (1, "a"), (2, "b")).abort()
    dying = task(sink, 1, (1, "a"))
    with closing(sqlite3.connect(sink.file, timeout=0, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # and holds no lock while it computes
        other.execute("ROLLBACK")
    assert sink.rows() == []
    dying.pre_commit()
    assert sink.log() == [("insert", 1, "a")]


def test_a_rival_attempt_that_dies_half_way_does_not_bring_back_an_earlier_row(tmp_path: Path) -> None:
    sink = direct(tmp_path).open()
    rival = task(sink, 1, (1, "first of the key"))
    winner = task(sink, 1, (1, "first of the key"), (1, "last of the key"), attempt=1)
    sink.commit(1, [winner.pre_commit()])
    rival.abort()
    assert sink.rows() == [(1, "last of the key")]


def test_a_replay_overwrites_what_was_never_decided(tmp_path: Path) -> None:
    sink = direct(tmp_path).open()
    sink.vote(1, [(1, "undecided"), (2, "same")])
    votes = sink.vote(1, [(1, "replayed"), (2, "same")], generation=2)
    assert sink.commit(1, votes, generation=2) == ["Committed"]
    assert sink.rows(GUARDED) == [(1, "replayed", 1, 2), (2, "same", 1, 2)]


def test_a_late_task_of_an_older_generation_keeps_nothing(tmp_path: Path) -> None:
    sink = direct(tmp_path).open()
    late = task(sink, 1, (1, "late"), (9, "late, and of no newer row's key"))
    sink.vote(1, [(1, "replayed")], generation=2)
    with pytest.raises(Refused, match="holds newer rows") as refused:
        late.pre_commit()
    assert "epoch 1 of generation 2 is there, this task is of generation 1" in str(refused.value)
    assert sink.rows(GUARDED) == [(1, "replayed", 1, 2)]


def test_a_late_task_of_an_older_epoch_keeps_nothing(tmp_path: Path) -> None:
    sink = direct(tmp_path).open()
    late = task(sink, 1, (1, "late"), (9, "late"), generation=7)
    sink.vote(2, [(1, "newer")], generation=2)
    with pytest.raises(Refused, match="holds newer rows"):
        late.pre_commit()
    assert sink.rows(GUARDED) == [(1, "newer", 2, 2)]


@pytest.mark.parametrize("later", ["of the same epoch", "an epoch on"])
def test_a_late_task_of_a_decided_epoch_keeps_nothing_even_of_keys_that_are_gone(tmp_path: Path, later: str) -> None:
    sink = direct(tmp_path).open()
    late = task(sink, 1, (1, "late"), attempt=9)
    sink.commit(1, sink.vote(1, [(1, "a")]))
    if later == "an epoch on":
        sink.commit(2, sink.vote(2, [(2, "b")]))
    sink.sql("DELETE FROM t WHERE id = 1")
    with pytest.raises(Refused, match="holds newer rows"):
        late.pre_commit()
    assert sink.rows("SELECT id FROM t WHERE id = 1") == []


def test_a_late_task_writes_nothing_after_the_sink_went_over_to_staged(tmp_path: Path) -> None:
    sink = direct(tmp_path).open()
    late = task(sink, 1, (1, "late"), attempt=9)
    sink.commit(1, sink.vote(1, [(1, "a")]))
    staged = Sink(tmp_path)
    assert staged.commit(2, staged.vote(2, [(1, "staged")])) == ["Committed"]
    with pytest.raises(Refused, match="holds newer rows"):
        late.pre_commit()
    assert sink.rows() == [(1, "staged")]


def test_rows_that_were_there_before_have_no_guard(tmp_path: Path) -> None:
    sink = direct(tmp_path, create=False)
    sink.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, o); INSERT INTO t VALUES (1, 'before', 0)")
    (found,) = check(sink)
    assert "no columns for whose write a row is" in found.message
    assert found.fix.count("ALTER TABLE") == 2
    sink.sql(found.fix)
    assert check(sink) == []
    sink.commit(1, sink.vote(1, [(1, "after")]))
    assert sink.rows(GUARDED) == [(1, "after", 1, 1)]


def test_rows_of_keys_only_are_guarded_too(tmp_path: Path) -> None:
    sink = direct(tmp_path, keys=("id", "v", "o")).open()
    sink.vote(1, [(1, "a", 1), (1, "a", 1)])
    sink.vote(1, [(1, "a", 1)], generation=2)
    assert sink.rows(GUARDED) == [(1, "a", 1, 2)]


def test_order_by_lets_the_greatest_of_a_task_win(tmp_path: Path) -> None:
    sink = direct(tmp_path, order_by="o", exclude=("o",)).open(log=False)
    sink.vote(1, [(1, "newest", 9), (1, "older", 3), (2, "null is lowest", None), (2, "any", -1)])
    assert sink.rows(GUARDED) == [(1, "newest", 1, 1), (2, "any", 1, 1)]


def test_another_journal_is_refused_before_its_first_row(tmp_path: Path) -> None:
    sink = direct(tmp_path).open()
    other = direct(tmp_path, lineage="L2")
    with pytest.raises(LineageError, match="belongs to sink table of job orders"):  # though nothing is decided yet
        other.committer().open_epoch(1, SCHEMA, None)
    sink.commit(1, sink.vote(1, [(1, "a")]))
    with pytest.raises(LineageError, match="another journal"):
        other.committer().open_epoch(2, SCHEMA, None)
    with pytest.raises(LineageError, match="another journal"):
        other.commit(2, sink.vote(2, [(1, "b")]))


def test_a_journal_that_went_back_in_time_is_refused(tmp_path: Path) -> None:
    sink = direct(tmp_path).open()
    sink.commit(5, sink.vote(5, [(1, "a")]))
    with pytest.raises(LineageError, match="already holds epoch 5"):
        sink.committer().open_epoch(5, SCHEMA, None)


@pytest.mark.parametrize("who", [{"job": "refunds"}, {"sink": "other"}])
def test_a_table_has_one_sink_that_writes_it_directly(tmp_path: Path, who: dict[str, str]) -> None:
    sink, other = direct(tmp_path).open(), direct(tmp_path, **who)
    sink.commit(900, sink.vote(900, [(1, "a")]))
    (found,) = check(other)
    assert found.severity == "error"
    assert found.message == "table t belongs to sink table of job orders (lineage L1), which writes it directly"
    with pytest.raises(LineageError, match="belongs to sink table"):
        other.committer().open_epoch(3, SCHEMA, None)
    sink.sql(found.fix.split("run: ")[1])
    assert check(other) == []
    other.commit(3, other.vote(3, [(1, "b")]))
    assert sink.rows(GUARDED) == [(1, "b", 3, 1)]
    (found,) = check(sink)
    assert "belongs to" in found.message


def test_a_sink_may_write_two_tables_of_a_file_in_turn(tmp_path: Path) -> None:
    first, second = direct(tmp_path).open(), direct(tmp_path, sink="other", table="u").open(log=False)
    first.commit(1, first.vote(1, [(1, "a")]))
    second.commit(1, second.vote(1, [(1, "b")]))
    assert first.rows("SELECT t.v, u.v FROM t JOIN u USING (id)") == [("a", "b")]


@pytest.mark.parametrize(
    ("distribution", "participants", "warned"),
    [
        ("none", None, True),
        ("none", 4, True),
        ("none", 1, False),
        (1, None, False),
        (2, None, True),
        ("hash(id)", None, False),
        ("hash( `ID` )", 8, False),
        ("hash(v)", None, False),
        ("hash(id, v)", None, False),
        ("hash(o)", None, True),
        ("hash(id, o)", None, True),
    ],
)
def test_rows_of_one_key_must_come_from_one_task(
    tmp_path: Path, distribution: str | int, participants: int | None, warned: bool
) -> None:
    found = check(direct(tmp_path, keys=("id", "v")), distribution, participants)
    assert [(finding.severity, finding.fix) for finding in found] == (
        [("warning", 'set distribution = "hash(id, v)" on this sink')] if warned else []
    )


@pytest.mark.parametrize("name", ["exactsink_epoch", "EXACTSINK_GENERATION"])
def test_rows_that_bring_the_guards_columns_are_refused(tmp_path: Path, name: str) -> None:
    ctx = JobContext("orders", "table", str(tmp_path), distribution=1)
    found = list(direct(tmp_path).backend.committer(ctx).check(SCHEMA.append(pa.field(name, pa.int64())), None))
    assert [finding.severity for finding in found] == ["error"]
    assert "are one column to SQLite" in found[0].message


def test_a_table_that_drops_rows_is_no_newer_write(tmp_path: Path) -> None:
    sink = direct(tmp_path).open()
    sink.sql("CREATE TRIGGER drops BEFORE INSERT ON t WHEN NEW.id = 2 BEGIN SELECT RAISE(IGNORE); END")
    with pytest.raises(Fatal, match="dropped 1 rows of an epoch, so none was kept"):
        sink.vote(1, [(1, "a"), (2, "b")])
    assert sink.rows() == []


def test_a_row_that_could_never_be_stored_is_refused_before_the_vote(tmp_path: Path) -> None:
    sink = direct(tmp_path).open()
    with pytest.raises(Fatal, match="key column id is NULL"):
        sink.vote(1, [(1, "a"), (None, "b")])
    assert sink.rows() == []


def test_a_busy_database_is_worth_another_try(tmp_path: Path) -> None:
    sink = direct(tmp_path, busy_timeout_seconds=0).open()
    waiting = task(sink, 1, (1, "a"))
    with closing(sqlite3.connect(sink.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Retryable, match="locked") as busy:
            waiting.pre_commit()
        assert "written again" in str(busy.value)
        waiting.abort()
    (vote,) = sink.vote(1, [(1, "a")])
    with closing(sqlite3.connect(sink.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Retryable, match="locked"):
            sink.commit(1, [vote])
    assert sink.commit(1, [vote]) == ["Committed"]


def test_a_database_that_an_executor_does_not_have(tmp_path: Path) -> None:
    sink = direct(tmp_path).open()
    sink.file.rename(tmp_path / "elsewhere.db")
    with pytest.raises(Fatal, match="is not there on this executor"):
        task(sink, 1)
    assert not sink.file.exists()


def test_nothing_is_in_doubt_and_the_kind_is_reported(tmp_path: Path) -> None:
    sink = direct(tmp_path).open()
    (vote,) = sink.vote(1, [(1, "a")])
    committer = sink.committer(2)
    assert list(committer.in_doubt()) == []
    committer.abort(undecided(vote.txn))
    assert sink.rows() == [(1, "a")]
    assert sink.backend.strategy == "direct"
    traits = sink.backend.traits
    assert traits.guarantee == "effectively once"
    assert (traits.atomic_visibility, traits.needs_shared_staging, traits.needs_epoch_order) == (False, False, True)


def test_a_vote_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = direct(tmp_path).open()
    with monkeypatch.context() as patch:
        seen = commits_seen(patch)
        task(sink, 1, (1, "a")).pre_commit()
    assert seen[-1] == ["wal", 3]
