"""The road for stores with keys only: what neither the kit (`test_templates`) nor `test_disk` shows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.keyed_store import SCHEMA, KeyedBackend, keyed, make_store, puts, values
from tests.unit.os_faults import Killed, at_step, each_step, kill, one_binds

from exactsink.contract import (
    AlreadyCommitted,
    Committable,
    Committed,
    Fatal,
    LineageError,
    Lost,
    Mark,
    Retryable,
    Unknown,
)
from exactsink.toolkit.roads import Version
from exactsink.toolkit.roads.marker import Marker

PROOF = "orders.keyed.e{}.applied"


def test_the_last_of_a_key_wins_in_the_order_of_partitions(tmp_path: Path) -> None:
    sink = keyed(tmp_path)
    votes = sink.vote(1, [(1, "a"), (1, "b")], [(2, "c"), (1, "d")])
    assert sink.commit(1, votes[::-1]) == [Committed()] * 2
    assert [value for value in values(tmp_path) if value["id"] == 1] == [{"id": 1, "v": "d"}]


def test_only_a_sinks_own_proofs_are_read_and_an_epoch_below_them_is_not_opened(tmp_path: Path) -> None:
    sink = keyed(tmp_path)
    assert sink.commit(1, sink.vote(1, [(1, "a")])) == [Committed()]
    for theirs in ("orders.keyed-2.e9.applied", "refunds.keyed.e9.applied"):
        (sink.staging / theirs).write_text("not ours to read")
    with pytest.raises(LineageError, match="already holds epoch 1"):
        sink.vote(1, [(1, "b")])


@pytest.mark.parametrize("damaged", ["", "[]", '{"job": "orders"}', "no token"])
def test_a_damaged_proof_is_neither_taken_nor_passed_over(tmp_path: Path, damaged: str) -> None:
    sink = keyed(tmp_path)
    sink.commit(1, sink.vote(1, [(1, "a")]))
    proof = sink.staging / PROOF.format(1)
    whole = json.loads(proof.read_bytes())
    del whole["token"]
    proof.write_text(json.dumps(whole) if damaged == "no token" else damaged)
    with pytest.raises(Fatal, match=r"e1\.applied does not say"):
        sink.vote(2, [(1, "b")])


class Lazy(KeyedBackend):  # type: ignore[misc, valid-type]
    """Reads the first batch only."""

    def apply(self, version: Version, batches: Iterator[pa.RecordBatch]) -> None:
        super().apply(version, iter([next(batches)]))


class Down(KeyedBackend):  # type: ignore[misc, valid-type]
    """Does not answer."""

    def apply(self, version: Version, batches: Iterator[pa.RecordBatch]) -> None:
        raise Retryable("the store is down")


def test_an_apply_that_leaves_rows_proves_nothing(tmp_path: Path) -> None:
    sink = keyed(tmp_path, kind=Lazy)
    votes = sink.vote(1, [(1, "a"), (2, "b")])
    with pytest.raises(TypeError, match=r"Lazy\.apply left rows of epoch 1 unread"):
        sink.commit(1, votes)
    assert keyed(tmp_path).commit(1, votes) == [Committed()]


@pytest.mark.parametrize(("begun", "outcome"), [(False, Lost), (True, Unknown)])
def test_a_set_with_a_staged_file_gone_is_lost_until_a_row_may_show(tmp_path: Path, begun: bool, outcome: type) -> None:
    sink = keyed(tmp_path, kind=Down if begun else KeyedBackend)
    sink.put_birth()
    votes = sink.vote(1, [(1, "a")], [(2, "b")])
    if begun:
        with pytest.raises(Retryable, match="the store is down"):
            sink.commit_marked(1, votes)
        assert sink.mark() == Mark("L1", 1, frozenset(["aa"]), 0)
    (sink.staging / f"{votes[1].ref}.arrow").unlink()
    assert [type(found) for found in keyed(tmp_path).commit_marked(1, votes)] == [outcome] * 2


def go_on(folder: Path, votes: Sequence[Committable]) -> None:
    """Be the driver that comes after: finish epoch 1, and do two more."""
    sink = keyed(folder, generation=2)
    outcomes = sink.commit(1, votes)
    for epoch, rows in ((2, [(2, "B")]), (3, [(3, "C"), (1, "A")])):
        assert sink.commit(epoch, sink.vote(epoch, rows)) == [Committed()]
    assert {type(outcome) for outcome in outcomes} <= {Committed, AlreadyCommitted}


@pytest.mark.parametrize("then", ["dies", "is overtaken for epochs"])
def test_a_driver_that_dies_or_is_overtaken_at_any_step_changes_nothing(tmp_path: Path, then: str) -> None:
    def run(nth: int) -> list[int]:
        (folder := tmp_path / str(nth)).mkdir()
        make_store(folder)
        sink = keyed(folder)
        votes = sink.vote(1, [(1, "a"), (2, "b")], [(3, "c")])
        act = kill if then == "dies" else partial(go_on, folder, votes)
        with at_step(sink.staging, nth, act) as ran, suppress(Killed):
            assert {type(outcome) for outcome in sink.commit(1, votes)} <= {Committed, AlreadyCommitted}
        if then == "dies" or not ran:
            go_on(folder, votes)
        assert [row["v"] for row in values(folder)] == ["A", "B", "C"]
        assert puts(folder) == dict.fromkeys((1, 2, 3), 2)
        assert [path.name for path in sink.staging.iterdir()] == [PROOF.format(3)]
        return ran

    each_step(run, least=20)


@pytest.mark.parametrize("then", ["dies", "is overtaken"])
def test_of_two_journals_at_any_step_one_binds_the_staging_folder(tmp_path: Path, then: str) -> None:
    one_binds(tmp_path, then, lambda root, lineage: keyed(root, lineage=lineage))


def test_a_row_without_a_key_is_refused_before_the_vote(tmp_path: Path) -> None:
    make_store(tmp_path)
    sink = keyed(tmp_path)
    with pytest.raises(Fatal, match="key column id is NULL in 1 rows"):
        sink.vote(1, [(1, "a"), (None, "b")])
    with pytest.raises(Fatal, match="no key column id"):
        sink.backend.check_batch(pa.record_batch({"v": ["a"]}))
    committer = sink.backend.committer(sink.ctx)
    assert list(committer.check(SCHEMA, None)) == []
    (finding,) = committer.check(SCHEMA.remove(0), None)
    assert (finding.severity, "the keys name column id" in finding.message) == ("error", True)


def test_versions_compare_by_epoch_then_generation_then_place() -> None:
    ascending = [Version("L1", *numbers) for numbers in [(0, 1, 0), (0, 1, 9), (0, 1, 10), (0, 2, 0), (9, 1), (10, 1)]]
    for position, version in enumerate(ascending):
        assert Version.parse(version.text) == version
        assert version.replaces(None)
        assert [version.replaces(other) for other in ascending] == [n < position for n in range(len(ascending))]
    with pytest.raises(LineageError, match="another journal"):
        Version("L2", 99, 9).replaces(ascending[0])
    assert Version("L2", 99, 9, succeeds=frozenset({"L1"})).replaces(ascending[0]), "an operator has rebased L2 onto it"
    with pytest.raises(ValueError, match="not the text of a version"):
        Version.parse("7.3.12.L1")


@pytest.mark.parametrize(("epoch", "goes_on"), [(6, True), (7, False), (8, False)])
def test_a_marker_of_another_journal_is_gone_on_from_only_below_this_epoch(epoch: int, goes_on: bool) -> None:
    """It was held against the journal, as after a rebase; rows of its epoch are not this journal's."""
    stored = Marker("job", "s", "theirs", epoch, 1, "aa")
    mine = Marker("job", "s", "mine", 7, 1, "bb", expected=stored)
    if goes_on:
        assert mine.must_apply(stored)
    else:
        with pytest.raises(LineageError):
            mine.must_apply(stored)
    with pytest.raises(LineageError):
        replace(mine, expected="any").must_apply(stored)
