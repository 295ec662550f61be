"""The executor's side: a participant's files, hidden in the target's own file system until the decision."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Generic, TypeVar

import pyarrow as pa

from exactsink.contract import Committable, Fatal, FileMode, Retryable, Txn, Writer
from exactsink.toolkit.storage import DurableFile, HashedFile, ObjectPath, new_folder, sync_folders
from exactsink.toolkit.tabular import Parts, TabularOptions, refuse_bad_rows
from exactsink_files.links import remove_folder
from exactsink_files.places import explained
from exactsink_files.votes import PAYLOAD_VERSION, VotedFile, VotedFiles, final_name, temp_folder

__all__ = ["FilesWriter", "HiddenFiles", "InFolder", "TempFolder", "in_use", "too_long"]

_Out = TypeVar("_Out", bound=HashedFile)
_Folder = TypeVar("_Folder", Path, ObjectPath)


class HiddenFiles(ABC, Generic[_Out]):
    """One participant's files in one place. Nobody sees them before the commit."""

    root: str

    @abstractmethod
    def make(self) -> None:
        """Prepare for the first file."""

    @abstractmethod
    def open(self, final: str) -> _Out:
        """Open a file that the commit gives this name below the root. Raises Fatal if no commit could give it."""

    @abstractmethod
    def seal(self, out: _Out, rows: int) -> None:
        """Seal a file that was written whole, with `rows` rows."""

    @abstractmethod
    def vote(self) -> VotedFiles:
        """Make all files durable: from then on, any process can commit them."""

    @abstractmethod
    def drop(self) -> None:
        """Remove the files. Their writers are closed. Idempotent, also after a sweep."""


class FilesWriter(Writer, Generic[_Out]):
    """One task attempt's files, one or more per partition folder."""

    def __init__(self, txn: Txn, schema: pa.Schema, options: TabularOptions, hidden: HiddenFiles[_Out]) -> None:
        self._txn = txn
        self._options = options
        self._hidden = hidden
        self._parts = Parts(options, schema, self._open, hidden.seal)
        self._rows = 0
        with explained(hidden.root):
            hidden.make()

    def write(self, batch: pa.RecordBatch) -> None:
        refuse_bad_rows(self._txn, self._options, batch)
        with explained(self._hidden.root):
            self._parts.write(batch)
        self._rows += batch.num_rows

    def pre_commit(self) -> Committable:
        with explained(self._hidden.root):
            self._parts.seal()
            vote = self._hidden.vote()
        return Committable(self._txn, self._rows, vote.dump(), version=PAYLOAD_VERSION)

    def abort(self) -> None:
        self._parts.discard()
        with explained(self._hidden.root):
            self._hidden.drop()

    def _open(self, partition: str, number: int) -> _Out:
        return self._hidden.open(final_name(self._txn, partition, number, self._options.format))


class InFolder(HiddenFiles[HashedFile], Generic[_Folder]):
    """Files in `<root>/_exactsink/<txn.id>/`.

    A sweep removes that folder. From then on, every call of the writer except `abort` raises Retryable, also
    `pre_commit`.
    """

    def __init__(self, txn: Txn, root: _Folder) -> None:
        self.root = str(root)
        self._sink = txn.sink
        self._folder: _Folder = temp_folder(root, txn)
        self._open: dict[HashedFile, tuple[str, str]] = {}
        self._sealed: list[VotedFile] = []

    @abstractmethod
    def begin(self, path: _Folder) -> HashedFile:
        """Begin a new temp file."""

    def open(self, final: str) -> HashedFile:
        temp = f"{len(self._open) + len(self._sealed)}.tmp"
        out = self.begin(self._folder / temp)
        self._open[out] = temp, final
        return out

    def seal(self, out: HashedFile, rows: int) -> None:
        self._sealed.append(VotedFile(*self._open.pop(out), *out.seal(), rows=rows))

    def vote(self) -> VotedFiles:
        """Sync the folders of the files, and return the vote."""
        sync_folders([self._folder, self._folder.parent])
        return VotedFiles(self.root, f"{self._folder.parent.name}/{self._folder.name}", tuple(self._sealed))


class TempFolder(InFolder[Path]):
    """A local folder with the rights of `mode`. Its files already have the rights of committed files."""

    def __init__(self, txn: Txn, root: str, mode: FileMode = "umask", driver_user: int = 0) -> None:
        super().__init__(txn, Path(root))
        self._mode = mode
        self._driver_user = driver_user

    def make(self) -> None:
        """Make the participant's own folder. The driver has made the folder above, durably."""
        if self._mode == "private" and self._driver_user not in (0, os.getuid()):
            raise Fatal(
                f"sink {self._sink}: the driver could not read this task's files below {self.root}",
                why=f"the driver runs as user {self._driver_user}, this executor as user {os.getuid()}",
                next='set [job] file_mode = "group", with a group of both users, or run both as one user',
            )
        try:
            new_folder(self._folder, self._mode)
        except FileNotFoundError as error:
            raise Fatal(
                f"the target can't be written: {self._folder.parent} does not exist here",
                why="the driver made it, so this task sees another file system, or somebody removed it",
                next="set path to a folder that the driver and all executors share, then start the job again",
            ) from error
        except FileExistsError as error:
            raise in_use(self._folder) from error

    def open(self, final: str) -> HashedFile:
        longest = max(len(os.fsencode(name)) for name in final.split("/"))
        whole = len(os.fsencode(os.path.join(self.root, final)))
        if longest > os.pathconf(self.root, "PC_NAME_MAX") or whole >= os.pathconf(self.root, "PC_PATH_MAX"):
            raise too_long(self._sink, final, "the file system")
        return super().open(final)

    def begin(self, path: Path) -> HashedFile:
        return DurableFile(path, 0o060 if self._mode == "group" else 0)

    def drop(self) -> None:
        remove_folder(self._folder)


def in_use(folder: object) -> Retryable:
    """Return the error for a participant's folder that exists already."""
    return Retryable(
        f"the target can't be written: {folder} exists",
        why="another attempt uses this transaction's id",
        next="start the job again: its next claim gives new ids",
    )


def too_long(sink: str, final: str, who: str) -> Fatal:
    """Return the error for a name that no commit could give."""
    return Fatal(
        f"sink {sink}: no file can be called {final}",
        why=f"the name is longer than {who} accepts",
        next="use partition columns with shorter values, or a shorter path",
    )
