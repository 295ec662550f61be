"""What killed writers leave in a journal's folder: temp files, removed once they are proven dead ones'."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from exactsink.protocol.journal.stores import local as store_module
from exactsink.protocol.journal.stores.local import LocalStore

PATIENCE = 60  # seconds until a test that hangs says so

STOPS = """
import os, sys
from pathlib import Path
from exactsink.protocol.journal.stores import local as store_module

class StoppingOs:
    def __getattr__(self, name):
        return getattr(os, name)

    def link(self, source, target):
        if sys.argv[2] == "linked":
            os.link(source, target)
        print(Path(source).name, flush=True)
        sys.stdin.read()  # killed here, or woken
        if sys.argv[2] != "linked":
            os.link(source, target)

store_module.os = StoppingOs()
store_module.LocalStore(Path(sys.argv[1])).put(5, b"whole")
"""


@contextmanager
def stopped_put(folder: Path, where: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that stands still in its put of entry 5, before it links its temp file or after; and that file."""
    command = [sys.executable, "-c", STOPS, str(folder), where]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            temp = folder / process.stdout.readline().strip()
            assert temp.is_file()
            yield process, temp
        finally:
            process.kill()


@pytest.mark.parametrize("where", ["not linked", "linked"])
def test_a_writer_killed_before_or_after_its_link_leaves_a_temp_file_that_the_next_store_removes(
    tmp_path: Path, where: str
) -> None:
    with stopped_put(tmp_path, where) as (process, temp):
        process.kill()
        assert process.wait(PATIENCE) == -signal.SIGKILL
    assert temp.is_file()
    store = LocalStore(tmp_path)
    store.put(6, b"x")
    entries = ["00000000000000000005.json"] * (where == "linked") + ["00000000000000000006.json"]
    assert sorted(os.listdir(tmp_path)) == entries
    assert store.read(5) == (b"whole" if where == "linked" else None)


@pytest.mark.parametrize("where", ["not linked", "linked"])
def test_the_temp_file_of_a_stalled_writer_stays_and_its_put_goes_through(tmp_path: Path, where: str) -> None:
    with stopped_put(tmp_path, where) as (process, temp):
        for seq in (6, 7):
            LocalStore(tmp_path).put(seq, b"x")
        assert temp.is_file()
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE) == 0
    assert LocalStore(tmp_path).read(5) == b"whole"
    assert sorted(os.listdir(tmp_path)) == [f"{seq:020d}.json" for seq in (5, 6, 7)]


class LockingFirst:
    """`fcntl` as the store sees it: before the first lock is taken, something else happens."""

    def __init__(self, happens: Callable[[], None]) -> None:
        self._happens = [happens]

    def __getattr__(self, name: str) -> Any:
        return getattr(fcntl, name)

    def flock(self, file: Any, how: int) -> None:
        if self._happens:
            self._happens.pop()()
        fcntl.flock(file, how)


def test_a_temp_file_that_is_removed_before_its_writer_has_locked_it_is_made_again(tmp_path: Path) -> None:
    """Not locked yet, it looks like a dead writer's to a store whose first put falls between."""
    store, removed = LocalStore(tmp_path), list[int]()
    store.put(0, b"so that the next put of this store removes nothing")

    def other_put() -> None:
        temps = [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
        LocalStore(tmp_path).put(1, b"other")
        removed.append(len(temps) - sum(name in os.listdir(tmp_path) for name in temps))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "fcntl", LockingFirst(other_put))
        store.put(2, b"mine")
    assert removed == [1]
    assert [store.read(seq) for seq in (1, 2)] == [b"other", b"mine"]
    assert sorted(os.listdir(tmp_path)) == [f"{seq:020d}.json" for seq in range(3)]


def test_where_files_cannot_be_locked_puts_go_on_and_no_temp_file_is_removed(tmp_path: Path) -> None:
    left = tmp_path / f".{'0f' * 16}.tmp"
    left.write_bytes(b"of a writer that may live")

    class NoLocks(LockingFirst):
        def flock(self, file: Any, how: int) -> None:
            raise OSError(errno.ENOLCK, "no locks here")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "fcntl", NoLocks(lambda: None))
        LocalStore(tmp_path).put(0, b"x")
    assert sorted(os.listdir(tmp_path)) == [left.name, "00000000000000000000.json"]


def test_files_of_others_are_not_taken_for_temp_files(tmp_path: Path) -> None:
    names = {".0f.tmp", "0f.tmp", f"{'0f' * 16}.tmp", f".{'0f' * 16}.tmp.bak", "notes.json", "README"}
    for name in names:
        (tmp_path / name).write_bytes(b"left by somebody")
    LocalStore(tmp_path).put(0, b"x")
    assert set(os.listdir(tmp_path)) == {*names, "00000000000000000000.json"}
