"""The journal's local store: never half an entry, durable when `put` returns, and what killed writers leave."""

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
from tests.unit.os_faults import around

from exactsink.contract import PreflightError, Retryable
from exactsink.protocol.journal.stores import local as store_module
from exactsink.protocol.journal.stores.local import LocalStore
from exactsink.toolkit.storage import create_file

PATIENCE = 60  # seconds until a process that hangs says so


def entries(*seqs: int) -> list[str]:
    return [f"{seq:020d}.json" for seq in seqs]


def test_what_is_no_entry_is_neither_listed_nor_removed(tmp_path: Path) -> None:
    names = {".0f.tmp", f"{'0f' * 16}.tmp", f".{'0f' * 16}.tmp.bak", f"{entries(6)[0]}.tmp", "7.json", "notes.json"}
    for name in names:
        (tmp_path / name).write_bytes(b"left by somebody")
    store = LocalStore(tmp_path)
    store.put(5, b"x")
    assert (list(store.list()), store.newest(), store.sizes([5, 6])) == ([5], 5, {5: 1})
    assert set(os.listdir(tmp_path)) == {*names, *entries(5)}


# durability


@contextmanager
def recorded(folder: Path, fail: Callable[[str], None] = lambda step: None) -> Iterator[list[str]]:
    """Record syncs and links at or below a folder."""
    log: list[str] = []

    def note(name: str, path: str) -> None:
        synced = "sync the folder" if path == str(folder) else f"sync {Path(path).suffix}"
        log.append("link" if name == "link" else synced)
        fail(log[-1])

    with around(folder, ["fsync", "link"], note):
        yield log


def refusing(step: str, times: int, code: int = errno.EIO) -> Callable[[str], None]:
    left = [times]

    def fail(reported: str) -> None:
        if reported == step and left[0]:
            left[0] -= 1
            raise OSError(code, "the disk answers no more")

    return fail


def test_a_put_syncs_the_entry_before_it_has_its_name_and_the_name_after(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put(0, b"the first put also syncs what lies above")
    with recorded(tmp_path) as log:
        store.put(1, b"x")
    assert log == ["sync .tmp", "link", "sync the folder"]  # two syncs: each costs milliseconds per epoch


def test_a_put_writes_the_entry_of_another_process_again_before_its_own(tmp_path: Path) -> None:
    LocalStore(tmp_path).put(0, b"x")
    with recorded(tmp_path) as log:
        LocalStore(tmp_path).put(1, b"y")
    assert log[-5:] == ["sync .tmp", "sync the folder", "sync .tmp", "link", "sync the folder"]


def test_a_file_that_another_process_made_is_durable_before_anything_rests_on_it(tmp_path: Path) -> None:
    assert create_file(tmp_path / "x", b"first")
    with recorded(tmp_path) as log:
        assert not create_file(tmp_path / "x", b"second")
    assert log[-1] == "sync the folder"


@pytest.mark.parametrize("step", ["sync .tmp", "link"])
def test_a_put_that_fails_before_its_link_leaves_no_entry(tmp_path: Path, step: str) -> None:
    store = LocalStore(tmp_path)
    store.put(0, b"x")
    with recorded(tmp_path, refusing(step, 1)), pytest.raises(OSError, match="no more"):
        store.put(1, b"y")
    assert os.listdir(tmp_path) == entries(0)


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_links_is_refused_with_the_fix(tmp_path: Path, code: int) -> None:
    with recorded(tmp_path, refusing("link", 1, code)), pytest.raises(PreflightError, match="no hard links") as refused:
        LocalStore(tmp_path).put(0, b"x")
    assert "another file system" in refused.value.next
    assert os.listdir(tmp_path) == []


# blocks of entries


def test_entries_after_the_first_lie_in_blocks_and_a_start_lists_few_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path, block_entries=1000)
    for seq in (998, 999, 1000, 1001, 1999, 2000, 7000):
        store.put(seq, b"x")
    store.delete([7000])
    assert sorted(os.listdir(tmp_path / f"{1:017d}")) == entries(1000, 1001, 1999)
    assert os.listdir(tmp_path / f"{2:017d}") == entries(2000)
    listed, real = list[int](), os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: listed.append(len(real(folder))) or real(folder))
    assert LocalStore(tmp_path, block_entries=1000).newest() == 2000
    assert listed == [5, 0, 1]  # its own names, a block that deletion has emptied, the newest
    assert sorted(store.list()) == [998, 999, 1000, 1001, 1999, 2000]


