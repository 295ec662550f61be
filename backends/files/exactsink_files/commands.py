"""`exactsink files ...`: what a target holds, exactly, and fewer small files in it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Any

import click

from exactsink.contract import ConfigError, JobSinks, OpenJob
from exactsink_files.backend import FilesBackend
from exactsink_files.compaction import compact, drop_originals
from exactsink_files.places import root_of
from exactsink_files.snapshots import Feed, Snapshot, snapshot

__all__ = ["commands", "compact_files", "list_files", "read_list"]

_job = click.argument("job", metavar="JOB.toml", type=click.Path(dir_okay=False))
_sink = click.option("--sink", help="One of the job's files sinks, where it has several.")
_run = click.option("--run", help="One of the job's batch runs, in place of its stream.")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_partial = click.option("--partial", is_flag=True, help="Go without epochs from before manifests were kept.")


def commands(open_job: OpenJob) -> click.Group:
    """Return the group of commands."""
    group = click.Group("files", help="Read what files sinks have written, exactly, and compact it.")

    @group.command("list")
    @click.argument("target", metavar="PATH_OR_JOB")
    @_sink
    @_run
    @_as_json
    def list_command(target: str, sink: str | None, run: str | None, as_json: bool) -> None:
        """List what jobs have written: epochs, files, rows, bytes.

        All that stands in a folder, or what one job has.
        """
        list_files(open_job, target, sink, run, as_json)

    @group.command("read-list")
    @_job
    @_sink
    @_run
    @click.option("--at", type=int, metavar="EPOCH", help="As of this epoch; the newest complete one by default.")
    @_partial
    @_as_json
    def read_list_command(
        job: str, sink: str | None, run: str | None, at: int | None, partial: bool, as_json: bool
    ) -> None:
        """Print the files that hold each row once, one a line.

        For pyarrow, DuckDB, Polars and Spark.
        """
        read_list(open_job, job, sink, run, at, partial, as_json)

    @group.command("compact")
    @_job
    @_sink
    @_run
    @click.option("--target-size", default="128 MB", show_default=True, help="What a file should have.")
    @click.option("--drop-originals", "drop", is_flag=True, help="Remove what was compacted: see below.")
    @click.option("--yes", is_flag=True, help="Do so, though plain readers lose sight of the rows.")
    def compact_command(job: str, sink: str | None, run: str | None, target_size: str, drop: bool, yes: bool) -> None:
        """Make large files of small ones, for readers of snapshots.

        The job may be running. Plain readers (a glob, Spark on the folder) go on with the small files. With
        --drop-originals these are removed: from then on plain readers do not see their rows, snapshots of older epochs
        can't be had, and readers that still use an older list fail.
        """
        compact_files(open_job, job, sink, run, target_size, drop=drop, confirmed=yes)

    return group


def list_files(open_job: OpenJob, target: str, sink: str | None, run: str | None, as_json: bool) -> None:
    """Print a line for each job and sink that has written to a folder."""
    if target.endswith(".toml") and os.path.isfile(target):
        job, sinks = _files_sinks(open_job, target, run)
        feeds = [feed for name, root in sinks.items() if sink in (None, name) for feed in _known(root, job, name)]
    else:
        feeds = list(snapshot(target, sink=sink, partial=True).feeds)
    if as_json:
        click.echo(json.dumps([_summary(feed) for feed in feeds], indent=1))
        return
    for feed in feeds:
        click.echo(_line(feed))


def read_list(
    open_job: OpenJob, job: str, sink: str | None, run: str | None, at: int | None, partial: bool, as_json: bool
) -> None:
    """Print the paths of a snapshot."""
    name, chosen, root = _chosen(open_job, job, sink, run)
    found = snapshot(root, at, job=name, sink=chosen, partial=partial)
    if as_json:
        click.echo(json.dumps(_body(found), indent=1))
        return
    for path in found.paths:
        click.echo(path)


def compact_files(
    open_job: OpenJob, job: str, sink: str | None, run: str | None, size: str, *, drop: bool, confirmed: bool
) -> None:
    """Compact one sink's files, and drop what was replaced where that is asked for and confirmed."""
    if drop and not confirmed:
        raise ConfigError(
            "--drop-originals needs --yes",
            why="readers that search the folder would not see the rows of compacted files any more",
            next="say --yes once all of its readers use snapshots, or leave --drop-originals out",
        )
    name, chosen, root = _chosen(open_job, job, sink, run)
    target = _bytes(size)
    done = compact(root_of(root), name, chosen, target)
    if done.change is None:
        click.echo("no small files to compact")
    else:
        click.echo(f"change {done.change}: {done.replaced} files are {done.files} now, {done.rows} rows")
    if drop:
        click.echo(f"{drop_originals(root_of(root), name, chosen)} files dropped")


def _bytes(size: str) -> int:
    from exactsink.toolkit.tabular import TabularOptions

    try:
        target = TabularOptions(path="", target_file_size=size).target_bytes
    except ValueError as error:
        raise ConfigError(f"--target-size {size} is no size", next="give a number and a unit: '128 MB'") from error
    assert target is not None
    return target


def _files_sinks(open_job: OpenJob, job: str, run: str | None) -> tuple[str, dict[str, str]]:
    """Return the job's name in ids, and its files sinks with their folders."""
    opened: JobSinks = open_job(job, run)
    files = {name: each.options.path for name, each in opened.sinks.items() if isinstance(each, FilesBackend)}
    if not files:
        raise ConfigError(f"{job} has no files sink", next="name another job")
    return opened.job, files


def _chosen(open_job: OpenJob, job: str, sink: str | None, run: str | None) -> tuple[str, str, str]:
    name, sinks = _files_sinks(open_job, job, run)
    if sink is None and len(sinks) == 1:
        sink = next(iter(sinks))
    if sink not in sinks:
        raise ConfigError(f"{job}: which sink?", why=f"its files sinks are {', '.join(sinks)}", next="give --sink")
    return name, sink, sinks[sink]


def _known(root: str, job: str, sink: str) -> list[Feed]:
    return list(snapshot(root, job=job, sink=sink, partial=True).feeds)


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
    begun = "" if feed.whole else f", known from epoch {feed.first} on: what is before it is not counted"
    rows = "rows not known" if known["rows"] is None else f"{known['rows']} rows"
    size = f"{known['files']} files, {rows}, {known['bytes']} bytes"
    return f"{feed.job}.{feed.sink}: epoch {feed.epoch}{begun}: {size}"


def _body(found: Snapshot) -> dict[str, Any]:
    return {"epoch": found.epoch, "rows": found.rows, "files": [asdict(file) for file in found.files]}
