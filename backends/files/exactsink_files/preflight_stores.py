"""Checks of a bucket before the first row: rights, conditional writes, and how long uploads stay.

They make every call for real, with tiny objects below `_exactsink/`, and remove these again.
"""

from __future__ import annotations

import errno
import secrets
from collections.abc import Iterator

from exactsink.contract import Finding, JobContext
from exactsink_files.places import refusal
from exactsink_files.stores import Store
from exactsink_files.votes import Part

__all__ = ["store_problems"]


def store_problems(own: Store, root: str, ctx: JobContext) -> Iterator[Finding]:
    """Check that the store has all that a commit needs. `own`: the store below the target's `_exactsink`."""
    tried = own.key(f"try-{secrets.token_hex(8)}")
    try:
        if lack := own.root.why_no_creates():
            yield Finding("error", f"{root}: {lack.why}", lack.fix)
        try:
            yield from dict.fromkeys(_upload_problems(own, root, tried))  # one lack may show twice
        finally:
            own.delete([tried])
        yield from own.limits(root, ctx)
    except OSError as error:
        yield _refused(own, error, root)


def _upload_problems(own: Store, root: str, tried: str) -> Iterator[Finding]:
    """Abort an upload, and complete one; list uploads as a sweep does, by name and in the whole bucket."""
    for completed in (False, True):
        upload = own.create(tried, {})
        try:
            part = own.put_part(tried, upload, 1, b"tried")
            if own.head(tried) is not None:
                yield _lacks(own, root, "shows an upload before it is completed", "hides unfinished uploads")
            elif completed:
                _complete(own, tried, upload, part)
            else:
                own.unfinished(everywhere=True)
                next(own.uploads(""), None)
                if own.parts(tried, upload) != [part]:
                    yield _lacks(own, root, "does not list an upload's parts", "lists the parts of an upload")
        finally:
            own.abort(tried, upload)
        if own.parts(tried, upload) is not None:
            yield _lacks(own, root, "keeps an upload that was aborted", "drops aborted uploads")


def _lacks(own: Store, root: str, what: str, wanted: str) -> Finding:
    return Finding("error", f"{root}: the store {what}", own.root.instead(f"that {wanted}"))


def _complete(own: Store, tried: str, upload: str, part: Part) -> None:
    """Complete an upload, also if its answer was lost: some servers refuse the repeat."""
    try:
        own.complete(tried, upload, [part], {})
    except OSError as error:
        if not own.proves(error) or own.head(tried) is None:
            raise


def _refused(own: Store, error: OSError, root: str) -> Finding:
    """Return the finding for a refusal by the store. Raises Retryable if the store can't answer now."""
    fixes = {errno.ENODEV: "make the bucket, or set another path", errno.ENOSYS: own.root.instead("that has this call")}
    return refusal(error, root, fixes.get(error.errno or 0) or own.refused(error, root), _operation(error))


def _operation(error: BaseException | None) -> str:
    """Return the name of the refused call, if the store's library reports it."""
    while error is not None:
        if name := getattr(error, "operation_name", ""):
            return f"{name}: "
        error = error.__cause__
    return ""
