"""What the committer asks of the place where files wait for their names: a folder with links, or a bucket with uploads.

Every step can be the last one of a killed process, and another process may be at the same step: a place keeps no
state, and reads what was done off what stands.
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
    """Return the root that a path of the options names. Raises ConfigError where a store's package is missing."""
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
    """What one look found of several votes: what can't get its name any more, and why, by participant.

    `waiting` are the temp names that were seen to stand, where the place wants to know it when it gives the names.
    """

    missing: Mapping[str, str]
    waiting: frozenset[str] = field(default_factory=frozenset)


class FilePlace(ABC):
    """Where one sink's files are until they are committed, and how they get their names. Votes come by participant."""

    root: AnyPath
    folds = ""
    """Which differences between names of folders are none here, in words: `problems` finds out."""

    @abstractmethod
    def problems(self, ctx: JobContext) -> Iterable[Finding]:
        """Find out, leaving nothing behind, what keeps files from being written here."""

    @abstractmethod
    def prepare(self) -> None:
        """Make what tasks need, durably."""

    def ticket(self) -> bytes:
        """Return what tasks must know: the root."""
        return str(self.root).encode()

    @abstractmethod
    def look(self, votes: Mapping[str, VotedFiles]) -> Look:
        """Find what of these votes can't get its name, nor has it."""

    @abstractmethod
    def gone(self, vote: VotedFiles) -> bool:
        """Return whether something of a vote waits no more; what is there, but is not what was voted for, is not gone.

        That may be as it has its name: `shows` says so.
        """

    @abstractmethod
    def shows(self, vote: VotedFiles) -> bool:
        """Return whether something has the final name of one of a vote's files."""

    @abstractmethod
    def withdraw(self, vote: VotedFiles) -> None:
        """Remove what waits of a vote: none of it can get its name from then on."""

    @abstractmethod
    def publish(self, votes: Mapping[str, VotedFiles], found: Look) -> Mapping[str, Sequence[Outcome]]:
        """Let all files have their final names, durably, or find that they have them: an outcome per file.

        Raises Fatal when a foreign file has such a name.
        """

    @abstractmethod
    def standings(self, votes: Mapping[str, VotedFiles]) -> Mapping[str, Sequence[Standing]]:
        """Find, as `publish` does, which files have their final names, and give none: a standing per file."""

    @abstractmethod
    def holds(self, txn: Txn) -> Sequence[str]:
        """Return what a participant takes until it ends, a sentence each."""

    @abstractmethod
    def drop(self, votes: Sequence[VotedFiles]) -> None:
        """Remove what committed participants leave behind. Idempotent."""

    @abstractmethod
    def remove(self, txns: Sequence[Txn]) -> None:
        """Remove all of these participants. Idempotent."""

    @abstractmethod
    def in_doubt(self, ctx: JobContext) -> Sequence[InDoubt]:
        """List this job's and sink's participants."""


def tried(hidden: AnyPath, shown: AnyPath, name: Callable[[Any, Any], None]) -> str:
    """Make, in two empty folders, each call that a commit makes; `name` gives a hidden file its name.

    Returns which differences between names are none there, in words. Raises OSError that says which call fails.
    """
    mark, final = hidden / "mark", shown / _SPELLED
    steps: dict[str, Callable[[], object]] = {
        "make a file durably": lambda: create_file(mark, b"1"),
        "replace a file durably": lambda: replace_file(mark, b"2"),
        "give a hidden file its name": lambda: name(mark, final),
        "read a file": lambda: file_sha256(final),
        "list a folder": lambda: file_names(shown),
    }
    for what, step in steps.items():
        with doing(what):
            step()
    folds = [what for what, other in _SPELLINGS.items() if (shown / other).exists()]
    with doing("remove a file"):
        remove_files(shown, [_SPELLED])
    return " and ".join(folds)


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Raise an OSError of the block as one that says which call fails."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno or errno.EIO, f"can't {what}: {error.strerror or error}") from error


@contextmanager
def explained(root: str) -> Iterator[None]:
    """Turn an OSError of the block into the error that says what comes next: fix something, or just try again."""
    try:
        yield
    except OSError as error:
        what = f"the target can't be written: {error.filename or root}"
        why = error.strerror or str(error)
        in_store = root.startswith(("s3:", "abfs:", "gs:"))
        if fix := remedy(error, root, _STORE_REMEDIES if in_store else _REMEDIES):
            raise Fatal(what, why=why, next=fix) from error
        raise Retryable(what, why=why, next=(_LOOK_AT_STORE if in_store else _LOOK).format(root=root)) from error


def remedy(error: OSError, root: str, known: Mapping[int, str] = _REMEDIES) -> str:
    """Return how a person ends an error, empty where it may end by itself."""
    return known.get(error.errno or 0, "").format(root=root)


def contended(what: str) -> Retryable:
    """Return the error for work that others keep undoing."""
    return Retryable(
        what,
        why="other processes keep changing the folder",
        next="stop the other processes there, for example an old task attempt, then start the job again",
    )


def foreign_file(final: object, file: VotedFile) -> Fatal:
    """Return the error for a final name that something else has."""
    return Fatal(
        f"{final} is not the file that was voted for, and exactsink does not overwrite it",
        why=f"its name is this epoch's, but {file.size} bytes of SHA-256 {file.sha256} were voted for",
        next="move that file away, then start the job again",
    )


def hidden(folder: object, sizes: Sequence[int]) -> str:
    """Return what files that wait in a participant's folder take."""
    return (
        f"{len(sizes)} hidden files in {folder} take {sum(sizes):,} bytes until it ends; no reader sees them, and none "
        "waits for them"
    )
