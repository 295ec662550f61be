"""Make commands ready to type: messages name `JOB.toml`, and `Commands` replaces it by one history's file and run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from exactsink.contract import ExactsinkError

__all__ = ["Commands"]

_COMMAND = re.compile(r"\bexactsink (?P<command>[a-z-]+(?: [a-z-]+)?) JOB\.toml\b(?! --run)")
_WRITE_FILE = ' (job.to_toml("JOB.toml") writes that file)'
_OF_THE_JOB = ("adopt", "check", "runs")
"""Commands without `--run`, because they concern all histories of a job."""


@dataclass(frozen=True, slots=True)
class Commands:
    """The commands for one history. `path` is the job's file, None for a config made in Python."""

    path: str | None
    run: str | None = None

    @property
    def start(self) -> str:
        """The command that starts the job, which alone can write lost rows again."""
        return f"exactsink run {self._file}" if self.run is None else f"call write again, with run={self.run!r}"

    def of(self, command: str) -> str:
        """Return a command for this history, ready to type."""
        run = "" if self.run is None or command in _OF_THE_JOB else f" --run {shlex.quote(self.run)}"
        return f"exactsink {command} {self._file}{run}"

    def typed(self, text: str) -> str:
        """Return a message with each `exactsink COMMAND JOB.toml` in it ready to type. Idempotent."""
        if self.path is None and _COMMAND.search(text) and _WRITE_FILE not in text:
            text += _WRITE_FILE
        return _COMMAND.sub(lambda found: self._typed(found["command"]), text)

    def name(self, error: BaseException) -> None:
        """Make the commands in an error of exactsink's ready to type, in place. Idempotent."""
        if isinstance(error, ExactsinkError):
            error.what, error.why, error.next = map(self.typed, (error.what, error.why, error.next))
            error.args = (error.what,)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Make the commands in errors that leave the body ready to type."""
        try:
            yield
        except ExactsinkError as error:
            self.name(error)
            raise

    @property
    def _file(self) -> str:
        return "JOB.toml" if self.path is None else shlex.quote(self.path)

    def _typed(self, command: str) -> str:
        return self.start if command == "run" else self.of(command)
