"""Drive the `files` backend through its public contract, and let a step of the file system fail or be overtaken.

What is patched is patched for a block, and acts below one folder of the test only: whatever else runs meanwhile,
pytest for one, gets the real function.
"""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from exactsink.contract import Committable, JobContext, Txn
from exactsink_files.backend import FilesBackend, FilesOptions

MINE = JobContext(job="job", sink="sink", staging="")
COLUMNS = {"id": pa.int64(), "name": pa.string()}
SCHEMA = pa.schema(COLUMNS)
VALUE = pa.schema({"value": pa.string()})
STEPS = ("link", "rename", "unlink", "rmdir", "mkdir", "fsync", "stat", "lstat", "pathconf", "scandir")


def a_txn(attempt: int = 0, job: str = "job", sink: str = "sink") -> Txn:
    return Txn(job=job, epoch=7, sink=sink, generation=3, token="ab12", partition=attempt, attempt=attempt)


def a_backend(root: Path, **options: Any) -> FilesBackend:
    return FilesBackend(FilesOptions(path=str(root), **options))


def batches(*rows: Sequence[Any], schema: pa.Schema = SCHEMA, size: int = 2) -> list[pa.RecordBatch]:
    columns = list(zip(*rows, strict=True))
    whole = pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
    return [whole.slice(start, size) for start in range(0, len(rows), size)]


def open_epoch(backend: FilesBackend, schema: pa.Schema = SCHEMA) -> bytes:
    return backend.committer(MINE).open_epoch(7, schema, None)


def vote(backend: FilesBackend, parts: list[pa.RecordBatch], txn: Txn | None = None) -> Committable:
    """Open the epoch, write and pre-commit; the committable travels, so it is pickled on the way."""
    writer = backend.writer(txn or a_txn(), parts[0].schema, open_epoch(backend, parts[0].schema))
    for part in parts:
        writer.write(part)
    return pickle.loads(pickle.dumps(writer.pre_commit()))


def commit(backend: FilesBackend, *voted: Committable) -> Sequence[Any]:
    return backend.committer(MINE).commit(7, voted)


def visible(root: Path) -> list[Path]:
    """List what a reader sees."""
    return sorted(p for p in root.rglob("*") if p.is_file() and "_exactsink" not in p.relative_to(root).parts)


def temps(root: Path) -> list[str]:
    return sorted(os.listdir(root / "_exactsink"))


def json_votes(root: Path, count: int = 2) -> tuple[FilesBackend, list[Committable]]:
    """Vote with `count` participants of two files each, in partition folders that do not exist yet."""
    backend = a_backend(root, format="json", partition_by=["day"])
    schema = pa.schema({"value": pa.string(), "day": pa.int32()})
    rows = [[(f'{{"n":{n},"k":{k}}}', k) for k in (1, 2)] for n in range(count)]
    return backend, [vote(backend, batches(*part, schema=schema), a_txn(n)) for n, part in enumerate(rows)]


def assert_all_committed(root: Path, count: int = 2) -> None:
    lines = [(p.parent.name, line) for p in visible(root) for line in p.read_text().splitlines()]
    assert sorted(lines) == sorted((f"day={k}", f'{{"n":{n},"k":{k}}}') for n in range(count) for k in (1, 2))
    assert temps(root) == []


@contextmanager
def around(
    root: Path, names: Sequence[str], before: Callable[[str, str], None], after: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Call `before(name, path)` and `after()` around these functions of `os`, where they act below `root`."""

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            path = _path(args[0] if args else ".", kwargs.get("dir_fd"))
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


def _path(path: Any, folder: int | None) -> str:
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
    """Run `action` before or after a system call, the `nth` such moment; give a list that reports whether it ran."""
    moments, ran = itertools.count(1), []

    def moment(*_: str) -> None:
        if not ran and next(moments) == nth:
            ran.append(nth)
            action()

    with around(root, STEPS, moment, moment):
        yield ran


def each_step(run: Callable[[int], list[int]], least: int) -> None:
    """Call `run` for every moment there is; fail when there are fewer than a working backend has."""
    for nth in itertools.count(1):
        if not run(nth):
            assert nth > least
            return
