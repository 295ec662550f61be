"""A disk below one folder as a power cut leaves it, whose calls may fail: what Python's file functions do is recorded.

POSIX at its worst: until a folder is synced, each change of its names may be undone or not, one by one; until a file is
synced, its bytes may be gone. What a sync failed for may be gone for good, whatever a later sync says: the system has
forgotten that it still has to write it.
"""

from __future__ import annotations

import io
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.unit.os_faults import Killed, path_of

_CHANGES = ("link", "rename", "replace", "unlink", "mkdir", "rmdir", "fsync")
LOOKS = ("listdir", "scandir", "stat", "lstat", "utime", "read")

Image = frozenset[tuple[str, int, bytes | None]]
"""Every path with its inode and its bytes, None for a folder."""


@dataclass(eq=False)
class _Node:
    """A file or folder: as it shows, as the disk has it, and what is on its way there."""

    folder: bool
    shown: dict[str, _Node] = field(default_factory=dict)
    stored: dict[str, _Node] = field(default_factory=dict)
    pending: list[dict[str, _Node | None]] = field(default_factory=list)
    forgotten: list[dict[str, _Node | None]] = field(default_factory=list)
    data: bytes = b""
    synced: bytes = b""
    lost: bool = False

    def change(self, names: dict[str, _Node | None]) -> None:
        """Set names to nodes, and None to those that go: one step, which is there whole or not at all."""
        _apply(self.shown, names)
        self.pending.append(names)
        self.forgotten = [old for old in self.forgotten if not old.keys() <= names.keys()]

    def sync(self) -> None:
        for names in self.pending:
            _apply(self.stored, names)
        self.pending = []
        if not self.lost:
            self.synced = self.data

    def fail_sync(self) -> None:
        self.forgotten += self.pending
        self.pending = []
        self.lost = self.lost or self.synced != self.data

    def unsynced(self) -> list[Any]:
        """List what a power cut may take or leave: each change of names, and the bytes."""
        own = [id(names) for names in [*self.forgotten, *self.pending]]
        return own + ([id(self)] if self.synced != self.data else [])


def _apply(entries: dict[str, _Node], names: dict[str, _Node | None]) -> None:
    for name, node in names.items():
        entries.pop(name, None)
        if node is not None:
            entries[name] = node


@dataclass(frozen=True)
class Fault:
    """Fail the nth call before or after it took effect, once or for good; without a code, the process dies there."""

    nth: int
    code: int = 0
    after: bool = False
    for_good: bool = False
    only: str = ""
    """Count the calls of this name alone."""


