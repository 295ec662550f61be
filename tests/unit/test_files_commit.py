"""Commits of the `files` backend: durable before they are reported, and whole whoever crashes or races at any step."""

from __future__ import annotations

import errno
import glob
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.unit.files_sink import EPOCH, assert_two_files, files, lines, rows, temps, two_files, visible
from tests.unit.os_faults import Killed, around, at_step, each_step, kill, refused

from exactsink.contract import AlreadyCommitted, Committed, Fatal, Outcome, Unknown

STANDS = {Committed, AlreadyCommitted}


@pytest.fixture(params=["links", "no links"])
def links(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """Run on a file system with hard links, and on one without."""
    if request.param == "links":
        yield
        return
    with refused(tmp_path, "link", errno.EPERM):
        yield


@contextmanager
def syncs(root: Path) -> Iterator[list[str]]:
    """Return a list of what is synced in the block, and of each temp name that is dropped."""
    log: list[str] = []
    with around(root, ["fsync", "unlink"], lambda name, path: log.append(path if name == "fsync" else name)):
        yield log


def test_no_reader_sees_a_vote_before_its_commit(tmp_path: Path) -> None:
    sink = files(tmp_path, partition_by=["name"])
    first, second = sink.vote(rows((1, "a")), rows((2, "b")))
    sink.end(first)

    def ids() -> list[list[int]]:
        everywhere = glob.glob(f"{tmp_path}/**/*.parquet", recursive=True)
        return [
            ds.dataset(tmp_path, format="parquet").to_table()["id"].to_pylist(),
            pd.read_parquet(tmp_path)["id"].tolist(),
            [i for file in sorted(everywhere) for i in pq.ParquetFile(file).read()["id"].to_pylist()],
        ]

    assert ids() == [[1], [1], [1]]
    assert temps(tmp_path) == [sink.id(1)]
    sink.end(second)
    assert ids() == [[1, 2], [1, 2], [1, 2]]


def test_a_vote_is_durable_before_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "_exactsink").mkdir()  # by a process that died before it could sync
    sink = files(tmp_path)
    with syncs(tmp_path) as log:
        sink.vote(rows((1, "a")))
    folder = f"{tmp_path}/_exactsink/{sink.id()}"
    assert log[-3:] == [f"{folder}/0.tmp", folder, f"{tmp_path}/_exactsink"]
    assert str(tmp_path) in log[:-3]


def test_final_names_are_durable_before_a_temp_goes(tmp_path: Path) -> None:
    sink, voted = two_files(tmp_path, participants=2)
    marked = f"{tmp_path}/_exactsink/job.sink"
    sink.put_birth()
    with syncs(tmp_path) as log:
        sink.end(*voted)
    done = log[: log.index("unlink")]
    assert {path for path in done if not path.startswith(marked)} == {
        str(tmp_path),
        f"{tmp_path}/day=1",
        f"{tmp_path}/day=2",
    }
    assert done[-1] == marked
    assert log.count("unlink") == 4


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
    sink = files(tmp_path, format="json")
    voted = sink.vote(lines("{}"))
    final = tmp_path / f"{sink.id()}.json"
    final.write_text("[]\n")  # of the very size that was voted for
    if not temp_is_there:
        (tmp_path / "_exactsink" / sink.id() / "0.tmp").unlink()
    with pytest.raises(Fatal, match="is not overwritten"):
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
    with pytest.raises(Fatal, match=f"{sink.id()}: can't read a vote of version 2"):
        sink.commit(EPOCH, [replace(voted, version=2)])
    assert visible(tmp_path) == []
