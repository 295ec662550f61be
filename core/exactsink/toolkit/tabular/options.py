"""The options of a sink for the format of its files."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from exactsink.contract import BackendOptions

__all__ = ["TabularOptions"]

_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_SIZE = re.compile(r"(?P<count>[0-9]+) ?(?P<unit>B|KB|MB|GB)")


class TabularOptions(BackendOptions):
    """The folder and the format of files with rows. A backend says which `path` it accepts."""

    path: str
    """The folder for the files."""
    format: Literal["parquet", "json", "csv"] = "parquet"
    """The format of the files. `json` is JSON lines."""
    partition_by: tuple[str, ...] = ()
    """Columns that become folders, `column=value`."""
    compression: Literal["snappy", "zstd", "gzip", "none"] | None = None
    """For Parquet. Default: `snappy`."""
    header: bool = True
    """For CSV: begin each file with the names of the columns."""
    delimiter: str = ","
    """For CSV: the character between two values."""
    target_file_size: str | None = Field(default=None, examples=["128 MB"])
    """A file of this size gets no more rows. For example `128 MB`."""

    @field_validator("partition_by")
    @classmethod
    def _distinct(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        if "" in columns or len(set(columns)) != len(columns):
            raise ValueError("name each partition column once, none of them empty")
        return columns

    @field_validator("delimiter")
    @classmethod
    def _one_mark(cls, delimiter: str) -> str:
        if delimiter not in tuple("\t !#$%&'()*+,-./:;<=>?@[]^`{|}~"):
            raise ValueError("give one ASCII mark, a space or a tab; a quote and a backslash are taken")
        return delimiter

    @field_validator("target_file_size")
    @classmethod
    def _readable(cls, size: str | None) -> str | None:
        found = None if size is None else _SIZE.fullmatch(size)
        if size is not None and (found is None or int(found["count"]) == 0):
            raise ValueError("give a whole number above 0 and a unit, B, KB, MB or GB: '128 MB'")
        return size

    @model_validator(mode="after")
    def _choices_have_a_use(self) -> TabularOptions:
        if self.format != "parquet" and self.compression not in (None, "none"):
            raise ValueError("compression is for format = 'parquet'; JSON lines and CSV are written plain")
        if self.format != "csv" and (not self.header or self.delimiter != ","):
            raise ValueError("header and delimiter are for format = 'csv'")
        return self

    @property
    def target_bytes(self) -> int | None:
        """Return the target file size in bytes."""
        found = _SIZE.fullmatch(self.target_file_size or "")
        return None if found is None else int(found["count"]) * _UNITS[found["unit"]]
