"""`exactsink indoubt`: list and explain participants in doubt, and record an operator's outcome for them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

from exactsink.cli.opened import Opened
from exactsink.cli.options import as_json, job_file, run_name, sink_option, take_over
from exactsink.cli.plain import plain, print_json
from exactsink.cli.plugins import CommandGroup
from exactsink.cli.table import print_table
from exactsink.contract import Lost, Prepared, Unknown
from exactsink.job.commands import Commands
from exactsink.operate.explain import explained, when
from exactsink.operate.indoubt import Doubt, chosen, doubts
from exactsink.operate.refusals import GIVEN_UP, Word, nothing_left
from exactsink.operate.settle import ASK_SECONDS, Settler
from exactsink.operate.views import SinkView, look
from exactsink.protocol.journal.log import Log

__all__ = ["indoubt"]

_SHOWN = 40
"""How many participants are listed for people; `--json` lists all."""


@click.group(cls=CommandGroup)
def indoubt() -> None:
    """List participants in doubt, explain them, and record an operator's decision; `recover` settles the rest."""


@indoubt.command("list")
@job_file
@run_name
@as_json
def list_(job: str, run: str | None, as_json: bool) -> None:
    """List decided participants that are not proven committed, and undecided and foreign participants."""
    with _seen(job, run) as seen:
        found = seen.doubts
    if as_json:
        print_json([{"run": run, "reference": doubt.short, **plain(doubt)} for doubt in found])
        return
    _print_unseen(seen)
    if not found:
        print("nothing is in doubt")
        return
    header = ("ref", "sink", "state", "epoch", "rows", "age", "until", "participant")
    print_table(header, [_row(doubt) for doubt in found[:_SHOWN]], sys.stdout)
    if len(found) > _SHOWN:
        print(f"  and {len(found) - _SHOWN} more: --json lists them")
    print(f"  next: {Commands(job, run).of('indoubt explain')} REF")


@indoubt.command()
@job_file
@click.argument("reference", metavar="REF")
@run_name
def explain(job: str, reference: str, run: str | None) -> None:
    """Explain one participant: which driver began it, why it is in doubt, whom it blocks, and the next safe command.

    REF is the participant's short reference or its name, or the beginning of one of them: `exactsink indoubt list`
    prints both.
    """
    with _seen(job, run) as seen:
        doubt = chosen(seen.doubts, reference)
        opened = seen.opened
        lines = explained(doubt, opened.history, opened.sinks.get(doubt.sink), seen.settler.whole())
    for label, text in lines:
        print(f"{label + ':':<11}{text}")


@indoubt.command()
@job_file
@click.option("--epoch", metavar="EPOCH", required=True, type=int, help="The last decided epoch; any other is refused.")
@sink_option("sink", required=True, help="The sink with participants in doubt.")
@click.option("--as", "outcome", required=True, type=click.Choice(["committed", "lost", GIVEN_UP]), help="The outcome.")
@click.option("--ref", "references", metavar="REF", multiple=True, help="Only this participant; repeatable.")
@click.option("--reason", metavar="TEXT", required=True, help="Why you do it; the journal keeps the text.")
@run_name
@click.option("--yes", is_flag=True, help="Act; without --yes, the command is a dry run.")
@take_over
def resolve(
    job: str, epoch: int, sink: str, outcome: str, references: tuple[str, ...], run: str | None, **options: Any
) -> None:
    """Record an outcome that nothing can prove, or give up rows that nobody can write again.

    For an unknown participant, record `committed`, or record `lost`. After `lost`, the job writes its rows again. For a
    lost participant, record `given-up`. With --yes, the command claims the job.
    """
    with _seen(job, run) as seen:
        of_sink = [doubt for doubt in seen.doubts if doubt.sink == sink]
        refs = frozenset(chosen(of_sink, reference).ref for reference in references)
        word = Word(epoch, sink, outcome, options["reason"], refs)
        seen.settler.check_word(word, take_over=options["take_over"])
        if not options["yes"]:
            _print_word(seen, word)
            return
        on = seen.settler.resolve(word, take_over=options["take_over"])
    rows = sum(committable.rows for committable in on)
    print(f"resolved: {len(on)} participants with {rows} rows of epoch {epoch} in sink {sink} are taken as {outcome}")
    for committable in on:
        print(f"  {committable.ref}: {committable.rows} rows")
    print(f"  next: {Commands(job, run).start}")


@dataclass(frozen=True, slots=True)
class _Seen:
    """A history as read at one moment, and its operator."""

    opened: Opened
    settler: Settler
    log: Log
    views: Sequence[SinkView]

    @property
    def doubts(self) -> Sequence[Doubt]:
        return doubts(self.views)


@contextmanager
def _seen(job: str, run: str | None) -> Iterator[_Seen]:
    opened = Opened.of(job, run)
    settler = opened.operator()
    try:
        log, views = look(opened.history, opened.sinks, settler.read, settler.whole, seconds=ASK_SECONDS, thorough=True)
        yield _Seen(opened, settler, log, views)
    finally:
        settler.close()


def _print_word(seen: _Seen, word: Word) -> None:
    """Print the participants that an outcome would apply to, as they are now."""
    print(f"would claim the job (generation {seen.log.last_generation + 1})")
    on = []
    for committable, standing in seen.settler.standings(word):
        what = f"{word.sink}: {committable.ref} ({committable.rows} rows)"
        if isinstance(standing, Prepared):
            print(f"would commit {what}")
        elif isinstance(standing, Lost | Unknown):
            meant = word.is_on(committable.ref, lost=isinstance(standing, Lost))
            print(f"{f'would take as {word.outcome}' if meant else 'would leave'} {what}: {standing.evidence}")
            on += [committable] if meant else []
    if not on:
        raise nothing_left(word)
    rows = sum(committable.rows for committable in on)
    deeds = {
        "committed": "nobody writes them again",
        "lost": "the job writes them again",
        GIVEN_UP: "they are missing from then on",
    }
    print(f"would keep in the journal, with your name and reason: {len(on)} participants, {rows} rows; ", end="")
    print(deeds[word.outcome])
    print("nothing is changed\n  next: repeat with --yes to do it")


def _print_unseen(seen: _Seen) -> None:
    for view in seen.views:
        if view.problem is not None:
            print(f"sink {view.name}: {view.problem}", file=sys.stderr)
    if not seen.log.claims:
        where = f"the journal beside {seen.opened.config.checkpoint} is empty, so every participant is foreign to it"
        print(where, file=sys.stderr)


def _row(doubt: Doubt) -> Sequence[object]:
    age = "-" if doubt.age_seconds is None else f"{doubt.age_seconds:.0f} s"
    until = "-" if doubt.deadline is None else when(doubt.deadline)
    numbers = ("-" if number is None else number for number in (doubt.epoch, doubt.rows))
    return (doubt.short, doubt.sink, doubt.state, *numbers, age, until, doubt.ref)
