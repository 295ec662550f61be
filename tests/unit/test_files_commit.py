"""Commits of the `files` backend: durable before they are reported, and whole whoever crashes or races at any step."""

from __future__ import annotations

import errno
import glob
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.unit.files_target import (
    MINE,
    VALUE,
    Killed,
    a_backend,
    a_txn,
    around,
    assert_all_committed,
    at_step,
    batches,
    commit,
    each_step,
    json_votes,
    kill,
    refused,
    temps,
    visible,
    vote,
)

from exactsink.contract import AlreadyCommitted, Committable, Committed, ExactsinkError, Fatal, Retryable, Unknown


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


def test_nothing_is_visible_before_the_commit(tmp_path: Path) -> None:
    backend = a_backend(tmp_path, partition_by=["name"])
    first = vote(backend, batches((1, "a")))
    commit(backend, first)
    second = vote(backend, batches((2, "b")), a_txn(1))

    def ids() -> list[list[int]]:
        everywhere = glob.glob(f"{tmp_path}/**/*.parquet", recursive=True)
        return [
            ds.dataset(tmp_path, format="parquet").to_table()["id"].to_pylist(),
            pd.read_parquet(tmp_path)["id"].tolist(),
            [i for file in sorted(everywhere) for i in pq.ParquetFile(file).read()["id"].to_pylist()],
        ]

    assert ids() == [[1], [1], [1]]
    assert temps(tmp_path) == [a_txn(1).id]
    commit(backend, second)
    assert ids() == [[1, 2], [1, 2], [1, 2]]


def test_a_vote_is_durable_before_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "_exactsink").mkdir()  # by a process that died before it could sync
    with syncs(tmp_path) as log:
        vote(a_backend(tmp_path), batches((1, "a")))
    folder = f"{tmp_path}/_exactsink/{a_txn().id}"
    assert log[-3:] == [f"{folder}/0.tmp", folder, f"{tmp_path}/_exactsink"]
    assert str(tmp_path) in log[:-3]


def test_final_names_are_durable_before_a_temp_goes(tmp_path: Path) -> None:
    backend, voted = json_votes(tmp_path)
    with syncs(tmp_path) as log:
        commit(backend, *voted)
    assert set(log[: log.index("unlink")]) == {str(tmp_path), f"{tmp_path}/day=1", f"{tmp_path}/day=2"}
    assert log.count("unlink") == 4


def test_a_repeated_commit_finds_it_done(tmp_path: Path, links: None) -> None:
    backend, voted = json_votes(tmp_path)
    assert commit(backend, *voted) == [Committed(), Committed()]
    before = [(p, p.stat().st_ino) for p in visible(tmp_path)]
    assert commit(backend, *voted) == [AlreadyCommitted(), AlreadyCommitted()]
    assert [(p, p.stat().st_ino) for p in visible(tmp_path)] == before
    assert_all_committed(tmp_path)


def test_a_crash_at_any_step_can_be_committed_again(tmp_path: Path, links: None) -> None:
    def run(nth: int) -> list[int]:
        root = tmp_path / str(nth)
        backend, voted = json_votes(root)
        with at_step(root, nth, kill) as ran:
            try:
                commit(backend, *voted)
            except Killed:
                assert {t.ref for t in backend.committer(MINE).in_doubt()} <= {v.ref for v in voted}
        assert {type(o) for o in commit(backend, *voted)} <= {Committed, AlreadyCommitted}
        assert_all_committed(root)
        return ran

    each_step(run, least=40)


def test_another_commit_between_any_two_steps_agrees(tmp_path: Path, links: None) -> None:
    def run(nth: int) -> list[int]:
        root = tmp_path / str(nth)
        backend, voted = json_votes(root)
        others: list[Any] = []
        with at_step(root, nth, lambda: others.extend(commit(backend, *voted))) as ran:
            outcomes = commit(backend, *voted)
        assert {type(o) for o in [*outcomes, *others]} <= {Committed, AlreadyCommitted}
        for pair in zip(outcomes, others, strict=False):
            assert Committed() in pair
        assert_all_committed(root)
        return ran

    each_step(run, least=40)


def test_another_commit_that_dies_between_any_two_steps_does_no_harm(tmp_path: Path) -> None:
    def run(nth: int) -> list[int]:
        for other in (5, 11, 17, 23):
            root = tmp_path / f"{nth}-{other}"
            backend, voted = json_votes(root, count=1)

            def half(root: Path = root, backend: Any = backend, voted: Any = voted, other: int = other) -> None:
                with at_step(root, other, kill), pytest.raises(Killed):
                    commit(backend, *voted)
                    kill()

            with at_step(root, nth, half) as ran:
                outcomes = commit(backend, *voted)
            assert type(outcomes[0]) in (Committed, AlreadyCommitted)
            assert_all_committed(root, count=1)
        return ran

    each_step(run, least=20)


COMMITTER = """
import pickle, sys
from exactsink.contract.model import JobContext
with open(sys.argv[1], "rb") as file:
    backend = pickle.load(file)
print("ready", flush=True)
for line in sys.stdin:
    with open(line.strip(), "rb") as file:
        voted = pickle.load(file)
    outcomes = backend.committer(JobContext(job="job", sink="sink", staging="")).commit(7, voted)
    print(" ".join(type(outcome).__name__ for outcome in outcomes), flush=True)
"""


