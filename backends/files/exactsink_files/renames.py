"""Files on an SFTP server or in HDFS: hidden files get their final names by a rename that never replaces a file.

As in a local folder, but a file has one name at a time: once it has its final name, its temp name is gone.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from exactsink.contract import Fatal, Finding, JobContext
from exactsink.toolkit.storage import HashedFile, Lack, ObjectPath, store_errors
from exactsink_files.folders import TRIES, Folders
from exactsink_files.places import contended, doing, refusal, tried
from exactsink_files.votes import VotedFile, temp_root
from exactsink_files.writer import InFolder, in_use, too_long

__all__ = ["Renames", "SentFiles"]

_LONGEST_NAME = 255  # bytes: HDFS's limit, and most file systems'


class Renames(Folders[ObjectPath]):
    """A folder of a server."""

    def __init__(self, root: ObjectPath) -> None:
        super().__init__(root)
        self._fs: Any = root.fs

    def problems(self, ctx: JobContext) -> Iterator[Finding]:
        try:
            if lack := self._tried():
                yield Finding("error", f"{self.root} can't be used: {lack.why}", lack.fix)
        except OSError as error:
            yield refusal(error, self.root, self._fs.fix)

    def _tried(self) -> Lack | None:
        """Make each call that a commit makes; return a call that the server lacks, if any."""
        made: list[ObjectPath] = []
        try:
            for place in (temp_root(self._root), self._root):
                while not place.exists():
                    place = place.parent
                made.append(place / f"_exactsink-probe-{secrets.token_hex(8)}")
                with store_errors(made[-1].url), doing("make a folder"):
                    self._fs.make_folders(_path(made[-1]))
            self.folds = tried(made[0], made[1], lambda temp, final: self._fs.give_name(_path(temp), _path(final)))
            return made[0].why_no_creates()
        finally:
            for folder in made:
                with doing("list and remove a folder"):
                    _remove_folder(folder)

    def prepare(self) -> None:
        with store_errors(self._root.url):
            self._fs.make_folders(_path(temp_root(self._root)))

    def _look(self, path: ObjectPath) -> int | None:
        """Return a file's size; None if it is absent."""
        with suppress(FileNotFoundError):
            return path.info().size
        return None

    def _differs(self, temp: ObjectPath, found: int, file: VotedFile) -> str:
        return "" if found == file.size else f"{temp} has {found} bytes, {file.size} were voted for"

    def _name(self, temp: ObjectPath, final: ObjectPath) -> None:
        with store_errors(final.url):
            self._fs.make_folders(_path(final.parent))
            self._fs.give_name(_path(temp), _path(final))

    def _listed(self, folder: ObjectPath, *, folders: bool = False) -> Mapping[str, tuple[int, float | None]]:
        return {name: (info.size, info.modified) for name, info in folder.listed().items()}

    def _remove(self, folder: ObjectPath) -> None:
        _remove_folder(folder)


class SentFiles(InFolder[ObjectPath]):
    """A participant's folder on a server."""

    def make(self) -> None:
        """Make the participant's own folder. The driver has made the folder above, durably."""
        with store_errors(self._folder.url):
            try:
                self._folder.fs.mkdir(_path(self._folder), create_parents=False)
            except FileNotFoundError as error:
                raise Fatal(
                    f"the target can't be written: {self._folder.parent} does not exist",
                    why="the driver made it, and somebody removed it",
                    next="start the job again",
                ) from error
            except OSError as error:
                if not self._folder.exists():
                    raise
                raise in_use(self._folder) from error

    def open(self, final: str) -> HashedFile:
        if any(len(name.encode()) > _LONGEST_NAME for name in final.split("/")):
            raise too_long(self._sink, final, "the server")
        return super().open(final)

    def begin(self, path: ObjectPath) -> HashedFile:
        with store_errors(self.root):
            return _SentFile(path)

    def drop(self) -> None:
        _remove_folder(self._folder)


class _SentFile(HashedFile):
    """A temp file. The server answers each write before the next."""

    def __init__(self, path: ObjectPath) -> None:
        super().__init__()
        self._path = path
        self._fs: Any = path.fs
        self._file = self._fs.begin_own(_path(path))

    def put(self, view: memoryview) -> None:
        with store_errors(self._path.url):
            self._file.write(view)

    def finish(self) -> None:
        with store_errors(self._path.url):
            self._fs.seal(self._file)

    def close(self) -> None:
        self._file.close()
        super().close()


def _path(place: ObjectPath) -> str:
    """Return the name of a file on its server."""
    return str(place.fs._strip_protocol(place.url))


def _remove_folder(folder: ObjectPath) -> None:
    """Remove a participant's folder. Idempotent, also while another process removes it or a late writer adds files."""
    fs: Any = folder.fs
    for _ in range(TRIES):
        folder.unlink_below(folder.names())
        with suppress(FileNotFoundError), store_errors(folder.url):
            try:
                fs.rmdir(folder.url)
            except OSError:
                if not folder.names():
                    raise
                continue
        return
    raise contended(f"can't remove {folder}")
