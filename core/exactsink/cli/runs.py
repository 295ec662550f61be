"""`exactsink runs`: list a job's batch runs, and the state of each."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from exactsink.cli.opened import Opened
from exactsink.cli.options import as_json, command, job_file
from exactsink.cli.plain import print_json
from exactsink.cli.table import print_table
from exactsink.operate.explain import when
from exactsink.operate.runs import BatchRun, batch_runs

__all__ = ["runs"]


@command()
@job_file
@as_json
def runs(job: str, as_json: bool) -> None:
    """List a job's batch runs, and the state of each run."""
    opened = Opened.of(job)
    found = batch_runs(opened.config, opened.sinks)
    if as_json:
        print_json(found)
    else:
        _print(found)
    for run in found:
        if run.problem is not None:
            raise run.problem


def _print(found: Sequence[BatchRun]) -> None:
    if not found:
        print("no batch runs")
        return
    rows = [
        (
            r.run or "?",
            r.state,
            "-" if r.rows is None else r.rows,
            r.driver or "-",
            when(r.at) if r.at else "-",
            r.job_in_ids,
        )
        for r in found
    ]
    print_table(("run", "state", "rows", "driver", "at", "in ids"), rows, sys.stdout)
    for run in found:
        if run.problem is not None:
            print(f"  {run.run or run.job_in_ids}: {run.problem}")
