"""Who may read what a job keeps: its folders and files are its user's alone, unless `file_mode` says otherwise."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.files_sink import EPOCH, TEXT, files, lines, visible
from tests.unit.upsert_sink import upsert

from exactsink.contract import Committed, Fatal, FileMode
from exactsink.job.history import JobHistory
from exactsink.protocol.coordinator import State
from exactsink.protocol.journal.stores.local import LocalStore

MODES: dict[FileMode, tuple[int, int]] = {"private": (0o700, 0o600), "group": (0o2770, 0o660), "umask": (0o755, 0o644)}


@pytest.fixture(autouse=True, params=[0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def history(folder: Path, mode: FileMode, run: str | None = None) -> JobHistory:
    place = folder / "ck.exactsink"
    return JobHistory("orders", place / "runs" / run if run else place, folder / "ck", run=run, file_mode=mode)


def kept(folder: Path, mode: FileMode) -> list[Path]:
    """Make what a job keeps, and return all of it: journal with a block, state, staged rows, a batch run."""
    for each in (history(folder, mode), history(folder, mode, "friday")):
        each.make()
        each.state().write(State(None, 1, "host:1", 0.0))
        store = LocalStore(each.folder / "journal", block_entries=1, file_mode=mode)
        for seq in (0, 1):
            store.put(seq, b"{}")
    sink = upsert(folder / "ck.exactsink")
    replace(sink, ctx=replace(sink.ctx, file_mode=mode)).vote(1, [(1, "a")])
    return [folder / "ck.exactsink", *(folder / "ck.exactsink").rglob("*")]


@pytest.mark.parametrize("mode", MODES)
def test_what_a_job_keeps_is_for_those_whom_the_mode_says(tmp_path: Path, mode: FileMode, umask: int) -> None:
    found = kept(tmp_path, mode)
    assert len([path for path in found if path.suffix == ".arrow" or path.name == "state.json"]) == 3
    above = {tmp_path / "ck.exactsink" / "staging", tmp_path / "ck.exactsink" / "staging" / "orders"}
    for path in (path for path in found if path not in above and path.name != "shop.db"):
        folder, file = MODES[mode]
        wanted = folder if path.is_dir() else file
        if mode == "umask":
            wanted = (0o777 if path.is_dir() else 0o666) & ~umask
        assert oct(mode_of(path)) == oct(wanted), path


@pytest.mark.parametrize("mode", MODES)
def test_hidden_files_are_closed_and_committed_ones_are_as_open_as_the_umask_says(
    tmp_path: Path, mode: FileMode, umask: int
) -> None:
    sink = files(tmp_path / "lake", **TEXT)
    sink = replace(sink, ctx=replace(sink.ctx, file_mode=mode))
    [voted] = sink.vote(lines("a"))
    hidden = tmp_path / "lake" / "_exactsink" / sink.id()
    assert oct(mode_of(hidden)) == oct(MODES[mode][0] if mode != "umask" else 0o777 & ~umask)
    assert sink.end(voted) == [Committed()]
    [file] = visible(tmp_path / "lake")
    assert oct(mode_of(file)) == oct(0o666 & ~umask | (0o060 if mode == "group" else 0))
    shared = 0o2070 if mode == "group" else 0
    assert oct(mode_of(hidden.parent)) == oct(0o777 & ~umask | shared)
    assert oct(mode_of(hidden.parent / "job.sink") & 0o777) == oct(0o777 & ~umask)  # for readers of snapshots


def test_a_folder_of_an_earlier_release_stays_as_it_is_and_is_warned_of(tmp_path: Path, umask: int) -> None:
    (tmp_path / "ck.exactsink" / "journal").mkdir(parents=True)
    assert mode_of(kept(tmp_path, "private")[0]) == 0o777 & ~umask
    assert mode_of(tmp_path / "ck.exactsink" / "journal" / f"{0:020}.json") == 0o666 & ~umask
    warned = [(finding.severity, "can read" in finding.message) for finding in history(tmp_path, "private").check()]
    assert warned == ([("warning", True)] if umask != 0o077 else [])
    assert list(history(tmp_path, "umask").check()) == []


def test_an_executor_that_is_another_user_is_refused_before_the_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = files(tmp_path, **TEXT)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    ticket = sink.open(EPOCH, lines("a").schema)
    monkeypatch.setattr(os, "getuid", lambda: 1001)
    with pytest.raises(Fatal, match="could not read this task's files") as refused:
        sink.writer(EPOCH, 0, lines("a").schema, ticket)
    assert 'file_mode = "group"' in refused.value.next
