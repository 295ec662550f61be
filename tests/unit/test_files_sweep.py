"""What the sweep of the `files` backend finds and drops: own participants only, also while their writers go on."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.files_sink import EPOCH, SCHEMA, files, lines, rows, temps, visible
from tests.unit.os_faults import around, at_step, each_step

from exactsink.contract import Committed, InDoubt, Retryable, Unknown


def test_own_participants_only_are_listed_and_aborted(tmp_path: Path) -> None:
    sink = files(tmp_path)
    assert sink.listed() == []
    gone, kept = sink.vote(rows((1, "a")), rows((2, "b")))
    others = [files(tmp_path, job="other"), files(tmp_path, sink="other")]
    theirs = [other.vote(rows((1, "a")))[0] for other in others]
    temp = tmp_path / "_exactsink"
    for name in ("readme", sink.id(2).replace(".p2", ".p02"), sink.id(3) + "x"):
        (temp / name).mkdir()
    (temp / sink.id(4)).write_text("no folder")
    found = sorted(sink.listed(), key=lambda listed: listed.ref)
    assert [listed.ref for listed in found] == [gone.ref, kept.ref]
    assert all(listed.age_seconds is not None and listed.deadline is None for listed in found)
    stays = {path.name for path in temp.iterdir()} - {gone.ref}
    for _ in range(2):
        sink.abort(*map(InDoubt.of, (gone.txn, *(vote.txn for vote in theirs), sink.txn(EPOCH, 9))))
        assert set(temps(tmp_path)) == stays
    outcomes = sink.end(gone, kept, *theirs)
    assert isinstance(outcomes[0], Unknown)
    assert outcomes[1:] == [Committed()] * 3


def test_a_writer_that_is_swept_at_any_step_does_not_vote_for_what_is_gone(tmp_path: Path) -> None:
    def run(nth: int) -> list[int]:
        root = tmp_path / str(nth)
        sink = files(root, partition_by=["name"])
        ticket = sink.open(EPOCH, SCHEMA)
        swept: list[bool] = []

        def sweep() -> None:
            swept.append((root / "_exactsink" / sink.id()).exists())
            sink.abort(InDoubt.of(sink.txn(EPOCH, 0)))

        voted = None
        with at_step(root, nth, sweep) as ran:
            try:
                voted = sink.write(EPOCH, 0, ticket, rows((1, "a"), (2, "b"), (3, "a"), size=1))
            except Retryable:
                assert swept == [True]
        if voted is None:
            assert temps(root) == []
        else:  # a sweep after the last look at the folder is the journal's to keep from being decided
            assert temps(root) == [sink.id()] or isinstance(sink.end(voted)[0], Unknown)
        assert visible(root) == []
        return ran

    each_step(run, least=12)


def test_a_sweep_wins_against_a_writer_that_adds_files(tmp_path: Path) -> None:
    sink = files(tmp_path)
    sink.vote(rows((1, "a")))
    late = iter([tmp_path / "_exactsink" / sink.id() / f"late{n}.tmp" for n in range(3)])

    def add(name: str, path: str) -> None:
        if (file := next(late, None)) is not None:
            file.write_text("")

    with around(tmp_path, ["rmdir"], add):
        sink.abort(*sink.listed())
    assert next(late, None) is None
    assert temps(tmp_path) == []


@pytest.mark.parametrize("swept", [False, True])
def test_a_writer_drops_all_of_its_files_also_when_a_sweep_was_first(tmp_path: Path, swept: bool) -> None:
    sink = files(tmp_path, format="json", target_file_size="1 B")
    first, second = (lines(text).to_batches()[0] for text in "ab")
    writer = sink.begin(lines("a"))
    writer.write(first)
    if swept:
        sink.abort(*sink.listed())
        with pytest.raises(Retryable):
            writer.write(second)
        with pytest.raises(Retryable):
            writer.pre_commit()
    else:
        writer.write(second)
        assert len(list((tmp_path / "_exactsink" / sink.id()).iterdir())) == 2
    writer.abort()
    assert (visible(tmp_path), temps(tmp_path)) == ([], [])


def test_attempts_that_race_for_one_id_do_not_mix(tmp_path: Path) -> None:
    sink, given = files(tmp_path), rows((1, "a"))
    first = sink.begin(given)
    with pytest.raises(Retryable, match="another attempt uses this"):
        sink.begin(given)
    first.write(given.to_batches()[0])
    assert sink.end(first.pre_commit()) == [Committed()]
