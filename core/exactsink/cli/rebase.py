"""`exactsink rebase`: continue a job from its targets' marks, on an operator's word."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing

import click

from exactsink.cli.opened import Opened
from exactsink.cli.options import command, job_file, reason, run_name, sink_option, take_over
from exactsink.cli.table import print_table
from exactsink.contract import ConfigError
from exactsink.operate.actions import Operator
from exactsink.operate.rebase import RebasePlan

__all__ = ["rebase"]


@command()
@job_file
@run_name
@sink_option("named", multiple=True, metavar="NAME=EPOCH", help="Accept this mark: EPOCH, birth or none.")
@click.option("--batch", metavar="NUMBER", type=int, help="Batch that Spark runs next; required for a stream.")
@reason
@click.option("--yes", is_flag=True, help="Act; without --yes, only print the effects.")
@take_over
def rebase(
    job: str, run: str | None, named: Sequence[str], batch: int | None, reason: str, yes: bool, take_over: bool
) -> None:
    """Show every target's mark, and rows that would be missing or doubled; with --sink and --yes, accept these marks.

    Without --sink, the command changes nothing, and prints the command to run next, with its values. EPOCH is the mark
    of the target: an epoch's number, `birth` (a mark, and no rows yet) or `none` (no mark). Repeat --sink for each sink
    that it prints. With --sink and --yes, the command claims the job, and the job goes on from these marks.
    """
    opened = Opened.of(job, run)
    words = dict(map(_pair, named))
    with closing(opened.operator()) as operator:
        plan = operator.rebase_plan(take_over=take_over or not words)
        _print_table(opened, plan)
        if not words:
            return
        if not yes:
            plan.check_named(words, plan.batch if run is not None else batch)
            _print_plan(opened, operator, plan)
            print("nothing is changed\n  next: repeat with --yes; a rebase can't be undone")
            return
        plan = operator.rebase(words, batch, reason=reason, take_over=take_over)
    source = "run" if run is not None else "next batch of the checkpoint"
    print(f"rebased: the {source} will be epoch {plan.epoch}\n  next: {opened.history.commands.start}")


def _print_table(opened: Opened, plan: RebasePlan) -> None:
    rows = []
    for truth in plan.sinks:
        view = truth.view
        expected = view.expected.now if view.expected is not None else None
        rows.append([view.name, str(view.mark or "no mark"), str(expected or "nothing"), truth.from_here_on])
    print_table(("sink", "the target holds", "the journal expects", "from here on"), rows, sys.stdout)
    if plan.note:
        print(f"  {plan.note}")
    commands = opened.history.commands
    if not plan.named:
        print(f"  nothing has to be rebased: {commands.start}")
        return
    named = [f"--sink {name}={holds}" for name, holds in plan.named.items()]
    named += [f"--batch {plan.batch}"] if opened.history.run is None else []
    words = " ".join(named)
    print(f"  to go on from the targets' marks: {commands.of('rebase')} {words} --yes --reason 'TEXT'")


def _print_plan(opened: Opened, operator: Operator, plan: RebasePlan) -> None:
    print(f"would claim the job (generation {plan.generation}), and end every earlier driver")
    decision = operator.read().decision
    if decision is not None and decision.sinks:
        kept, over = (", ".join(n for n in decision.sinks if (n in plan.keeps) is keeps) for keeps in (True, False))
        if kept:
            act, later = ("leave", " to the next start") if plan.goes_on else ("commit", "")
            print(f"would {act} the rest of epoch {decision.epoch} in {kept}{later}")
        if over:
            print(f"would close epoch {decision.epoch} in {over}: nothing more of it is committed there")
    for holding in (holding for truth in plan.sinks for holding in truth.view.held):
        if holding.whose == "decided" and holding.sink in plan.keeps:
            continue
        deed = "refuse" if holding.whose == "foreign" else "sweep"
        print(f"would leave to the next start, to {deed} {holding.sink}: {holding.participant.ref}")
    source = "the run" if opened.history.run is not None else f"batch {plan.batch} of the checkpoint"
    print(f"would let {source} be epoch {plan.epoch}, and keep your name and reason in the journal")


def _pair(text: str) -> tuple[str, str]:
    name, found, holds = text.partition("=")
    if not found:
        raise ConfigError(f"--sink {text} names no epoch", next="write --sink NAME=EPOCH, NAME=birth or NAME=none")
    return name, holds
