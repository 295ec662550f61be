"""The driver's side: how a vote's temp files get their final names, or go, and what proves it.

Every step can be the last one of a killed process, and another process may be at the same step: what was done is
read off the files alone. Readers (Spark, pandas, pyarrow) skip `_exactsink`, and temp names match no `*.parquet`.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import pyarrow as pa

from exactsink.contract import (
    NO_HARD_LINKS,
    AlreadyCommitted,
    Committable,
    Committed,
    Committer,
    Fatal,
    Finding,
    InDoubt,
    JobContext,
    LineageError,
    Lost,
    Mark,
    Outcome,
    Retryable,
    SyncFailed,
    Txn,
    Undecided,
    Unknown,
    file_sha256,
    make_folder,
    sync_folders,
)
from exactsink_files.marks import MarkFolder, Standing
from exactsink_files.votes import Vote, VotedFile, temp_folder, temp_root

__all__ = ["FilesCommitter", "explained", "remove_folder"]

_RIGHTS = "let driver and executors run as one user, or give their group the right to read and write below {root}"
_IN_THE_WAY = "move away what is no folder there, or set another path"
_REMEDIES = {
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: "mount the file system of {root} writable, or set another path",
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.ENAMETOOLONG: "use shorter names: a shorter path, or partition columns with shorter values",
    errno.EXDEV: "keep all folders below {root} on one file system: no mount point, no symlink to another disk",
    errno.EMFILE: 'raise `ulimit -n`, or set distribution = "hash(<partition columns>)": each value is an open file',
}
_NO_LINKS = NO_HARD_LINKS | {errno.EMLINK}  # or no more of them for this file
_TRIES = 100


class FilesCommitter(Committer):
    """Commit by hard link: a link is atomic, and never replaces a file."""

    def __init__(self, ctx: JobContext, root: str, problems: Callable[[pa.Schema], list[Finding]]) -> None:
        self._ctx = ctx
        self._root = root
        self._problems = problems
        self._made = False
        self._folder = Path(root)
        self._marks = MarkFolder(ctx, self._folder)
        self._held: Mark | Literal["any"] | None = "any"

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        yield from self._problems(schema)
        yield from _place_problems(self._root)

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        """Make the folders; the ticket is the root. They are durable when it returns, whoever made them."""
        if not self._made:
            with explained(self._root):
                make_folder(temp_root(self._folder))
                self._marks.confirm()
            self._made = True
        return self._root.encode()

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        """Name all files, and only then drop the temp names; before the first name, and after the last, mark it.

        In what has a file missing nothing is named: should its rows be written again, none would come twice.
        """
        votes = {committable.txn.id: Vote.load(committable) for committable in committables}
        with explained(self._root):
            missing = {name: found for name, vote in votes.items() if (found := _missing(vote))}
            # In this order: who drops a temp name has marked the epoch before.
            standing = self._check_held(epoch)
            lost = {name for name, vote in votes.items() if name in missing and self._lost(epoch, name, vote, standing)}
            outcomes: dict[str, Outcome] = {name: Lost(missing[name]) for name in lost}
            whole = {n: vote for n, vote in votes.items() if n not in missing and not standing.proves(epoch, n)}
            if whole.keys() != votes.keys() - missing.keys():
                self._marks.sync()  # a proof of another process: temp names go on its ground
            if whole:
                tokens = [c.txn.token for c in committables if c.txn.id not in lost]
                kept = {n: v for n, v in votes.items() if n not in lost}
                manifest = self._marks.begin(epoch, kept, tokens, standing)
                outcomes |= {n: _outcome([_place(vote, file) for file in vote.files]) for n, vote in whole.items()}
                _sync_finals([vote for n, vote in whole.items() if not isinstance(outcomes[n], Unknown)])
                named = {n for n, outcome in outcomes.items() if isinstance(outcome, Committed | AlreadyCommitted)}
                if all(n in named or standing.proves(epoch, n) for n in votes):
                    self._marks.finish(manifest)
            return self._settled(epoch, votes, outcomes, missing)

    def _settled(
        self, epoch: int, votes: Mapping[str, Vote], outcomes: Mapping[str, Outcome], missing: Mapping[str, str]
    ) -> Sequence[Outcome]:
        """Return each vote's outcome; what is missing may have been named, and moved by a user, since the look at it.

        What is left of an Unknown is evidence.
        """
        final = {name: outcomes.get(name, Unknown(missing.get(name, ""))) for name in votes}
        if any(isinstance(outcome, Unknown) for outcome in final.values()):
            standing = self._marks.read()
            proven = [n for n in votes if isinstance(final[n], Unknown) and standing.proves(epoch, n)]
            if proven:
                self._marks.sync()
                final |= dict.fromkeys(proven, AlreadyCommitted())
        for name, vote in votes.items():
            if isinstance(final[name], Committed | AlreadyCommitted):
                _drop_temps(vote)
        return list(final.values())

    def _check_held(self, epoch: int) -> Standing:
        """Return what stands; unless it is what was held against the journal before, that is to be done again."""
        standing = self._marks.read()
        mark = standing.mark
        if standing.epoch >= epoch and mark is not None:
            if mark.lineage != self._ctx.lineage:
                raise LineageError(
                    f"sink {self._ctx.sink}: {self._root} holds {mark}",
                    why=f"this journal is {self._ctx.lineage}: another one feeds the folder under the same job's name",
                    next="give this job another name, or bring back the journal that the folder belongs to",
                )
        elif self._held not in ("any", mark):
            raise Retryable(
                f"sink {self._ctx.sink}: the mark in {self._root} is not the one that was read before",
                why=f"it was {self._held}, and is {mark}",
                next="start the job again: it looks anew",
            )
        return standing

    def _lost(self, epoch: int, name: str, vote: Vote, standing: Standing) -> bool:
        """Return whether none of a vote's files was ever named, nor can be: what is left of them is removed first.

        The proof is a mark that the journal knows, in which the participant is not: before marks were kept, there was
        none to be in. A file that is there, but is not what was voted for, is no loss.
        """

        def is_named() -> bool:
            return any(os.path.lexists(vote.final(file)) for file in vote.files)

        gone = not all(os.path.lexists(vote.temp(file)) for file in vote.files)
        if not isinstance(self._held, Mark) or not gone or standing.names(epoch, name) or is_named():
            return False
        remove_folder(Path(vote.root, vote.folder))
        return not self._marks.read().names(epoch, name) and not is_named()

    def mark(self) -> Mark | None:
        with explained(self._root):
            self._held = self._marks.read().mark
        return self._held

    def put_birth(self) -> Mark:
        with explained(self._root):
            self._held = self._marks.put_birth()
        return self._held

    def trim_marks(self) -> None:
        with explained(self._root):
            self._marks.trim()

    def abort(self, undecided: Undecided) -> None:
        with explained(self._root):
            for participant in undecided:
                if (txn := self._own(participant.ref)) is not None:
                    remove_folder(temp_folder(self._folder, txn))

    def in_doubt(self) -> Iterable[InDoubt]:
        found = []
        with explained(self._root), suppress(FileNotFoundError):  # no temp folder yet
            for entry in list(os.scandir(temp_root(self._folder))):
                if (txn := self._own(entry.name)) is not None and entry.is_dir(follow_symlinks=False):
                    with suppress(FileNotFoundError):  # gone between listing and looking
                        age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                        found.append(InDoubt.of(txn, age_seconds=age))
        return found

    def close(self) -> None:
        """Hold nothing, so let go of nothing."""

    def _own(self, name: str) -> Txn | None:
        txn = Txn.parse(name)
        return txn if txn is not None and (txn.job, txn.sink) == (self._ctx.job, self._ctx.sink) else None


@contextmanager
def explained(root: str) -> Iterator[None]:
    """Turn an OSError of the block into the error that says what comes next: fix something, or just try again."""
    try:
        yield
    except OSError as error:
        what = f"the target can't be written: {error.filename or root}"
        why = error.strerror or str(error)
        if (fix := _REMEDIES.get(error.errno or 0)) is not None:
            raise Fatal(what, why=why, next=fix.format(root=root)) from error
        look = f"start the job again, nothing is lost; if it comes back, look at {root}: its room, its quota, its mount"
        raise Retryable(what, why=why, next=look) from error


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
    raise _contended(f"can't remove {folder}")


def _missing(vote: Vote) -> str:
    """Return what of a vote can't get its name, and why; empty when all of it can, or has it."""
    found = []
    for file in vote.files:
        temp = vote.temp(file)
        try:  # before the final name: that is given before the temp is dropped
            size = os.stat(temp).st_size
        except FileNotFoundError:
            if not os.path.lexists(vote.final(file)):
                found.append(_gone(vote, file))
        else:
            if size != file.size:
                found.append(f"{temp} has {size} bytes, {file.size} were voted for")
    return "; ".join(found)


