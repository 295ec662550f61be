"""Compact: small Parquet files of complete epochs become large ones, by one change that stands or doesn't.

The large files lie in the sink's mark folder, where plain readers don't look; the small ones stay where those do, until
they are dropped. Before the change is published nobody refers to the large files: a kill leaves rubbish, which the next
one sweeps once the number that it was made for is taken. Memory is bounded by what `Parts` lets wait, twice, and in an
object store by some parts of an upload.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from exactsink.contract import (
    AnyPath,
    ConfigError,
    DurableFile,
    Fatal,
    ObjectFile,
    ObjectPath,
    Retryable,
    file_names,
    make_folder,
    sync_folders,
)
from exactsink.toolkit.tabular import Parts, TabularOptions
from exactsink_files.changes import Change, applied, changes_of, publish
from exactsink_files.manifests import FileEntry, epochs_of
from exactsink_files.snapshots import feed_folder

__all__ = ["Compacted", "compact", "drop_originals"]

_SMALL = 0.75
"""The part of the target size below which a file is small."""
_ROWS = 64 * 1024
_MADE = re.compile(r"(?P<number>[1-9]\d{0,9})\.[0-9a-f]{16}")
_COMPRESSIONS = {"SNAPPY": "snappy", "ZSTD": "zstd", "GZIP": "gzip", "UNCOMPRESSED": "none"}


@dataclass(frozen=True, slots=True)
class Compacted:
    """What was done: so many files became so many, with these rows, by which change; None when there was nothing."""

    change: int | None
    replaced: int
    files: int
    rows: int


def compact(root: AnyPath, job: str, sink: str, target: int) -> Compacted:
    """Replace files that are smaller than the target size. Raises Retryable when another one was faster."""
    if isinstance(root, ObjectPath) and root.scheme == "sftp":
        raise ConfigError("files on sftp: are not compacted", next="compact a copy, or leave them as they are")
    feed = feed_folder(root, job, sink)
    changes, epochs = changes_of(feed), epochs_of(feed)
    newest = epochs.known[-1].number if epochs.known else -1
    written = [file for epoch in epochs.known if epoch.done for file in epoch.files]
    files = applied(written, changes, newest, f"{job}.{sink}")
    if foreign := [file.path for file in written if not file.path.endswith(".parquet")]:
        raise Fatal(f"only Parquet can be compacted: {foreign[0]}", next="leave JSON lines and CSV as they are")
    number = len(changes) + 1
    folder = feed / "compacted" / f"{number}.{secrets.token_hex(8)}"
    groups = list(_alike(root, _groups(files, target, str(feed)[len(str(root)) + 1 :] + "/compacted/")))
    try:
        made = [_merged(root, folder, nth, *group) for nth, group in enumerate(groups)]
    except Exception as error:
        _remove(folder)
        if number <= len(changes_of(feed)):  # so another one has swept it
            raise Retryable(
                "another one has changed these files meanwhile", next="run the same command again"
            ) from error
        raise
    if made:
        replaced = tuple(file.path for _, group in groups for file in group)
        publish(feed, Change(number, newest, folder.name, replaced, tuple(made)))
        changes = changes_of(feed)
    _sweep(feed, changes)
    rows = sum(file.rows or 0 for file in made)
    return Compacted(number if made else None, sum(len(group) for _, group in groups), len(made), rows)


def drop_originals(root: AnyPath, job: str, sink: str) -> int:
    """Remove the files that changes have replaced; return how many. Plain readers lose sight of their rows."""
    feed = feed_folder(root, job, sink)
    changes = changes_of(feed)
    dropped = {path for change in changes for path in change.drops}
    gone = sorted({path for change in changes for path in change.replaces} - dropped)
    if gone:
        last = max(change.last for change in changes if change.files)
        changes.append(Change(len(changes) + 1, last, drops=tuple(gone)))
        publish(feed, changes[-1])
    for path in next((change.drops for change in reversed(changes) if change.drops), ()):  # also of one cut off
        (root / path).unlink(missing_ok=True)
    return len(gone)


def _groups(files: Iterable[FileEntry], target: int, made: str) -> Iterator[tuple[str, list[FileEntry]]]:
    """Yield, with their partition folder, small files that make one of the target size, in their order."""

    def partition(file: FileEntry) -> str:
        folder = os.path.dirname(file.path)
        return "/".join(folder.removeprefix(made).split("/")[1:]) if folder.startswith(made) else folder

    small = sorted((file for file in files if file.size < target * _SMALL), key=partition)
    for folder, group in itertools.groupby(small, key=partition):
        gathered: list[FileEntry] = []
        for file in [*group, None]:
            if file is None or sum(each.size for each in gathered) + file.size > target:
                if len(gathered) > 1:
                    yield folder, gathered
                gathered = []
            if file is not None:
                gathered.append(file)


def _alike(root: AnyPath, groups: Iterable[tuple[str, list[FileEntry]]]) -> Iterator[tuple[str, list[FileEntry]]]:
    """Cut groups where the columns or their types change."""
    for folder, files in groups:
        for _, same in itertools.groupby(files, key=lambda file: _head(root / file.path)):
            if len(gathered := list(same)) > 1:
                yield folder, gathered


def _merged(root: AnyPath, folder: AnyPath, number: int, partition: str, files: Sequence[FileEntry]) -> FileEntry:
    """Write the rows of files into one, and read it again."""
    place = folder / partition if partition else folder
    make_folder(place)
    sealed: list[tuple[int, str, int]] = []
    path = place / f"{number}.part"
    schema, compression = _head(root / files[0].path)
    parts: Parts[DurableFile | ObjectFile] = Parts(
        TabularOptions(path="", compression=compression),
        schema,
        lambda *_: ObjectFile(path) if isinstance(path, ObjectPath) else DurableFile(path),
        lambda out, rows: sealed.append((*out.seal(), rows)),
    )
    try:
        for batch in _rows(root, files, schema):
            parts.write(batch)
        parts.seal()
    finally:
        parts.discard()
    sync_folders([place])
    [(size, sha256, rows)] = sealed
    entry = FileEntry(str(path)[len(str(root)) + 1 :], size, sha256, rows)
    _check_same(_rows(root, files, schema), _rows(root, [entry], schema), entry)
    return entry


def _check_same(wanted: Iterator[pa.RecordBatch], found: Iterator[pa.RecordBatch], entry: FileEntry) -> None:
    """Compare rows, however they are cut into batches. Raises Fatal."""
    one = two = pa.RecordBatch.from_pydict({})
    while True:
        one = one if one.num_rows else next(wanted, None)
        two = two if two.num_rows else next(found, None)
        if one is None or two is None:
            break
        count = min(one.num_rows, two.num_rows)
        left, right = one.slice(0, count), two.slice(0, count)
        if not left.equals(right) and repr(left.to_pylist()) != repr(right.to_pylist()):  # NaN equals none
            break
        one, two = one.slice(count), two.slice(count)
    if one is not None or two is not None:
        raise Fatal(f"{entry.path} does not hold the rows that it was made of", next="report this; nothing was changed")


def _rows(root: AnyPath, files: Iterable[FileEntry], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read files one after another. Raises Fatal for one that is gone, has other columns or another number of rows."""
    for file in files:
        with ExitStack() as stack:
            opened = stack.enter_context(_opened(root / file.path))
            parquet = pq.ParquetFile(opened)
            if file.rows not in (None, parquet.metadata.num_rows) or not parquet.schema_arrow.equals(schema):
                raise Fatal(f"{root / file.path} is not what its manifest says", next="bring the file back")
            yield from (batch for batch in parquet.iter_batches(_ROWS) if batch.num_rows)


