"""What commands print with `--json`: one document on stdout, however the command ends."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

import click

from exactsink.cli.plain import plain
from exactsink.cli.plugins import commands_now
from exactsink.contract import EXIT_BUG, ConfigError, ExactsinkError
from exactsink.operate.recovery import Recovery

__all__ = ["answering", "one_document", "settled"]


@contextmanager
def answering(as_json: bool) -> Iterator[dict[str, Any]]:
    """Print as JSON what the body puts into the answer, and the error that ends it. All else goes to stderr then."""
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
def one_document(as_json: bool) -> Iterator[None]:
    """Print one JSON document, however the body ends: what it printed, with the error that ended it."""
    if not as_json:
        yield
        return
    printed, error = io.StringIO(), None
    try:
        with redirect_stdout(printed):
            yield
    except BaseException as ended:
        error = _problem(ended)
        raise
    finally:
        print(_document(printed.getvalue(), error), end="")


def _document(text: str, error: Mapping[str, Any] | None) -> str:
    """Return what a command printed with its error in it. A list stays one: each of its entries has its own problem."""
    try:
        document = json.loads(text or "{}")
    except ValueError:  # the help, or the version
        return text
    if not isinstance(document, dict):
        return text
    document["error"] = error
    return json.dumps(document, indent=1 if error is not None or "\n" in text.strip() else None) + "\n"


def settled(recovery: Recovery) -> dict[str, Any]:
    """Return what a recovery did, or would do."""
    return {"epoch": recovery.epoch, "sinks": plain(recovery.settled)}


def _problem(error: BaseException) -> Mapping[str, Any]:
    """Return how a command failed: what, why, and the command to give next."""
    commands_now().name(error)
    if isinstance(error, ExactsinkError):
        what, why, then, code = error.what, error.why, error.next, error.exit_code
    elif isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        then = f"{context.command_path if context is not None else 'exactsink'} --help"
        what, why, code = error.format_message(), "", ConfigError.exit_code
    elif isinstance(error, KeyboardInterrupt | click.Abort):
        what, why, then, code = "interrupted", "", "the same command goes on", 130
    else:
        what, why, then, code = str(error), "a bug in exactsink or a plugin", "", EXIT_BUG
    return {"kind": type(error).__name__, "what": what, "why": why, "next": then, "exit_code": code}
