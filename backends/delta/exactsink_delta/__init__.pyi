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
    """Return the table of a sink, for `Job(sinks={...})`. Options of a sink that writes a Delta table.

    path: The table: a folder that the driver and all executors share, or `s3://bucket/path` (`s3a`, `s3n`).  On
        S3, exactsink takes address and credentials from the environment: `AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`,
        `AWS_PROFILE` and so on.
    create: Create the table, with the rows' columns, if it does not exist.
    partition_by: The columns that partition a new table. For an existing table, leave it out, or name the table's
        own columns.
    mode: For batch runs. `append`: add the rows. `overwrite_partitions`: replace all rows of partitions that get
        rows.
    on_schema_change: If rows have columns that the table lacks, `fail` refuses the epoch, and `add_columns` adds
        the columns.
    """
