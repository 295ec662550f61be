"""`exactsink barrier`: wait until an epoch is complete in every sink, for readers that read all targets up to it."""

from __future__ import annotations

import json

import click

from exactsink.cli.options import as_json, command, job_file, number, run_name
from exactsink.contract import Retryable
from exactsink.job.config import load_config
from exactsink.job.history import JobHistory
from exactsink.reader.complete import look
from exactsink.toolkit.waiting import attempts_within

__all__ = ["barrier"]


@command()
@job_file
@run_name
@click.option("--epoch", metavar="N", type=click.IntRange(min=0), help="Epoch to wait for. By default, the last one.")
@number("--timeout", metavar="SECONDS", type=click.FloatRange(min=0), default=600.0, help="How long to wait.")
@as_json
def barrier(job: str, run: str | None, epoch: int | None, timeout: float, as_json: bool) -> None:
    """Wait until an epoch is complete in every sink, then print the number of the last complete epoch.

    Readers can read all sinks up to that epoch.
    """
    history = JobHistory.of(load_config(job)[0], run)
    wanted, complete = epoch, None
    for attempt in attempts_within(timeout, longest_seconds=1.0):
        complete, log = look(history)
        if attempt == 0 and wanted is None and log.decision is not None and log.decision.sinks:
            wanted = log.decision.epoch
        if wanted is None or (complete is not None and complete >= wanted):
            break
    else:
        last = "none is" if complete is None else f"the last one is {complete}"
        raise Retryable(
            f"epoch {wanted} is not complete in every sink after {timeout:g} s",
            why=f"{last}; `exactsink status JOB.toml` shows which sink is behind, and whether a driver runs",
            next="if no driver runs: `exactsink run JOB.toml` or `exactsink recover JOB.toml`; then "
            "`exactsink barrier JOB.toml`",
        )
    if as_json:
        print(json.dumps({"waited_for": wanted, "last_complete_epoch": complete}))
    else:
        print("none" if complete is None else complete)
