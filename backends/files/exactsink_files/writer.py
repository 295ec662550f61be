"""The executor's side: a participant's rows, by partition folder, in hidden temp files of the target's file system."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from exactsink.contract import Committable, DurableFile, Fatal, Retryable, Txn, Writer, sync_folders
from exactsink_files.committer import PAYLOAD_VERSION, Vote, VotedFile, explained, remove_folder, temp_folder

__all__ = ["FilesWriter", "Layout"]

ROW_GROUP_ROWS = 1024 * 1024
BUFFERED_BYTES = 128 * 1024 * 1024

_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")  # Spark's list, and NUL, which no file name can hold
_DATE_LENGTH = len("2026-11-20")


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows become files: those of text formats come as lines, below a column that `header` makes the first line.

    A file that has reached `target_bytes` gets no more rows; None never ends one.
    """

    format: str
    partition_by: Sequence[str]
    compression: str
    header: bool = False
    target_bytes: int | None = None


class FilesWriter(Writer):
    """One task attempt's files, one or more per partition folder, below `<root>/_exactsink/<txn.id>/`.

    A sweep removes that folder; from then on every call but `abort` raises Retryable, `pre_commit` included.
    """

    def __init__(self, txn: Txn, schema: pa.Schema, root: str, layout: Layout) -> None:
        self._txn = txn
        self._root = root
        self._layout = layout
        self._folder = temp_folder(root, txn)
        self._schema = pa.schema([f for f in schema if f.name not in layout.partition_by], metadata=schema.metadata)
        self._open: dict[str, _File] = {}
        self._sealed: list[VotedFile] = []
        self._counts: Counter[str] = Counter()
        self._rows = 0
        self._waiting_bytes = 0
        with explained(root):
            self._make_folder()

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        with explained(self._root):
            for partition, part in split(batch, self._layout.partition_by):
                if partition not in self._open:
                    self._open[partition] = self._new_file(partition)
                self._open[partition].add(part)
                self._end_if_full(partition)
            self._bound_memory(batch.nbytes)
        self._rows += batch.num_rows

    def pre_commit(self) -> Committable:
        """Seal the files and sync the folders that name them: from here on any process can commit them."""
        with explained(self._root):
            for partition in list(self._open):
                self._seal(partition)
            sync_folders([self._folder, self._folder.parent])
        vote = Vote(self._root, os.path.relpath(self._folder, self._root), tuple(self._sealed))
        return Committable(self._txn, self._rows, vote.dump(), version=PAYLOAD_VERSION)

    def abort(self) -> None:
        """Remove the files. Idempotent, also when a sweep was here before."""
        for file in self._open.values():
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

    def _new_file(self, partition: str) -> _File:
        path, final = self._folder / f"{self._counts.total()}.tmp", self._final(partition)
        self._counts[partition] += 1
        if self._layout.format == "parquet":
            return _Parquet(path, final, self._schema, self._layout.compression)
        return _Lines(path, final, self._schema.names[0] if self._layout.header else None)

    def _end_if_full(self, partition: str) -> None:
        """Let the partition's next rows begin another file, once this one has its size."""
        target = self._layout.target_bytes
        if target is not None and self._open[partition].size >= target:
            self._seal(partition)

    def _seal(self, partition: str) -> None:
        file = self._open[partition]
        self._sealed.append(VotedFile(file.path.name, file.final, *file.seal()))
        del self._open[partition]

    def _final(self, partition: str) -> str:
        """Name a file's place below the root: unique for good, as the transaction's id with the folder's count is.

        Refuses, before the vote, a name that no commit could give.
        """
        count = f".{self._counts[partition]}" if self._counts[partition] else ""
        final = os.path.join(partition, f"{self._txn.id}{count}.{self._layout.format}")
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
        """Write out what waits for full row groups before all files together hold too much."""
        self._waiting_bytes += added
        if self._waiting_bytes > BUFFERED_BYTES:
            for partition in list(self._open):
                self._open[partition].flush()
                self._end_if_full(partition)
            self._waiting_bytes = 0


