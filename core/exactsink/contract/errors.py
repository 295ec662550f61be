"""Errors, in one class for each reaction of the caller.

Every error says what happened, why, and which command comes next. Errors pickle, so a task can send one to the driver.
The first paragraph of a class's docstring is the error's meaning, the second the caller's next step.
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
    """The base of all others.

    Catch it to report `what`, `why` and `next`.
    """

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
    """A temporary failure, for example a store that does not answer. Nothing is lost.

    Try again later. `exactsink run` and `Job.write` first retry by themselves.
    """

    exit_code = 75


class Fatal(ExactsinkError):
    """A problem that a retry alone won't solve. Nothing is lost.

    Fix the problem that the message names, then start again.
    """


class ContractError(Fatal):
    """A call of the backend failed, or returned a value that the contract forbids.

    Report it to the plugin's author.
    """

    exit_code = EXIT_BUG


class Fenced(ExactsinkError):
    """Another driver has claimed the job, so this one ended. Or a driver may be at work, so a command changed nothing.

    Leave the job to the other driver: do not start it again. For a command, the message names the next step.
    """

    exit_code = 4


class InDoubtError(ExactsinkError):
    """Decided rows are not proven committed, or are lost and could not be written again, or a target lacks rows that it
    had.

    Read the evidence before you start again.
    """

    exit_code = 3


class ForeignError(ExactsinkError):
    """A sink holds work under this job's name that the job's journal does not know.

    Do not start the job. Find out who began that work.
    """

    exit_code = 6


class ConfigError(ExactsinkError):
    """The job's config, or a call, is wrong. Nothing was started.

    Fix the config or the call.
    """

    exit_code = 2


class Refused(ExactsinkError):
    """The job was not started, or the epoch not written, because exactsink could not have kept its promise.

    Follow the message's next step, then start again.
    """

    exit_code = 5


class LineageError(Refused):
    """The journal, the checkpoint and the sinks do not belong to one history.

    Restore the part that is wrong, or replace the checkpoint or journal.
    """


class PreflightError(Refused):
    """A sink can't give the guarantee that the job requires.

    Run the statement or command that the message prints, or make the change that it names, then start again.
    """


def _rebuild(kind: type[ExactsinkError], what: str, why: str, next: str) -> ExactsinkError:
    return kind(what, why=why, next=next)
