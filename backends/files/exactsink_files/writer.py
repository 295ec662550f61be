"""The executor's side: a participant's files, hidden in the target's own file system until the decision."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from exactsink.contract import Committable, DurableFile, Fatal, Retryable, Txn, Writer, sync_folders
from exactsink.toolkit.tabular import Parts, TabularOptions
from exactsink_files.committer import explained, remove_folder
from exactsink_files.votes import PAYLOAD_VERSION, Vote, VotedFile, temp_folder

__all__ = ["FilesWriter"]


class FilesWriter(Writer):
    """One task attempt's files, one or more per partition folder, below `<root>/_exactsink/<txn.id>/`.

    A sweep removes that folder; from then on every call but `abort` raises Retryable, `pre_commit` included.
    """

    def __init__(self, txn: Txn, schema: pa.Schema, root: str, options: TabularOptions) -> None:
        self._txn = txn
        self._root = root
        self._format = options.format
        self._folder = temp_folder(Path(root), txn)
        self._sealed: list[VotedFile] = []
        self._parts = Parts(options, schema, self._open, self._seal)
        self._opened = 0
        self._rows = 0
        with explained(root):
            self._make_folder()

    def write(self, batch: pa.RecordBatch) -> None:
        with explained(self._root):
            self._parts.write(batch)
        self._rows += batch.num_rows

    def pre_commit(self) -> Committable:
        """Seal the files and sync the folders that name them: from here on any process can commit them."""
        with explained(self._root):
            self._parts.seal()
            sync_folders([self._folder, self._folder.parent])
        vote = Vote(self._root, os.path.relpath(self._folder, self._root), tuple(self._sealed))
        return Committable(self._txn, self._rows, vote.dump(), version=PAYLOAD_VERSION)

    def abort(self) -> None:
        """Remove the files. Idempotent, also when a sweep was here before."""
        self._parts.discard()
        with explained(self._root):
            remove_folder(self._folder)

    def _make_folder(self) -> None:
        """Make the participant's own folder; the one above is the driver's to make, durably."""
        try:
            os.mkdir(self._folder)
        except FileNotFoundError as error:
            raise Fatal(
                f"the target can't be written: {self._folder.parent} does not exist here",
                why="the driver made it, so this task sees another file system, or somebody removed it",
                next="set path to a folder that the driver and all executors share, then start the job again",
            ) from error
        except FileExistsError as error:
            raise Retryable(
                f"the target can't be written: {self._folder} exists",
                why="another attempt uses this transaction's id",
                next="start the job again: its next claim gives new ids",
            ) from error

    def _open(self, partition: str, number: int) -> _TempFile:
        final = self._final(partition, number)
        self._opened += 1
        return _TempFile(self._folder / f"{self._opened - 1}.tmp", final)

    def _seal(self, file: _TempFile, rows: int) -> None:
        self._sealed.append(VotedFile(file.path.name, file.final, *file.seal(), rows))

    def _final(self, partition: str, number: int) -> str:
        """Name a file's place below the root: unique for good, as the transaction's id with the folder's count is.

        Refuses, before the vote, a name that no commit could give.
        """
        count = f".{number}" if number else ""
        final = os.path.join(partition, f"{self._txn.id}{count}.{self._format}")
        longest = max(len(os.fsencode(name)) for name in final.split("/"))
        whole = len(os.fsencode(os.path.join(self._root, final)))
        if longest > os.pathconf(self._root, "PC_NAME_MAX") or whole >= os.pathconf(self._root, "PC_PATH_MAX"):
            raise Fatal(
                f"sink {self._txn.sink}: no file can be called {final}",
                why="the name is longer than the file system takes",
                next="use partition columns with shorter values, or a shorter path",
            )
        return final


class _TempFile(DurableFile):
    """A temp file, with the final name that it is to get."""

    def __init__(self, path: Path, final: str) -> None:
        super().__init__(path)
        self.path = path
        self.final = final