def _gone(vote: Vote, file: VotedFile) -> str:
    mounted = "" if os.path.isdir(vote.root) else f"; {vote.root} is missing too: is its file system mounted?"
    return f"both {vote.temp(file)} and its final name {vote.final(file)} are gone{mounted}"


def _place(vote: Vote, file: VotedFile) -> Outcome:
    """Link one file to its final name, or find that it has it. Raises Fatal when a foreign file has that name."""
    temp, final = vote.temp(file), vote.final(file)
    for _ in range(_TRIES):
        sealed = None
        with suppress(FileNotFoundError):  # looked at before the final name: that is given before the temp is dropped
            sealed = os.stat(temp)
        if sealed is not None:
            os.makedirs(final.parent, exist_ok=True)
            try:
                _link(temp, final)
                return Committed()
            except FileNotFoundError:  # another committer took the temp, or somebody the folder: look again
                continue
            except FileExistsError:
                pass
        same = _holds(final, file, sealed)
        if same:
            return AlreadyCommitted()
        if same is not None:
            raise Fatal(
                f"{final} is not the file that was voted for, and is not overwritten",
                why=f"its name is this epoch's, but {file.size} bytes of SHA-256 {file.sha256} were voted for",
                next="move that file away, then start the job again",
            )
        if sealed is None:
            return Unknown(_gone(vote, file))
    raise _contended(f"can't give {temp} its final name {final}")


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


