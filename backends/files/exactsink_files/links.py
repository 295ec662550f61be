"""Files in a folder: hidden ones get their final names by hard links, which are atomic and never replace a file.

Readers (Spark, pandas, pyarrow) skip `_exactsink`, and temp names match no `*.parquet`.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from exactsink.contract import (
    AlreadyCommitted,
    Committed,
    Fatal,
    FileMode,
    Finding,
    InDoubt,
    JobContext,
    Outcome,
    Prepared,
    Standing,
    Txn,
    Unknown,
)
from exactsink.toolkit.storage import (
    NO_HARD_LINKS,
    AnyPath,
    SyncFailed,
    file_sha256,
    make_folder,
    new_folder,
    sync_folders,
)
from exactsink_files.places import Found, Place, contended, doing, foreign_file, hidden, remedy, tried
from exactsink_files.votes import Vote, VotedFile, own_txn, temp_folder, temp_root

__all__ = ["Links", "remove_folder", "sync_finals"]

_NO_LINKS = NO_HARD_LINKS | {errno.EMLINK}  # or no more of them for this file
_TRIES = 100


class Links(Place):
    """A folder: a participant's files wait in one of their own below `_exactsink`."""

    def __init__(self, root: Path, file_mode: FileMode) -> None:
        self.root = self._root = root
        self._file_mode = file_mode

    def problems(self, ctx: JobContext) -> Iterator[Finding]:
        places = tuple(dict.fromkeys((_nearest(str(temp_root(self._root))), _nearest(str(self._root)))))
        if files := [place for place in places if not os.path.isdir(place)]:
            yield Finding("error", f"{files[0]} is not a folder", "move it away, or set path to another folder")
            return
        try:
            self.folds = _tried(places)
        except OSError as error:
            message = f"{places[-1]} can't be written: {error.strerror or error}"
            fix = remedy(error, places[-1]) or f"look at its room, its quota and its mount: df -h '{places[-1]}'"
            if isinstance(error, PermissionError):
                fix = f"chmod u+rwx '{places[-1]}' as its owner, or set path to another folder"
            yield Finding("error", message, fix)

    def prepare(self) -> None:
        folder = temp_root(self._root)
        stands = folder.exists()
        make_folder(folder)  # readers of marks may enter
        if self._file_mode == "group" and not stands:
            os.chmod(folder, stat.S_IMODE(os.stat(folder).st_mode) | 0o2070)

    def ticket(self) -> bytes:
        """Return the root, who may look into hidden folders, and the user who must: the driver's."""
        return json.dumps([str(self.root), self._file_mode, os.getuid()]).encode()

    def look(self, votes: Mapping[str, Vote]) -> Found:
        return Found({name: found for name, vote in votes.items() if (found := _missing(vote))})

    def gone(self, vote: Vote) -> bool:
        return not all(os.path.lexists(_temp(vote, file)) for file in vote.files)

    def shows(self, vote: Vote) -> bool:
        return any(os.path.lexists(_final(vote, file)) for file in vote.files)

    def withdraw(self, vote: Vote) -> None:
        remove_folder(Path(vote.root, vote.folder))

    def publish(self, votes: Mapping[str, Vote], found: Found) -> Mapping[str, Sequence[Outcome]]:
        """Link each file; durable for those participants only of which all is there."""
        outcomes = {name: [_place(vote, file) for file in vote.files] for name, vote in votes.items()}
        unknown = {name for name, files in outcomes.items() if any(isinstance(outcome, Unknown) for outcome in files)}
        sync_finals([vote for name, vote in votes.items() if name not in unknown])
        return outcomes

    def standings(self, votes: Mapping[str, Vote]) -> Mapping[str, Sequence[Standing]]:
        return {name: [_stands(vote, file) for file in vote.files] for name, vote in votes.items()}

    def holds(self, txn: Txn) -> Sequence[str]:
        folder = temp_folder(self._root, txn)
        sizes = []
        with suppress(FileNotFoundError):  # it has ended
            for entry in list(os.scandir(folder)):
                sizes.append(entry.stat(follow_symlinks=False).st_size)
        return [hidden(folder, sizes)] if sizes else []

    def drop(self, votes: Sequence[Vote]) -> None:
        for vote in votes:
            _drop_temps(vote)

    def remove(self, txns: Sequence[Txn]) -> None:
        for txn in txns:
            remove_folder(temp_folder(self._root, txn))

    def in_doubt(self, ctx: JobContext) -> Sequence[InDoubt]:
        found = []
        with suppress(FileNotFoundError):  # no temp folder yet
            for entry in list(os.scandir(temp_root(self._root))):
                if (txn := own_txn(ctx, entry.name)) is not None and entry.is_dir(follow_symlinks=False):
                    with suppress(FileNotFoundError):  # gone between listing and looking
                        age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                        found.append(InDoubt.of(txn, age_seconds=age))
        return found


def remove_folder(folder: Path) -> None:
    """Remove a participant's folder. Idempotent, also while another process removes it or a late writer adds files.

    Once the folder is gone its writer can add nothing more, and so can't vote.
    """
    for _ in range(_TRIES):
        try:
            shutil.rmtree(folder)
            return
        except FileNotFoundError:  # gone, or somebody was ahead somewhere inside
            if not os.path.lexists(folder):
                return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
    raise contended(f"can't remove {folder}")


