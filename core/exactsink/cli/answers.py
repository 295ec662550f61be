"""What commands print with `--json`: one document on stdout, however the command ends."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

import click
from pydantic import BaseModel, ConfigDict

from exactsink.cli.plain import plain
from exactsink.cli.plugins import commands_now
from exactsink.contract import EXIT_BUG, ConfigError, ExactsinkError, Finding
from exactsink.job.guarantees import Guarantee
from exactsink.operate.recovery import Recovery

__all__ = [
    "ANSWERS",
    "Adopted",
    "Checked",
    "CheckedSink",
    "Problem",
    "Ran",
    "Recovered",
    "Settled",
    "Verified",
    "answering",
    "one_document",
    "settled",
]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Problem(_Answer):
    """How a command failed: what, why, and the command to give next."""

    kind: str
    what: str
    why: str
    next: str
    exit_code: int


class Settled(_Answer):
    """What came of one sink, in participants of the last decision; `left` is empty when nothing is left to do."""

    sink: str
    committed: int
    stood: int
    lost: int
    swept: int
    left: str


class Recovered(_Answer):
    """`exactsink recover --json`. `epoch` is the last decided one; with `dry_run` nothing was changed."""

    job: str | None
    run: str | None
    dry_run: bool
    epoch: int | None = None
    sinks: Sequence[Settled] = ()
    error: Problem | None


class Adopted(_Answer):
    """`exactsink adopt --json`. `batch` of the checkpoint will be `epoch`."""

    job: str | None
    batch: int | None = None
    epoch: int | None = None
    error: Problem | None


class Ran(_Answer):
    """`exactsink run --json`, once it has ended: the `epochs` that it finished, and their `rows` by sink.

    `last_epoch` is null when it finished none; `restarts` counts how often the query was started again, `seconds` are
    those of the whole run; `stopped_by` says who asked it to end.
    """

    job: str | None = None
    epochs: int = 0
    last_epoch: int | None = None
    rows: dict[str, int] = {}
    seconds: float = 0.0
    restarts: int = 0
    stopped_by: str | None = None
    error: Problem | None


@dataclass(frozen=True, slots=True)
class CheckedSink(Guarantee):
    """What `check` says of one sink: its promise, and what was found of it."""

    findings: Sequence[Finding]


class Checked(_Answer):
    """`exactsink check --json`: the job's guarantee, that of each sink, and what preflight found of it.

    `findings` are the job's own, beside the `error`; `not_looked_at` is what `--no-spark` leaves open.
    """

    job: str | None = None
    guarantee: str | None = None
    sinks: dict[str, CheckedSink] = {}
    findings: Sequence[Finding] = ()
    journal: Sequence[Finding] = ()
    not_looked_at: Sequence[str] = ()
    error: Problem | None


class _Wrong(_Answer):
    seq: int
    problem: str
    needed_by: str


class Verified(_Answer):
    """`exactsink journal verify --json`: how many entries stand, which are absent (from, to), and what is wrong."""

    entries: int = 0
    gaps: Sequence[tuple[int, int]] = ()
    problems: Sequence[_Wrong] = ()
    error: Problem | None


ANSWERS: Sequence[type[BaseModel]] = (Ran, Recovered, Adopted, Checked, Verified, Settled, Problem)


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


def _document(text: str, error: Problem | None) -> str:
    """Return what a command printed with its error in it. A list stays one: each of its entries has its own problem."""
    try:
        document = json.loads(text or "{}")
    except ValueError:  # the help, or the version
        return text
    if not isinstance(document, dict):
        return text
    document["error"] = error and error.model_dump()
    return json.dumps(document, indent=1 if error is not None or "\n" in text.strip() else None) + "\n"


def settled(recovery: Recovery) -> dict[str, Any]:
    """Return what a recovery did, or would do."""
    return {"epoch": recovery.epoch, "sinks": plain(recovery.settled)}


def _problem(error: BaseException) -> Problem:
    kind = type(error).__name__
    commands_now().name(error)
    if isinstance(error, ExactsinkError):
        return Problem(kind=kind, what=error.what, why=error.why, next=error.next, exit_code=error.exit_code)
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        shows = f"{context.command_path if context is not None else 'exactsink'} --help"
        code = ConfigError.exit_code
        return Problem(kind=kind, what=error.format_message(), why="", next=shows, exit_code=code)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return Problem(kind=kind, what="interrupted", why="", next="the same command goes on", exit_code=130)
    return Problem(kind=kind, what=str(error), why="a bug in exactsink or a plugin", next="", exit_code=EXIT_BUG)
