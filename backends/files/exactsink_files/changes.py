"""What has taken the place of an epoch's files: changes, numbered from 1, each made once and never deleted.

`changes/N.change` in a sink's mark folder says that the files of `replaces` are those of `files` from epoch `last` on,
the newest of which rows are in them; or, of `drops`, that they are gone. Which N comes next is whoever's file stands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from exactsink.contract import AnyPath, ConfigError, Fatal, Retryable, create_file, file_names, make_folder
from exactsink_files.manifests import FileEntry
from exactsink_files.votes import is_below

__all__ = ["Change", "applied", "changes_of", "publish"]

_VERSION = 1
_TRIES = 100
_NAME = re.compile(r"(?P<number>[1-9]\d{0,9})\.change")


@dataclass(frozen=True, slots=True)
class Change:
    """One change; `folder` is where its files lie, below the mark folder."""

    number: int
    last: int
    folder: str = ""
    replaces: tuple[str, ...] = ()
    files: tuple[FileEntry, ...] = ()
    drops: tuple[str, ...] = ()


def changes_of(folder: AnyPath) -> list[Change]:
    """Read all changes of a mark folder, in order. One that a listing missed is a gap, and is looked for again."""
    for _ in range(_TRIES):
        names: list[str] = []
        with suppress(FileNotFoundError):
            names = file_names(folder / "changes")
        numbers = sorted(int(found["number"]) for found in filter(None, map(_NAME.fullmatch, names)))
        if numbers == list(range(1, len(numbers) + 1)):
            return [_loaded(folder / "changes" / f"{number}.change") for number in numbers]
    raise Fatal(f"{folder} lacks a change", why=f"those that stand are {numbers}", next="bring it back from a backup")


def publish(folder: AnyPath, change: Change) -> None:
    """Make a change stand, durably. Raises Retryable when another one took its number."""
    make_folder(folder / "changes")
    body = {"version": _VERSION, **asdict(change)}
    path = folder / "changes" / f"{change.number}.change"
    if not create_file(path, json.dumps(body, sort_keys=True).encode()) and _loaded(path) != change:
        raise Retryable("another one has changed these files meanwhile", next="run the same command again")


def applied(entries: Iterable[FileEntry], changes: Sequence[Change], epoch: int, name: str) -> list[FileEntry]:
    """Return the files as of an epoch, with all changes of which no row is newer. Raises ConfigError if one is gone."""
    files = {entry.path: entry for entry in entries}
    for change in changes:
        if change.files and change.last <= epoch:
            for path in change.replaces:
                files.pop(path, None)
            files |= {entry.path: entry for entry in change.files}
    if any(not files.keys().isdisjoint(change.drops) for change in changes):
        least = max(change.last for change in changes if change.drops)
        raise ConfigError(
            f"{name}: files of epoch {epoch} were dropped once they were compacted", next=f"ask for {least} or later"
        )
    return list(files.values())


def _loaded(path: AnyPath) -> Change:
    try:
        body = json.loads(path.read_bytes())
        if body.pop("version") != _VERSION:
            raise ValueError(f"this release reads version {_VERSION}")
        files = tuple(FileEntry(**file) for file in body.pop("files"))
        if outside := [path for path in [*body["replaces"], *body["drops"]] if not is_below(path)]:
            raise ValueError(f"{outside[0]!r} is outside of the target")
        return Change(**body | {"files": files, "replaces": tuple(body["replaces"]), "drops": tuple(body["drops"])})
    except (ValueError, TypeError, KeyError) as error:
        raise Fatal(f"{path} does not say what has changed: {error!r}", next="bring it back from a backup") from error