@contextmanager
def committers(root: Path, count: int) -> Iterator[Callable[[list[Committable]], list[list[str]]]]:
    """Start processes that know another target's backend; give a function that lets them commit at the same moment."""
    (root / "backend").write_bytes(pickle.dumps(a_backend(root / "elsewhere")))
    command = [sys.executable, "-c", COMMITTER, str(root / "backend")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": env}
    running = [subprocess.Popen(command, **pipes) for _ in range(count)]

    def commit_at_once(voted: list[Committable]) -> list[list[str]]:
        (root / "voted").write_bytes(pickle.dumps(voted))
        for process in running:
            process.stdin.write(f"{root / 'voted'}\n")
            process.stdin.flush()
        return [process.stdout.readline().split() for process in running]

    try:
        assert [process.stdout.readline() for process in running] == ["ready\n"] * count
        yield commit_at_once
    finally:
        for process in running:
            process.communicate()
    assert [process.returncode for process in running] == [0] * count


def test_another_process_commits_from_the_committable_alone(tmp_path: Path) -> None:
    _, voted = json_votes(tmp_path / "out")
    with committers(tmp_path, 1) as commit_at_once:
        assert commit_at_once(voted) == [["Committed", "Committed"]]
        assert commit_at_once(voted) == [["AlreadyCommitted", "AlreadyCommitted"]]
    assert_all_committed(tmp_path / "out")


def test_two_processes_commit_at_the_same_moment(tmp_path: Path) -> None:
    with committers(tmp_path, 2) as commit_at_once:
        for n in range(25):
            root = tmp_path / f"out{n}"
            _, voted = json_votes(root, count=6)
            for pair in zip(*commit_at_once(voted), strict=True):
                assert set(pair) in ({"Committed", "AlreadyCommitted"}, {"Committed"})
            assert_all_committed(root, count=6)


@pytest.mark.parametrize("temp_is_there", [True, False])
def test_a_foreign_file_is_fatal_and_left_alone(tmp_path: Path, links: None, temp_is_there: bool) -> None:
    backend = a_backend(tmp_path, format="json")
    voted = vote(backend, batches(("{}",), schema=VALUE))
    final = tmp_path / f"{a_txn().id}.json"
    final.write_text("[]\n")  # of the very size that was voted for
    if not temp_is_there:
        (tmp_path / "_exactsink" / a_txn().id / "0.tmp").unlink()
    with pytest.raises(Fatal, match="is not overwritten"):
        commit(backend, voted)
    assert final.read_text() == "[]\n"
    assert temps(tmp_path) == [a_txn().id]
    final.write_text("{}\n")
    assert commit(backend, voted) == [AlreadyCommitted()]
    assert (visible(tmp_path), temps(tmp_path)) == ([final], [])


def test_a_foreign_file_that_goes_away_meanwhile_is_no_obstacle(tmp_path: Path) -> None:
    backend = a_backend(tmp_path)
    voted = vote(backend, batches((1, "a")))
    final = tmp_path / f"{a_txn().id}.parquet"
    final.write_text("foreign")

    def gone(name: str, path: str) -> None:
        if path == str(final):
            final.rename(tmp_path / "moved away")

    with around(tmp_path, ["lstat"], gone):
        outcomes = commit(backend, voted)
    assert outcomes == [Committed()]


def test_what_is_gone_is_unknown_and_the_rest_is_committed(tmp_path: Path) -> None:
    backend, voted = json_votes(tmp_path, count=3)
    folder = tmp_path / "_exactsink" / a_txn(1).id
    (folder / "1.tmp").unlink()
    cut = tmp_path / "_exactsink" / a_txn(2).id / "0.tmp"
    cut.write_bytes(cut.read_bytes()[:-1])
    first, second, third = commit(backend, *voted)
    assert first == Committed()
    assert isinstance(second, Unknown)
    assert f"{folder / '1.tmp'} and its final name" in second.evidence
    assert isinstance(third, Unknown)
    assert "were voted for" in third.evidence
    assert temps(tmp_path) == [a_txn(1).id, a_txn(2).id]


def test_a_missing_target_is_unknown_and_not_made_anew(tmp_path: Path) -> None:
    backend, voted = json_votes(tmp_path / "disk")
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    outcomes = commit(backend, *voted)
    assert all("is its file system mounted?" in outcome.evidence for outcome in outcomes)
    assert not (tmp_path / "disk").exists()
    (tmp_path / "unmounted").rename(tmp_path / "disk")
    assert commit(backend, *voted) == [Committed(), Committed()]


@pytest.mark.parametrize(("code", "kind"), [(errno.EXDEV, Fatal), (errno.EACCES, Fatal), (errno.ENOSPC, Retryable)])
def test_a_link_that_fails_is_an_error_and_can_be_tried_again(
    tmp_path: Path, code: int, kind: type[ExactsinkError]
) -> None:
    backend, voted = json_votes(tmp_path)
    with refused(tmp_path, "link", code), pytest.raises(kind):
        commit(backend, *voted)
    assert visible(tmp_path) == []
    assert commit(backend, *voted) == [Committed(), Committed()]


def test_a_file_in_the_place_of_a_partition_folder_is_fatal(tmp_path: Path) -> None:
    backend, voted = json_votes(tmp_path)
    (tmp_path / "day=2").write_text("")
    with pytest.raises(Fatal, match="day=2"):
        commit(backend, *voted)
    (tmp_path / "day=2").unlink()
    commit(backend, *voted)
    assert_all_committed(tmp_path)
