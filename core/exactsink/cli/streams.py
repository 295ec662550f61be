"""Watch a command's output: an answer that can't be written is an error, and such a log line is dropped."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from exactsink.contract import Fatal

__all__ = ["watched_streams"]


@contextmanager
def watched_streams() -> Iterator[None]:
    """Ignore write errors of the body's stderr, because a job must outlive its log's full disk or closed terminal.

    Raise Fatal if stdout can't be written, but OSError (EPIPE) if its reader has gone. Output that can't be written at
    the end is dropped, because Python would otherwise end with its own exit code (120).
    """
    before = sys.stdout, sys.stderr
    if sys.stdout is not None:  # it is None if it was closed at the start
        sys.stdout = _Stream(sys.stdout, _refuse)
    if sys.stderr is not None:
        sys.stderr = _Stream(sys.stderr, lambda error: None)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in before:
            _drop_unwritten(stream)


class _Stream:
    """A text stream that passes its write errors to `lost`."""

    def __init__(self, stream: Any, lost: Callable[[OSError], None]) -> None:
        self._stream = stream
        self._lost = lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except OSError as error:
            if text:  # a closed terminal refuses even nothing
                self._lost(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lost(error)


def _refuse(error: OSError) -> None:
    if error.errno == errno.EPIPE:
        raise error
    fix = "free space where standard output goes, then repeat the command; its effects are kept"
    raise Fatal("the answer can't be printed", why=error.strerror or str(error), next=fix) from None


def _drop_unwritten(stream: Any) -> None:
    try:
        if stream is not None:
            stream.flush()
    except OSError:
        with suppress(OSError), open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