class Disk:
    """The folder's files, from an empty folder on. `seen` hears of every change, `calls` lists all calls."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._top = _Node(folder=True)
        self.seen: Callable[[str], None] = lambda change: None
        self.calls: list[str] = []
        self.omitted: str = ""
        """A planted defect: syncs of paths that match this are never asked for."""
        self._fault: Fault | None = None
        self._count = 0
        self.fired, self.hit = False, ""

    def plan(self, fault: Fault | None) -> None:
        """Let a call fail from now on; None lets all go well again, in a new process."""
        self._fault, self._count, self.fired, self.hit = fault, 0, False, ("", "")

    # -- what the process calls

    @contextmanager
    def watched(self, but: str) -> Iterator[None]:
        """Hear all calls below the folder in this block, except below the folder in it of this name."""
        here, spared = f"{self.root}/", f"{self.root / but}/"

        def hears(path: str) -> bool:
            return f"{path}/".startswith(here) and not f"{path}/".startswith(spared)

        def around(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                path = path_of(args[0] if args else ".", kwargs.get("dir_fd"))
                if not hears(path) or (name == "open" and not args[1] & os.O_CREAT):
                    return real(*args, **kwargs)
                paths = [path, *(path_of(other, None) for other in args[1:2] if name in ("link", "rename", "replace"))]
                return self._call(name, paths, lambda: real(*args, **kwargs))

            return call

        def opened(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
            path = path_of(file, None) if not isinstance(file, int) else ""
            if not hears(path):
                return real_open(file, mode, buffering, *args, **kwargs)
            if not set(mode) & set("wxa"):
                return self._call("read", [path], lambda: real_open(file, mode, buffering, *args, **kwargs))
            raw = self._call("open", [path], lambda: _File(self, path, mode.replace("b", "").replace("t", "")))
            if "b" in mode:
                return raw if buffering == 0 else io.BufferedWriter(raw)
            return io.TextIOWrapper(io.BufferedWriter(raw), *args, **kwargs)

        real_open = io.open
        with pytest.MonkeyPatch.context() as patch:
            for name in (*_CHANGES, *LOOKS[:-1], "open"):
                patch.setattr(os, name, around(name, getattr(os, name)))
            patch.setattr(io, "open", opened)
            patch.setattr("builtins.open", opened)
            yield

    def _call(self, name: str, paths: Sequence[str], real: Callable[[], Any]) -> Any:
        inside = paths[0].removeprefix(str(self.root))
        if name == "fsync" and self.omitted and re.fullmatch(self.omitted, inside):
            return None
        self.calls.append(f"{name} {inside}")
        fault, hit = self._fault, False
        if fault is not None and (not fault.only or fault.only == name):
            self._count += 1
            hit = self._count == fault.nth
            if self._count > fault.nth and (fault.for_good or not fault.code):
                raise Killed if not fault.code else OSError(fault.code, os.strerror(fault.code), paths[0])
        if hit:
            self.fired, self.hit = True, self.calls[-1]
        if hit and fault is not None and not fault.after:
            if name == "fsync" and fault.code:
                self._node(paths[0]).fail_sync()
            self._fail(fault, paths[0])
        result = real()
        self._happened(name, paths)
        if hit and fault is not None and fault.after:
            if isinstance(result, io.IOBase):
                result.close()
            self._fail(fault, paths[0])
        return result

    def _fail(self, fault: Fault, path: str) -> None:
        raise Killed if not fault.code else OSError(fault.code, os.strerror(fault.code), path)

    # -- what the disk makes of it

    def _happened(self, name: str, paths: Sequence[str]) -> None:
        if name in LOOKS:
            return
        path = paths[0]
        if name == "fsync":
            self._node(path).sync()
        elif name in ("open", "mkdir"):
            folder, last = self._above(path)
            if last not in folder.shown:
                folder.change({last: _Node(folder=name == "mkdir")})
        elif name in ("unlink", "rmdir"):
            folder, last = self._above(path)
            folder.change({last: None})
        elif name != "write":
            self._named(name, path, paths[1])
        self.seen(f"{name} {path.removeprefix(str(self.root))}")

    def _named(self, name: str, source: str, target: str) -> None:
        (old, was), (new, now) = self._above(source), self._above(target)
        node = old.shown[was]
        if name == "link" or old is not new:
            new.change({now: node})
        if name != "link":
            old.change({was: None, **({now: node} if old is new else {})})

    def wrote(self, path: str, data: bytes) -> None:
        """Hear what was appended to a file."""
        self._node(path).data += data

    def _above(self, path: str) -> tuple[_Node, str]:
        return self._node(os.path.dirname(path)), os.path.basename(path)

    def _node(self, path: str) -> _Node:
        node = self._top
        for part in Path(path).relative_to(self.root).parts:
            node = node.shown[part]
        return node

    # -- what a power cut leaves

    def images(self, each: bool = True) -> Iterator[Image]:
        """Yield what may be left: nothing unsynced, all of it, and (`each`) all but one and one alone."""
        unsynced = list(dict.fromkeys(itertools.chain.from_iterable(n.unsynced() for n in self._nodes(self._top))))
        keeps = [frozenset[int](), frozenset(unsynced)]
        if each:
            keeps += [frozenset([one]) for one in unsynced]
            keeps += [frozenset(unsynced) - {one} for one in unsynced]
        for kept in dict.fromkeys(keeps):
            yield frozenset(self._image(self._top, kept, ""))

    def _nodes(self, node: _Node) -> Iterator[_Node]:
        yield node
        below = [n for names in [*node.forgotten, *node.pending] for n in names.values() if n is not None]
        for child in dict.fromkeys([*node.shown.values(), *node.stored.values(), *below]):
            yield from self._nodes(child)

    def _image(self, node: _Node, kept: frozenset[int], at: str) -> Iterator[tuple[str, int, bytes | None]]:
        entries = dict(node.stored)
        for names in [*node.forgotten, *node.pending]:
            if id(names) in kept:
                _apply(entries, names)
        for name, child in entries.items():
            path = f"{at}{name}"
            if child.folder:
                yield path, id(child), None
                yield from self._image(child, kept, f"{path}/")
            else:
                yield path, id(child), child.data if id(child) in kept else child.synced

    def restarted(self, image: Image) -> None:
        """Hear that an image stands in the folder now, all of it stored."""
        nodes: dict[int, _Node] = {}
        self._top = _Node(folder=True)
        for path, inode, data in sorted(image, key=lambda entry: entry[0]):
            node = nodes.setdefault(inode, _Node(data is None, data=data or b"", synced=data or b""))
            above, last = self._above(str(self.root / path))
            above.shown[last] = above.stored[last] = node


def write(root: Path, image: Image) -> None:
    """Write what an image says below a folder."""
    first: dict[int, Path] = {}
    for path, inode, data in sorted(image, key=lambda entry: entry[0]):
        place = root / path
        if data is None:
            place.mkdir()
        elif inode in first:
            os.link(first[inode], place)
        else:
            place.write_bytes(data)
        first.setdefault(inode, place)


class _File(io.FileIO):
    """A file that is being written; each write is a call of its own."""

    def __init__(self, disk: Disk, path: str, mode: str) -> None:
        super().__init__(path, mode)
        self._disk = disk
        self._path = path

    def write(self, data: Any, /) -> int:
        whole = bytes(data)

        def real() -> int:
            done = super(_File, self).write(whole) or 0
            self._disk.wrote(self._path, whole[:done])
            return done

        written: int = self._disk._call("write", [self._path], real)
        return written
