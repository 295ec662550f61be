"""Query several stores in parallel, each for a bounded time. A store that hangs delays neither the others nor the end.

Only time that this process spends waiting counts. While its threads run, or wait for a processor, the machine is slow
and not a store; that time is not counted, up to a bound.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from exactsink.contract import ExactsinkError, Fatal, Retryable

__all__ = ["ask_all", "exit_though_asking"]

_NAME = "exactsink-ask"
_STEP = 0.1
_BUSY = 4
"""By how much a busy machine may extend the time, at most."""


def ask_all(calls: Mapping[str, Callable[[], Any]], seconds: float) -> Mapping[str, Any]:
    """Run each call in its own daemon thread. Return its result, or its error as one of exactsink's, by name.

    A call that has not ended after that time has no entry, and its thread is abandoned. If the machine was too busy to
    wait that long, its entry is a Retryable that says so.
    """
    answers: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    for name, call in calls.items():
        threading.Thread(target=_ask, args=(name, call, answers), name=f"{_NAME} {name}", daemon=True).start()
    began, left, busy = time.monotonic(), seconds, _busy_seconds()
    found: dict[str, Any] = {}
    while len(found) < len(calls) and left > 0:
        step = time.monotonic()
        if step > began + _BUSY * seconds:
            return {name: _too_busy(name) for name in calls} | found
        asked = min(_STEP, left)
        with suppress(queue.Empty):
            name, answer = answers.get(timeout=asked)
            found[name] = answer
        before, busy = busy, _busy_seconds()
        waited = time.monotonic() - step - max(0.0, busy - before)
        left -= min(max(0.0, waited), asked)  # a process that was stopped, or got no processor, wakes up later
    return found


def _busy_seconds() -> float:
    """Return how long this process's threads have run or, if the system reports it, have waited for a processor."""
    spent = 0
    for thread in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError):  # the thread has ended
            ran, waited, _ = thread.read_text().split()
            spent += int(ran) + int(waited)
    return spent / 1e9 or time.process_time()


def _too_busy(name: str) -> Retryable:
    why = "other work keeps its processors busy, so exactsink can't know whether the store answers"
    fix = "run the command again when the machine has less to do"
    return Retryable(f"{name}: this machine is too busy to query it", why=why, next=fix)


def exit_though_asking(code: int) -> None:
    """End this process at once if a call was abandoned, because the interpreter would wait for its threads.

    Such a call only reads. Returns if there is none.
    """
    if any(thread.name.startswith(_NAME) for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _ask(name: str, call: Callable[[], Any], answers: queue.SimpleQueue[tuple[str, Any]]) -> None:
    try:
        answers.put((name, call()))
    except ExactsinkError as error:
        answers.put((name, error))
    except Exception as error:  # a plugin's bug hides no other sink
        why = f"{type(error).__name__}: {error}"
        answers.put((name, Fatal(f"{name} can't be queried", why=why, next="report it to its backend's author")))
