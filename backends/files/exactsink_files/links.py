"""Files in a folder: hidden files get their final names by hard links, which are atomic and never replace a file.

Readers (Spark, pandas, pyarrow) skip `_exactsink`, and temp names match no `*.parquet`.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from exactsink.contract import FileMode, Finding, JobContext
from exactsink.toolkit.storage import NO_HARD_LINKS, make_folder, new_folder
from exactsink_files.folders import TRIES, Folders
from exactsink_files.places import contended, doing, refusal, remedy, tried
from exactsink_files.votes import VotedFile, VotedFiles, temp_root

__all__ = ["Links", "remove_folder"]

_NO_LINKS = NO_HARD_LINKS | {errno.EMLINK}  # or this file can't have another one


class Links(Folders[Path]):
    """A folder of a file system. A linked file also keeps its hidden name until the participant is dropped."""

    def __init__(self, root: Path, file_mode: FileMode) -> None:
        super().__init__(root)
        self._file_mode = file_mode

    def problems(self, ctx: JobContext) -> Iterator[Finding]:
        places = tuple(dict.fromkeys((_nearest(str(temp_root(self._root))), _nearest(str(self._root)))))
        if files := [place for place in places if not os.path.isdir(place)]:
            yield Finding("error", f"{files[0]} is not a folder", "move it away, or set path to another folder")
            return
        try:
            self.folds = _tried(places)
        except OSError as error:
            fix = remedy(error, places[-1])
            if isinstance(error, PermissionError):
                fix = f"chmod u+rwx '{places[-1]}' as its owner, or set path to another folder"
            yield refusal(error, places[-1], fix)

    def prepare(self) -> None:
        folder = temp_root(self._root)
        existed = folder.exists()
        make_folder(folder)  # readers of marks may enter
        if self._file_mode == "group" and not existed:
            os.chmod(folder, stat.S_IMODE(os.stat(folder).st_mode) | 0o2070)

    def ticket(self) -> bytes:
        """Return the root, the mode of hidden folders, and the driver's user, who must be able to read them."""
        return json.dumps([str(self.root), self._file_mode, os.getuid()]).encode()

    def drop(self, votes: Sequence[VotedFiles]) -> None:
        for vote in votes:
            _drop_temps(self._root / vote.folder, vote)

    def _look(self, path: Path) -> os.stat_result | None:
        with suppress(FileNotFoundError):
            return os.lstat(path)
        return None

    def _missing(self, vote: VotedFiles) -> str:
        folder = self._root / vote.folder
        return "; ".join(filter(None, (f"{folder} is a link" * folder.is_symlink(), super()._missing(vote))))

    def _gone(self, vote: VotedFiles, file: VotedFile) -> str:
        mounted = "" if self._root.is_dir() else f"; {self._root} is also missing: is its file system mounted?"
        return super()._gone(vote, file) + mounted

    def _differs(self, temp: Path, found: os.stat_result, file: VotedFile) -> str:
        if found.st_size == file.size and stat.S_ISREG(found.st_mode):
            return ""
        kind = "" if stat.S_ISREG(found.st_mode) else "is not a regular file, "
        return f"{temp} {kind}has {found.st_size} bytes, {file.size} were voted for"

    def _name(self, temp: Path, final: Path) -> None:
        _make_folders(final.parent)
        _link(temp, final)

    def _is_same(self, found: os.stat_result, waits: os.stat_result | None) -> bool:
        return waits is not None and os.path.samestat(found, waits)

    def _listed(self, folder: Path, *, folders: bool = False) -> Mapping[str, tuple[int, float | None]]:
        found: dict[str, tuple[int, float | None]] = {}
        with suppress(FileNotFoundError):
            for entry in list(os.scandir(folder)):
                with suppress(FileNotFoundError):  # it went after the listing
                    if not folders or entry.is_dir(follow_symlinks=False):
                        seen = entry.stat(follow_symlinks=False)
                        found[entry.name] = seen.st_size, seen.st_mtime
        return found

    def _remove(self, folder: Path) -> None:
        remove_folder(folder)


def remove_folder(folder: Path) -> None:
    """Remove a participant's folder. Idempotent, also while another process removes it or a late writer adds files.

    Once the folder is gone, its writer can't add a file, and so can't vote.
    """
    for _ in range(TRIES):
        try:
            shutil.rmtree(folder)
            return
        except FileNotFoundError:  # it is gone, or another process removed a file in it
            if not os.path.lexists(folder):
                return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
    raise contended(f"can't remove {folder}")


def _make_folders(folder: Path) -> None:
    """Make partition folders. `publish` makes all their names durable later."""
    if not folder.is_dir():
        _make_folders(folder.parent)
        with suppress(FileExistsError):
            new_folder(folder, "umask")


def _link(temp: Path, final: Path) -> None:
    """Link `temp` to `final`, or rename it if links are not supported. Raises FileExistsError."""
    try:
        os.link(temp, final)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(final):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(final)) from error
        os.rename(temp, final)  # of two committers, the slower finds the temp gone


def _drop_temps(folder: Path, vote: VotedFiles) -> None:
    """Remove a committed participant's temp names and folder. Idempotent."""
    if folder.is_symlink():  # the other folder is not ours
        return
    for file in vote.files:
        (folder / file.temp).unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):  # other files there are not ours
            raise


def _tried(places: Sequence[str]) -> str:
    made: list[Path] = []
    try:
        for place in places:  # no TemporaryDirectory: some Pythons try to remove it endlessly
            with doing("make a folder"):
                made.append(Path(tempfile.mkdtemp(dir=place, prefix="_exactsink-probe-")))
        return tried(made[0], made[-1], _link)
    finally:
        for folder in made:
            with doing("list and remove a folder"):
                remove_folder(folder)


def _nearest(path: str) -> str:
    """Return the path if it exists, else its nearest parent that exists."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path
