"""Tasks that upsert before the decision: no older write goes over a newer one; the marker says what is decided."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.upsert_sink import SCHEMA, Sink, commits_seen, rows_of, upsert

from exactsink.contract import (
    AlreadyCommitted,
    Committed,
    Fatal,
    LineageError,
    Lost,
    Refused,
    Retryable,
    Unknown,
    Writer,
)

GUARDED = "SELECT id, v, exactsink_epoch, exactsink_generation FROM t ORDER BY id"
MARKERS = "SELECT epoch, generation FROM exactsink_epochs"


def direct(folder: Path, distribution: str | int = 1, **options: Any) -> Sink:
    sink = upsert(folder, strategy="direct", **options)
    return replace(sink, ctx=replace(sink.ctx, distribution=distribution))


def task(sink: Sink, epoch: int, *rows: Sequence[Any]) -> Writer:
    """Begin a task that has taken its rows, and has not yet voted."""
    writer = sink.writer(epoch, 0, SCHEMA, sink.ctx.lineage.encode())
    for row in rows:
        writer.write(rows_of([row]).to_batches()[0])
    return writer


def test_rows_show_when_their_task_votes_and_the_marker_when_they_are_decided(tmp_path: Path) -> None:
    sink = direct(tmp_path)
    votes = sink.vote(1, [(1, "a"), (2, "b"), (1, "last")], [(3, "c")])
    assert sink.rows(GUARDED) == [(1, "last", 1, 1), (2, "b", 1, 1), (3, "c", 1, 1)]
    assert sink.rows(MARKERS) == []
    assert [vote.rows for vote in votes] == [3, 1]
    assert sink.commit(1, votes) == [Committed()] * 2
    assert sink.commit(1, votes) == [AlreadyCommitted()] * 2
    assert sink.rows(MARKERS) == [(1, 1)]
    sink.at(4).run(2, [(1, "z")])
    assert sink.rows(GUARDED) == [(1, "z", 2, 4), (2, "b", 1, 1), (3, "c", 1, 1)]
    assert not Path(sink.ctx.staging).exists()


def test_a_task_shows_nothing_before_its_vote_and_all_of_it_then(tmp_path: Path) -> None:
    sink = direct(tmp_path).logged()
    task(sink, 1, (1, "a"), (2, "b")).abort()
    computing = task(sink, 1, (1, "a"))
    with closing(sqlite3.connect(sink.file, timeout=0, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # and holds no lock while it computes
        other.execute("ROLLBACK")
    assert sink.rows() == []
    computing.pre_commit()
    assert sink.log() == [("insert", 1, "a")]


def test_tasks_that_vote_at_once_take_turns(tmp_path: Path) -> None:
    sink = direct(tmp_path).logged()
    parts = [[(partition * 1000 + n, "x") for n in range(200)] for partition in range(4)]
    with ThreadPoolExecutor(len(parts)) as pool:
        voting = [pool.submit(sink.write, 1, n, b"L1", rows_of(part)) for n, part in enumerate(parts)]
    assert sink.commit(1, [vote.result() for vote in voting]) == [Committed()] * 4
    assert sink.rows("SELECT count(*), count(DISTINCT id) FROM log") == [(800, 800)]


@pytest.mark.parametrize(("epoch", "of"), [(1, 1), (2, 7)], ids=["of an older generation", "of an older epoch"])
def test_a_late_task_keeps_nothing(tmp_path: Path, epoch: int, of: int) -> None:
    sink = direct(tmp_path).logged()
    late = task(sink.at(of), 1, (1, "late"), (9, "late, and of no newer row's key"))
    sink.at(2).vote(epoch, [(1, "newer")])
    with pytest.raises(Refused, match="holds newer rows") as refused:
        late.pre_commit()
    assert f"epoch {epoch} of generation 2 is there, this task is of generation {of}" in str(refused.value)
    assert sink.rows(GUARDED) == [(1, "newer", epoch, 2)]


@pytest.mark.parametrize("later", ["decided", "an epoch on", "gone over to staged"])
def test_a_late_task_of_a_decided_epoch_keeps_nothing_even_of_keys_that_are_gone(tmp_path: Path, later: str) -> None:
    sink = direct(tmp_path).logged()
    late = task(sink, 1, (1, "late"))
    sink.run(1, [(1, "a")])
    if later != "decided":
        (sink if later == "an epoch on" else upsert(tmp_path)).run(2, [(2, "b")])
    sink.sql("DELETE FROM t WHERE id = 1")
    with pytest.raises(Refused, match="holds newer rows"):
        late.pre_commit()
    assert sink.rows("SELECT id FROM t WHERE id = 1") == []


def test_rows_that_were_there_before_have_no_guard(tmp_path: Path) -> None:
    sink = direct(tmp_path, create=False)
    sink.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, o); INSERT INTO t VALUES (1, 'before', 0)")
    epoch, generation = sink.check()
    assert "has no column exactsink_epoch, which strategy direct needs" in epoch.message
    assert "has no column exactsink_generation, which strategy direct needs" in generation.message
    for found in (epoch, generation):
        sink.sql(found.fix)
    assert sink.check() == []
    sink.run(1, [(1, "after")])
    assert sink.rows(GUARDED) == [(1, "after", 1, 1)]


def test_rows_of_keys_only_are_guarded_too(tmp_path: Path) -> None:
    sink = direct(tmp_path, keys=("id", "v", "o"))
    sink.vote(1, [(1, "a", 1), (1, "a", 1)])
    sink.at(2).vote(1, [(1, "a", 1)])
    assert sink.rows(GUARDED) == [(1, "a", 1, 2)]


def test_another_journal_is_refused_before_its_first_row(tmp_path: Path) -> None:
    sink, other = direct(tmp_path).logged(), direct(tmp_path, lineage="L2")
    with pytest.raises(LineageError, match="belongs to sink table of job orders"):  # though nothing is decided yet
        other.open(1, SCHEMA)
    sink.run(5, [(1, "a")])
    with pytest.raises(LineageError, match="already holds epoch 5"):  # a journal that went back in time
        sink.open(5, SCHEMA)
    with pytest.raises(LineageError, match="another journal"):
        other.open(6, SCHEMA)
    with pytest.raises(LineageError, match="another journal"):
        other.commit(6, sink.vote(6, [(1, "b")]))


def test_a_journal_that_was_rebased_onto_another_ones_rows_goes_on_and_takes_the_table(tmp_path: Path) -> None:
    """The other one is lost. It had begun its last epoch under a higher generation, and one of its tasks is there."""
    lost = direct(tmp_path).logged().at(9)
    lost.run(4, [(1, "a"), (2, "a")])
    lost.vote(5, [(2, "never decided")])
    late = task(lost, 5, (3, "late"))
    sink = direct(tmp_path, lineage="L2")
    sink = replace(sink, ctx=replace(sink.ctx, succeeds=frozenset({"L1"})))
    committer = sink.backend.committer(sink.ctx)
    committer.mark()
    ticket = committer.open_epoch(6, SCHEMA, None)
    with pytest.raises(Refused, match=r"belongs to sink table of job orders \(lineage L2\)"):
        late.pre_commit()
    assert committer.commit(6, [sink.write(6, 0, ticket, rows_of([(2, "b")]))]) == [Committed()]
    assert sink.rows(GUARDED) == [(1, "a", 4, 9), (2, "b", 6, 1)]
    with pytest.raises(LineageError, match="another journal"):
        lost.open(7, SCHEMA)


def test_a_warning_about_the_table_hides_no_owner(tmp_path: Path) -> None:
    sink, other = direct(tmp_path), direct(tmp_path, job="refunds")
    sink.run(1, [(1, "a")])
    sink.sql("ALTER TABLE t ADD COLUMN w REFERENCES kinds")
    assert sorted(finding.severity for finding in other.check()) == ["error", "warning"]


@pytest.mark.parametrize("who", [{"job": "refunds"}, {"sink": "other"}])
def test_a_table_has_one_sink_that_writes_it_directly(tmp_path: Path, who: dict[str, str]) -> None:
    sink, other = direct(tmp_path), direct(tmp_path, **who)
    sink.run(900, [(1, "a")])
    (found,) = other.check()
    assert found.severity == "error"
    assert found.message == "table t belongs to sink table of job orders (lineage L1), which writes it directly"
    with pytest.raises(LineageError, match="belongs to sink table"):
        other.open(3, SCHEMA)
    sink.sql(found.fix.split("run: ")[1])
    assert other.check() == []
    other.run(3, [(1, "b")])
    assert sink.rows(GUARDED) == [(1, "b", 3, 1)]
    (found,) = sink.check()
    assert "belongs to" in found.message


APART = [("none", None), ("none", 4), (2, None), ("hash(o)", None), ("hash(id, o)", None)]
TOGETHER = [("none", 1), (1, None), ("hash(id)", None), ("hash( `ID` )", 8), ("hash(id, v)", None)]


@pytest.mark.parametrize(("distribution", "participants"), [*APART, *TOGETHER])
def test_rows_of_one_key_must_come_from_one_task(tmp_path: Path, distribution: Any, participants: int | None) -> None:
    found = direct(tmp_path, distribution, keys=("id", "v")).check(participants=participants)
    expected = [("warning", 'set distribution = "hash(id, v)" on this sink')]
    assert [(finding.severity, finding.fix) for finding in found] == expected * ((distribution, participants) in APART)


@pytest.mark.parametrize("name", ["exactsink_epoch", "EXACTSINK_GENERATION"])
def test_rows_that_bring_the_guards_columns_are_refused(tmp_path: Path, name: str) -> None:
    (found,) = direct(tmp_path).check(SCHEMA.append(pa.field(name, pa.int64())))
    assert found.severity == "error"
    assert "are one column to SQLite" in found.message


def test_a_row_that_is_refused_or_dropped_takes_its_whole_task_with_it(tmp_path: Path) -> None:
    sink = direct(tmp_path).logged()
    with pytest.raises(Fatal, match="key column id is NULL"):
        sink.vote(1, [(1, "a"), (None, "b")])
    sink.sql("CREATE TRIGGER drops BEFORE INSERT ON t WHEN NEW.id = 2 BEGIN SELECT RAISE(IGNORE); END")
    with pytest.raises(Fatal, match="dropped 1 rows of an epoch, so none was kept"):
        sink.vote(1, [(1, "a"), (2, "b")])
    assert sink.rows() == []


def test_a_busy_database_is_worth_another_try(tmp_path: Path) -> None:
    sink = direct(tmp_path, busy_timeout_seconds=0).logged()
    waiting = task(sink, 1, (1, "a"))
    (vote,) = sink.vote(1, [(1, "a")])
    with closing(sqlite3.connect(sink.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Retryable, match=r"locked(?s:.*)the next start writes"):
            waiting.pre_commit()
        with pytest.raises(Retryable, match="locked"):
            sink.commit(1, [vote])
    waiting.abort()
    assert sink.commit(1, [vote]) == [Committed()]


def test_a_database_that_an_executor_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match="does not exist on this executor"):
        task(direct(tmp_path), 1)
    assert list(tmp_path.iterdir()) == []


def test_votes_are_kept_until_the_epoch_is_marked_and_one_that_is_gone_is_lost(tmp_path: Path) -> None:
    sink, other = direct(tmp_path).logged(), upsert(tmp_path, sink="table-2", strategy="direct", table="u")
    assert other.listed() == []
    votes, others = sink.vote(1, [(1, "a")], [(2, "b")]), other.vote(1, [(1, "a")])
    assert [[vote.ref for vote in one.listed()] for one in (sink, other)] == [
        [vote.ref for vote in given] for given in (votes, others)
    ]
    sink.sql(f"DELETE FROM exactsink_votes WHERE participant = '{votes[1].ref}'")
    (unknown, _) = sink.commit(1, votes)
    assert isinstance(unknown, Unknown)
    assert sink.commit_marked(1, votes) == [unknown] * 2, "nor does a mark that is gone prove it"
    sink.put_birth()
    (lost, _) = sink.commit_marked(1, votes)
    assert lost == Lost(f"{unknown.evidence}; the target's mark is the birth of journal L1")
    assert votes[1].ref in unknown.evidence
    assert sink.commit_marked(1, votes[:1]) == [Committed()]
    assert sink.commit_marked(1, votes[:1]) == [AlreadyCommitted()]
    assert (sink.listed(), len(other.listed())) == ([], 1)


def test_votes_of_another_release_are_refused(tmp_path: Path) -> None:
    sink = direct(tmp_path).logged()
    (vote,) = sink.vote(1, [(1, "a")])
    sink.sql("DROP TABLE exactsink_votes")
    assert sink.listed() == []
    assert isinstance(sink.commit(1, [vote])[0], Unknown)  # and with it, what such a table held
    for version in (1, 3):
        with pytest.raises(Fatal, match=f"can't read a vote of version {version}"):
            sink.commit(1, [replace(vote, version=version)])


def test_an_abort_forgets_votes_and_leaves_rows_to_the_replay(tmp_path: Path) -> None:
    sink = direct(tmp_path)
    (vote,) = sink.vote(1, [(1, "a")])
    sink.abort(*sink.listed())
    assert (sink.listed(), sink.rows()) == ([], [(1, "a")])
    assert isinstance(sink.commit(1, [vote])[0], Unknown)
    traits = sink.backend.traits
    assert (sink.backend.strategy, traits.guarantee) == ("direct", "effectively once")
    assert (traits.atomic_visibility, traits.needs_shared_staging, traits.needs_epoch_order) == (False, False, True)


def test_a_vote_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = direct(tmp_path).logged()
    with monkeypatch.context() as patch:
        seen = commits_seen(patch)
        vote = task(sink, 1, (1, "a")).pre_commit()
    assert (seen[-1], vote.deadline) == (["wal", 3], None)
