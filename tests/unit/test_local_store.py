"""The journal's local store: one owner per seq, never half an entry, durable when `put` returns."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from exactsink.contract import PreflightError, durable
from exactsink.protocol.journal.stores import SeqTaken
from exactsink.protocol.journal.stores import local as store_module
from exactsink.protocol.journal.stores.local import LocalStore

SPAWN = multiprocessing.get_context("spawn")
PATIENCE = 60  # seconds until a test that hangs says so
RACERS, ROUNDS = 8, 25


def test_an_entry_is_read_as_it_was_put(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "new" / "journal")
    store.put(0, b"first")
    store.put(7, b"\x00\xff")
    assert (store.read(0), store.read(7)) == (b"first", b"\x00\xff")
    assert sorted(LocalStore(tmp_path / "new" / "journal").list()) == [0, 7]


def test_a_journal_that_does_not_exist_is_empty_and_is_not_made_by_reading(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "journal")
    assert list(store.list()) == []
    assert store.read(0) is None
    assert os.listdir(tmp_path) == []


def test_a_seq_has_one_owner(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put(3, b"first")
    for again in (b"second", b"first"):
        with pytest.raises(SeqTaken):
            store.put(3, again)
    assert store.read(3) == b"first"
    assert os.listdir(tmp_path) == ["00000000000000000003.json"]  # the refused ones left nothing


def test_a_deleted_entry_is_gone_and_deleting_it_again_is_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for seq in (1, 2, 3):
        store.put(seq, b"x")
    store.delete([1, 3])
    store.delete([1, 3, 99])
    assert (store.list(), store.read(1), store.read(2)) == ([2], None, b"x")


def test_what_is_no_entry_is_not_listed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put(5, b"x")
    for name in (".0f.tmp", "0f.tmp", "00000000000000000006.json.tmp", "notes.json", "7.json", "README"):
        (tmp_path / name).write_bytes(b"left by somebody")
    assert list(store.list()) == [5]


def test_far_seqs_keep_their_numbers(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    seqs = [0, 9, 10, 99_999, 2**63]
    for seq in seqs:
        store.put(seq, str(seq).encode())
    assert sorted(store.list()) == seqs
    assert [store.read(seq) for seq in seqs] == [str(seq).encode() for seq in seqs]


# processes


def race(folder: Path, name: str, barrier: Any, wins: Any) -> None:
    """Put every seq as all others do, at the same moments; report which were mine."""
    mine = []
    for seq in range(ROUNDS):
        barrier.wait()
        try:
            LocalStore(folder).put(seq, name.encode())
        except SeqTaken:
            continue
        mine.append(seq)
    wins.put((name, mine))


def test_of_eight_processes_that_race_for_a_seq_exactly_one_wins(tmp_path: Path) -> None:
    barrier, wins = SPAWN.Barrier(RACERS, timeout=PATIENCE), SPAWN.Queue()
    names = [f"racer-{n}" for n in range(RACERS)]
    racers = [SPAWN.Process(target=race, args=(tmp_path, name, barrier, wins), daemon=True) for name in names]
    for racer in racers:
        racer.start()
    won = dict(wins.get(timeout=PATIENCE) for _ in racers)
    for racer in racers:
        racer.join(PATIENCE)
    assert [racer.exitcode for racer in racers] == [0] * RACERS
    owners = sorted((seq, name) for name, seqs in won.items() for seq in seqs)
    assert [seq for seq, _ in owners] == list(range(ROUNDS))
    store = LocalStore(tmp_path)
    assert [(seq, store.read(seq)) for seq in range(ROUNDS)] == [(seq, name.encode()) for seq, name in owners]


PUTS = """
import sys
from pathlib import Path
from exactsink.protocol.journal.stores.local import LocalStore
store, first, count, size = LocalStore(Path(sys.argv[1])), *map(int, sys.argv[2:])
for seq in range(first, first + count):
    store.put(seq, seq.to_bytes(4, "big") * (size // 4))
    print(seq, flush=True)
sys.stdin.read()
"""
SIZE = 16 * 1024 * 1024


@contextmanager
def writing(folder: Path, first: int, count: int) -> Iterator[subprocess.Popen[str]]:
    """A process that puts entries, one after another, says so after each, and ends when its input does."""
    command = [sys.executable, "-c", PUTS, str(folder), str(first), str(count), str(SIZE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def is_whole(seq: int, data: bytes) -> bool:
    return data == seq.to_bytes(4, "big") * (SIZE // 4)


def test_a_reader_never_sees_half_an_entry(tmp_path: Path) -> None:
    store, reads = LocalStore(tmp_path), 0
    with writing(tmp_path, 0, 8) as process:
        assert process.stdin is not None
        process.stdin.close()
        alive = True
        while alive:
            alive = process.poll() is None
            for seq in range(8):
                if (data := store.read(seq)) is not None:
                    assert is_whole(seq, data), f"{len(data)} bytes of entry {seq}"
                    reads += 1
    assert process.returncode == 0
    assert sorted(store.list()) == list(range(8))
    assert reads >= 8


@pytest.mark.parametrize("entries", [1, 2, 3])
@pytest.mark.parametrize("shows", [".tmp", ".json"])
def test_a_writer_killed_in_a_put_leaves_a_whole_entry_or_none(tmp_path: Path, shows: str, entries: int) -> None:
    """Killed as soon as the next entry shows in the folder: under a temp name, or under its own."""
    with writing(tmp_path, 0, entries + 2) as process:
        assert process.stdout is not None
        for _ in range(entries):
            process.stdout.readline()
        before, shown = (entries if shows == ".json" else 0), 0
        while shown <= before and len(LocalStore(tmp_path).list()) < entries + 2:
            shown = sum(name.endswith(shows) for name in os.listdir(tmp_path))
        process.kill()
        assert process.wait(PATIENCE) == -signal.SIGKILL
        reported = [int(line) for line in process.stdout]  # what it managed to say before it died
    store = LocalStore(tmp_path)
    listed = sorted(store.list())
    assert listed == list(range(len(listed)))
    assert len(listed) >= max([entries, *(seq + 1 for seq in reported)])
    assert all(is_whole(seq, store.read(seq) or b"") for seq in listed)
    store.put(len(listed), b"the next driver's")
    assert store.read(len(listed)) == b"the next driver's"


# durability


class RecordingOs:
    """`os` as one module sees it: calls go through, and syncs and links are reported. Nothing global is patched."""

    def __init__(self, log: list[str], folder: Path, fail: Callable[[str], None] = lambda step: None) -> None:
        self._log = log
        self._folder = folder
        self._fail = fail

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _report(self, step: str) -> None:
        self._log.append(step)
        self._fail(step)

    def fsync(self, handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        self._report("sync the folder" if path == self._folder else f"sync {path.suffix}")
        os.fsync(handle)

    def link(self, source: Path, target: Path) -> None:
        self._report("link")
        os.link(source, target)


@contextmanager
def recorded(folder: Path, fail: Callable[[str], None] = lambda step: None) -> Iterator[list[str]]:
    log: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for module in (store_module, durable):
            patch.setattr(module, "os", RecordingOs(log, folder, fail))
        yield log


def test_a_put_syncs_the_entry_before_it_has_its_name_and_the_name_after(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put(0, b"the first put also syncs what lies above")
    with recorded(tmp_path) as log:
        store.put(1, b"x")
    assert log == ["sync .tmp", "link", "sync the folder"]  # two syncs: each costs milliseconds per epoch


def test_a_refused_put_syncs_the_name_that_stands(tmp_path: Path) -> None:
    """It may be ours, linked by a call that died before its sync: who reads it as owned must find it durable."""
    store = LocalStore(tmp_path)
    store.put(0, b"x")
    with recorded(tmp_path) as log, pytest.raises(SeqTaken):
        store.put(0, b"y")
    assert log[-1] == "sync the folder"


def test_the_folders_above_a_new_journal_are_synced_before_its_first_entry_stands(tmp_path: Path) -> None:
    history = tmp_path / "job.exactsink"
    with recorded(history) as log:
        LocalStore(history / "journal").put(0, b"x")
    assert log.index("sync the folder") < log.index("link")


def refusing(step: str, times: int, code: int = errno.EIO) -> Callable[[str], None]:
    left = [times]

    def fail(reported: str) -> None:
        if reported == step and left[0]:
            left[0] -= 1
            raise OSError(code, "the disk answers no more")

    return fail


@pytest.mark.parametrize("step", ["sync .tmp", "link"])
def test_a_put_that_fails_before_its_link_leaves_no_entry(tmp_path: Path, step: str) -> None:
    store = LocalStore(tmp_path)
    store.put(0, b"x")
    with recorded(tmp_path, refusing(step, 1)), pytest.raises(OSError, match="no more"):
        store.put(1, b"y")
    assert os.listdir(tmp_path) == ["00000000000000000000.json"]


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_links_is_refused_with_the_fix(tmp_path: Path, code: int) -> None:
    store = LocalStore(tmp_path)
    with recorded(tmp_path, refusing("link", 1, code)), pytest.raises(PreflightError, match="no hard links") as refused:
        store.put(0, b"x")
    assert "another file system" in refused.value.next
    assert os.listdir(tmp_path) == []


def test_an_entry_whose_name_could_not_be_synced_is_not_read_as_written_until_it_is(tmp_path: Path) -> None:
    """A decision that is read back as the driver's own is committed: it must not vanish in a power cut."""
    store = LocalStore(tmp_path)
    store.put(0, b"x")
    with recorded(tmp_path, refusing("sync the folder", 2)) as log:
        for call in (lambda: store.put(1, b"y"), lambda: store.read(1)):
            with pytest.raises(OSError, match="no more"):
                call()
        assert store.read(1) == b"y"
    assert log == ["sync .tmp", "link", *["sync the folder"] * 3]
    with recorded(tmp_path) as log:
        assert store.read(1) == b"y"
    assert log == []
