"""Errors, ordered by what the caller does next.

Each one says what happened, why, and the next command. They pickle, so a task can hand one to the driver whole.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "EXIT_BUG",
    "ConfigError",
    "ContractError",
    "ExactsinkError",
    "Fatal",
    "Fenced",
    "ForeignError",
    "InDoubtError",
    "LineageError",
    "PreflightError",
    "Refused",
    "Retryable",
]


EXIT_BUG = 70
"""The exit code of a command or driver run that met a bug; exactsink's own errors have theirs."""


class ExactsinkError(Exception):
    """Report what happened, why, and the next command."""

    exit_code = 1

    def __init__(self, what: str, *, why: str = "", next: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.next = next

    def __str__(self) -> str:
        text = f"{self.what}: {self.why}" if self.why else self.what
        return f"{text}\n  next: {self.next}" if self.next else text

    def _render_traceback_(self) -> list[str]:
        """Show the sentence alone in a notebook: IPython calls this. Spark's thousands of characters are the cause."""
        return f"{type(self).__name__}: {self}".splitlines()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, self.why, self.next)


class Retryable(ExactsinkError):
    """Try again later: nothing is lost, and the same work may go through. `run` does so by itself."""

    exit_code = 75


class Fatal(ExactsinkError):
    """A person must act: fix what the message names, then start again. Nothing is lost; trying alone won't help."""


class ContractError(Fatal):
    """Report it to the plugin's author: a call of its backend failed, or returned a value outside the contract."""

    exit_code = EXIT_BUG


class Fenced(ExactsinkError):
    """Stop this driver: another driver has claimed the job and continues it."""

    exit_code = 4


class InDoubtError(ExactsinkError):
    """Stop and look at the evidence: a decided committable is neither proven committed nor proven lost."""

    exit_code = 3


class ForeignError(ExactsinkError):
    """Find the owner: a store holds work under this job's name that its journal does not know; a start is refused."""

    exit_code = 6


class ConfigError(ExactsinkError):
    """Fix the job's config (or the call); nothing was started."""

    exit_code = 2


class Refused(ExactsinkError):
    """The job was not started (or the epoch not written), because the promise could not be kept."""

    exit_code = 5


class LineageError(Refused):
    """The journal, the checkpoint and the sinks do not belong to one history."""


class PreflightError(Refused):
    """A sink can't give what the job asks for; the message holds the statement that fixes it."""


def _rebuild(kind: type[ExactsinkError], what: str, why: str, next: str) -> ExactsinkError:
    return kind(what, why=why, next=next)
