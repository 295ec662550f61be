"""A sink's marks in its target's folder: which journal writes there, and up to which epoch its files are there.

Readers skip `_exactsink/JOB.SINK/`, like all of `_exactsink`. It holds `birth` until the first epoch with rows is
complete, and for the last epoch:

- `eN.SET.manifest`, the manifest: all files of the epoch. It is durable before the first file gets its name.
- `eN.SET.done`, written once the last name is durable. Readers who want only whole epochs take the files of these.

The files of earlier epochs stay as the record of each epoch's files, until they are folded (`manifests`). For the mark,
only the highest epoch counts.

No name has a format's extension, so a reader that searches all folders for data files ignores these.

SET is a hash of the manifest's content. Lost rows that are written again make another set of the same epoch, and so
another manifest. No manifest ever replaces another, and writing one twice makes the same content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from exactsink.contract import Fatal, JobContext, Mark
from exactsink.toolkit.storage import (
    AnyPath,
    ObjectPath,
    SyncFailed,
    create_file,
    make_folder,
    new_file,
    remove_files,
    replace_file,
    sync_folders,
)
from exactsink_files.manifests import FileEntry, Listing, fold, range_of
from exactsink_files.votes import VotedFiles, temp_root

__all__ = ["MarkFolder", "FolderMark"]

_VERSION = 1
_BIRTH = "birth"
_DAMAGED = "restore the file from a backup, then start the job again"
_UNFINISHED = (
    "if its writer died and no driver runs, remove it; otherwise restore it from a backup; then start the job again"
)


@dataclass(frozen=True, slots=True)
class FolderMark:
    """The mark at one moment, with the participants in its epoch's manifests, and those in a set that is done.

    `after`: the epoch before the marked one, -1 if there was none, None if it is not known.
    """

    mark: Mark | None
    named: frozenset[str] = frozenset()
    done: frozenset[str] = frozenset()
    after: int | None = None

    @property
    def epoch(self) -> int:
        """Return the highest epoch that is marked, -1 if none is."""
        return -1 if self.mark is None or self.mark.epoch is None else self.mark.epoch

    def before(self, epoch: int) -> int | None:
        """Return the epoch before this one, -1 if there was none, None if it is not known."""
        if epoch > self.epoch:
            return None if self.mark is None else self.epoch
        return self.after if epoch == self.epoch else None

    def names(self, epoch: int, participant: str) -> bool:
        """Return whether a file of this participant may have got its final name."""
        return epoch < self.epoch or (epoch == self.epoch and participant in self.named)

    def proves(self, epoch: int, participant: str) -> bool:
        """Return whether all files of this participant have had their final names."""
        return epoch < self.epoch or (epoch == self.epoch and participant in self.done)


class MarkFolder:
    """One sink's marks in one target."""

    def __init__(self, ctx: JobContext, root: AnyPath) -> None:
        self._ctx = ctx
        self._path = temp_root(root) / f"{ctx.job}.{ctx.sink}"
        self._newest = -1
        self._trimmed: int | None = None

    def read(self) -> FolderMark:
        """Read the mark: the highest epoch counts."""
        while True:
            found = Listing.newest(self._path)
            with suppress(FileNotFoundError):  # it was trimmed after the listing: a later mark exists
                if not found and not (self._path / _BIRTH).exists():
                    return FolderMark(None)
                return self._epoch(found) if found else FolderMark(Mark(self._loaded(_BIRTH)["lineage"]))

    def put_birth(self) -> Mark:
        """Write a birth of this journal, durably, unless there is a mark; return the mark that is there. Idempotent."""
        make_folder(self._path)
        while (mark := self.read().mark) is None:
            create_file(self._path / _BIRTH, json.dumps(self._body()).encode())  # read again: it may be trimmed
        self.sync()
        return mark

    def confirm(self) -> None:
        """Write a birth again, durably: its writer may have died before the sync, or the sync may have failed."""
        if isinstance(self._path, ObjectPath):
            return
        with suppress(FileNotFoundError):  # an epoch's manifest took its place, and each commit writes that again
            replace_file(self._path / _BIRTH, (self._path / _BIRTH).read_bytes())

    def sync(self) -> None:
        """Make the marks that were read durable: their writer may have died before it did so."""
        sync_folders([self._path])

    def begin(self, epoch: int, votes: Mapping[str, VotedFiles], tokens: Sequence[str], standing: FolderMark) -> str:
        """Write the manifest of these participants' files, durably; return its name for `finish`. Idempotent."""
        participants = {
            name: sorted(
                [FileEntry(f.final, f.size, f.rows, f.sha256)._asdict() for f in vote.files], key=itemgetter("path")
            )
            for name, vote in votes.items()
        }
        body = self._body() | {"epoch": epoch, "tokens": sorted(set(tokens)), "participants": participants}
        body["after"] = standing.before(epoch)
        data = json.dumps(body, sort_keys=True).encode()
        name = f"e{epoch}.{hashlib.sha256(data).hexdigest()[:16]}"
        if not isinstance(self._path, ObjectPath) and not self._path.is_dir():  # no birth was put there
            make_folder(self._path)
        self._newest = epoch
        replace_file(self._path / f"{name}.manifest", data)  # if it exists, it is the same
        return name

    def finish(self, name: str) -> None:
        """Mark that all files of a manifest have their names, which are durable. The mark is durable. Idempotent."""
        done = self._path / f"{name}.done"
        with suppress(FileExistsError):
            replace_file(done, b"") if isinstance(done, ObjectPath) else new_file(done).close()
        try:
            self.sync()
        except SyncFailed:  # so that the next try makes it again
            done.unlink(missing_ok=True)
            raise

    def trim(self) -> None:
        """Fold ranges below the highest epoch of this very listing, and delete the files that are not needed any more.

        It does so at a committer's first call, and when a range of epochs may be final. Idempotent.
        """
        if self._trimmed == range_of(self._newest):
            return
        listing = Listing.of(self._path)
        if not listing.sets:
            return
        self.sync()
        (self._path / _BIRTH).unlink(missing_ok=True)
        remove_files(self._path, list(listing.superfluous(fold(self._path, listing))))
        self._trimmed = range_of(self._newest)

    def _epoch(self, found: Mapping[int, Mapping[str, bool]]) -> FolderMark:
        epoch = max(found)
        bodies = {named: self._loaded(f"e{epoch}.{named}.manifest") for named in found[epoch]}
        lineages = {body["lineage"] for body in bodies.values()}
        foreign = sorted(lineages - {self._ctx.lineage})
        tokens = frozenset(token for body in bodies.values() for token in body["tokens"])
        done = {named for named, is_done in found[epoch].items() if is_done}
        mark = Mark(foreign[0] if foreign else self._ctx.lineage, epoch, tokens, None if done else 0)
        named = frozenset(name for body in bodies.values() for name in body["participants"])
        finished = frozenset(name for each in done for name in bodies[each]["participants"])
        known = [body["after"] for body in bodies.values() if body.get("after") is not None]
        return FolderMark(mark, named, finished, max(known, default=None))

    def _loaded(self, name: str) -> dict[str, Any]:
        path = self._path / name
        try:
            body: dict[str, Any] = json.loads(path.read_bytes())
            if body["version"] != _VERSION:
                raise ValueError(f"version {body['version']}, this release reads {_VERSION}")
            return body
        except (ValueError, TypeError, KeyError) as error:
            what = f"{path} does not show which epoch the target has: {error}"
            fix = _UNFINISHED if name == _BIRTH and isinstance(path, Path) else _DAMAGED  # only a birth can be cut
            raise Fatal(what, why="it is the sink's mark, and exactsink never guesses a mark", next=fix) from error

    def _body(self) -> dict[str, Any]:
        ctx = self._ctx
        return {"version": _VERSION, "job": ctx.job, "sink": ctx.sink, "lineage": ctx.lineage}
