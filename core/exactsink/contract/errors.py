"""Errors, in one class for each reaction of the caller.

Every error says what happened, why, and which command comes next. Errors pickle, so a task can send one to the driver.
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
"""The exit code of a command or driver run that met a bug. exactsink's own errors have other codes."""


class ExactsinkError(Exception):
    """Report what happened, why, and which command to run next."""

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
        """Show only the error's text in a notebook.

        IPython calls this, and otherwise adds thousands of characters of Spark's.
        """
        return f"{type(self).__name__}: {self}".splitlines()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, self.why, self.next)


class Retryable(ExactsinkError):
    """Try again later. Nothing is lost, and the same work may succeed then. `run` retries by itself."""

    exit_code = 75


class Fatal(ExactsinkError):
    """Fix the problem that the message names, then start again. Nothing is lost, but a retry alone won't help."""


class ContractError(Fatal):
    """Report it to the plugin's author: a call of the backend failed, or returned a value that the contract forbids."""

    exit_code = EXIT_BUG


class Fenced(ExactsinkError):
    """Stop this driver, because another driver has claimed the job and continues it."""

    exit_code = 4


class InDoubtError(ExactsinkError):
    """Stop and look at the evidence: a decided committable is proven neither committed nor lost."""

    exit_code = 3


class ForeignError(ExactsinkError):
    """Find who began work under this job's name that its journal does not know. Of `status`; a start ends with 5."""

    exit_code = 6


class ConfigError(ExactsinkError):
    """Fix the job's config, or the call. Nothing was started."""

    exit_code = 2


class Refused(ExactsinkError):
    """The job was not started, or the epoch not written, because exactsink could not have kept its promise."""

    exit_code = 5


class LineageError(Refused):
    """The journal, the checkpoint and the sinks do not belong to one history."""


class PreflightError(Refused):
    """A sink can't give the guarantee that the job requires. The message holds the statement that fixes it."""


def _rebuild(kind: type[ExactsinkError], what: str, why: str, next: str) -> ExactsinkError:
    return kind(what, why=why, next=next)