def _holds(final: Path, file: VotedFile, sealed: os.stat_result | None) -> bool | None:
    """Return whether `final` is the voted file: the same inode, or the same size and hash; None when it is absent."""
    try:
        found = os.lstat(final)
        if sealed is not None and os.path.samestat(found, sealed):
            return True
        return stat.S_ISREG(found.st_mode) and found.st_size == file.size and file_sha256(final) == file.sha256
    except FileNotFoundError:
        return None


def _contended(what: str) -> Retryable:
    return Retryable(
        what,
        why="other processes keep changing the folder",
        next="stop what else works in the target's folder, an old attempt perhaps, then start the job again",
    )


def _outcome(files: Sequence[Outcome]) -> Outcome:
    """Fold a participant's files into its outcome."""
    unknown = [outcome.evidence for outcome in files if isinstance(outcome, Unknown)]
    if unknown:
        return Unknown("; ".join(unknown))
    return Committed() if Committed() in files else AlreadyCommitted()


def _sync_finals(votes: Sequence[Vote]) -> None:
    """Make the names of these votes' files durable, in all folders up to the root."""
    finals = [(vote.root, Path(file.final)) for vote in votes for file in vote.files]
    try:
        sync_folders(Path(root, folder) for root, final in finals for folder in final.parents)
    except SyncFailed as error:  # names can't be made again without a moment in which a reader misses them
        raise Fatal(
            f"the names of files in {error.filename} can't be made durable",
            why=f"{error.strerror}; and the system may report the next try as done though these names are gone",
            next="mount its file system anew (or start its machine again), so that what is read is what the disk "
            "holds; then start the job again: nothing is lost",
        ) from error


def _drop_temps(vote: Vote) -> None:
    """Remove a committed participant's temp names and folder. Idempotent."""
    for file in vote.files:
        with suppress(FileNotFoundError):
            os.unlink(vote.temp(file))
    try:
        os.rmdir(Path(vote.root, vote.folder))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):  # what else lies there is not ours
            raise


def _place_problems(root: str) -> Iterator[Finding]:
    """Find out, leaving nothing behind, whether the target's folders can be written, or made."""
    for place in dict.fromkeys((_nearest(root), _nearest(str(temp_root(Path(root)))))):
        if not os.path.isdir(place):
            yield Finding("error", f"{place} is not a folder", "move it away, or set path to another folder")
            continue
        try:
            tempfile.TemporaryFile(dir=place, prefix="_exactsink-probe-").close()
        except OSError as error:
            message = f"{place} can't be written: {error.strerror or error}"
            yield Finding("error", message, f"chmod u+rwx '{place}' as its owner, or set path to another folder")


def _nearest(path: str) -> str:
    """Return what stands there, or the nearest parent that does."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path
