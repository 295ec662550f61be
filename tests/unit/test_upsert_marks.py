"""Marks on the staged road: a marker with its token, compared in the transaction; staged files that are gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.upsert_sink import Sink, upsert

from exactsink.contract import AlreadyCommitted, Committed, LineageError, Lost, Mark, Prepared, Retryable, Unknown
from exactsink.toolkit.roads import Applier, Marker, StagedCommitter
from exactsink_idempotent_upsert.strategies import UpsertApplier

BOTH = pytest.mark.parametrize("strategy", ["staged", "direct"])


def at(epoch: int | None, token: str = "aa") -> Mark:
    return Mark("L1", epoch, frozenset([token] if token else []))


@BOTH
def test_who_looks_while_another_driver_commits_finds_nothing_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """The other one takes votes and files away once its marker is there, between any two calls of this look."""
    sink = upsert(tmp_path, strategy=strategy)
    sink.put_birth()
    votes = sink.vote(1, [(1, "a")])
    owner: Any = StagedCommitter if strategy == "staged" else UpsertApplier
    name = "_damage" if strategy == "staged" else "last_applied"
    real = getattr(owner, name)

    def overtaken(self: Any, *given: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        found = real(self, *given)
        assert sink.commit(1, votes) == [Committed()]
        return real(self, *given) if strategy == "staged" else found

    monkeypatch.setattr(owner, name, overtaken)
    found = sink.with_committer(lambda committer: committer.assess(1, votes))
    assert list(found) == [AlreadyCommitted() if strategy == "staged" else Prepared()]


@BOTH
def test_a_birth_is_put_where_there_is_nothing_yet_and_the_mark_follows(tmp_path: Path, strategy: str) -> None:
    sink, other = (upsert(tmp_path, strategy=strategy, lineage=lineage) for lineage in ("L1", "L2"))
    assert sink.mark() is None
    assert not sink.file.exists()
    assert [sink.put_birth(), other.put_birth(), sink.mark(), other.mark()] == [Mark("L1")] * 4
    sink.run(1, [(1, "a")])
    again = replace(sink.at(2), token="bb")
    votes = [*sink.vote(2, [(2, "b")]), *again.vote(2, [(3, "c")])]
    assert sink.mark() == at(1)
    sink.commit_marked(2, votes)
    for _ in range(2):
        assert (sink.mark(), other.put_birth()) == (at(2, "bb"), at(2, "bb"))  # the newest generation's
        sink.trim_marks()
        assert sink.commit_marked(2, votes) == [AlreadyCommitted()] * 2


@BOTH
@pytest.mark.parametrize("to", [0, 2, None])
def test_a_marker_that_moved_since_it_was_read_stops_the_transaction(
    tmp_path: Path, strategy: str, to: int | None
) -> None:
    """Somebody puts the file back between the look at the mark and the commit."""
    sink = upsert(tmp_path, strategy=strategy)
    sink.put_birth()
    sink.run(1, [(1, "a")])
    votes = sink.vote(3, [(2, "b")])
    committer = sink.backend.committer(sink.ctx)
    assert committer.mark() == at(1)
    sink.sql(f"UPDATE exactsink_epochs SET epoch = {to}" if to is not None else "DELETE FROM exactsink_epochs")
    with pytest.raises(Retryable, match="not the one that was read before"):
        committer.commit(3, votes)
    if strategy == "staged":
        assert sink.rows() == [(1, "a")]
    committer.mark()
    assert committer.commit(3, votes) == [Committed()]


def test_another_journals_marker_stops_a_commit_unless_the_journal_has_taken_it(tmp_path: Path) -> None:
    sink = upsert(tmp_path)
    sink.run(1, [(1, "a")])
    other = upsert(tmp_path, lineage="L2")
    Path(other.ctx.staging).mkdir(exist_ok=True, parents=True)
    votes = sink.vote(5, [(2, "b")])
    with pytest.raises(LineageError, match="another journal"):
        other.commit(5, votes)
    assert other.commit_marked(5, votes) == [Committed()]  # its mark was held against the journal: an operator's rebase
    with pytest.raises(LineageError, match="another journal"):
        sink.commit_marked(3, sink.vote(6, [(3, "c")]))


def damage(sink: Sink, what: str) -> None:
    first, second = sink.staged()
    if what in ("gone", "both"):
        first.unlink()
    if what in ("other bytes", "both"):
        second.write_bytes(second.read_bytes()[:-1])


@pytest.mark.parametrize(("what", "outcome"), [("gone", Lost), ("other bytes", Unknown), ("both", Unknown)])
@pytest.mark.parametrize("before", ["birth", "epoch"])
def test_a_set_with_a_staged_file_gone_is_lost_where_the_marker_proves_it(
    tmp_path: Path, what: str, outcome: type, before: str
) -> None:
    sink = upsert(tmp_path)
    sink.put_birth()
    if before == "epoch":
        sink.run(1, [(9, "z")])
    votes, stood = sink.vote(3, [(1, "a")], [(2, "b")]), sink.rows()
    damage(sink, what)
    assert [type(found) for found in sink.commit_marked(3, votes)] == [outcome] * 2
    assert [type(found) for found in sink.commit(3, votes)] == [Unknown] * 2  # nobody has looked at the mark
    assert sink.rows() == stood
    again = replace(sink.at(2), token="bb").vote(3, [(1, "a")], [(2, "b")])
    assert sink.commit_marked(3, again) == [Committed()] * 2
    assert sink.commit_marked(3, votes) == [AlreadyCommitted()] * 2
    assert sink.rows() == sorted([*stood, (1, "a"), (2, "b")])


def test_a_staged_file_that_is_gone_with_no_marker_at_all_is_unknown(tmp_path: Path) -> None:
    sink = upsert(tmp_path)
    votes = sink.vote(3, [(1, "a")], [(2, "b")])
    damage(sink, "gone")
    assert [type(found) for found in sink.commit_marked(3, votes)] == [Unknown] * 2


def test_an_applier_without_put_birth_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match="UpsertApplier has no put_birth"):
        Applier.put_birth(upsert(tmp_path).backend.applier(), Marker("orders", "table", "L1", -1, 1, ""))
