"""What the sweep finds and drops: own participants only, also while their writers go on."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.fakes import undecided
from tests.unit.files_target import (
    MINE,
    SCHEMA,
    a_backend,
    a_txn,
    around,
    at_step,
    batches,
    commit,
    each_step,
    open_epoch,
    temps,
    visible,
    vote,
)

from exactsink.contract import Committed, Retryable, Unknown


def test_in_doubt_lists_own_participants_only(tmp_path: Path) -> None:
    backend = a_backend(tmp_path)
    assert list(backend.committer(MINE).in_doubt()) == []
    for txn in (a_txn(), a_txn(1), a_txn(job="other"), a_txn(sink="other")):
        vote(backend, batches((1, "a")), txn)
    temp = tmp_path / "_exactsink"
    for name in ("readme", a_txn(2).id.replace(".p2", ".p02"), a_txn(3).id + "x"):
        (temp / name).mkdir()
    (temp / a_txn(4).id).write_text("no folder")
    found = sorted(backend.committer(MINE).in_doubt(), key=lambda f: f.ref)
    assert [f.ref for f in found] == [a_txn().id, a_txn(1).id]
    assert all(f.age_seconds is not None and f.deadline is None for f in found)


def test_abort_removes_own_participants_only_and_repeats(tmp_path: Path) -> None:
    backend = a_backend(tmp_path)
    kept = [a_txn(1), a_txn(job="other"), a_txn(sink="other")]
    stay = [vote(backend, batches((1, "a")), txn) for txn in kept]
    gone = vote(backend, batches((1, "a")))
    for _ in range(2):
        backend.committer(MINE).abort(undecided(gone.txn, *kept[1:], a_txn(9)))
        assert temps(tmp_path) == sorted(txn.id for txn in kept)
    (outcome,) = commit(backend, gone)
    assert isinstance(outcome, Unknown)
    assert commit(backend, *stay) == [Committed()] * 3


def test_a_writer_that_is_swept_at_any_step_does_not_vote_for_what_is_gone(tmp_path: Path) -> None:
    def run(nth: int) -> list[int]:
        root = tmp_path / str(nth)
        backend = a_backend(root, partition_by=["name"])
        ticket = open_epoch(backend)
        swept: list[bool] = []

        def sweep() -> None:
            swept.append((root / "_exactsink" / a_txn().id).exists())
            backend.committer(MINE).abort(undecided(a_txn()))

        voted = None
        with at_step(root, nth, sweep) as ran:
            try:
                writer = backend.writer(a_txn(), SCHEMA, ticket)
                for part in batches((1, "a"), (2, "b"), (3, "a"), size=1):
                    writer.write(part)
                voted = writer.pre_commit()
            except Retryable:
                assert swept == [True]
        if voted is None:
            assert temps(root) == []
        else:  # a sweep after the last look at the folder is the journal's to keep from being decided
            assert temps(root) == [a_txn().id] or isinstance(commit(backend, voted)[0], Unknown)
        assert visible(root) == []
        return ran

    each_step(run, least=12)


def test_a_sweep_wins_against_a_writer_that_adds_files(tmp_path: Path) -> None:
    backend = a_backend(tmp_path)
    vote(backend, batches((1, "a")))
    late = iter([tmp_path / "_exactsink" / a_txn().id / f"late{n}.tmp" for n in range(3)])

    def add(name: str, path: str) -> None:
        if (file := next(late, None)) is not None:
            file.write_text("")

    with around(tmp_path, ["rmdir"], add):
        backend.committer(MINE).abort(undecided(a_txn()))
    assert next(late, None) is None
    assert temps(tmp_path) == []


def test_a_writer_drops_its_files_also_when_a_sweep_was_first(tmp_path: Path) -> None:
    backend = a_backend(tmp_path)
    ticket = open_epoch(backend)
    for sweep in (False, True):
        writer = backend.writer(a_txn(), SCHEMA, ticket)
        writer.write(batches((1, "a"))[0])
        assert temps(tmp_path) == [a_txn().id]
        if sweep:
            backend.committer(MINE).abort(undecided(a_txn()))
        writer.abort()
        assert temps(tmp_path) == []


def test_attempts_that_race_for_one_id_do_not_mix(tmp_path: Path) -> None:
    backend = a_backend(tmp_path)
    ticket = open_epoch(backend)
    first = backend.writer(a_txn(), SCHEMA, ticket)
    with pytest.raises(Retryable, match="another attempt uses this"):
        backend.writer(a_txn(), SCHEMA, ticket)
    first.write(batches((1, "a"))[0])
    assert commit(backend, first.pre_commit()) == [Committed()]
