"""`exactsink rebase`: an operator's word on what stands in the targets."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing

from exactsink.cli.opened import Opened
from exactsink.cli.table import print_table
from exactsink.contract import ConfigError, Mark
from exactsink.operate.actions import Operator, RebasePlan, in_words
from exactsink.operate.views import holdings
from exactsink.protocol.journal.log import Log
from exactsink.protocol.marks import expected_of, is_at

__all__ = ["rebase"]


def rebase(
    path: str,
    run: str | None,
    named: Sequence[str],
    reason: str,
    *,
    confirmed: bool,
    dry_run: bool,
    take_over: bool,
) -> None:
    """Print what every target holds beside what the journal expects; with `named` and `confirmed`, go on from there.

    With `dry_run` say what would be done, of what is named or else of what stands there, and change nothing.
    """
    opened = Opened.of(path, run)
    with closing(opened.operator()) as operator:
        standing = operator.standing()
        _print_standing(opened, operator.read(), standing)
        if dry_run:
            words = dict(map(_pair, named)) or {name: in_words(mark) for name, mark in standing.items()}
            _print_plan(opened, operator, operator.rebase_plan(words, take_over=take_over))
            return
        if not named:
            return
        if not confirmed:
            raise ConfigError(
                "this can't be undone: the journal goes on from what stands in the targets",
                why="epochs that a target lacks are not written again, and what it holds beyond the journal stays",
                next="say --yes once you have read the table above (--dry-run says what would be done)",
            )
        epoch = operator.rebase(dict(map(_pair, named)), reason=reason, take_over=take_over)
    source = "run" if run is not None else "next batch of the checkpoint"
    print(f"rebased: the {source} will be epoch {epoch}\n  next: {_next(path, run)}")


def _next(path: str, run: str | None) -> str:
    return f"exactsink run {path}" if run is None else f"call write again, with run={run!r}"


def _print_standing(opened: Opened, log: Log, standing: Mapping[str, Mark | None]) -> None:
    rows = []
    for name, mark in standing.items():
        known = expected_of(log, name, opened.sinks[name].backend.target)
        expected = known.now if known is not None else None
        rows.append([name, str(mark or "no mark"), str(expected or "nothing"), _difference(mark, expected)])
    print_table(("sink", "the target holds", "the journal expects", "from here on"), rows, sys.stdout)
    run = "" if opened.history.run is None else f"--run {shlex.quote(opened.history.run)} "
    command = run + " ".join(f"--sink {name}={in_words(mark)}" for name, mark in standing.items())
    print(f"  to go on from what the targets hold: exactsink rebase {opened.path} {command} --yes --reason '...'")


def _print_plan(opened: Opened, operator: Operator, plan: RebasePlan) -> None:
    print(f"would claim the job (generation {plan.generation}), and end every driver before")
    if plan.ends is not None:
        print(f"would end epoch {plan.ends}: nothing of it is committed any more")
    for holding in holdings(opened.history, opened.sinks, operator.read(), operator.whole):
        deed = "refuse" if holding.whose == "foreign" else "sweep"
        print(f"would leave to the next start, to {deed} {holding.sink}: {holding.participant.ref}")
    source = "the run" if opened.history.run is not None else f"batch {plan.batch} of the checkpoint"
    print(f"would let {source} be epoch {plan.epoch}, and keep your name and reason in the journal")


def _difference(mark: Mark | None, expected: Mark | None) -> str:
    """Return what a rebase means for one sink's rows."""
    if mark == expected or is_at(mark, expected):
        return "nothing is missing or doubled"
    stands, wanted = (-1 if m is None or m.epoch is None else m.epoch for m in (mark, expected))
    if stands == wanted == -1:
        return "no epoch is there: nothing is missing or doubled"
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
