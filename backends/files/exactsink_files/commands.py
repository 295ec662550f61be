"""`exactsink files ...`: the exact files of a target."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from exactsink.contract import ConfigError, JobSinks, OpenJob
from exactsink.toolkit.storage import AnyPath
from exactsink_files.backend import FilesBackend
from exactsink_files.snapshots import Feed, Snapshot, snapshot

__all__ = ["commands"]

_job = click.argument("job", metavar="JOB.toml", type=click.Path(dir_okay=False))
_sink = click.option("--sink", metavar="NAME", help="Name of the files sink, if the job has several.")
_run = click.option("--run", metavar="NAME", help="Name of a batch run; without it, the job's stream.")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
_partial = click.option("--partial", is_flag=True, help="Leave out epochs that have no manifest.")


def commands(open_job: OpenJob) -> click.Group:
    """Return the group of commands."""
    group = click.Group("files", help="List the exact files that files sinks have written.")

    @group.command("list")
    @click.argument("target", metavar="PATH_OR_JOB")
    @_sink
    @_run
    @_as_json
    def list_command(target: str, sink: str | None, run: str | None, as_json: bool) -> None:
        """List the epochs of jobs, with their files, rows and bytes.

        Name a folder for the epochs of all jobs that write there, or a job's file for the epochs of this job.
        """
        if target.endswith(".toml") and not os.path.isdir(target):
            job, sinks = _files_sinks(open_job, target, run)
            found = [snapshot(sinks[name], job=job, sink=name, partial=True) for name in sinks if sink in (None, name)]
        else:
            found = [snapshot(target, sink=sink, partial=True)]
        feeds = [feed for each in found for feed in each.feeds]
        if as_json:
            click.echo(json.dumps([_summary(feed) for feed in feeds], indent=1))
        else:
            for feed in feeds:
                click.echo(_line(feed))

    @group.command("read-list")
    @_job
    @_sink
    @_run
    @click.option("--at", type=int, metavar="EPOCH", help="Read up to this epoch; by default the newest complete one.")
    @_partial
    @_as_json
    def read_list_command(
        job: str, sink: str | None, run: str | None, at: int | None, partial: bool, as_json: bool
    ) -> None:
        """Print the paths of the files that hold every row exactly once.

        Each path is on its own line, for pyarrow, DuckDB, Polars and Spark.
        """
        name, chosen, root = _chosen(open_job, job, sink, run)
        found = snapshot(root, at, job=name, sink=chosen, partial=partial)
        if as_json:
            files = [file._asdict() for file in found.files]
            click.echo(json.dumps({"epoch": found.epoch, "rows": found.rows, "files": files}, indent=1))
        else:
            for path in found.paths:
                click.echo(path)

    return group


def _files_sinks(open_job: OpenJob, job: str, run: str | None) -> tuple[str, dict[str, AnyPath]]:
    """Return the job's name in ids, and its files sinks with their folders."""
    opened: JobSinks = open_job(job, run)
    files = {name: each.root for name, each in opened.sinks.items() if isinstance(each, FilesBackend)}
    if not files:
        raise ConfigError(f"{job} has no files sink", next="name a job with a files sink")
    return opened.job, files


def _chosen(open_job: OpenJob, job: str, sink: str | None, run: str | None) -> tuple[str, str, AnyPath]:
    name, sinks = _files_sinks(open_job, job, run)
    if sink is None and len(sinks) == 1:
        sink = next(iter(sinks))
    if sink not in sinks:
        raise ConfigError(f"{job} has several files sinks", why=", ".join(sinks), next="repeat with --sink NAME")
    return name, sink, sinks[sink]


def _summary(feed: Feed) -> dict[str, Any]:
    return {
        "job": feed.job,
        "sink": feed.sink,
        "first_epoch": feed.first,
        "last_epoch": feed.epoch,
        "whole": feed.whole,
        "files": len(feed.files),
        "rows": Snapshot((feed,)).rows,
        "bytes": sum(file.size for file in feed.files),
    }


def _line(feed: Feed) -> str:
    if feed.epoch is None:
        return f"{feed.job}.{feed.sink}: no epoch with rows is complete"
    known = _summary(feed)
    begun = "" if feed.whole else f", known from epoch {feed.first} on; earlier epochs are not counted"
    size = f"{known['files']} files, {known['rows']} rows, {known['bytes']} bytes"
    return f"{feed.job}.{feed.sink}: epoch {feed.epoch}{begun}: {size}"
