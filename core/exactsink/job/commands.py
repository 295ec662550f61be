"""How the commands are called for one history: messages from below name `JOB.toml`, and here it gets its real name."""

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
"""Commands that take no `--run`: they are about a job with all its histories."""


@dataclass(frozen=True, slots=True)
class Commands:
    """How the commands are called for one history: `path` is the job's file, None for a config made in Python."""

    path: str | None
    run: str | None = None

    @property
    def start(self) -> str:
        """What writes again what was lost: only the job has the rows."""
        return f"exactsink run {self._file}" if self.run is None else f"call write again, with run={self.run!r}"

    def of(self, command: str) -> str:
        """Return a command for this history, as it can be typed."""
        run = "" if self.run is None or command in _OF_THE_JOB else f" --run {shlex.quote(self.run)}"
        return f"exactsink {command} {self._file}{run}"

    def typed(self, text: str) -> str:
        """Return a message whose commands can be typed as they stand: each `exactsink COMMAND JOB.toml` in it."""
        if self.path is None and _COMMAND.search(text) and _WRITE_FILE not in text:
            text += _WRITE_FILE
        return _COMMAND.sub(lambda found: self._typed(found["command"]), text)

    def name(self, error: BaseException) -> None:
        """Let an error of ours name commands that can be typed. Idempotent."""
        if isinstance(error, ExactsinkError):
            error.what, error.why, error.next = map(self.typed, (error.what, error.why, error.next))
            error.args = (error.what,)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Let the errors that leave the body name commands that can be typed."""
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
