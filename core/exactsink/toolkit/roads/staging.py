"""The staging folder: one Arrow file per participant, on a file system or in an object store."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from exactsink.contract.errors import Fatal, Retryable
from exactsink.contract.model import Committable, InDoubt, Lost, Txn, Unknown
from exactsink.toolkit.storage.durable import DurableFile, file_sha256, file_times, remove_files, storage_errors
from exactsink.toolkit.storage.object_file import ObjectFile
from exactsink.toolkit.storage.objects import AnyPath, ObjectPath

__all__ = [
    "abort_staged",
    "damage_of",
    "drop_staged",
    "new_staged_file",
    "staged_batches",
    "staged_blocks",
    "staged_in_doubt",
    "staged_name",
    "staging_errors",
    "voted",
]

_SUFFIX = ".arrow"
_UNFINISHED = re.compile(r"(?<=\.arrow)\.[0-9a-f]{16}$")
"""The end of a file's name while HDFS gets it, under which it stays if its writer is killed."""


def staging_errors(folder: AnyPath) -> AbstractContextManager[None]:
    """Turn an error of the file system or store into an error that names the staging folder."""
    return storage_errors(folder, f"staging folder {folder} can't be read or written")


def staged_name(ref: str) -> str:
    """Return the name of a participant's staged file."""
    return ref + _SUFFIX


def new_staged_file(path: AnyPath) -> DurableFile | ObjectFile:
    """Begin a participant's staged file."""
    return ObjectFile(path) if isinstance(path, ObjectPath) else DurableFile(path)


def voted(path: AnyPath, size: int, sha256: str) -> bytes:
    """Return the payload of a vote for this file."""
    return json.dumps({"path": str(path), "size": size, "sha256": sha256}).encode()


def damage_of(folder: AnyPath, committable: Committable) -> Lost | Unknown | None:
    """Return the damage of a staged file: Lost if it is missing, Unknown if it was changed, None if it is whole.

    Raises Fatal for a vote that names a file outside the folder. Raises Retryable if the folder is missing: this
    machine may not see it, and then its files prove nothing.
    """
    path, size, sha256 = _voted_file(folder, committable)
    try:
        whole = _size(path) == size and file_sha256(path) == sha256
    except FileNotFoundError:
        if isinstance(folder, Path) and not folder.is_dir():
            raise Retryable(
                f"the staging folder {folder} does not exist here, and it may hold decided rows",
                why="somebody deleted it, or this machine does not see it",
                next=f"repeat where the folder exists; only if it was deleted: mkdir -p '{folder}'",
            ) from None
        return Lost(f"staged file {path} is gone, and no marker holds its epoch")
    return None if whole else Unknown(f"staged file {path} is not the file of the vote ({size} bytes)")


def staged_batches(folder: AnyPath, committables: Sequence[Committable]) -> Iterator[pa.RecordBatch]:
    """Read staged files one after the other. Raises FileNotFoundError for a missing file."""
    for path, _, _ in [_voted_file(folder, committable) for committable in committables]:
        try:
            with _opened(path) as source, pa.ipc.open_stream(source) as reader:
                yield from reader
        except FileNotFoundError:
            raise
        except OSError as error:
            with staging_errors(path.parent):
                raise error


def drop_staged(folder: AnyPath, committables: Iterable[Committable]) -> None:
    """Remove the files of an applied epoch, only in this folder, whatever its votes name. Idempotent."""
    remove_files(folder, [staged_name(committable.txn.id) for committable in committables])


def staged_in_doubt(folder: AnyPath, job: str, sink: str, *, everywhere: bool = True) -> Iterator[InDoubt]:
    """List the participants that have a staged file here, or an unfinished upload of one.

    `everywhere` also finds uploads that the store lists only for the whole bucket.
    """
    now, found = time.time(), dict[str, float | None]()
    if isinstance(folder, ObjectPath):  # uploads first: one that completes meanwhile is then listed as an object
        found |= {upload.name: upload.begun for upload in folder.uploads(everywhere=everywhere)}
    with suppress(FileNotFoundError):  # the folder does not exist yet
        found |= file_times(folder)
    times = {_UNFINISHED.sub("", name): written for name, written in found.items()}
    for name, written in times.items():
        txn = Txn.parse(name.removesuffix(_SUFFIX)) if name.endswith(_SUFFIX) else None
        if txn is not None and (txn.job, txn.sink) == (job, sink):
            yield InDoubt.of(txn, age_seconds=None if written is None else now - written)


def staged_blocks(folder: AnyPath, ref: str) -> list[str]:
    """Return a sentence on the space that a participant's file takes."""
    path = folder / staged_name(ref)
    try:
        size = path.info().size if isinstance(path, ObjectPath) else path.lstat().st_size
    except FileNotFoundError:
        if not isinstance(folder, ObjectPath):
            return []
        return [f"it is an unfinished upload to {path}, whose parts take space in the store; no reader waits"]
    return [f"staged file {path} takes {size:,} bytes until its epoch is applied or swept; no reader waits for it"]


def abort_staged(folder: AnyPath, refs: Iterable[str]) -> None:
    """Remove participants' files, and their unfinished uploads. Idempotent."""
    names = {staged_name(ref) for ref in refs}
    if isinstance(folder, ObjectPath) and names:
        for upload in folder.uploads():
            if upload.name in names:
                folder.abort_below(upload)
        if folder.renames:
            names |= {name for name in folder.names() if _UNFINISHED.sub("", name) in names}
    remove_files(folder, names)


def _voted_file(folder: AnyPath, committable: Committable) -> tuple[AnyPath, int, str]:
    """Return a staged file's path, with its voted size and SHA-256. Raises Fatal if the vote names another place."""
    path = folder / staged_name(committable.txn.id)
    try:
        vote = json.loads(committable.payload)
        said, size, sha256 = vote["path"], vote["size"], vote["sha256"]
        known = type(said) is str and type(size) is int and type(sha256) is str
    except (ValueError, TypeError, KeyError):
        said, known = committable.payload[:200], False
    if not known or not _is_named(path, said):
        raise Fatal(
            f"the vote of {committable.txn.id} names {said!r}, and its staged file is {path}",
            why="exactsink reads and removes nothing outside the staging folder",
            next="if [job] staging was changed later, set it back, `exactsink recover JOB.toml`, then change it; if "
            "not, somebody changed the journal: restore it from a copy",
        )
    return path, size, sha256


def _is_named(path: AnyPath, said: str) -> bool:
    """Return whether a vote names this file, perhaps by another local path to its folder."""
    if said == str(path) or isinstance(path, ObjectPath):
        return said == str(path)
    folder, name = os.path.split(said)
    return name == path.name and "\0" not in said and os.path.realpath(folder) == os.path.realpath(path.parent)


def _size(path: AnyPath) -> int | None:
    """Return a file's size; None for a path that is not a regular file, for example a link."""
    if isinstance(path, ObjectPath):
        return path.info().size
    found = path.lstat()
    return found.st_size if stat.S_ISREG(found.st_mode) else None


@contextmanager
def _opened(path: AnyPath) -> Iterator[pa.NativeFile]:
    if isinstance(path, Path):
        with pa.memory_map(str(path)) as source:
            yield source
        return
    with path.reading() as file, pa.PythonFile(file, mode="r") as source:
        yield source