class _File(ABC):
    """One temp file in a format, with the final name that it is to get."""

    def __init__(self, path: Path, final: str) -> None:
        self.path = path
        self.final = final
        self._out = DurableFile(path)

    @property
    def size(self) -> int:
        """Return the bytes written so far: less than was added, by what waits."""
        return self._out.tell()

    @abstractmethod
    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows, to be written now or at a flush."""

    @abstractmethod
    def flush(self) -> None:
        """Write what waits."""

    def seal(self) -> tuple[int, str]:
        """Write the rest, sync and close; give the size and the SHA-256."""
        return self._out.seal()

    def discard(self) -> None:
        """Close without a sync."""
        self._out.close()


class _Lines(_File):
    """Text values, one a line, below the header if there is one."""

    def __init__(self, path: Path, final: str, header: str | None) -> None:
        super().__init__(path, final)
        if header is not None:
            self._out.write(header.encode() + b"\n")

    def add(self, batch: pa.RecordBatch) -> None:
        values = batch.column(0)
        if values.null_count:
            raise Fatal(
                f"column {batch.schema.names[0]} holds {values.null_count} nulls",
                why="a line can't be null, and no row may be dropped",
                next="leave making the lines to the sink: give it the frame's own columns",
            )
        text = pa.large_string()  # 64-bit offsets: no batch overflows them
        lines = pa.LargeListArray.from_arrays([0, len(values)], values.cast(text))
        self._out.write(pc.binary_join(lines, pa.scalar("\n", text))[0].as_buffer())
        self._out.write(b"\n")

    def flush(self) -> None:
        """Nothing waits."""


class _Parquet(_File):
    """Row groups of at least ROW_GROUP_ROWS rows, but for a flush that memory asks for, and the last."""

    def __init__(self, path: Path, final: str, schema: pa.Schema, compression: str) -> None:
        super().__init__(path, final)
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._parquet = pq.ParquetWriter(pa.PythonFile(self._out, mode="w"), schema, compression=compression)

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._waiting_rows += batch.num_rows
        if self._waiting_rows >= ROW_GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        if self._batches:
            self._parquet.write_table(pa.Table.from_batches(self._batches, schema=self._schema))
            self._batches, self._waiting_rows = [], 0

    def seal(self) -> tuple[int, str]:
        self.flush()
        self._parquet.close()
        return super().seal()

    def discard(self) -> None:
        with suppress(OSError, pa.ArrowException):  # a footer that nobody will read, perhaps on a full disk
            self._parquet.close()
        super().discard()


def split(batch: pa.RecordBatch, partition_by: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Return a batch's rows per partition folder, without the partition columns, in the order they came.

    Folders come once each: a null and an empty string, which share a folder, come together.
    """
    if not partition_by:
        yield "", batch
        return
    rest = batch.select([i for i, name in enumerate(batch.schema.names) if name not in partition_by])
    texts = [_text(batch.column(name), name) for name in partition_by]
    keys = [str(i) for i in range(len(texts))]  # a column's own name could be the one of the rows' numbers
    numbers = pc.indices_nonzero(pa.repeat(True, batch.num_rows))
    rows = pa.table([*texts, numbers], names=[*keys, "row"])
    groups = rows.group_by(keys, use_threads=False).aggregate([("row", "list")])
    lists = groups["row_list"].combine_chunks()
    if len(groups) > 1:
        rest = rest.take(lists.flatten())
    start = 0
    for values, count in zip(groups.select(keys).to_pylist(), lists.value_lengths().to_pylist(), strict=True):
        pairs = zip(partition_by, values.values(), strict=True)
        yield "/".join(f"{_escape(name)}={_escape(value)}" for name, value in pairs), rest.slice(start, count)
        start += count


def _text(column: pa.Array, name: str) -> pa.Array:
    """Write a column's values as Spark writes them in folder names. Raises Fatal for dates that have no such name."""
    text = column.cast(pa.large_string())
    if pa.types.is_date(column.type) and pc.any(pc.not_equal(pc.utf8_length(text), _DATE_LENGTH)).as_py():
        raise Fatal(
            f"partition column {name} holds a date outside the years 0 to 9999",
            next="correct or filter such dates in the frame",
        )
    return pc.if_else(pc.equal(text, ""), _NULL, text).fill_null(_NULL)


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
