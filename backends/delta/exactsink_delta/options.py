"""The options of a sink that writes a Delta table."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import ValidationInfo, field_validator

from exactsink.contract import BackendOptions
from exactsink.toolkit.local_paths import real_path

__all__ = ["DeltaOptions"]


class DeltaOptions(BackendOptions):
    """Options of a sink that writes a Delta table."""

    path: str
    """The table: a folder that the driver and all executors share, or `s3://bucket/path` (`s3a`, `s3n`).

    On S3, exactsink takes address and credentials from the environment: `AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`,
    `AWS_PROFILE` and so on.
    """
    create: bool = True
    """Create the table, with the rows' columns, if it does not exist."""
    partition_by: tuple[str, ...] = ()
    """The columns that partition a new table. For an existing table, leave it out, or name the table's own columns."""
    mode: Literal["append", "overwrite_partitions"] = "append"
    """For batch runs. `append`: add the rows. `overwrite_partitions`: replace all rows of partitions that get rows."""
    on_schema_change: Literal["fail", "add_columns"] = "fail"
    """If rows have columns that the table lacks, `fail` refuses the epoch, and `add_columns` adds the columns."""

    @field_validator("path")
    @classmethod
    def _whole(cls, path: str, info: ValidationInfo) -> str:
        if url := re.fullmatch(r"s3[an]?://([^/@:?#\s]+/[^?#\s]*[^/?#\s])/?", path):
            return f"s3://{url[1]}"
        if not path or re.match(r"[A-Za-z][\w+.-]*:", path):
            raise ValueError("give a local folder or s3://bucket/path: other stores are not supported")
        return real_path(path, info.context)
