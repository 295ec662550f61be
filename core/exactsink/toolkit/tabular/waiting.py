"""Files of a table that wait for the commit that lists them: their owners, and whether they are complete."""

from __future__ import annotations

import errno
import time
from collections.abc import Collection, Iterable
from itertools import count, takewhile

from exactsink.contract import InDoubt, Lost, Txn, Unknown
from exactsink.toolkit.storage import (
    AnyPath,
    ObjectPath,
    file_names,
    file_times,
    new_file,
    path_of,
    remove_files,
    sync_folders,
)

__all__ = ["damage", "forget", "put_record", "remove_waiting", "size_of", "waiting"]


def waiting(records: AnyPath, job: str, sink: str) -> list[InDoubt]:
    """List the participants of a sink that have a record in this folder, with its age."""
    listed = list(file_times(records)) if records.exists() else []
    now = time.time()
    known = [(Txn.parse(name), now - (written or now)) for name, written in listed]
    return [InDoubt.of(t, age_seconds=age) for t, age in known if t is not None and (t.job, t.sink) == (job, sink)]


def put_record(path: AnyPath, files: Iterable[AnyPath] = ()) -> None:
    """Write a record of files that will be written. A participant has one without files, and then `ID.0`, `ID.1` ..."""
    text = "\n".join(map(str, files)).encode()
    if isinstance(path, ObjectPath):
        path.create(text)
        return
    with new_file(path) as file:
        file.write(text)


def remove_waiting(records: AnyPath, id: str) -> None:
    """Remove a participant's files, from the last record to the first so that no gap appears, and then its own record.

    Idempotent. It also aborts the upload of a large object, which a killed writer leaves.
    """
    named = list(takewhile(lambda record: record.exists(), (records / f"{id}.{number}" for number in count())))
    for record in reversed(named):
        for path in map(path_of, filter(None, record.read_text().split("\n"))):
            if isinstance(path, ObjectPath):
                for upload in path.parent.uploads():
                    if upload.name == path.name:
                        path.parent.abort_below(upload)
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:  # such a file was refused: the record is all there is
                    raise
        record.unlink(missing_ok=True)
    (records / id).unlink(missing_ok=True)


def forget(records: AnyPath, ids: Collection[str]) -> None:
    """Remove the records of committed participants, durably, because a sweep may take files with a record.

    A participant's own record goes last. Idempotent.
    """
    listed = [name for name in file_names(records) if name.rpartition(".")[0] in ids] if ids else []
    remove_files(records, [*listed, *ids])
    sync_folders([records])


def damage(voted: Iterable[tuple[AnyPath, int]], *, below: bool) -> Lost | Unknown | None:
    """Return how files differ from their voted sizes in bytes, None if they don't. They are committed as a whole.

    They are Lost if files are missing and the mark, which the journal knows, is of an earlier epoch (`below`).
    """
    lost, changed = list[str](), list[str]()
    for path, wanted in voted:
        try:
            if (size := size_of(path)) != wanted:
                changed.append(f"{path} has {size} bytes, and was voted with {wanted}")
        except FileNotFoundError:
            lost.append(f"{path} is gone")
    if not lost and not changed:
        return None
    return (Lost if below and not changed else Unknown)("; ".join((changed + lost)[:3]))


def size_of(path: AnyPath) -> int:
    """Return a file's size in bytes. Raises FileNotFoundError."""
    return path.info().size if isinstance(path, ObjectPath) else path.stat().st_size
