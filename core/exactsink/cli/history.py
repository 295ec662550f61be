"""`exactsink history`: list the journal's records."""

from __future__ import annotations

import sys
from collections import deque
from contextlib import closing

import click

from exactsink.cli.opened import Opened
from exactsink.cli.options import command, job_file, number, run_name
from exactsink.cli.table import print_table
from exactsink.operate.explain import when
from exactsink.protocol.journal.entries import Entry
from exactsink.protocol.journal.records import Action, Claim, Clean, Complete, Decide, Record, Redecide, Resolve
from exactsink.toolkit.waiting import backoff

__all__ = ["history"]


@command()
@job_file
@run_name
@number("--last", default=50, type=click.IntRange(min=1), help="How many records to print.")
def history(job: str, run: str | None, last: int) -> None:
    """List a job's journal: claims, decisions and all other records. `exactsink journal export` writes them as JSON."""
    opened = Opened.of(job, run)
    with closing(opened.history.journal(backoff)) as journal:
        entries = deque(journal.entries(), maxlen=last)
    print_table(("seq", "at", "record", "epoch", "what"), [_row(entry) for entry in entries], sys.stdout)
    if any(entry.record is None for entry in entries):
        print(f"  damaged entries: `{opened.history.commands.of('journal verify')}` shows which of them matter")


def _row(entry: Entry) -> list[object]:
    record = entry.record
    if record is None:
        return [entry.seq, "-", "damaged", "-", entry.problem]
    epoch = record.epoch if isinstance(record, Decide | Redecide | Complete | Resolve) else "-"
    return [record.seq, when(record.at), type(record).__name__.lower(), epoch, _what(record)]


def _what(record: Record) -> str:
    if isinstance(record, Claim):
        return f"generation {record.generation} by {record.driver}, {record.query_id or 'the next query'}"
    if isinstance(record, Decide):
        return ", ".join(f"{name} {sink.rows} rows" for name, sink in record.sinks.items())
    if isinstance(record, Redecide):
        rows = sum(committable.rows for committable in record.committables)
        return f"{record.sink} {rows} rows, lost rows written again"
    if isinstance(record, Complete):
        return "complete in every sink"
    if isinstance(record, Clean):
        return "nothing is in doubt: sinks may change"
    if isinstance(record, Action):
        return f"{record.command} by {record.who}: {record.outcome}" + (f" ({record.reason})" if record.reason else "")
    if isinstance(record, Resolve):
        return f"{record.sink} resolved as {record.outcome} by {record.who}: {record.reason}"
    return record.text
