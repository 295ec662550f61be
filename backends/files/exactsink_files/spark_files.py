"""Files that Spark's own writers make, in place of ours: which rows they can write, and how their files are voted for.

Spark writes into the folder of a participant that never votes; what it has written is sealed here, in the driver, and
moved into the folder of the one that does. Whatever Spark leaves, or a late task adds, a sweep finds as its own.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from exactsink.contract import Committable, ConfigError, Retryable, SparkWrite, Txn, sync_folders
from exactsink.toolkit.spark_sql import EXACT_TIMES
from exactsink.toolkit.tabular import TabularOptions
from exactsink_files.committer import explained, remove_folder
from exactsink_files.votes import PAYLOAD_VERSION, Vote, VotedFile, final_name, temp_folder

__all__ = ["seal_staged", "spark_write"]

_SEALERS = 4
"""How many files are sealed at a time: while one waits for the disk, another is hashed."""
_CHUNK = 1 << 20
_COMMON = {  # one task's files take another's place whole; no sums beside the files, and no _SUCCESS
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
_STANDARD = {"spark.sql.parquet.writeLegacyFormat": "false"}
_MICROS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}  # what pyarrow writes; INT96 is Spark's default
_PLAIN = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_date,
    pa.types.is_timestamp,
)


def spark_write(options: TabularOptions, schema: pa.Schema, *, required: bool) -> SparkWrite | None:
    """Return how Spark writes the same files as our writers do; where it can't, None, or ConfigError if `required`."""
    obstacle = _obstacle(options, schema)
    if obstacle and required:
        raise ConfigError(
            f"writer = 'spark' can't write these files: {obstacle}", next="set writer = 'auto', or 'arrow'"
        )
    if obstacle:
        return None
    if options.format == "json":
        own, settings = {"compression": "none", **EXACT_TIMES}, {}
    else:
        own = {"compression": options.compression or "snappy"}
        settings = _STANDARD | _MICROS if any(_has_zoned_time(field.type) for field in schema) else _STANDARD
    return SparkWrite(options.format, {**_COMMON, **own}, options.partition_by, settings, required)


def _obstacle(options: TabularOptions, schema: pa.Schema) -> str:
    if options.format == "csv" or options.target_file_size is not None:
        return "it takes no format 'csv', and no target_file_size"
    if len({name.lower() for name in schema.names}) < len(schema.names):
        return "two columns have one name"
    odd = [field for field in schema if not _is_common(field.type)]
    return f"column {odd[0].name} is of type {odd[0].type}" if odd else ""


def _is_common(kind: pa.DataType) -> bool:
    """Return whether Spark's writer and ours spell values of a type, at any depth, the same way."""
    if pa.types.is_struct(kind) or pa.types.is_list(kind) or pa.types.is_map(kind):
        inner = [kind.field(index) for index in range(kind.num_fields)]
        marked = any(field.metadata for field in inner)  # a variant, say
        return bool(inner) and not marked and all(_is_common(field.type) for field in inner)
    return any(test(kind) for test in _PLAIN)


def _has_zoned_time(kind: pa.DataType) -> bool:
    inner = [kind.field(index).type for index in range(kind.num_fields)]
    return (pa.types.is_timestamp(kind) and kind.tz is not None) or any(map(_has_zoned_time, inner))


def seal_staged(options: TabularOptions, root: str, txn: Txn, staged: Txn) -> Committable | None:
    """Sync what Spark wrote as `staged`, count its rows, and vote for it as `txn`; None when there are none."""
    source, folder = temp_folder(root, staged), temp_folder(root, txn)
    with explained(root):
        os.mkdir(folder)
        written = sorted(_written(source))
        with ThreadPoolExecutor(_SEALERS) as pool:
            sealed = list(pool.map(_sealed_lines if options.format == "json" else _sealed_parquet, written))
        counts: Counter[str] = Counter()
        files = []
        for place, (path, (rows, size, sha256)) in enumerate(zip(written, sealed, strict=True)):
            if rows:  # Spark makes a file for the first task, also where it had no rows
                partition = os.path.dirname(os.path.relpath(path, source))
                final = final_name(root, txn, partition, counts[partition], options.format)
                counts[partition] += 1
                os.rename(path, folder / f"{place}.tmp")
                files.append(VotedFile(f"{place}.tmp", final, size, sha256))
        if files:
            sync_folders([folder, folder.parent])
        else:
            remove_folder(folder)
        remove_folder(source)
    if not files:
        return None
    vote = Vote(root, os.path.relpath(folder, root), tuple(files))
    return Committable(txn, sum(rows for rows, _, _ in sealed), vote.dump(), version=PAYLOAD_VERSION)


def _written(folder: Path) -> Iterator[Path]:
    """List the files of Spark's job; not what an attempt that lost may still be writing."""
    for where, folders, names in os.walk(folder):
        if Path(where) == folder:
            folders[:] = [name for name in folders if name != "_temporary"]
        yield from (Path(where, name) for name in names if name.startswith("part-"))


def _sealed_parquet(path: Path) -> tuple[int, int, str]:
    """Sync a file, and return its rows, size and SHA-256."""
    _, size, sha256 = _sealed(path)
    return pq.read_metadata(path).num_rows, size, sha256


def _sealed_lines(path: Path) -> tuple[int, int, str]:
    """Sync a file, and return its lines, size and SHA-256."""
    return _sealed(path, b"\n")


def _sealed(path: Path, mark: bytes = b"") -> tuple[int, int, str]:
    """Sync a file, and return its marks, size and SHA-256. With marks it is text: it ends with one, and has no NUL.

    A NUL would be a page of which the disk has lost the bytes, and the system the error.
    """
    digest, size, marks, whole = hashlib.sha256(), 0, 0, True
    last = mark  # of a file without a line, too
    with open(path, "rb", buffering=0) as file:
        os.fsync(file.fileno())  # whichever process wrote the bytes: they are this machine's
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            last = chunk
            if mark:
                marks += chunk.count(mark)
                whole = whole and b"\0" not in chunk
    if not whole or not last.endswith(mark):
        raise Retryable(f"{path} is incomplete", why="a line is cut off, or has a NUL", next="start the job again")
    return marks, size, digest.hexdigest()
