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

    path: The table: a folder that the driver and all executors share, or `s3://bucket/path` (`s3a`, `s3n`).  For
        S3, set address and credentials in the environment: `AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`,
        `AWS_PROFILE`, ...
    create: Whether to make the table, with the rows' columns, if there is none.
    partition_by: The partition columns of a new table. For an existing table, name its own, or none.
    mode: For batch runs: add the rows (`append`), or replace all rows of their partitions
        (`overwrite_partitions`).
    on_schema_change: If the table lacks columns of the rows: refuse the epoch (`fail`), or add the columns
        (`add_columns`).
    """
