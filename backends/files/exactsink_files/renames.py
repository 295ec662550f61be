"""Files on an SFTP server: hidden ones get their final names by a rename that refuses a name that stands.

As in a local folder, but that a file has one name at a time: once it has the final one, no temp name waits.
"""

from __future__ import annotations

import hashlib
import io
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from exactsink.contract import (
    AlreadyCommitted,
    Committed,
    Fatal,
    Finding,
    InDoubt,
    JobContext,
    Outcome,
    Prepared,
    Retryable,
    Standing,
    Txn,
    Unknown,
)
from exactsink.toolkit.storage import ObjectPath, file_sha256, store_errors, sync_folders
from exactsink_files.links import sync_finals
from exactsink_files.places import Found, Place, contended, doing, foreign_file, hidden, tried
from exactsink_files.votes import Vote, VotedFile, own_txn, temp_folder, temp_root
from exactsink_files.writer import HiddenFiles

__all__ = ["Renames", "SentFiles"]

_TRIES = 100


class Renames(Place):
    """A folder of a server: a participant's files wait in one of their own below `_exactsink`."""

    def __init__(self, root: ObjectPath) -> None:
        self.root = self._root = root
        self._fs: Any = root.fs

    def problems(self, ctx: JobContext) -> Iterator[Finding]:
        try:
            why = self._tried()
        except OSError as error:
            fix = "look at the server, its ~/.ssh/known_hosts entry, the user's key and the rights on the folder"
            yield Finding("error", f"{self.root} can't be used: {error.strerror or error}", fix)
            return
        if why:
            yield Finding("error", f"{self.root} can't be used: {why}", "use OpenSSH's server, or another target")

    def _tried(self) -> str:
        """Make each call that a commit makes; return why the server can't be used, empty where it can."""
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

    def look(self, votes: Mapping[str, Vote]) -> Found:
        return Found({name: found for name, vote in votes.items() if (found := self._missing(vote))})

    def gone(self, vote: Vote) -> bool:
        return not all(self._temp(vote, file).exists() for file in vote.files)

    def shows(self, vote: Vote) -> bool:
        return any(self._final(vote, file).exists() for file in vote.files)

    def withdraw(self, vote: Vote) -> None:
        _remove_folder(self._at(vote.root, vote.folder))

    def publish(self, votes: Mapping[str, Vote], found: Found) -> Mapping[str, Sequence[Outcome]]:
        """Rename each file; durable for those participants only of which all is there."""
        outcomes = {name: [self._place(vote, file) for file in vote.files] for name, vote in votes.items()}
        unknown = {name for name, files in outcomes.items() if any(isinstance(outcome, Unknown) for outcome in files)}
        sync_finals([vote for name, vote in votes.items() if name not in unknown], self._at)
        return outcomes

    def standings(self, votes: Mapping[str, Vote]) -> Mapping[str, Sequence[Standing]]:
        return {name: [self._stands(vote, file) for file in vote.files] for name, vote in votes.items()}

    def holds(self, txn: Txn) -> Sequence[str]:
        folder = temp_folder(self._root, txn)
        sizes = [info.size or 0 for info in folder.listed().values()]
        return [hidden(folder, sizes)] if sizes else []

    def drop(self, votes: Sequence[Vote]) -> None:
        for vote in votes:
            _remove_folder(self._at(vote.root, vote.folder))

    def remove(self, txns: Sequence[Txn]) -> None:
        for txn in txns:
            _remove_folder(temp_folder(self._root, txn))

    def in_doubt(self, ctx: JobContext) -> Sequence[InDoubt]:
        now = time.time()
        listed = temp_root(self._root).listed()
        ages = {name: None if info.modified is None else now - info.modified for name, info in listed.items()}
        return [InDoubt.of(txn, age_seconds=ages[name]) for name in ages if (txn := own_txn(ctx, name)) is not None]

    def _at(self, root: str, name: str) -> ObjectPath:
        return ObjectPath(root if name == "." else f"{root}/{name}", self._root.fs)

    def _temp(self, vote: Vote, file: VotedFile) -> ObjectPath:
        return self._at(vote.root, f"{vote.folder}/{file.temp}")

    def _final(self, vote: Vote, file: VotedFile) -> ObjectPath:
        return self._at(vote.root, file.final)

    def _missing(self, vote: Vote) -> str:
        """Return what of a vote can't get its name, and why; empty when all of it can, or has it."""
        found = []
        for file in vote.files:
            temp = self._temp(vote, file)
            try:
                if (size := temp.info().size) != file.size:
                    found.append(f"{temp} has {size} bytes, {file.size} were voted for")
            except FileNotFoundError:
                if not self._final(vote, file).exists():
                    found.append(self._gone(vote, file))
        return "; ".join(found)

    def _gone(self, vote: Vote, file: VotedFile) -> str:
        return f"both {self._temp(vote, file)} and its final name {self._final(vote, file)} are gone"

    def _place(self, vote: Vote, file: VotedFile) -> Outcome:
        """Rename one file, or find that it has its name. Raises Fatal when a foreign file has that name."""
        temp, final = self._temp(vote, file), self._final(vote, file)
        for _ in range(_TRIES):
            waits = temp.exists()  # looked at before the final name: that one comes in its place
            if waits:
                try:
                    with store_errors(final.url):
                        self._fs.make_folders(_path(final.parent))
                        self._fs.give_name(_path(temp), _path(final))
                    return Committed()
                except FileNotFoundError:  # another committer took the temp, or somebody the folder: look again
                    continue
                except FileExistsError:
                    pass
            if _is_named(final, file):
                return AlreadyCommitted()
            if not waits:
                return Unknown(self._gone(vote, file))
        raise contended(f"can't give {temp} its final name {final}")

    def _stands(self, vote: Vote, file: VotedFile) -> Standing:
        """Find whether one file has its final name. Raises Fatal when a foreign file has it."""
        waits = self._temp(vote, file).exists()  # in this order, as above
        if _is_named(self._final(vote, file), file):
            return AlreadyCommitted()
        return Prepared() if waits else Unknown(self._gone(vote, file))


