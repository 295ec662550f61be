"""Arguments and options that several commands share. A command declares its other ones itself."""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from exactsink.cli.plugins import JobCommand
from exactsink.contract import ConfigError
from exactsink.job.config.toml import read_document

__all__ = ["as_json", "command", "dry_run", "job_file", "number", "reason", "run_name", "sink_option"]
__all__ += ["take_over", "within"]


def _job_files(context: click.Context, parameter: click.Parameter, begun: str) -> Sequence[CompletionItem]:
    """Complete the names of TOML files; the shell itself completes folders, and names that need quotes."""
    found = sorted(glob.glob(f"{glob.escape(begun)}*.toml"))
    quoted = [name for name in found if shlex.quote(name) != name]
    return [CompletionItem(begun, type="file")] if quoted or not found else [CompletionItem(name) for name in found]


def _sink_names(context: click.Context, parameter: click.Parameter, begun: str) -> Sequence[str]:
    """Complete the sinks of the job file that is already typed; none if it can't be read."""
    job = next((word for word in context.args if word.endswith(".toml")), "")  # click has not parsed the line
    with suppress(ConfigError):
        sinks = read_document(Path(job), os.environ).values.get("sinks", {})
        return [name for name in sinks if name.startswith(begun)]
    return []


job_file = click.argument("job", metavar="JOB.toml", type=click.Path(dir_okay=False), shell_complete=_job_files)
run_name = click.option("--run", metavar="NAME", help="Name of a batch run; without it, the job's stream.")
take_over = click.option("--take-over", is_flag=True, help="Act even if a driver seems alive; that driver then stops.")
reason = click.option("--reason", default="", metavar="TEXT", help="Why you do it; the journal keeps the text.")
dry_run = click.option("--dry-run", is_flag=True, help="Only print the effects, even with --yes.")
number = partial(click.option, metavar="N", show_default=True)
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def sink_option(name: str, **more: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make the option --sink, which names a sink of the job."""
    return click.option("--sink", name, shell_complete=_sink_names, **{"metavar": "NAME"} | more)


def within(seconds: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make the option of how long stores may take, with this default."""
    kind, said = click.FloatRange(min=0.1), "Seconds that each store may take to answer."
    return click.option("--within", type=kind, default=seconds, show_default=True, metavar="SECONDS", help=said)


def command(name: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function. The function's docstring is the command's help."""
    return click.command(name, cls=JobCommand)
