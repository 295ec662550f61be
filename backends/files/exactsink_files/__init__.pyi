# Made by docs/generate.py of the backend's options. Edit those, not this file.

import os
from typing import Any, Literal

from typing_extensions import Unpack

from exactsink.contract import SinkKeys
from exactsink_files.snapshots import Snapshot as Snapshot
from exactsink_files.snapshots import snapshot as snapshot

__all__ = ["Files", "Snapshot", "snapshot"]

def Files(
    *,
    path: str | os.PathLike[str],
    format: Literal["parquet", "json", "csv"] = ...,
    partition_by: list[str] | tuple[str, ...] = ...,
    compression: Literal["snappy", "zstd", "gzip", "none"] | None = ...,
    header: bool = ...,
    delimiter: str = ...,
    target_file_size: str | None = ...,
    on_schema_change: Literal["fail", "add_columns", "allow"] = ...,
    endpoint_url: str | None = ...,
    allow_folded_names: bool = ...,
    profile: str | None = ...,
    **of_every_sink: Unpack[SinkKeys],
) -> dict[str, Any]:
    """Return the table of a sink, for `Job(sinks={...})`. Options of a sink that writes files. A relative `path`
    begins at the job file's folder. `target_file_size` is a number of B, KB (1,024 B), MB or GB. A file that has
    reached this size gets no more rows. If you leave the option out, each task writes one file for each partition
    folder.

    path: The folder for the files: a local path, `s3://bucket/path` (`s3a`, `s3n`), `gs://bucket/path`,
        `az://container/path`, `abfss://container@account.dfs.core.windows.net/path`,
        `sftp://user@host:port/path`, or `webhdfs://user@host:port/path` with the web address of HDFS's NameNode.
    format: The format of the files. `json` is JSON lines.
    partition_by: Columns that become folders, `column=value`.
    compression: For Parquet. Default: `snappy`.
    header: For CSV: begin each file with the names of the columns.
    delimiter: For CSV: the character between two values.
    target_file_size: A file of this size gets no more rows. For example `128 MB`.
    on_schema_change: The columns that an epoch may have. `fail`: the same as in the epoch before. `add_columns`:
        the same, and new ones. `allow`: any. exactsink refuses any other epoch before its first row.
    endpoint_url: For S3: the store's address. Default: `AWS_ENDPOINT_URL`, else Amazon's.
    allow_folded_names: Accept text in `partition_by` if the file system treats two names as one, for example
        `a=X` and `a=x`. One folder then has the rows of both values, and readers see one value for all of them.
    profile: For S3: the profile with the credentials. Default: `AWS_PROFILE`.
    """
