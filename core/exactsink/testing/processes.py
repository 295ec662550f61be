"""Processes of a scenario: forked ones, from a process without threads, and fresh ones that share no memory with it."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from exactsink.contract import EXIT_BUG, Retryable

__all__ = [
    "KILLED",
    "FreshProcess",
    "ask",
    "ask_fresh_process",
    "at_once",
    "ended",
    "start",
    "stopped_or_ended",
    "wait_gone",
    "wake",
]

KILLED = -signal.SIGKILL
"""How a process ends that was killed, in `ended`'s words."""

_TRIES = 50
_Answer = TypeVar("_Answer")


def start(work: Callable[[], int]) -> int:
    """Fork a process that ends with `work`'s exit code, or EXIT_BUG for an exception; give its id."""
    pid = os.fork()
    if pid == 0:
        code = EXIT_BUG
        try:
            code = work()
        except BaseException:  # a bug ends the process, and shows in its exit code
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return pid


def at_once(*works: Callable[[], None]) -> list[int]:
    """Do these in processes that begin at one moment, each again while it raises Retryable; return their exit codes."""
    waiting, opened = os.pipe()

    def begin(work: Callable[[], None]) -> int:
        os.close(opened)
        os.read(waiting, 1)
        for _ in range(_TRIES):
            try:
                work()
            except Retryable:  # another one is at it
                continue
            return 0
        return 1

    pids = [start(partial(begin, work)) for work in works]
    os.close(waiting)
    os.close(opened)  # the condition: the pipe has no writer any more
    return [ended(pid) for pid in pids]


def ended(pid: int) -> int:
    """Wait for a child's end and give its exit code, a signal as its negative number."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def stopped_or_ended(pid: int) -> int | None:
    """Wait until a child is stopped, then None, or has ended, then its exit code."""
    status = os.waitpid(pid, os.WUNTRACED)[1]
    return None if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)


def wake(pid: int) -> None:
    """Let a stopped process go on; it may be gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def wait_gone(pid: int) -> None:
    """Wait for the end of a process that may be somebody else's child."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            select.select([handle], [], [])
        finally:
            os.close(handle)


def ask(work: Callable[[], _Answer]) -> _Answer:
    """Do `work` in a forked process and give what it gives; raise what it raises. Its connections end with it."""
    reading, writing = os.pipe()

    def answer() -> int:
        os.close(reading)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(_answered(work))
        return 0

    pid = start(answer)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    code = ended(pid)
    if not data:
        raise RuntimeError(f"a process that was asked ended {code} without an answer")
    return _unpacked(data)  # type: ignore[no-any-return]


def ask_fresh_process(work: Callable[[], _Answer]) -> _Answer:
    """Do `work`, which must pickle, in a fresh interpreter: what it needs is in the pickle, or it is not there."""
    with FreshProcess(work) as process:
        return process.answer()


class FreshProcess(AbstractContextManager["FreshProcess[_Answer]"], Generic[_Answer]):
    """A fresh interpreter at `work`, which must pickle. At the end of the `with` it is gone, and all that it forked."""

    def __init__(self, work: Callable[[], _Answer]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._place = Path(self._folder.name, "answer")
        command = [sys.executable, "-m", "exactsink.testing.fresh_process"]
        self._popen = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        assert self._popen.stdin is not None
        with self._popen.stdin as asked, suppress(BrokenPipeError):
            asked.write(pickle.dumps(sys.path) + pickle.dumps((work, str(self._place))))

    def answer(self) -> _Answer:
        """Wait for what `work` gives; raise what it raises."""
        code = self._popen.wait()
        if not self._place.exists():
            raise RuntimeError(f"a fresh interpreter ended {code} without an answer")
        return _unpacked(self._place.read_bytes())  # type: ignore[no-any-return]

    def __exit__(self, *error: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        self._folder.cleanup()


def answer_in_fresh_process(asked: Any) -> None:
    """Be the fresh interpreter: read the work from a stream, do it, leave the answer."""
    sys.path[:] = pickle.load(asked)
    work, place = pickle.load(asked)
    Path(place).write_bytes(_answered(work))


def _answered(work: Callable[[], object]) -> bytes:
    try:
        return pickle.dumps((True, work()))
    except Exception as error:
        traceback.print_exc()
        try:
            data = pickle.dumps((False, error))
            pickle.loads(data)
        except Exception:  # somebody's exception that does not pickle
            data = pickle.dumps((False, RuntimeError(repr(error))))
        return data


def _unpacked(data: bytes) -> Any:
    well, answer = pickle.loads(data)
    return answer if well else _raise(answer)


def _raise(error: BaseException) -> NoReturn:
    raise error
