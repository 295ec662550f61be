"""Files of a table that wait for the commit that lists them: their owners, and whether they are complete."""

from __future__ import annotations

import time
from collections.abc import Iterable

from exactsink.contract import InDoubt, Lost, Txn, Unknown
from exactsink.toolkit.storage import AnyPath, ObjectPath, file_times

__all__ = ["damage", "size_of", "waiting"]


def waiting(records: AnyPath, job: str, sink: str) -> list[InDoubt]:
    """List the participants of a sink that have a record in this folder, with its age."""
    listed = list(file_times(records)) if records.exists() else []
    now = time.time()
    known = [(Txn.parse(name), now - (written or now)) for name, written in listed]
    return [InDoubt.of(t, age_seconds=age) for t, age in known if t is not None and (t.job, t.sink) == (job, sink)]


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
