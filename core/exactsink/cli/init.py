"""`exactsink init`: write a job for the named backends, or a plugin."""

from __future__ import annotations

import re

import click

from exactsink.job.config.model import NAME_WANTED, NEW_NAME
from exactsink.starters.job import DEFAULT_TARGETS, SOURCES, TARGETS, write_first_job
from exactsink.starters.plugin import ROADS, write_plugin

__all__ = ["init"]


def _job_name(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not re.fullmatch(NEW_NAME, value):
        raise click.BadParameter(NAME_WANTED)
    return value


@click.command()
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--name", metavar="NAME", default="orders", show_default=True, callback=_job_name, help="The job's name.")
@click.option("--from", "source", type=click.Choice([*SOURCES, *ROADS]), help="The source; for a plugin, its road.")
@click.option("--to", type=click.Choice(TARGETS), multiple=True, help="A sink; repeatable. [default: files, upsert]")
@click.option("--plugin", metavar="NAME", help="Write an installable package with a backend of this name, and no job.")
def init(folder: str, name: str, source: str | None, to: tuple[str, ...], plugin: str | None) -> None:
    """Write a small example job into FOLDER, or an example plugin; never overwrite a file.

    For a plugin, choose `--from staged` if the store has transactions, `--from idempotent` if it has only keys and
    conditional writes, `--from two-phase` if one process can commit work that another process has prepared.
    """
    if source and (source in ROADS) != (plugin is not None):
        raise click.BadParameter(f"{source} is {'a road of --plugin' if source in ROADS else 'a source of jobs'}")
    if plugin is None:
        write_first_job(folder, name, source or "files", to or DEFAULT_TARGETS)
    else:
        write_plugin(folder, plugin, source or "staged")
