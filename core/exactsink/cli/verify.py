"""`exactsink verify`: compare every decided epoch with the present rows of the targets."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import click

from exactsink.cli.opened import Opened
from exactsink.cli.options import as_json, command, job_file, run_name
from exactsink.cli.plain import plain, print_json
from exactsink.cli.table import print_table
from exactsink.contract import ConfigError, InDoubtError
from exactsink.operate.verify import Verdict, Verification, VerifiedSink, verify

__all__ = ["verify_job"]

_WORDS: dict[Verdict, str] = {"proven": "proven", "differs": "differs", "unknown": "can't be known"}
_EPOCHS = re.compile(r"(?P<one>\d+)|(?P<first>\d*)\.\.(?P<last>\d*)")


@command("verify")
@job_file
@run_name
@click.option(
    "--epochs", default="..", metavar="A..B", help="Compare these epochs only; by default all in the journal."
)
@click.option("--deep", is_flag=True, help="Also compare the SHA-256 of the files of these epochs.")
@as_json
def verify_job(job: str, run: str | None, epochs: str, deep: bool, as_json: bool) -> None:
    """Compare each decided epoch with the present rows of every target: `proven`, `differs` or `can't be known`."""
    opened = Opened.of(job, run)
    found = verify(opened.history, opened.sinks, *_range(epochs), deep=deep)
    if as_json:
        print_json(_body(opened, found))
    else:
        _print(found)
    if found.differs:
        raise InDoubtError(
            f"{found.count('differs')} epochs of {opened.config.job.name} differ from their decisions",
            why="somebody changed a target by hand or restored an older copy of it, or another program writes to it"
            + (f"; or damaged journal entries ({', '.join(map(str, found.damaged))}) named them" * bool(found.damaged)),
            next="look up each line above in docs/how-to/verify-and-read-consistently.md, which has its causes",
        )
    for sink in found.sinks:
        if sink.error is not None:
            raise sink.error
    if found.damaged:
        raise InDoubtError(
            f"journal entries {', '.join(map(str, found.damaged))} are damaged",
            why="the epochs that they decided can't be compared",
            next="`exactsink journal verify JOB.toml` shows who needs them; restore them from a copy of the journal",
        )


def _range(text: str) -> tuple[int | None, int | None]:
    found = _EPOCHS.fullmatch(text)
    if found is None:
        raise ConfigError(f"--epochs {text} is not a range of epochs", next="write 7, 3..9, 3.. or ..9")
    if found["one"]:
        return int(found["one"]), int(found["one"])
    return int(found["first"]) if found["first"] else None, int(found["last"]) if found["last"] else None


def _print(found: Verification) -> None:
    if found.known is None:
        print("the journal has no decision: there is nothing to verify")
        return
    complete = "no epoch" if found.complete is None else f"epoch {found.complete}"
    print(f"the journal has epochs {found.known[0]} to {found.known[1]}; {complete} is complete in every sink")
    for sink in found.sinks:
        print(f"sink {sink.sink}: {sink.error or sink.mark or 'keeps no mark'}")
    rows = [row for sink in found.sinks for row in _rows(sink)]
    print_table(("sink", "epochs", "verdict", "decided", "found", "by"), rows, sys.stdout)
    print(", ".join(f"{found.count(verdict)} {word}" for verdict, word in _WORDS.items()))


def _rows(sink: VerifiedSink) -> Iterator[Sequence[object]]:
    """Yield one line for neighboring epochs with the same verdict and reason."""
    for (verdict, why), group in groupby(sink.epochs, lambda one: (one.verdict, one.why)):
        epochs = list(group)
        first, last = epochs[0].epoch, epochs[-1].epoch
        counts = [one.found_rows for one in epochs if one.found_rows is not None]
        rows = sum(counts) if len(counts) == len(epochs) else "-"
        named = first if first == last else f"{first}..{last}"
        yield sink.sink, named, _WORDS[verdict], sum(one.decided_rows for one in epochs), rows, why


def _body(opened: Opened, found: Verification) -> dict[str, Any]:
    return {
        "job": opened.config.job.name,
        "run": opened.history.run,
        "last_complete_epoch": found.complete,
        "known_epochs": found.known,
        "damaged_entries": found.damaged,
        **{verdict: found.count(verdict) for verdict in _WORDS},
        "sinks": {
            sink.sink: {name: value for name, value in plain(sink).items() if name != "sink"} for sink in found.sinks
        },
    }
