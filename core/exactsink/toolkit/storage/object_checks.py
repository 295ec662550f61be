"""Whether a store can hold what a job's promise rests on: its journal, its marks, its staged rows."""

from __future__ import annotations

from collections.abc import Iterator

from exactsink.contract.errors import Fatal
from exactsink.contract.model import Finding
from exactsink.toolkit.storage.durable import storage_errors
from exactsink.toolkit.storage.objects import ObjectPath

__all__ = ["refused_store", "store_findings"]

_PROVEN = frozenset({"s3", "abfs", "gs", "webhdfs"})


def refused_store(scheme: str) -> str:
    """Return why no promise can rest on this kind of store; empty where one can."""
    if scheme in _PROVEN:
        return ""
    return "it is not known to refuse a create of an existing name, for all writers at once"


def store_findings(folder: ObjectPath, what: str, fix: str, *, large: bool = False) -> Iterator[Finding]:
    """Try it below the folder, with a tiny object that is removed again; `fix` is the way out.

    `large`: of some objects that will be kept there a part is sent at a time.

    Raises Retryable where the store does not answer.
    """
    if why := refused_store(folder.scheme):
        yield Finding("error", f"{what} can't be kept on {folder.scheme}: {why}", fix)
        return
    try:
        with storage_errors(folder, f"{what} can't be written to {folder}"):
            why = folder.why_no_creates()
            if large and not why and folder.scheme == "s3":
                folder.try_uploads()
    except Fatal as refused:
        yield Finding("error", f"{refused.what}: {refused.why}", refused.next)
        return
    if why:
        yield Finding("error", f"{what} can't be kept in {folder}: {why}", fix)
