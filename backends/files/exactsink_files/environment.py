"""What an OSError at the target means for the caller: mend something first, or just try again."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from exactsink.errors import ExactsinkError, Fatal, Retryable

__all__ = ["explain", "explained"]

_RIGHTS = "let driver and executors run as one user, or give their group the right to read and write below {root}"
_IN_THE_WAY = "move away what is no folder there, or set another path"
_NAMES = "use shorter names: a shorter path, or partition columns with shorter values"
_FEWER = 'raise `ulimit -n`, or set distribution = "hash(<partition columns>)": each value is one open file of a task'

_MEND = {
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: "mount the file system of {root} writable, or set another path",
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EISDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.ENAMETOOLONG: _NAMES,
    errno.ELOOP: "mend the circle of symlinks, or set another path",
    errno.EXDEV: "keep all folders below {root} on one file system: no mount point, no symlink to another disk",
    errno.EMFILE: _FEWER,
}
_AGAIN = {
    errno.ENOSPC: "make room in the file system of {root}; the same work is then tried again",
    errno.EDQUOT: "raise the disk quota below {root}; the same work is then tried again",
    errno.ENOENT: "start the job again: an attempt whose folder was swept, or removed by hand, can't go on",
}


def explain(error: OSError, root: str) -> ExactsinkError:
    """Turn an OSError into the error that says what comes next."""
    what = f"the target can't be written: {error.filename or root}"
    why = error.strerror or str(error)
    code = _code(error)
    if code in _MEND:
        return Fatal(what, why=why, next=_MEND[code].format(root=root))
    again = _AGAIN.get(
        code, "nothing is lost: start the job again; if it comes back, look at the file system of {root}"
    )
    return Retryable(what, why=why, next=again.format(root=root))


@contextmanager
def explained(root: str) -> Iterator[None]:
    """Let no raw OSError out of the block."""
    try:
        yield
    except OSError as error:
        raise explain(error, root) from error


def _code(error: OSError) -> int:
    """Give the errno, also of an error that was raised by its class alone."""
    if error.errno is not None:
        return error.errno
    return errno.ENOTDIR if isinstance(error, NotADirectoryError) else 0
