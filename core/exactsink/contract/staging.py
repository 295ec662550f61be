"""The staging folder: the rows of each participant in an Arrow file, on a file system or in an object store."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from exactsink.contract.durable import DurableFile, file_sha256, file_times, remove_files, storage_errors
from exactsink.contract.model import Committable, InDoubt, Lost, Txn, Unknown
from exactsink.contract.object_file import ObjectFile
from exactsink.contract.objects import AnyPath, ObjectPath, path_of

__all__ = [
    "abort_staged",
    "damage_of",
    "drop_staged",
    "new_staged_file",
    "staged_batches",
    "staged_in_doubt",
    "staged_name",
    "staging_errors",
    "voted",
]

_SUFFIX = ".arrow"


def staging_errors(folder: AnyPath) -> AbstractContextManager[None]:
    """Raise what the system, or the store, says of the staging folder."""
    return storage_errors(folder, f"staging folder {folder} can't be read or written")


def staged_name(ref: str) -> str:
    """Return the name of a participant's file."""
    return ref + _SUFFIX


def new_staged_file(path: AnyPath) -> DurableFile | ObjectFile:
    """Begin a participant's file."""
    return ObjectFile(path) if isinstance(path, ObjectPath) else DurableFile(path)


def voted(path: AnyPath, size: int, sha256: str) -> bytes:
    """Return what a vote says of its file."""
    return json.dumps({"path": str(path), "size": size, "sha256": sha256}).encode()


def damage_of(folder: AnyPath, committable: Committable) -> Lost | Unknown | None:
    """Return what is wrong with a staged file: Lost for one that is gone, Unknown for one that was changed."""
    vote, path = json.loads(committable.payload), _path(folder, committable)
    try:
        size = path.info().size if isinstance(path, ObjectPath) else path.stat().st_size
        whole = size == vote["size"] and file_sha256(path) == vote["sha256"]
    except FileNotFoundError:
        return Lost(f"staged file {path} is gone, and no marker holds its epoch")
    return None if whole else Unknown(f"staged file {path} is not what was voted ({vote['size']} bytes)")


def staged_batches(folder: AnyPath, committables: Sequence[Committable]) -> Iterator[pa.RecordBatch]:
    """Read staged files one after the other. Raises FileNotFoundError for one that is gone."""
    for path in [_path(folder, committable) for committable in committables]:
        try:
            with _opened(path) as source, pa.ipc.open_stream(source) as reader:
                yield from reader
        except FileNotFoundError:
            raise
        except OSError as error:
            with staging_errors(path.parent):
                raise error


def drop_staged(folder: AnyPath, committables: Iterable[Committable]) -> None:
    """Remove the files of a set that is applied. Idempotent."""
    paths = [_path(folder, committable) for committable in committables]
    for place in dict.fromkeys(path.parent for path in paths):
        remove_files(place, [path.name for path in paths if path.parent == place])


def staged_in_doubt(folder: AnyPath, job: str, sink: str, *, everywhere: bool = True) -> Iterator[InDoubt]:
    """List the participants that have a file here, or an upload of one that nobody finished.

    `everywhere`: also where the store finds uploads only by looking through the whole bucket.
    """
    now, found = time.time(), dict[str, float | None]()
    if isinstance(folder, ObjectPath):  # uploads first: one that is completed meanwhile is listed as an object then
        found |= {upload.name: upload.begun for upload in folder.uploads(everywhere=everywhere)}
    with suppress(FileNotFoundError):  # no folder yet
        found |= file_times(folder)
    for name, written in found.items():
        txn = Txn.parse(name.removesuffix(_SUFFIX)) if name.endswith(_SUFFIX) else None
        if txn is not None and (txn.job, txn.sink) == (job, sink):
            yield InDoubt.of(txn, age_seconds=None if written is None else now - written)


def abort_staged(folder: AnyPath, refs: Iterable[str]) -> None:
    """Remove participants' files, and their unfinished uploads. Idempotent."""
    names = {staged_name(ref) for ref in refs}
    if isinstance(folder, ObjectPath) and names:
        for upload in folder.uploads():
            if upload.name in names:
                folder.abort_below(upload)
    remove_files(folder, names)


def _path(folder: AnyPath, committable: Committable) -> AnyPath:
    """Return where a file stands: in the folder, unless the config named another one when it was staged.

    The folder's own file system is used where it can be: fsspec makes one for each thread, with new connections.
    """
    text = json.loads(committable.payload)["path"]
    beside = isinstance(folder, ObjectPath) and text.rpartition("/")[0] == folder.url
    return folder / text.rpartition("/")[2] if beside else path_of(text)


@contextmanager
def _opened(path: AnyPath) -> Iterator[pa.NativeFile]:
    if isinstance(path, Path):
        with pa.memory_map(str(path)) as source:
            yield source
        return
    with path.reading() as file, pa.PythonFile(file, mode="r") as source:
        yield source
