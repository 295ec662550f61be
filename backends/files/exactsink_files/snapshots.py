"""The exact list of a target's files at an epoch, for any reader, without Spark and without a driver.

This module only reads. Its result is consistent while drivers commit and fold.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from exactsink.contract import NAME_PATTERN, ConfigError
from exactsink.toolkit.storage import AnyPath, ObjectPath
from exactsink_files.manifests import FileEntry, epochs_of, names_in
from exactsink_files.places import root_of
from exactsink_files.votes import temp_root

__all__ = ["Feed", "Snapshot", "snapshot"]

_FEED = re.compile(rf"(?P<job>{NAME_PATTERN})\.(?P<sink>{NAME_PATTERN})")


@dataclass(frozen=True, slots=True)
class Feed:
    """The files that one job's sink has written up to `epoch` (None: no epoch with rows is complete).

    `first`: the first known epoch. `whole`: it is the sink's first epoch. Otherwise the manifests of earlier epochs
    are gone, and `files` lacks their files. A file's `path` is an absolute path or a URL.
    """

    job: str
    sink: str
    epoch: int | None
    first: int | None
    whole: bool
    files: tuple[FileEntry, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Files that hold each row exactly once. Any reader accepts `paths` as it is."""

    feeds: tuple[Feed, ...]

    @property
    def epoch(self) -> int | None:
        """Return the epoch, if only one sink writes to the target. Otherwise it raises ValueError: see `feeds`."""
        (feed,) = self.feeds
        return feed.epoch

    @property
    def files(self) -> tuple[FileEntry, ...]:
        return tuple(file for feed in self.feeds for file in feed.files)

    @property
    def paths(self) -> list[str]:
        return [file.path for file in self.files]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


def snapshot(
    path: str | os.PathLike[str] | AnyPath,
    epoch: int | None = None,
    *,
    job: str | None = None,
    sink: str | None = None,
    partial: bool = False,
) -> Snapshot:
    """Return the files below `path` at an epoch; without `epoch`, at the newest complete one.

    If several jobs or sinks write to the folder, the result has all of them, unless `job` or `sink` chooses. `epoch`
    needs a single sink. exactsink does not know the files of epochs without manifests: it raises
    ConfigError for them, unless you pass `partial` to leave them out. Raises ConfigError for an unknown epoch or sink.
    """
    root = _root(path)
    chosen = _feeds(root, job, sink)
    if not chosen:
        raise ConfigError(f"none of the named sinks has written to {root}", next="check path, job and sink")
    if epoch is not None and len(chosen) > 1:
        names = ", ".join(f"{each[0]}.{each[1]}" for each in chosen)
        why = "an epoch belongs to one sink"
        raise ConfigError(f"several sinks write to {root}: {names}", why=why, next="choose job and sink")
    feeds = tuple(_feed(root, *each, epoch) for each in chosen)
    for feed in feeds:
        if not feed.whole and not partial:
            raise ConfigError(
                f"{feed.job}.{feed.sink}: epochs are known from {feed.first} on only",
                why="the manifests of the epochs before are gone",
                next="pass `partial=True`, or --partial to the command, to leave them out",
            )
    return Snapshot(feeds)


def _root(path: str | os.PathLike[str] | AnyPath) -> AnyPath:
    if isinstance(path, str):
        path = root_of(path.removeprefix("file://"))
        if isinstance(path, ObjectPath) and not re.fullmatch(r"[a-z0-9]+://[^/]+(/.*)?", path.url, re.DOTALL):
            raise ConfigError(
                f"{path} names no bucket or server",
                next="write s3://bucket/path, abfss://container@host/path or sftp://host/path",
            )
    return Path(os.path.abspath(path)) if isinstance(path, os.PathLike) else path


def _feeds(root: AnyPath, job: str | None, sink: str | None) -> list[tuple[str, str]]:
    feeds = [(f["job"], f["sink"]) for f in map(_FEED.fullmatch, sorted(names_in(temp_root(root)))) if f]
    return [feed for feed in feeds if job in (None, feed[0]) and sink in (None, feed[1])]


def _feed(root: AnyPath, job: str, sink: str, asked: int | None) -> Feed:
    folder = temp_root(root) / f"{job}.{sink}"
    epochs = epochs_of(folder)
    newest = epochs.known[-1].number if epochs.known else None
    first = epochs.known[0].number if epochs.known else None
    if asked is not None:
        _check_known(f"{job}.{sink}", asked, first, newest, epochs.whole)
    known = [epoch for epoch in epochs.known if asked is None or epoch.number <= asked]
    epoch = newest if asked is None else asked
    # of an epoch that an operator ended by `resolve`, only the files that exist
    entries = [file for each in known for file in each.files if each.done or (root / file.path).exists()]
    files = tuple(file._replace(path=str(root / file.path)) for file in entries)
    return Feed(job, sink, epoch, first, epochs.whole, files)


def _check_known(name: str, asked: int, first: int | None, newest: int | None, whole: bool) -> None:
    if newest is None or asked > newest:
        why = f"the newest with rows in this sink is {newest}" if newest is not None else "no epoch is complete"
        raise ConfigError(f"{name}: epoch {asked} is not known to be complete", why=why, next="choose an earlier epoch")
    if first is not None and asked < first and not whole:
        raise ConfigError(f"{name}: epochs are known from {first} on only", next=f"choose {first} or later")
