"""The executor's side: a participant's rows in hidden temp files of the target's file system."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from exactsink.backend import Writer
from exactsink.durable import DurableFile, sync_folders
from exactsink.errors import Fatal, Retryable
from exactsink.model import Committable, Finding, Txn
from exactsink_files.environment import explain, explained
from exactsink_files.layout import PAYLOAD_VERSION, Vote, VotedFile, remove_folder, temp_folder
from exactsink_files.partitions import split

if TYPE_CHECKING:
    from exactsink_files.backend import FilesOptions

__all__ = ["JSON_COLUMN", "FilesWriter", "parquet_problems"]

JSON_COLUMN = "value"
ROW_GROUP_ROWS = 128 * 1024
BUFFERED_BYTES = 64 * 1024 * 1024


def parquet_problems(schema: pa.Schema) -> list[Finding]:
    """Find columns that Parquet can't hold, by writing an empty file in memory."""
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), schema).close()
    except pa.ArrowException as error:
        return [
            Finding("error", f"parquet can't hold these rows: {error}", "cast the column, or leave it out of columns")
        ]
    return []


class FilesWriter(Writer):
    """One task attempt's files, one per partition folder, below `<root>/_exactsink/<txn.id>/`.

    A sweep removes that folder; from then on every call but `abort` raises Retryable, `pre_commit` included.
    """

    def __init__(self, options: FilesOptions, txn: Txn, schema: pa.Schema, root: str) -> None:
        self._options = options
        self._txn = txn
        self._root = root
        self._folder = temp_folder(root, txn)
        self._schema = pa.schema([f for f in schema if f.name not in options.partition_by], metadata=schema.metadata)
        self._files: dict[str, _File] = {}
        self._rows = 0
        self._held = 0
        self._make_folder()

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        with explained(self._root):
            for partition, part in split(batch, self._options.partition_by):
                self._file(partition).add(part)
            self._bound_memory(batch.nbytes)
        self._rows += batch.num_rows

    def pre_commit(self) -> Committable:
        """Seal the files and sync the folders that name them: from here on any process can commit them."""
        with explained(self._root):
            files = tuple(VotedFile(file.path.name, file.final, *file.seal()) for file in self._files.values())
            sync_folders([self._folder, self._folder.parent])
        vote = Vote(self._root, os.path.relpath(self._folder, self._root), files)
        return Committable(self._txn, self._rows, vote.dump(), version=PAYLOAD_VERSION)

    def abort(self) -> None:
        """Remove the files. Idempotent, also when a sweep was here before."""
        for file in self._files.values():
            file.discard()
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
        except OSError as error:
            raise explain(error, self._root) from error

    def _file(self, partition: str) -> _File:
        file = self._files.get(partition)
        if file is None:
            final = self._final(partition)
            path = self._folder / f"{len(self._files)}.tmp"
            if self._options.format == "json":
                file = _JsonLines(path, final)
            else:
                file = _Parquet(path, final, self._schema, self._options.compression or "snappy")
            self._files[partition] = file
        return file

    def _final(self, partition: str) -> str:
        """Name a file's place below the root: unique for good, as the transaction's id is.

        Refuses, before the vote, a name that no commit could give.
        """
        final = os.path.join(partition, f"{self._txn.id}.{self._options.format}")
        longest = max(len(os.fsencode(name)) for name in final.split("/"))
        whole = len(os.fsencode(os.path.join(self._root, final)))
        if longest > os.pathconf(self._root, "PC_NAME_MAX") or whole >= os.pathconf(self._root, "PC_PATH_MAX"):
            raise Fatal(
                f"sink {self._txn.sink}: no file can be called {final}",
                why="the name is longer than the file system takes",
                next="use partition columns with shorter values, or a shorter path",
            )
        return final

    def _bound_memory(self, added: int) -> None:
        """Write out all files' buffers before they hold too much.

        Whole batches are counted until nothing is buffered: a rare value's few rows keep their batch alive.
        """
        self._held += added
        if self._held > BUFFERED_BYTES:
            for file in self._files.values():
                file.flush()
        if not any(file.buffered for file in self._files.values()):
            self._held = 0


class _File(ABC):
    """One temp file in a format, with the final name that it is to get."""

    def __init__(self, path: Path, final: str) -> None:
        self.path = path
        self.final = final
        self._out = DurableFile(path)

    @property
    def buffered(self) -> bool:
        """Say whether rows wait in memory."""
        return False

    @abstractmethod
    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows, to be written now or at a flush."""

    def flush(self) -> None:  # noqa: B027 - nothing to do where `add` writes
        """Write what is buffered."""

    def seal(self) -> tuple[int, str]:
        """Write the rest, sync and close; give the size and the SHA-256."""
        return self._out.seal()

    def discard(self) -> None:
        """Close without a sync."""
        self._out.close()


class _JsonLines(_File):
    """Text values, one a line."""

    def add(self, batch: pa.RecordBatch) -> None:
        values = batch.column(JSON_COLUMN)
        if values.null_count:
            raise Fatal(
                f"column {JSON_COLUMN} holds {values.null_count} nulls",
                why="a JSON line can't be null, and no row may be dropped",
                next="leave making the JSON to the sink: give it the frame's own columns",
            )
        kind = pa.large_string()  # 64-bit offsets: the line ends can't overflow them
        lines = pc.binary_join_element_wise(values.cast(kind), pa.scalar("", kind), pa.scalar("\n", kind))
        _, offsets, data = lines.buffers()
        ends = memoryview(offsets).cast("B").cast("q")
        first, last = ends[lines.offset], ends[lines.offset + len(lines)]
        self._out.write(data.slice(first, last - first))


class _Parquet(_File):
    """Row groups of at least ROW_GROUP_ROWS rows, but for a flush that memory asks for, and the last."""

    def __init__(self, path: Path, final: str, schema: pa.Schema, compression: str) -> None:
        super().__init__(path, final)
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._waiting = 0
        self._parquet = pq.ParquetWriter(pa.PythonFile(self._out, mode="w"), schema, compression=compression)

    @property
    def buffered(self) -> bool:
        return bool(self._batches)

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._waiting += batch.num_rows
        if self._waiting >= ROW_GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        if not self._batches:
            return
        groups = max(1, self._waiting // ROW_GROUP_ROWS)
        table = pa.Table.from_batches(self._batches, schema=self._schema)
        self._parquet.write_table(table, row_group_size=-(-self._waiting // groups))
        self._batches, self._waiting = [], 0

    def seal(self) -> tuple[int, str]:
        self.flush()
        self._parquet.close()
        return super().seal()

    def discard(self) -> None:
        with suppress(OSError, pa.ArrowException):  # a footer that nobody will read, perhaps on a full disk
            self._parquet.close()
        super().discard()
