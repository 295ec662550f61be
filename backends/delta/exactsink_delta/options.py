"""The options of a sink that writes a Delta table."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from pydantic import ValidationInfo, field_validator

from exactsink.contract import BackendOptions

__all__ = ["DeltaOptions"]


class DeltaOptions(BackendOptions):
    """Options of a sink that writes a Delta table."""

    path: str
    """The table: a folder that the driver and all executors share, or `s3://bucket/path` (`s3a`, `s3n`).

    For S3, set address and credentials in the environment: `AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, `AWS_PROFILE`, ...
    """
    create: bool = True
    """Whether to make the table, with the rows' columns, if there is none."""
    partition_by: tuple[str, ...] = ()
    """The partition columns of a new table. For an existing table, name its own, or none."""
    mode: Literal["append", "overwrite_partitions"] = "append"
    """For batch runs: add the rows (`append`), or replace all rows of their partitions (`overwrite_partitions`)."""
    on_schema_change: Literal["fail", "add_columns"] = "fail"
    """If the table lacks columns of the rows: refuse the epoch (`fail`), or add the columns (`add_columns`)."""

    @field_validator("path")
    @classmethod
    def _whole(cls, path: str, info: ValidationInfo) -> str:
        if url := re.fullmatch(r"s3[an]?://([^/@:?#\s]+/[^?#\s]*[^/?#\s])/?", path):
            return f"s3://{url[1]}"
        if not path or re.match(r"[A-Za-z][\w+.-]*:", path):
            raise ValueError("give a local folder or s3://bucket/path: other stores are not supported")
        folder = (info.context or {}).get("folder") or "."  # of the job's file
        return os.path.realpath(Path(folder) / Path(path).expanduser())
