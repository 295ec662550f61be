"""The committer's interface to the place of waiting files: a folder with links or renames, or a bucket with uploads.

A process can be killed after every step, and another process may be at the same step. So a place keeps no state, and
reads from the target which steps were done.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from exactsink.contract import ConfigError, Fatal, Finding, InDoubt, JobContext, Outcome, Retryable, Standing, Txn
from exactsink.toolkit.storage import (
    AnyPath,
    create_file,
    file_names,
    file_sha256,
    is_away,
    path_of,
    remove_files,
    replace_file,
)
from exactsink_files.votes import VotedFile, VotedFiles

__all__ = [
    "Look",
    "FilePlace",
    "contended",
    "doing",
    "explained",
    "foreign_file",
    "hidden",
    "refusal",
    "remedy",
    "root_of",
    "tried",
]

_RIGHTS = "let driver and executors run as one user, or give their group the right to read and write below {root}"
_IN_THE_WAY = "move away the file that is there, or set another path"
_SHORTER = "use shorter names: a shorter path, or partition columns with shorter values"
_REMEDIES = {
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: "mount the file system of {root} writable, or set another path",
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.ENAMETOOLONG: _SHORTER,
    errno.EXDEV: "keep all folders below {root} on one file system: no mount point, no symlink to another disk",
    errno.EMFILE: 'raise `ulimit -n`, or set distribution = "hash(<partition columns>)": each value is an open file',
}
_STORE_REMEDIES = {
    errno.EACCES: "renew the job's credentials, or give them the right to read, write, delete and list below {root}; "
    "on S3 also to list and abort its multipart uploads",
    errno.ENODEV: "make the bucket of {root}, or set another path",
    errno.ENAMETOOLONG: _SHORTER,
}
_SPELLED = "X\u00e9."
_SPELLINGS = {
    "upper and lower case": "x\u00e9.",
    "the Unicode forms of \u00e9": "Xe\u0301.",
    "a dot at the end": "X\u00e9",
}
_LOOK = "start the job again, nothing is lost; if it fails again, check {root}: its free space, its quota, its mount"
_LOOK_AT_STORE = (
    "start the job again, nothing is lost; if it fails again, check the store of {root}, and any proxy before it"
)


def root_of(text: str) -> AnyPath:
    """Return the root for a path in the options. Raises ConfigError if the store's package is missing."""
    if not text.startswith("sftp://"):
        return path_of(text)
    try:
        from exactsink_files.sftp import open_sftp
    except ImportError as error:
        fix = "pip install 'exactsink[sftp]'"
        raise ConfigError("no file system for sftp:", why=str(error), next=fix) from error
    return open_sftp(text)


@dataclass(frozen=True, slots=True)
class Look:
    """The result of one look at several votes. `missing`: by participant, why files can't get their names any more.

    `waiting`: the temp names that exist, if the place needs them when it gives the names.
    """

    missing: Mapping[str, str]
    waiting: frozenset[str] = field(default_factory=frozenset)


class FilePlace(ABC):
    """The place of one sink's files until the commit, which gives them their names there. Votes are by participant."""

    root: AnyPath
    folds = ""
    """The differences between folders' names that the place ignores, in words: `problems` sets it."""

    @abstractmethod
    def problems(self, ctx: JobContext) -> Iterable[Finding]:
        """Check that files can be written here. Leaves nothing behind."""

    @abstractmethod
    def prepare(self) -> None:
        """Make the folders that tasks need, durably. Idempotent."""

    def ticket(self) -> bytes:
        """Return the tasks' ticket: the root."""
        return str(self.root).encode()

    @abstractmethod
    def look(self, votes: Mapping[str, VotedFiles]) -> Look:
        """Find files of these votes that have no final name and can't get it."""

    @abstractmethod
    def gone(self, vote: VotedFiles) -> bool:
        """Return whether a file of a vote no longer waits. A file that exists but differs from the vote is not gone.

        It may be gone because it has its final name: see `shows`.
        """

    @abstractmethod
    def shows(self, vote: VotedFiles) -> bool:
        """Return whether the final name of one of a vote's files exists."""

    @abstractmethod
    def withdraw(self, vote: VotedFiles) -> None:
        """Remove the waiting files of a vote: from then on, none can get its name. Idempotent."""

    @abstractmethod
    def publish(self, votes: Mapping[str, VotedFiles], found: Look) -> Mapping[str, Sequence[Outcome]]:
        """Name all files by their final names, durably, or find that they have them; return an outcome per file.

        Idempotent, from any process. Raises Fatal if a foreign file has such a name.
        """

    @abstractmethod
    def standings(self, votes: Mapping[str, VotedFiles]) -> Mapping[str, Sequence[Standing]]:
        """Find which files have their final names, as `publish` does, but give none; return a standing per file."""

    @abstractmethod
    def holds(self, txn: Txn) -> Sequence[str]:
        """Return the space that a participant takes until it ends, as sentences."""

    @abstractmethod
    def drop(self, votes: Sequence[VotedFiles]) -> None:
        """Remove the temp files and lists of committed participants. Idempotent."""

    @abstractmethod
    def remove(self, txns: Sequence[Txn]) -> None:
        """Remove all files of these participants. Idempotent."""

    @abstractmethod
    def in_doubt(self, ctx: JobContext) -> Sequence[InDoubt]:
        """List the participants of this job and sink that have waiting files."""


