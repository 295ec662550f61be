"""Check that a store can hold the data that a job's promise depends on: journal, marks and staged rows."""

from __future__ import annotations

from collections.abc import Iterator

from exactsink.contract.errors import Fatal
from exactsink.contract.model import Finding
from exactsink.toolkit.storage.durable import storage_errors
from exactsink.toolkit.storage.objects import ObjectPath

__all__ = ["refused_store", "store_findings"]

_PROVEN = frozenset({"s3", "abfs", "gs", "webhdfs"})


def refused_store(scheme: str) -> str:
    """Return why this kind of store can't keep the promise; empty if it can."""
    if scheme in _PROVEN:
        return ""
    return "it is not known to refuse a create of an existing name, for all writers at once"


def store_findings(folder: ObjectPath, what: str, fix: str, *, large: bool = False) -> Iterator[Finding]:
    """Try the store with a tiny object below the folder, which is removed again. `fix` solves a problem that it finds.

    `large` says that some objects there will be uploaded in parts.

    Raises Retryable if the store does not answer.
    """
    if why := refused_store(folder.scheme):
        yield Finding("error", f"{what} can't be kept on {folder.scheme}: {why}", fix)
        return
    try:
        with storage_errors(folder, f"{what} can't be written to {folder}"):
            lack = folder.why_no_creates()
            if large and lack is None and folder.scheme == "s3":
                folder.try_uploads()
    except Fatal as refused:
        yield Finding("error", f"{refused.what}: {refused.why}", refused.next)
        return
    if lack is not None:
        yield Finding("error", f"{what} can't be kept in {folder}: {lack.why}", f"{lack.fix}; or {fix}")
