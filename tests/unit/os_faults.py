"""Let functions of `os` fail, or be overtaken, for a block and below one folder only: all others get the real ones."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from exactsink.contract import Mark
from exactsink.testing import Session

_STEPS = ("link", "rename", "replace", "unlink", "rmdir", "mkdir", "fsync", "stat", "lstat", "pathconf", "scandir")


@contextmanager
def around(
    root: Path, names: Sequence[str], before: Callable[[str, str], None], after: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Call `before(name, path)` and `after()` around these functions of `os`, where they act below `root`."""

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            path = path_of(args[0] if args else ".", kwargs.get("dir_fd"))
            if not f"{path}/".startswith(f"{root}/"):
                return real(*args, **kwargs)
            before(name, path)
            result = real(*args, **kwargs)
            after()
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(os, name, wrapped(name, getattr(os, name)))
        yield


def path_of(path: Any, folder: int | None) -> str:
    """Name what a function of `os` is about: a path, one below an open folder, or an open file."""
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")
    name = os.fsdecode(path)
    return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name) if folder is not None else os.path.abspath(name)


@contextmanager
def refused(root: Path, name: str, code: int) -> Iterator[None]:
    """Let a function of `os` fail below `root`."""

    def refuse(_: str, path: str) -> None:
        raise OSError(code, os.strerror(code), path)

    with around(root, [name], refuse):
        yield


class Killed(BaseException):
    """A process that ends here."""


def kill() -> None:
    raise Killed


@contextmanager
def at_step(root: Path, nth: int, action: Callable[[], object]) -> Iterator[list[int]]:
    """Run `action` before or after a system call, the `nth` such moment; the list is empty when there was none."""
    moments, ran = itertools.count(1), []

    def moment(*_: str) -> None:
        if not ran and next(moments) == nth:
            ran.append(nth)
            action()

    with around(root, _STEPS, moment, moment):
        yield ran


def each_step(run: Callable[[int], list[int]], least: int) -> None:
    """Call `run` for every moment there is; fail when there are fewer than a working backend has."""
    for nth in itertools.count(1):
        if not run(nth):
            assert nth > least
            return


def one_binds(folder: Path, then: str, session_of: Callable[[Path, str], Session]) -> None:
    """Bind a folder at each step of another journal's own try, which may die there: one of the two binds."""

    def run(nth: int) -> list[int]:
        root = folder / str(nth)
        one, two = session_of(root, "L1"), session_of(root, "L2")
        found: list[Mark] = []
        action = kill if then == "dies" else lambda: found.append(two.put_birth())
        with at_step(root, nth, action) as ran, suppress(Killed):
            found.append(one.put_birth())
        assert len({*found, two.put_birth(), one.put_birth()}) == 1
        return ran

    each_step(run, least=8)