def tried(hidden: AnyPath, shown: AnyPath, name: Callable[[Any, Any], None]) -> str:
    """Try in two empty folders each call that a commit makes. `name` gives a hidden file its name.

    Return the differences between names that the place ignores, in words. Raises OSError that names the failed call.
    """
    mark, final = hidden / "mark", shown / _SPELLED
    steps: dict[str, Callable[[], object]] = {
        "make a file durably": lambda: create_file(mark, b"1"),
        "replace a file durably": lambda: replace_file(mark, b"2"),
        "give a hidden file its name": lambda: name(mark, final),
        "read a file": lambda: file_sha256(final),
        "list a folder": lambda: file_names(shown),
    }
    for call, step in steps.items():
        with doing(call):
            step()
    folds = [difference for difference, other in _SPELLINGS.items() if (shown / other).exists()]
    with doing("remove a file"):
        remove_files(shown, [_SPELLED])
    return " and ".join(folds)


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Raise an OSError of the block again, with the name of the call that failed."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno or errno.EIO, f"can't {what}: {error.strerror or error}") from error


@contextmanager
def explained(root: str) -> Iterator[None]:
    """Turn an OSError of the block into Fatal with its fix, or into Retryable if it may end by itself."""
    try:
        yield
    except OSError as error:
        what = f"the target can't be written: {error.filename or root}"
        why = error.strerror or str(error)
        in_store = root.startswith(("s3:", "abfs:", "gs:"))
        if fix := remedy(error, root, _STORE_REMEDIES if in_store else _REMEDIES):
            raise Fatal(what, why=why, next=fix) from error
        raise Retryable(what, why=why, next=(_LOOK_AT_STORE if in_store else _LOOK).format(root=root)) from error


def refusal(error: OSError, root: object, fix: str, call: str = "") -> Finding:
    """Return the finding for a call that a preflight has tried. Raises Retryable if the target can't answer now.

    A full disk, or a used-up quota, is a warning: a start may free space, because it removes undecided files. An error
    without a fix is raised again, because it may end by itself: see `explained`.
    """
    why = f"{call}{error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Finding("warning", f"{root} can't be written: {why}", "free space there, or raise the quota")
    if not fix:
        raise error
    if is_away(error):
        what, again = f"the target can't be written: {root}", "start the job again, nothing is lost; if it fails again"
        raise Retryable(what, why=why, next=f"{again}, {fix}") from error
    return Finding("error", f"{root} can't be written: {why}", fix)


def remedy(error: OSError, root: str, known: Mapping[int, str] = _REMEDIES) -> str:
    """Return the fix of an error; empty if the error may end by itself."""
    return known.get(error.errno or 0, "").format(root=root)


def contended(what: str) -> Retryable:
    """Return the error for a step that other processes keep undoing."""
    return Retryable(
        what,
        why="other processes keep changing the folder",
        next="stop the other processes there, for example an old task attempt, then start the job again",
    )


def foreign_file(final: object, file: VotedFile) -> Fatal:
    """Return the error for a final name that a foreign file has."""
    return Fatal(
        f"{final} is not the file that was voted for, and exactsink does not overwrite it",
        why=f"it has the name of this epoch's file, which has {file.size} bytes and SHA-256 {file.sha256}",
        next="move that file away, then start the job again",
    )


def hidden(folder: object, sizes: Sequence[int]) -> str:
    """Return the sentence for the space that a participant's hidden files take."""
    return (
        f"{len(sizes)} hidden files in {folder} take {sum(sizes):,} bytes until it ends; readers neither see them nor "
        "wait for them"
    )
