"""Ask several stores side by side, each for a bounded time. One that hangs delays neither the others nor the end."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from exactsink.contract import ExactsinkError, Fatal

__all__ = ["ask_all", "exit_though_asking"]

_NAME = "exactsink-ask"


def ask_all(calls: Mapping[str, Callable[[], Any]], seconds: float) -> Mapping[str, Any]:
    """Run each call in a daemon thread of its own; return its result, or its error as one of ours, by name.

    A call that has not ended in time has no entry, and its thread is left to itself.
    """
    answers: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    for name, call in calls.items():
        threading.Thread(target=_ask, args=(name, call, answers), name=f"{_NAME} {name}", daemon=True).start()
    until = time.monotonic() + seconds
    found: dict[str, Any] = {}
    while len(found) < len(calls):
        try:
            name, answer = answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        found[name] = answer
    return found


def exit_though_asking(code: int) -> None:
    """End this process at once if a call is still left to itself: the interpreter would wait for threads that it has.

    Such a call only reads. Returns where there is none.
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
        answers.put((name, Fatal(f"{name} can't be asked", why=why, next="ask its backend's author; see the log")))