# temp files of writers that died, or stand still

STOPS = """
import os, sys
from pathlib import Path
from exactsink.protocol.journal.stores.local import LocalStore

link = os.link
def stopping(source, target):
    if sys.argv[2] == "linked":
        link(source, target)
    print(Path(source).name, flush=True)
    sys.stdin.read()  # killed here, or woken
    if sys.argv[2] != "linked":
        link(source, target)

os.link = stopping
LocalStore(Path(sys.argv[1])).put(5, b"whole")
"""


@pytest.mark.parametrize(("where", "then"), [("not linked", "killed"), ("linked", "killed"), ("not linked", "woken")])
def test_a_temp_file_is_removed_once_its_writer_is_dead_and_never_before(tmp_path: Path, where: str, then: str) -> None:
    command = [sys.executable, "-c", STOPS, str(tmp_path), where]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        temp = tmp_path / process.stdout.readline().strip()
        LocalStore(tmp_path).put(6, b"x")
        assert temp.is_file()
        if then == "killed":
            process.kill()
            assert process.wait(PATIENCE) == -signal.SIGKILL
            assert temp.is_file()
        else:
            process.communicate(timeout=PATIENCE)
            assert process.returncode == 0
    LocalStore(tmp_path).put(7, b"x")
    stands = then == "woken" or where == "linked"
    assert LocalStore(tmp_path).read(5) == (b"whole" if stands else None)
    assert sorted(os.listdir(tmp_path)) == entries(*[5] * stands, 6, 7)


def test_a_temp_file_that_is_removed_before_its_writer_has_locked_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not locked yet, it looks like a dead writer's to a store whose first put falls between."""
    store, removed, flock = LocalStore(tmp_path), list[str](), fcntl.flock
    store.put(0, b"so that the next put of this store removes nothing")

    def other_first(file: Any, how: int) -> None:
        if not removed:
            removed.extend(name for name in os.listdir(tmp_path) if name.endswith(".tmp"))
            LocalStore(tmp_path).put(1, b"other")
            assert not (tmp_path / removed[0]).exists()
        flock(file, how)

    with monkeypatch.context() as patch:
        patch.setattr(store_module.fcntl, "flock", other_first)
        store.put(2, b"mine")
    assert len(removed) == 1
    assert [store.read(seq) for seq in (1, 2)] == [b"other", b"mine"]
    assert sorted(os.listdir(tmp_path)) == entries(0, 1, 2)


def test_where_files_cannot_be_locked_puts_go_on_and_no_temp_file_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / f".{'0f' * 16}.tmp"
    left.write_bytes(b"of a writer that may live")

    def no_locks(file: Any, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    with monkeypatch.context() as patch:
        patch.setattr(store_module.fcntl, "flock", no_locks)
        LocalStore(tmp_path).put(0, b"x")
    assert sorted(os.listdir(tmp_path)) == [left.name, *entries(0)]


@pytest.mark.parametrize("call", ["list", "read", "delete"])
def test_a_disk_that_answers_no_more_is_a_retry_with_the_folder_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    store = LocalStore(tmp_path)
    store.put(0, b"x")

    def fail(*args: object, **named: object) -> None:
        raise OSError(errno.EIO, "the disk answers no more")

    for owner, name in ((os, "listdir"), (Path, "read_bytes"), (Path, "unlink")):
        monkeypatch.setattr(owner, name, fail)
    calls = {"list": store.list, "read": lambda: store.read(0), "delete": lambda: store.delete([0])}
    with pytest.raises(Retryable, match="can't be read or written") as refused:
        calls[call]()
    assert str(tmp_path) in refused.value.what
    assert refused.value.next
