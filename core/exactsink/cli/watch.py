"""`exactsink watch`: a job's epochs and sinks, live on a terminal or as a page. Only reads."""

from __future__ import annotations

from contextlib import closing

import click

from exactsink.cli.opened import Opened
from exactsink.cli.options import command, job_file, number
from exactsink.watch.seen import Watched
from exactsink.watch.watching import watch_job

__all__ = ["watch"]


@command()
@job_file
@click.option("--web", metavar="[HOST:]PORT", help="Serve a web page instead; port 0 is any free port.")
@number("--every", metavar="SECONDS", default=2.0, type=click.FloatRange(min=0.5), help="Time between two refreshes.")
def watch(job: str, web: str | None, every: float) -> None:
    """Show a job's epochs, rates and sinks until Ctrl-C. The command changes nothing.

    `--web 8080` serves a web page for this machine only, `--web 0.0.0.0:8080` also for other machines.
    """
    opened = Opened.of(job)
    with closing(opened.operator()) as operator:
        watch_job(Watched(opened.history, opened.sinks, operator).look, web, every)
