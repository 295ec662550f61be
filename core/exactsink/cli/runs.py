"""`exactsink runs`: a job's batch runs, and how far each is."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from exactsink.cli.opened import Opened
from exactsink.cli.table import print_table
from exactsink.operate.runs import BatchRun, batch_runs

__all__ = ["print_runs", "run_bodies", "runs"]


def runs(path: str, as_json: bool) -> None:
    """List the batch runs. Raises what stands in the way of the first that needs a person, or a call of `write`."""
    opened = Opened.of(path)
    found = batch_runs(opened.config, opened.sinks)
    if as_json:
        print(json.dumps(run_bodies(found), indent=1))
    else:
        print_runs(found)
    for run in found:
        if run.problem is not None:
            raise run.problem


def run_bodies(found: Sequence[BatchRun]) -> Sequence[Mapping[str, Any]]:
    """Return the runs as JSON has them."""
    return [
        {
            "run": run.run,
            "job_in_ids": run.job,
            "state": run.state,
            "rows": run.rows,
            "driver": run.driver,
            "at": run.at,
            "problem": None if run.problem is None else str(run.problem),
        }
        for run in found
    ]


def print_runs(found: Sequence[BatchRun]) -> None:
    """Print the runs for people."""
    if not found:
        print("no batch runs")
        return
    rows = [
        (run.run or "?", run.state, "-" if run.rows is None else run.rows, run.driver or "-", _time(run.at), run.job)
        for run in found
    ]
    print_table(("run", "state", "rows", "driver", "at", "in ids"), rows, sys.stdout)
    for run in found:
        if run.problem is not None:
            print(f"  {run.run or run.job}: {run.problem}")


def _time(at: float | None) -> str:
    return "-" if at is None else f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M:%S}Z"
