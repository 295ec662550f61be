"""`exactsink journal`: verify a journal, or write all of it to stdout. Changes nothing."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from typing import Any

import click

from exactsink.cli.answers import answering
from exactsink.cli.opened import Opened
from exactsink.cli.options import as_json, job_file, run_name
from exactsink.cli.plain import plain
from exactsink.cli.plugins import CommandGroup
from exactsink.cli.table import print_table
from exactsink.contract import InDoubtError
from exactsink.protocol.journal.entries import checked
from exactsink.protocol.journal.journal import Journal
from exactsink.toolkit.waiting import backoff

__all__ = ["journal"]

_COPIES = (
    "restore those entries from a copy of the journal; without one, move the journal away, and "
    "`exactsink rebase JOB.toml` begins one from the targets' marks"
)


@click.group(cls=CommandGroup)
def journal() -> None:
    """Read a job's journal, in files, objects or a database. Changes nothing."""


@journal.command()
@job_file
@run_name
@as_json
def verify(job: str, run: str | None, as_json: bool) -> None:
    """Verify each entry's checksum and its link to the entry before, and list damaged and absent entries.

    For each, it prints who has to read it: every start, only sweeps of old work, or only commands that show history.
    """
    with answering(as_json) as answer:
        _verify(job, run, answer)


def _verify(path: str, run: str | None, answer: dict[str, Any]) -> None:
    with _journal(path, run) as journal:
        stands, problems = checked(journal.entries())
    gaps = [[before + 1, after - 1] for before, after in pairwise((-1, *stands)) if after - before > 1]
    answer |= {"entries": len(stands), "gaps": gaps, "problems": plain(problems)}
    deleted = f"; deleted or absent: {_ranges(gaps)}" if gaps else ""
    print(f"{len(stands)} entries, {len(problems)} problems{deleted}")
    if problems:
        rows = [[p.seq, p.needed_by, p.problem] for p in problems]
        print_table(("seq", "needed by", "problem"), rows, sys.stdout)
        matter = [problem for problem in problems if problem.needed_by == "every start"]
        raise InDoubtError(
            f"{len(problems)} journal entries are damaged or absent, and every start needs {len(matter)} of them",
            next=_COPIES if matter else "no start needs them: exactsink run JOB.toml",
        )


@journal.command()
@job_file
@run_name
def export(job: str, run: str | None) -> None:
    """Write every existing entry to stdout, one JSON line each."""
    with _journal(job, run) as journal:
        for entry in journal.entries():
            if entry.record is not None:
                print(entry.data.decode())
            else:
                damaged = {"seq": entry.seq, "damaged": entry.problem, "data": base64.b64encode(entry.data).decode()}
                print(json.dumps(damaged))


@contextmanager
def _journal(path: str, run: str | None) -> Iterator[Journal]:
    with closing(Opened.of(path, run).history.journal(backoff)) as journal:
        yield journal


def _ranges(gaps: Sequence[Sequence[int]]) -> str:
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in gaps)
