"""The common part of folders and SFTP servers: a participant's files are in a folder of their own, hidden below
`_exactsink`, until each gets its final name, which never replaces a file.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from exactsink.contract import (
    AlreadyCommitted,
    Committed,
    Fatal,
    InDoubt,
    JobContext,
    Outcome,
    Prepared,
    Standing,
    Txn,
    Unknown,
)
from exactsink.toolkit.storage import ObjectPath, SyncFailed, file_sha256, sync_folders
from exactsink_files.places import FilePlace, Look, contended, foreign_file, hidden
from exactsink_files.votes import VotedFile, VotedFiles, own_txn, temp_folder, temp_root

__all__ = ["TRIES", "Folders"]

TRIES = 100
"""How often a step is tried if other processes undo it."""

_Path = TypeVar("_Path", Path, ObjectPath)


class Folders(FilePlace, Generic[_Path]):
    """Files that wait in folders. The subclass looks at files, names and removes them."""

    def __init__(self, root: _Path) -> None:
        self.root = root
        self._root: _Path = root

    @abstractmethod
    def _look(self, path: _Path) -> Any | None:
        """Look at a file; return None if it is absent."""

    @abstractmethod
    def _differs(self, temp: _Path, found: Any, file: VotedFile) -> str:
        """Return how a hidden file differs from the voted one; empty if nothing shows a difference."""

    @abstractmethod
    def _name(self, temp: _Path, final: _Path) -> None:
        """Name a hidden file by its final name, and make the folders. Raises FileExistsError, FileNotFoundError."""

    @abstractmethod
    def _listed(self, folder: _Path, *, folders: bool = False) -> Mapping[str, tuple[int, float | None]]:
        """List a folder's files, or its folders: size, and Unix seconds of the change; empty if it is absent."""

    @abstractmethod
    def _remove(self, folder: _Path) -> None:
        """Remove a participant's folder. Idempotent, also while another process removes it or a writer adds files."""

    def look(self, votes: Mapping[str, VotedFiles]) -> Look:
        return Look({name: found for name, vote in votes.items() if (found := self._missing(vote))})

    def gone(self, vote: VotedFiles) -> bool:
        return any(self._look(self._temp(vote, file)) is None for file in vote.files)

    def shows(self, vote: VotedFiles) -> bool:
        return any(self._look(self._root / file.final) is not None for file in vote.files)

    def withdraw(self, vote: VotedFiles) -> None:
        self._remove(self._root / vote.folder)

    def publish(self, votes: Mapping[str, VotedFiles], found: Look) -> Mapping[str, Sequence[Outcome]]:
        """Name each file. Names are durable for each participant without an Unknown file."""
        outcomes = {name: [self._place(vote, file) for file in vote.files] for name, vote in votes.items()}
        unknown = {name for name, files in outcomes.items() if any(isinstance(outcome, Unknown) for outcome in files)}
        self._sync_finals([vote for name, vote in votes.items() if name not in unknown])
        return outcomes

    def standings(self, votes: Mapping[str, VotedFiles]) -> Mapping[str, Sequence[Standing]]:
        return {name: [self._stands(vote, file) for file in vote.files] for name, vote in votes.items()}

    def holds(self, txn: Txn) -> Sequence[str]:
        folder = temp_folder(self._root, txn)
        sizes = [size for size, _ in self._listed(folder).values()]
        return [hidden(folder, sizes)] if sizes else []

    def drop(self, votes: Sequence[VotedFiles]) -> None:
        for vote in votes:
            self.withdraw(vote)

    def remove(self, txns: Sequence[Txn]) -> None:
        for txn in txns:
            self._remove(temp_folder(self._root, txn))

    def in_doubt(self, ctx: JobContext) -> Sequence[InDoubt]:
        now = time.time()
        made = {name: when for name, (_, when) in self._listed(temp_root(self._root), folders=True).items()}
        ages = {name: None if when is None else now - when for name, when in made.items()}
        return [InDoubt.of(txn, age_seconds=ages[name]) for name in ages if (txn := own_txn(ctx, name)) is not None]

    def _temp(self, vote: VotedFiles, file: VotedFile) -> _Path:
        return self._root / f"{vote.folder}/{file.temp}"

    def _missing(self, vote: VotedFiles) -> str:
        """Return which files can't get their names, and why; empty if each can, or has its name."""
        found = []
        for file in vote.files:
            waits = self._look(self._temp(vote, file))  # before the final name, which a file gets before its temp goes
            if waits is not None:
                found.append(self._differs(self._temp(vote, file), waits, file))
            elif self._look(self._root / file.final) is None:
                found.append(self._gone(vote, file))
        return "; ".join(filter(None, found))

    def _gone(self, vote: VotedFiles, file: VotedFile) -> str:
        return f"both {self._temp(vote, file)} and its final name {self._root / file.final} are gone"

    def _place(self, vote: VotedFiles, file: VotedFile) -> Outcome:
        """Name one file, or find that it has its name. Raises Fatal if a foreign file has that name."""
        temp, final = self._temp(vote, file), self._root / file.final
        for _ in range(TRIES):
            waits = self._look(temp)  # before the final name, as above
            if waits is not None:
                try:
                    self._name(temp, final)
                    return Committed()
                except FileNotFoundError:  # another committer took the temp, or the folder is gone: look again
                    continue
                except FileExistsError:
                    pass
            if self._is_named(final, file, waits):
                return AlreadyCommitted()
            if waits is None:
                return Unknown(self._gone(vote, file))
        raise contended(f"can't give {temp} its final name {final}")

    def _stands(self, vote: VotedFiles, file: VotedFile) -> Standing:
        """Find whether one file has its final name. Raises Fatal if a foreign file has it."""
        waits = self._look(self._temp(vote, file))  # before the final name, as above
        if self._is_named(self._root / file.final, file, waits):
            return AlreadyCommitted()
        return Unknown(self._gone(vote, file)) if waits is None else Prepared()

    def _is_named(self, final: _Path, file: VotedFile, waits: Any | None) -> bool:
        """Return whether a file has its final name. `waits`: the look at its temp. Raises Fatal for a foreign file."""
        found = self._look(final)
        if found is None or self._is_same(found, waits):
            return found is not None
        try:
            if not self._differs(final, found, file) and file_sha256(final) == file.sha256:
                return True
        except FileNotFoundError:
            return False
        raise foreign_file(final, file)

    def _is_same(self, found: Any, waits: Any | None) -> bool:
        """Return whether the final name and the temp name surely belong to the same file."""
        return False

    def _sync_finals(self, votes: Sequence[VotedFiles]) -> None:
        """Make the names of these votes' files durable, in all folders up to the root."""
        above = (str(folder) for vote in votes for file in vote.files for folder in Path(file.final).parents)
        try:
            sync_folders(self._root if folder == "." else self._root / folder for folder in above)
        except SyncFailed as error:  # names can't be made again unless readers miss them for a moment
            raise Fatal(
                f"the names of files in {error.filename} can't be made durable",
                why=f"{error.strerror}; the system may report the next try as done although these names are lost",
                next="mount its file system again (or restart its machine), so that reads come from the disk; then "
                "start the job again: nothing is lost",
            ) from error
