"""`exactsink rebase` and `exactsink resolve`: an operator's word on what stands in the targets."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing

from exactsink.cli.opened import Opened
from exactsink.cli.table import print_table
from exactsink.contract import ConfigError, Mark
from exactsink.operate.actions import in_words
from exactsink.protocol.journal.log import Log
from exactsink.protocol.marks import expected_of, is_at

__all__ = ["rebase", "resolve"]


def rebase(path: str, run: str | None, named: Sequence[str], reason: str, *, confirmed: bool, take_over: bool) -> None:
    """Print what every target holds beside what the journal expects; with `named` and `confirmed`, go on from there."""
    opened = Opened.of(path, run)
    with closing(opened.operator()) as operator:
        _print_plan(opened, operator.read(), operator.standing(), path)
        if not named:
            return
        if not confirmed:
            raise ConfigError(
                "this can't be undone: the journal goes on from what stands in the targets",
                why="epochs that a target lacks are not written again, and what it holds beyond the journal stays",
                next="say --yes once you have read the table above",
            )
        epoch = operator.rebase(dict(map(_pair, named)), reason=reason, take_over=take_over)
    print(f"rebased: the next batch of the checkpoint will be epoch {epoch}\n  next: exactsink run {path}")


def resolve(path: str, run: str | None, epoch: int, sink: str, outcome: str, reason: str, *, take_over: bool) -> None:
    """Take an operator's word for what is in doubt of the last decision in a sink."""
    opened = Opened.of(path, run)
    with closing(opened.operator()) as operator:
        operator.resolve(epoch, sink, outcome, reason=reason, take_over=take_over)
    print(f"resolved: epoch {epoch} of sink {sink} is taken as {outcome}\n  next: exactsink run {path}")


def _print_plan(opened: Opened, log: Log, standing: Mapping[str, Mark | None], path: str) -> None:
    rows = []
    for name, mark in standing.items():
        known = expected_of(log, name, opened.sinks[name].backend.target)
        expected = known.now if known is not None else None
        rows.append([name, str(mark or "no mark"), str(expected or "nothing"), _difference(mark, expected)])
    print_table(("sink", "the target holds", "the journal expects", "from here on"), rows, sys.stdout)
    command = " ".join(f"--sink {name}={in_words(mark)}" for name, mark in standing.items())
    print(f"  to go on from what the targets hold: exactsink rebase {path} {command} --yes --reason '...'")


def _difference(mark: Mark | None, expected: Mark | None) -> str:
    """Return what a rebase means for one sink's rows."""
    if mark == expected or is_at(mark, expected):
        return "nothing is missing or doubled"
    stands, wanted = (-1 if m is None or m.epoch is None else m.epoch for m in (mark, expected))
    if stands < wanted:
        return f"epochs {stands + 1} to {wanted} are missing"
    if stands > wanted:
        return f"epochs {wanted + 1} to {stands} may be doubled, if the source gives their rows again"
    return f"epoch {stands} may be another one's, or lack rows"


def _pair(text: str) -> tuple[str, str]:
    name, found, holds = text.partition("=")
    if not found:
        raise ConfigError(f"--sink {text} names no epoch", next="write --sink NAME=EPOCH, NAME=birth or NAME=none")
    return name, holds
