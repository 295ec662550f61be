"""Print one JSON document on stdout for `--json`, however the command ends."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import click

from exactsink.cli.plain import plain
from exactsink.cli.plugins import commands_now
from exactsink.cli.usage import next_command
from exactsink.contract import EXIT_BUG, ConfigError, ExactsinkError
from exactsink.operate.recovery import Recovery

__all__ = ["answering", "one_document", "settled"]


@contextmanager
def answering(as_json: bool) -> Iterator[dict[str, Any]]:
    """Print the body's answer as JSON, even if an error ends the body. All other output then goes to stderr."""
    answer: dict[str, Any] = {}
    if not as_json:
        yield answer
        return
    try:
        with redirect_stdout(sys.stderr):
            yield answer
    finally:
        print(json.dumps(answer, indent=1))


@contextmanager
def one_document(arguments: Sequence[str]) -> Iterator[None]:
    """With `--json`, print one JSON document, however the body ends: the body's own, with the error that ended it."""
    if "--json" not in arguments:
        yield
        return
    printed, error = io.StringIO(), None
    try:
        with redirect_stdout(printed):
            yield
    except BaseException as ended:
        error = _problem(ended, arguments)
        raise
    finally:
        print(_document(printed.getvalue(), error), end="")


def _document(text: str, error: Mapping[str, Any] | None) -> str:
    """Return a command's document with its error. A list stays a list, because each entry has its own problem."""
    try:
        document = json.loads(text or "{}")
    except ValueError:  # the help, or the version
        return text
    if not isinstance(document, dict):
        return text
    document["error"] = error
    return json.dumps(document, indent=1 if error is not None or "\n" in text.strip() else None) + "\n"


def settled(recovery: Recovery) -> dict[str, Any]:
    """Return the result of a recovery, or of a planned one, in JSON's types."""
    return {"epoch": recovery.epoch, "sinks": plain(recovery.settled)}


def _problem(error: BaseException, arguments: Sequence[str]) -> Mapping[str, Any]:
    """Return how a command failed: the error, its reason, the next command, and the exit code."""
    commands_now().name(error)
    if isinstance(error, ExactsinkError):
        what, why, then, code = error.what, error.why, error.next, error.exit_code
    elif isinstance(error, click.ClickException):
        then = next_command(error, arguments) if isinstance(error, click.UsageError) else "exactsink --help"
        what, why, code = error.format_message(), "", ConfigError.exit_code
    elif isinstance(error, KeyboardInterrupt | click.Abort):
        what, why, then, code = "interrupted", "", "the same command continues", 130
    else:
        what, why, then, code = str(error), "a bug in exactsink or a plugin", "", EXIT_BUG
    return {"kind": type(error).__name__, "what": what, "why": why, "next": then, "exit_code": code}
