# Made by docs/generate.py of the backend's options. Edit those, not this file.

import os
from typing import Any, Literal

from typing_extensions import Unpack

from exactsink.contract import SinkKeys

__all__ = ["Delta"]

def Delta(
    *,
    path: str | os.PathLike[str],
    create: bool = ...,
    partition_by: list[str] | tuple[str, ...] = ...,
    mode: Literal["append", "overwrite_partitions"] = ...,
    on_schema_change: Literal["fail", "add_columns"] = ...,
    **of_every_sink: Unpack[SinkKeys],
) -> dict[str, Any]:
    """Return the table of a sink, for `Job(sinks={...})`. What a job's file may say of such a sink.

    path: The table: a folder that the driver and all executors share, or `s3://bucket/path` (`s3a`, `s3n`).  For
        S3 the environment has address and credentials: `AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, `AWS_PROFILE`,
        ...
    create: Whether to make the table, with the rows' columns, if there is none.
    partition_by: The columns that a new table is partitioned by; for a table that exists, its own or none.
    mode: For batch runs: whether rows are added, or replace all rows of the partitions that they are in.
    on_schema_change: What to do with columns of the rows that the table lacks: refuse the epoch, or add them.
    """
