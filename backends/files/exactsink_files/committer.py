"""The driver's side: give decided temp files their final names, and drop undecided ones.

Every step can be the last one of a killed process, and another process may be at the same step: what was done is
read off the files alone.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from exactsink.backend import Committer
from exactsink.durable import file_sha256, make_folder, sync_folders
from exactsink.errors import Fatal, Retryable
from exactsink.model import (
    AlreadyCommitted,
    Committable,
    Committed,
    Finding,
    InDoubt,
    JobContext,
    Outcome,
    Txn,
    Undecided,
    Unknown,
)
from exactsink_files.environment import explained
from exactsink_files.layout import Vote, VotedFile, remove_folder, temp_folder, temp_root

__all__ = ["FilesCommitter"]

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_TRIES = 100


class FilesCommitter(Committer):
    """Commit by hard link: a link is atomic, and never replaces a file."""

    def __init__(self, ctx: JobContext, root: str, problems: Callable[[pa.Schema], list[Finding]]) -> None:
        self._ctx = ctx
        self._root = root
        self._problems = problems
        self._made = False

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        yield from self._problems(schema)
        yield from _place_problems(self._root)

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        """Make the folders; the ticket is the root. They are durable when it returns, whoever made them."""
        if not self._made:
            with explained(self._root):
                make_folder(temp_root(self._root))
            self._made = True
        return self._root.encode()

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        """Name all files, sync the folders that name them, and only then drop the temp names."""
        votes = [Vote.load(committable) for committable in committables]
        with explained(self._root):
            placed = [[(file, _place(vote, file)) for file in vote.files] for vote in votes]
            outcomes = [_outcome([outcome for _, outcome in files]) for files in placed]
            sync_folders(
                folder
                for vote, files in zip(votes, placed, strict=True)
                for file, outcome in files
                if not isinstance(outcome, Unknown)
                for folder in _naming_folders(vote, file)
            )
            for vote, outcome in zip(votes, outcomes, strict=True):
                if not isinstance(outcome, Unknown):  # what is left is evidence
                    _drop_temps(vote)
        return outcomes

    def abort(self, undecided: Undecided) -> None:
        with explained(self._root):
            for participant in undecided:
                txn = Txn.parse(participant.ref)
                if txn is not None and self._is_own(txn):
                    remove_folder(temp_folder(self._root, txn))

    def in_doubt(self) -> Iterable[InDoubt]:
        with explained(self._root):
            return list(self._listed())

    def close(self) -> None:
        """Hold nothing, so let go of nothing."""

    def _is_own(self, txn: Txn) -> bool:
        return (txn.job, txn.sink) == (self._ctx.job, self._ctx.sink)

    def _listed(self) -> Iterator[InDoubt]:
        try:
            entries = list(os.scandir(temp_root(self._root)))
        except FileNotFoundError:
            return
        now = time.time()
        for entry in entries:
            txn = Txn.parse(entry.name)
            if txn is None or not self._is_own(txn):
                continue
            with suppress(FileNotFoundError):  # gone between listing and looking
                if entry.is_dir(follow_symlinks=False):
                    yield InDoubt.of(txn, age_seconds=now - entry.stat(follow_symlinks=False).st_mtime)


def _place(vote: Vote, file: VotedFile) -> Outcome:
    """Give one file its final name, or tell that it has it. Raises Fatal when a foreign file has it."""
    temp, final = vote.temp(file), vote.final(file)
    for _ in range(_TRIES):
        try:
            sealed = os.stat(temp)
        except FileNotFoundError:  # looked at before the final name: whoever drops the temp has given that first
            return _without_temp(vote, file)
        if sealed.st_size != file.size:
            return Unknown(f"{temp} has {sealed.st_size} bytes, {file.size} were voted for")
        os.makedirs(final.parent, exist_ok=True)
        try:
            _link(temp, final)
        except FileExistsError:
            if (same := _holds(final, file, sealed)) is None:  # removed since: look again
                continue
            if not same:
                raise _foreign(final, file) from None
            return AlreadyCommitted()
        except FileNotFoundError:  # another committer took the temp, or somebody the folder: look again
            continue
        return Committed()
    raise Retryable(
        f"can't give {temp} its final name {final}",
        why="other processes keep changing both folders",
        next="stop what else works in the target's folder, then start the job again",
    )


def _without_temp(vote: Vote, file: VotedFile) -> Outcome:
    final = vote.final(file)
    same = _holds(final, file, None)
    if same:
        return AlreadyCommitted()
    if same is None:
        mounted = "" if os.path.isdir(vote.root) else f"; {vote.root} itself is missing: is its file system mounted?"
        return Unknown(f"both {vote.temp(file)} and its final name {final} are gone{mounted}")
    raise _foreign(final, file)


def _link(temp: Path, final: Path) -> None:
    """Give `temp` the name `final` as well, or, where links are not supported, instead. Raises FileExistsError."""
    try:
        os.link(temp, final)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(final):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(final)) from error
        os.rename(temp, final)  # two committers race for the one temp: the slower finds it gone


def _holds(final: Path, file: VotedFile, sealed: os.stat_result | None) -> bool | None:
    """Say whether `final` is the voted file: the same inode, or the same size and hash; None when it is absent."""
    try:
        found = os.lstat(final)
        if sealed is not None and os.path.samestat(found, sealed):
            return True
        return stat.S_ISREG(found.st_mode) and found.st_size == file.size and file_sha256(final) == file.sha256
    except FileNotFoundError:
        return None


def _foreign(final: Path, file: VotedFile) -> Fatal:
    return Fatal(
        f"{final} is not the file that was voted for, and is not overwritten",
        why=f"its name is this epoch's, its content is not: {file.size} bytes, SHA-256 {file.sha256}, were voted for",
        next="move that file away, then start the job again",
    )


def _outcome(files: Sequence[Outcome]) -> Outcome:
    """Fold a participant's files into its outcome."""
    unknown = [outcome.evidence for outcome in files if isinstance(outcome, Unknown)]
    if unknown:
        return Unknown("; ".join(unknown))
    return next((outcome for outcome in files if isinstance(outcome, Committed)), AlreadyCommitted())


def _naming_folders(vote: Vote, file: VotedFile) -> Iterator[Path]:
    """Give the folders, from the root down, whose entries lead to a final name: another process may have made them."""
    folder = Path(vote.root)
    yield folder
    for name in Path(file.final).parts[:-1]:
        folder /= name
        yield folder


def _drop_temps(vote: Vote) -> None:
    """Remove a committed participant's temp names and folder. Idempotent."""
    for file in vote.files:
        with suppress(FileNotFoundError):
            os.unlink(vote.temp(file))
    try:
        os.rmdir(Path(vote.root, vote.folder))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):  # what else lies there is not ours
            raise


def _place_problems(root: str) -> Iterator[Finding]:
    """Find out, leaving nothing behind, whether the target's folder can be written, or made."""
    place = root
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    places = [place]
    if place == root and os.path.lexists(temp_root(root)):
        places.append(str(temp_root(root)))
    for place in places:
        if not os.path.isdir(place):
            yield Finding("error", f"{place} is not a folder", "move it away, or set path to another folder")
            continue
        try:
            if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            tempfile.TemporaryFile(dir=place, prefix="_exactsink-probe-").close()
        except OSError as error:
            message = f"{place} can't be written: {error.strerror or error}"
            yield Finding("error", message, f"chmod u+rwx '{place}' as its owner, or set path to another folder")