def _head(path: AnyPath) -> tuple[pa.Schema, str]:
    with _opened(path) as opened:
        parquet = pq.ParquetFile(opened)
        return parquet.schema_arrow, _COMPRESSIONS.get(parquet.metadata.row_group(0).column(0).compression, "snappy")


def _opened(path: AnyPath) -> Any:
    try:
        return path.fs.open(path.url, "rb") if isinstance(path, ObjectPath) else open(path, "rb")
    except FileNotFoundError as error:
        fix = "run it again if another one compacts or drops files; else bring the file back"
        raise Fatal(f"{path} is gone, though its manifest stands", next=fix) from error


def _sweep(feed: AnyPath, changes: Sequence[Change]) -> None:
    """Remove what was made for a change that can't be published any more: its number is taken."""
    folders = {change.folder for change in changes}
    place = feed / "compacted"

    def is_over(name: str) -> bool:
        found = _MADE.fullmatch(name)
        return found is not None and int(found["number"]) <= len(changes) and name not in folders

    if isinstance(place, ObjectPath):
        for upload in place.uploads():
            if is_over(upload.name.partition("/")[0]):
                place.abort_below(upload)
    with suppress(FileNotFoundError):
        for name in filter(is_over, file_names(place)):
            _remove(place / name)


def _remove(folder: AnyPath) -> None:
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
        return
    with suppress(FileNotFoundError):
        folder.fs.rm(folder.url, recursive=True)
