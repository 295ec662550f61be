"""Arguments and options that several commands take, each declared once; a command declares the others itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from exactsink.cli.plugins import JobCommand

__all__ = ["as_json", "command", "dry_run", "job_file", "reason", "run_name", "take_over", "within"]

job_file = click.argument("job", metavar="JOB.toml", type=click.Path(dir_okay=False))
run_name = click.option("--run", help="Name of a batch run; without it, the job's stream.")
take_over = click.option("--take-over", is_flag=True, help="Claim the job although a driver may be running.")
reason = click.option("--reason", default="", help="Why you do it; the journal keeps the text.")
dry_run = click.option("--dry-run", is_flag=True, help="Print what would be done; change nothing.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def within(seconds: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make the option of how long stores may take, with this default."""
    kind, said = click.FloatRange(min=0.1), "How long each store may take to answer."
    return click.option("--within", type=kind, default=seconds, show_default=True, metavar="SECONDS", help=said)


def command(name: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function; its docstring is the command's help."""
    return click.command(name, cls=JobCommand)
