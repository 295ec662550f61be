"""Commits and sweeps of the `files` backend: durable before they are reported, whole whoever crashes or races."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow.dataset as ds
import pytest
from tests.unit.files_sink import EPOCH, SCHEMA, TEXT, assert_two_files, files, lines, rows, temps, two_files, visible
from tests.unit.os_faults import Killed, around, at_step, each_step, kill

from exactsink.contract import AlreadyCommitted, Committed, Fatal, InDoubt, Outcome, Retryable, Unknown
from exactsink.toolkit.storage import DurableFile, file_sha256

STANDS = {Committed, AlreadyCommitted}


@contextmanager
def syncs(root: Path) -> Iterator[list[str]]:
    """Return a list of what is synced in the block, and of each temp name that is dropped."""
    log: list[str] = []
    with around(root, ["fsync", "unlink"], lambda name, path: log.append(path if name == "fsync" else name)):
        yield log


def test_no_reader_sees_a_vote_before_its_commit(tmp_path: Path) -> None:
    sink = files(tmp_path, partition_by=["name"])
    voted = sink.vote(rows((1, "a")), rows((2, "b")))
    assert {vote.deadline for vote in voted} == {None}
    for number, vote in enumerate(voted, start=1):
        sink.end(vote)
        assert ds.dataset(tmp_path, format="parquet").count_rows() == number
        assert len(pd.read_parquet(tmp_path)) == number
        assert len(glob.glob(f"{tmp_path}/**/*.parquet", recursive=True)) == number


def test_a_crash_at_any_step_can_be_committed_again(tmp_path: Path, links: None) -> None:
    def run(nth: int) -> list[int]:
        root = tmp_path / str(nth)
        sink, voted = two_files(root)
        with at_step(root, nth, kill) as ran:
            try:
                sink.end(*voted)
            except Killed:
                assert {listed.ref for listed in sink.listed()} <= {voted[0].ref}
        for _ in range(2):
            assert type(sink.end(*voted)[0]) in STANDS
            assert_two_files(root)
        return ran

    each_step(run, least=20)


def test_another_commit_between_any_two_steps_agrees(tmp_path: Path, links: None) -> None:
    def run(nth: int) -> list[int]:
        root = tmp_path / str(nth)
        sink, voted = two_files(root)
        others: list[Outcome] = []
        with at_step(root, nth, lambda: others.extend(sink.end(*voted))) as ran:
            outcomes = sink.end(*voted)
        assert {type(o) for o in [*outcomes, *others]} <= STANDS
        assert Committed() in [*outcomes, *others]
        assert_two_files(root)
        return ran

    each_step(run, least=20)


@pytest.mark.parametrize("temp_is_there", [True, False])
def test_a_foreign_file_is_fatal_and_left_alone(tmp_path: Path, links: None, temp_is_there: bool) -> None:
    sink = files(tmp_path, **TEXT)
    voted = sink.vote(lines("{}"))
    final = tmp_path / f"{sink.id()}.csv"
    final.write_text("[]\n")  # of the very size that was voted for
    if not temp_is_there:
        (tmp_path / "_exactsink" / sink.id() / "0.tmp").unlink()
    with pytest.raises(Fatal, match="does not overwrite"):
        sink.end(*voted)
    assert (final.read_text(), temps(tmp_path)) == ("[]\n", [sink.id()])
    final.write_text("{}\n")
    assert sink.end(*voted) == [AlreadyCommitted()]
    assert (visible(tmp_path), temps(tmp_path)) == ([final], [])


def test_what_is_gone_is_unknown_and_the_rest_is_committed(tmp_path: Path) -> None:
    sink, voted = two_files(tmp_path, participants=3)
    gone = tmp_path / "_exactsink" / sink.id(1) / "1.tmp"
    gone.unlink()
    cut = tmp_path / "_exactsink" / sink.id(2) / "0.tmp"
    cut.write_bytes(cut.read_bytes()[:-1])
    first, second, third = sink.end(*voted)
    assert first == Committed()
    assert isinstance(second, Unknown)
    assert f"{gone} and its final name" in second.evidence
    assert isinstance(third, Unknown)
    assert "were voted for" in third.evidence
    assert temps(tmp_path) == [sink.id(1), sink.id(2)]


def test_a_missing_target_is_unknown_and_not_made_anew(tmp_path: Path) -> None:
    sink, voted = two_files(tmp_path / "disk")
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    (outcome,) = sink.end(*voted)
    assert isinstance(outcome, Unknown)
    assert "is its file system mounted?" in outcome.evidence
    assert not (tmp_path / "disk").exists()
    (tmp_path / "unmounted").rename(tmp_path / "disk")
    assert sink.end(*voted) == [Committed()]


def test_a_vote_of_another_version_is_refused(tmp_path: Path) -> None:
    sink, (voted,) = two_files(tmp_path)
    with pytest.raises(Fatal, match=f"{sink.id()}: can't read a vote of version 3"):
        sink.commit(EPOCH, [replace(voted, version=3)])
    assert visible(tmp_path) == []


OUTSIDE: dict[str, dict[str, object]] = {
    "root": {"root": "{tmp}/other"},
    "folder": {"folder": "_exactsink/../../other"},
    "folder of all": {"folder": "_exactsink"},
    "temp": {"temp": "../../../other/0.tmp"},
    "absolute temp": {"temp": "{tmp}/other/0.tmp"},
    "final": {"final": "../other/{id}.csv"},
    "absolute final": {"final": "{tmp}/other/{id}.csv"},
    "hidden final": {"final": "_exactsink/job.sink/{id}.csv"},
    "another's final": {"final": "day=1/part-0.csv"},
    "two files of one": {"temp": "1.tmp"},
    "no name": {"final": 7},
}


@pytest.mark.parametrize("edit", OUTSIDE.values(), ids=OUTSIDE)
def test_a_vote_that_was_edited_touches_nothing(tmp_path: Path, edit: dict[str, object]) -> None:
    other, root = tmp_path / "other", tmp_path / "lake"
    sink, [voted] = two_files(root)
    shutil.copytree(root / "_exactsink" / sink.id(), other)
    before = sorted(map(str, tmp_path.rglob("*")))
    body = json.loads(voted.payload)
    for name, value in edit.items():
        said = value.format(tmp=tmp_path, id=sink.id()) if isinstance(value, str) else value
        (body if name in body else body["files"][0])[name] = said
    with pytest.raises(Fatal, match=f"the vote of {sink.id()} is refused"):
        sink.end(replace(voted, payload=json.dumps(body).encode()))
    assert sorted(map(str, tmp_path.rglob("*"))) == before
    assert sink.end(voted) == [Committed()]


@pytest.mark.parametrize("link", ["file", "folder"])
def test_links_out_of_a_participants_folder_are_not_followed(tmp_path: Path, link: str) -> None:
    sink, [voted] = two_files(tmp_path / "lake")
    folder = tmp_path / "lake" / "_exactsink" / sink.id()
    outside = (folder if link == "folder" else folder / "0.tmp").rename(tmp_path / "outside")
    (folder if link == "folder" else folder / "0.tmp").symlink_to(outside)
    if link == "file":  # a link of 2 bytes, as the file has
        (folder / "0.tmp").unlink()
        (folder / "ab").symlink_to(outside)
        (folder / "0.tmp").symlink_to("ab")
        assert (folder / "0.tmp").lstat().st_size == outside.stat().st_size
    [outcome] = sink.end(voted)
    assert isinstance(outcome, Unknown)
    assert visible(tmp_path / "lake") == []
    assert len(list(outside.iterdir()) if link == "folder" else [outside]) == (2 if link == "folder" else 1)


@pytest.mark.parametrize("advice", ["taken", "refused"])
def test_a_large_file_is_sealed_with_what_was_written_and_its_disk_begins_before(tmp_path: Path, advice: str) -> None:
    begun: list[tuple[int, int]] = []

    def advise(handle: int, offset: int, length: int, how: int) -> None:
        assert how == os.POSIX_FADV_DONTNEED
        begun.append((offset, length))
        if advice == "refused":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    chunks = [bytes([n]) * ((3 << 20) + n) for n in range(9)]  # 27 MB
    file = DurableFile(tmp_path / "large")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "posix_fadvise", advise)
        for chunk in chunks:
            file.write(chunk)
    with syncs(tmp_path) as log:
        size, sha256 = file.seal()
    whole = b"".join(chunks)
    assert (size, sha256) == (len(whole), hashlib.sha256(whole).hexdigest())
    assert (log, file_sha256(tmp_path / "large")) == ([str(tmp_path / "large")], sha256)
    ends = [offset + length for offset, length in begun]
    assert [offset for offset, _ in begun] == [0, *ends[:-1]]  # each part once
    assert len(begun) == 3
    assert size - (8 << 20) < ends[-1] <= size


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
    outcomes = sink.end(gone, kept)
    assert isinstance(outcomes[0], Unknown)
    assert outcomes[1:] == [Committed()]
    for other, vote in zip(others, theirs, strict=True):
        with pytest.raises(Fatal, match=f"the vote of {vote.txn.id} is refused: this is sink sink of job job"):
            sink.end(vote)
        assert other.end(vote) == [Committed()]


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
    sink = files(tmp_path, target_file_size="1 B", **TEXT)
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


def test_what_a_link_in_the_place_of_a_committed_votes_folder_leads_to_stands(tmp_path: Path) -> None:
    sink, outside = files(tmp_path / "lake"), tmp_path / "outside"
    [vote] = sink.vote(rows((1, "a")))
    assert sink.end(vote) == [Committed()]
    outside.mkdir()
    (outside / "0.tmp").write_text("not ours")
    (tmp_path / "lake/_exactsink" / sink.id()).symlink_to(outside)
    assert (sink.end(vote), (outside / "0.tmp").read_text()) == ([AlreadyCommitted()], "not ours")