def _temp(vote: Vote, file: VotedFile) -> Path:
    return Path(vote.root, vote.folder, file.temp)


def _final(vote: Vote, file: VotedFile) -> Path:
    return Path(vote.root, file.final)


def _missing(vote: Vote) -> str:
    """Return what of a vote can't get its name, and why; empty when all of it can, or has it."""
    folder = Path(vote.root, vote.folder)
    found = [f"{folder} is a link"] if folder.is_symlink() else []
    for file in vote.files:
        temp = _temp(vote, file)
        try:  # before the final name: that is given before the temp is dropped
            waits = os.lstat(temp)
        except FileNotFoundError:
            if not os.path.lexists(_final(vote, file)):
                found.append(_gone(vote, file))
        else:
            if waits.st_size != file.size or not stat.S_ISREG(waits.st_mode):
                kind = "" if stat.S_ISREG(waits.st_mode) else "is no regular file, "
                found.append(f"{temp} {kind}has {waits.st_size} bytes, {file.size} were voted for")
    return "; ".join(found)


def _gone(vote: Vote, file: VotedFile) -> str:
    mounted = "" if os.path.isdir(vote.root) else f"; {vote.root} is missing too: is its file system mounted?"
    return f"both {_temp(vote, file)} and its final name {_final(vote, file)} are gone{mounted}"


def _place(vote: Vote, file: VotedFile) -> Outcome:
    """Link one file to its final name, or find that it has it. Raises Fatal when a foreign file has that name."""
    temp, final = _temp(vote, file), _final(vote, file)
    for _ in range(_TRIES):
        sealed = _sealed(temp)
        if sealed is not None:
            _make_folders(final.parent)
            try:
                _link(temp, final)
                return Committed()
            except FileNotFoundError:  # another committer took the temp, or somebody the folder: look again
                continue
            except FileExistsError:
                pass
        if _is_named(final, file, sealed):
            return AlreadyCommitted()
        if sealed is None:
            return Unknown(_gone(vote, file))
    raise contended(f"can't give {temp} its final name {final}")


def _make_folders(folder: Path) -> None:
    """Make partition folders; `sync_finals` makes their names durable, all at once."""
    if not folder.is_dir():
        _make_folders(folder.parent)
        with suppress(FileExistsError):
            new_folder(folder, "umask")


def _stands(vote: Vote, file: VotedFile) -> Standing:
    """Find whether one file has its final name. Raises Fatal when a foreign file has it."""
    sealed = _sealed(_temp(vote, file))
    if _is_named(_final(vote, file), file, sealed):
        return AlreadyCommitted()
    return Unknown(_gone(vote, file)) if sealed is None else Prepared()


def _sealed(temp: Path) -> os.stat_result | None:
    """Look at a temp name; always before the final name: that is given before the temp is dropped."""
    try:
        return os.lstat(temp)
    except FileNotFoundError:
        return None


def _link(temp: Path, final: Path) -> None:
    """Link `temp` to `final`, or rename it where links are not supported. Raises FileExistsError."""
    try:
        os.link(temp, final)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(final):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(final)) from error
        os.rename(temp, final)  # two committers race for the one temp: the slower finds it gone


def _is_named(final: Path, file: VotedFile, sealed: os.stat_result | None) -> bool:
    """Return whether `final` is there: the same inode, or the same size and hash. Raises Fatal for a foreign file."""
    try:
        found = os.lstat(final)
        if sealed is not None and os.path.samestat(found, sealed):
            return True
        if stat.S_ISREG(found.st_mode) and found.st_size == file.size and file_sha256(final) == file.sha256:
            return True
    except FileNotFoundError:
        return False
    raise foreign_file(final, file)


def sync_finals(votes: Sequence[Vote], at: Callable[[str, str], AnyPath] = Path) -> None:
    """Make the names of these votes' files durable, in all folders up to the root; `at` joins root and name."""
    finals = [(vote.root, Path(file.final)) for vote in votes for file in vote.files]
    try:
        sync_folders(at(root, str(folder)) for root, final in finals for folder in final.parents)
    except SyncFailed as error:  # names can't be made again without a moment in which a reader misses them
        raise Fatal(
            f"the names of files in {error.filename} can't be made durable",
            why=f"{error.strerror}; and the system may report the next try as done though these names are gone",
            next="mount its file system anew (or start its machine again), so that what is read is what the disk "
            "holds; then start the job again: nothing is lost",
        ) from error


def _drop_temps(vote: Vote) -> None:
    """Remove a committed participant's temp names and folder. Idempotent."""
    if os.path.islink(Path(vote.root, vote.folder)):  # what it leads to is not ours
        return
    for file in vote.files:
        with suppress(FileNotFoundError):
            os.unlink(_temp(vote, file))
    try:
        os.rmdir(Path(vote.root, vote.folder))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):  # what else lies there is not ours
            raise


def _tried(places: Sequence[str]) -> str:
    made: list[Path] = []
    try:
        for place in places:  # no TemporaryDirectory: some Pythons try its removal without end
            with doing("make a folder"):
                made.append(Path(tempfile.mkdtemp(dir=place, prefix="_exactsink-probe-")))
        return tried(made[0], made[-1], _link)
    finally:
        for folder in made:
            with doing("list and remove a folder"):
                remove_folder(folder)


def _nearest(path: str) -> str:
    """Return what stands there, or the nearest parent that does."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path
