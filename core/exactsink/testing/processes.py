"""Processes of a scenario: forks of a process without threads, and fresh interpreters that share no memory with it."""

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
"""The value of `ended` for a killed process."""

_TRIES = 50
_Answer = TypeVar("_Answer")


def start(work: Callable[[], int]) -> int:
    """Fork a process that ends with `work`'s exit code, or with EXIT_BUG for an exception. Return its id."""
    pid = os.fork()
    if pid == 0:
        code = EXIT_BUG
        try:
            code = work()
        except BaseException:  # a bug ends the process, and its exit code shows it
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return pid


def at_once(*works: Callable[[], None]) -> list[int]:
    """Run these in processes that begin at one moment, each again while it raises Retryable.

    Return their exit codes.
    """
    waiting, opened = os.pipe()

    def begin(work: Callable[[], None]) -> int:
        os.close(opened)
        os.read(waiting, 1)
        for _ in range(_TRIES):
            try:
                work()
            except Retryable:  # another process is at it
                continue
            return 0
        return 1

    pids = [start(partial(begin, work)) for work in works]
    os.close(waiting)
    os.close(opened)  # the processes start now, because the pipe has no writer left
    return [ended(pid) for pid in pids]


def ended(pid: int) -> int:
    """Wait for a child's end. Return its exit code, or its signal as a negative number."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def stopped_or_ended(pid: int) -> int | None:
    """Wait until a child is stopped or has ended. Return None if it is stopped, otherwise its exit code."""
    status = os.waitpid(pid, os.WUNTRACED)[1]
    return None if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)


def wake(pid: int) -> None:
    """Wake a stopped process, which may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def wait_gone(pid: int) -> None:
    """Wait for the end of a process that may be another process's child."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            select.select([handle], [], [])
        finally:
            os.close(handle)


def ask(work: Callable[[], _Answer]) -> _Answer:
    """Call `work` in a forked process, and return or raise its result. Its connections end with the process."""
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
        raise RuntimeError(f"a forked process ended {code} without an answer")
    return _unpacked(data)  # type: ignore[no-any-return]


def ask_fresh_process(work: Callable[[], _Answer]) -> _Answer:
    """Call `work`, which must pickle, in a fresh interpreter, which has only the objects in the pickle."""
    with FreshProcess(work) as process:
        return process.answer()


class FreshProcess(AbstractContextManager["FreshProcess[_Answer]"], Generic[_Answer]):
    """A fresh interpreter that runs `work`, which must pickle. The `with` block ends it, and all its forks."""

    def __init__(self, work: Callable[[], _Answer]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._place = Path(self._folder.name, "answer")
        command = [sys.executable, "-m", "exactsink.testing.fresh_process"]
        self._popen = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        assert self._popen.stdin is not None
        with self._popen.stdin as asked, suppress(BrokenPipeError):
            asked.write(pickle.dumps(sys.path) + pickle.dumps((work, str(self._place))))

    def answer(self) -> _Answer:
        """Wait for the result of `work`, and return or raise it."""
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
    """Run the fresh interpreter: read `work` from a stream, call it, write the answer."""
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
        except Exception:  # an exception that does not pickle
            data = pickle.dumps((False, RuntimeError(repr(error))))
        return data


def _unpacked(data: bytes) -> Any:
    well, answer = pickle.loads(data)
    return answer if well else _raise(answer)


def _raise(error: BaseException) -> NoReturn:
    raise error
