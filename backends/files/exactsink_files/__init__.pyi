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
    """Return the table of a sink, for `Job(sinks={...})`. The place and the form of the files. `path` is made
    absolute when the options are first read. `target_file_size` is a number of B, KB (1,024 B), MB or GB. A file
    of that size gets no more rows. Without it, a participant writes one file per partition folder.

    path: The folder that the files go to: a local path, `s3://bucket/path` (`s3a`, `s3n`), `gs://bucket/path`,
        `az://container/path`, `abfss://container@account.dfs.core.windows.net/path`,
        `sftp://user@host:port/path`, or `webhdfs://user@host:port/path` with the address of HDFS's NameNode on
        the web.
    format: The format of the files. `json` is JSON lines.
    partition_by: The columns that become folders, `column=value`.
    compression: For Parquet; `snappy` when it is left out.
    header: For CSV: begin each file with the names of the columns.
    delimiter: For CSV: the character between two values.
    target_file_size: A file of this size gets no more rows. Example: `128 MB`.
    on_schema_change: The columns that an epoch may have. `fail`: the columns of the epoch before. `add_columns`:
        these, and new ones. `allow`: any. exactsink refuses any other epoch before its first row.
    endpoint_url: For S3: the store's address, if it is neither that of `AWS_ENDPOINT_URL` nor Amazon's.
    allow_folded_names: Accept text in `partition_by` even if the file system does not distinguish two names, such
        as `a=X` and `a=x`. Rows of both values are then in one folder, and readers see one value for all of them.
    profile: For S3: the profile with the credentials, if it is not that of `AWS_PROFILE`.
    """
