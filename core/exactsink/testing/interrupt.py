"""Faults inside a committer's call: kill or stop the process at a counted moment, or lose the answer."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TypeVar

from exactsink.contract import Backend, Committable, Committer, JobContext, Outcome, Retryable, Standing, Undecided
from exactsink.testing.wrapped import WrappedBackend, WrappedCommitter

__all__ = ["AnswerLost", "Interrupted", "Interruption"]

_Result = TypeVar("_Result")
_INSIDE = frozenset({"builtins", "sys", "itertools", "_functools", "_operator", "_json", "_hashlib", "re", "time"})
"""Modules of C functions that have no effect outside the process."""


@dataclass(frozen=True, slots=True)
class Interruption:
    """Kill (SIGKILL) or stall (SIGSTOP) the process inside its calls of `commit`, `abort` or `assess`.

    `moments` maps the n-th call (from 0) to a moment in it; other calls are left alone. A moment is the return of a
    Python function, or of a C function that may have an effect outside the process. A call with fewer moments is
    interrupted at its very end, before the caller has the answer. `folder` gets a mark for each interruption that fired
    and, with the action "count", the number of moments of each call.
    """

    call: Literal["commit", "abort", "assess"]
    action: Literal["kill", "stall", "count"]
    folder: Path
    moments: Mapping[int, int] = field(default_factory=dict)

    def mark(self, number: int) -> Path:
        return self.folder / f"{self.call}-{number}.{self.action}"

    def run(self, number: int, real: Callable[[], _Result]) -> _Result:
        """Make the call, and interrupt it if `moments` names it."""
        counting = self.action == "count"
        if not counting and (number not in self.moments or self.mark(number).exists()):
            return real()
        counter = _Counter(None if counting else self.moments[number], lambda: self._fire(number))
        sys.setprofile(counter)
        try:
            return real()
        finally:
            sys.setprofile(None)
            if counting:
                self.mark(number).write_text(str(counter.seen))
            elif not counter.fired:
                self._fire(number)

    def _fire(self, number: int) -> None:
        self.mark(number).touch()
        os.kill(os.getpid(), signal.SIGKILL if self.action == "kill" else signal.SIGSTOP)


class Interrupted(WrappedBackend):
    """A backend whose committers are interrupted."""

    def __init__(self, real: Backend, interruption: Interruption) -> None:
        super().__init__(real)
        self._interruption = interruption

    def committer(self, ctx: JobContext) -> Committer:
        return _InterruptedCommitter(super().committer(ctx), self._interruption)


class AnswerLost(WrappedBackend):
    """A backend whose committers do their work, and then lose the answer, once for every epoch."""

    def __init__(self, real: Backend, folder: Path) -> None:
        super().__init__(real)
        self._folder = folder

    def mark(self, epoch: int) -> Path:
        return self._folder / f"answer-{epoch}.lost"

    def committer(self, ctx: JobContext) -> Committer:
        return _AnswerLostCommitter(super().committer(ctx), self.mark)


class _InterruptedCommitter(WrappedCommitter):
    def __init__(self, real: Committer, interruption: Interruption) -> None:
        super().__init__(real)
        self._interruption = interruption
        self._aborts = 0

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        if self._interruption.call != "commit":
            return super().commit(epoch, committables)
        return self._interruption.run(epoch, lambda: self.real.commit(epoch, committables))

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        if self._interruption.call != "assess":
            return super().assess(epoch, committables)
        return self._interruption.run(epoch, lambda: self.real.assess(epoch, committables))

    def abort(self, undecided: Undecided) -> None:
        if self._interruption.call != "abort":
            return super().abort(undecided)
        number, self._aborts = self._aborts, self._aborts + 1
        return self._interruption.run(number, lambda: self.real.abort(undecided))


class _AnswerLostCommitter(WrappedCommitter):
    def __init__(self, real: Committer, mark: Callable[[int], Path]) -> None:
        super().__init__(real)
        self._mark = mark

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        outcomes = super().commit(epoch, committables)
        if self._mark(epoch).exists():
            return outcomes
        self._mark(epoch).touch()
        raise Retryable("the store did not answer", why="the kit lost its answer")


class _Counter:
    """A profile function that counts moments, and interrupts at one of them."""

    def __init__(self, at: int | None, fire: Callable[[], None]) -> None:
        self.seen = 0
        self.fired = False
        self._at = at
        self._fire = fire

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "return" or (event in ("c_return", "c_exception") and _leaves_python(arg)):
            self.seen += 1
            if self.seen == self._at:
                self.fired = True
                self._fire()


def _leaves_python(function: Any) -> bool:
    """Return whether a C function may have an effect outside: it is not a builtin, nor a method of a builtin type."""
    owner = getattr(function, "__self__", None)
    place = function.__module__ or type(owner).__module__
    return place not in _INSIDE