class SentFiles(HiddenFiles["SentFile"]):
    """Files in `<root>/_exactsink/<txn.id>/` of a server.

    A sweep removes that folder; from then on their writer can't vote.
    """

    def __init__(self, txn: Txn, root: ObjectPath) -> None:
        self.root = root.url
        self._fs: Any = root.fs
        self._folder = temp_folder(root, txn)
        self._sealed: list[VotedFile] = []
        self._opened = 0

    def make(self) -> None:
        """Make the participant's own folder; the one above is the driver's to make, durably."""
        with store_errors(self._folder.url):
            try:
                self._fs.ftp.mkdir(_path(self._folder))
            except FileNotFoundError as error:
                raise Fatal(
                    f"the target can't be written: {self._folder.parent} does not exist",
                    why="the driver made it, and somebody removed it",
                    next="start the job again",
                ) from error
            except OSError as error:
                if not self._fs.exists(_path(self._folder)):
                    raise
                raise Retryable(
                    f"the target can't be written: {self._folder} exists",
                    why="another attempt uses this transaction's id",
                    next="start the job again: its next claim gives new ids",
                ) from error

    def open(self, final: str) -> SentFile:
        self._opened += 1
        with store_errors(self.root):
            return SentFile(self._fs, self._folder / f"{self._opened - 1}.tmp", final)

    def seal(self, out: SentFile, rows: int) -> None:
        self._sealed.append(VotedFile(out.path.name, out.final, *out.seal(), rows=rows))

    def vote(self) -> Vote:
        """Sync the folders that name the files."""
        sync_folders([self._folder, self._folder.parent])
        return Vote(self.root, self._folder.url[len(self.root) + 1 :], tuple(self._sealed))

    def drop(self) -> None:
        _remove_folder(self._folder)


class SentFile(io.RawIOBase):
    """A temp file that is written from front to back, and hashed on the way; each write is answered before the next."""

    def __init__(self, fs: Any, path: ObjectPath, final: str) -> None:
        super().__init__()
        self.path = path
        self.final = final
        self._fs = fs
        self._hash = hashlib.sha256()
        self._size = 0
        self._file = fs.ftp.open(_path(path), "wx")

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        with store_errors(self.path.url):
            self._file.write(view)
        self._hash.update(view)
        self._size += len(view)
        return len(view)

    def tell(self) -> int:
        return self._size

    def seal(self) -> tuple[int, str]:
        with store_errors(self.path.url):
            self._fs.seal(self._file)
        self.close()
        return self._size, self._hash.hexdigest()

    def close(self) -> None:
        self._file.close()
        super().close()


def _is_named(final: ObjectPath, file: VotedFile) -> bool:
    """Return whether a file has its final name. Raises Fatal when a foreign file has it."""
    try:
        if final.info().size == file.size and file_sha256(final) == file.sha256:
            return True
    except FileNotFoundError:
        return False
    raise foreign_file(final, file)


def _path(place: ObjectPath) -> str:
    """Return the name of a file on its server."""
    return str(place.fs._strip_protocol(place.url))


def _remove_folder(folder: ObjectPath) -> None:
    """Remove a participant's folder. Idempotent, also while another process removes it or a late writer adds files."""
    fs: Any = folder.fs
    for _ in range(_TRIES):
        folder.unlink_below(folder.names())
        with suppress(FileNotFoundError), store_errors(folder.url):
            try:
                fs.rmdir(folder.url)
            except FileNotFoundError:
                raise
            except OSError:
                if not folder.names():
                    raise
                continue
        return
    raise contended(f"can't remove {folder}")
