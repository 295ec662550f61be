"""The options of a sink that writes an Iceberg table."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pydantic import SecretStr, ValidationInfo, field_validator

from exactsink.contract import BackendOptions

__all__ = ["IcebergOptions"]


class IcebergOptions(BackendOptions):
    """What a job's file may say of such a sink."""

    uri: SecretStr
    """The SQL catalog's database, a SQLite file that the driver alone opens: `sqlite:////lake/catalog.db`."""
    catalog: str = "default"
    """The catalog's name inside that database."""
    warehouse: str
    """The warehouse: a folder that the driver and all executors share. Other stores are refused."""
    table: str
    """The table, NAMESPACE.NAME."""
    create: bool = True
    """Whether to make the table, with the rows' columns, if there is none."""
    partition_by: tuple[str, ...] = ()
    """How a new table is partitioned, for example `kind`, `day(ts)`, `bucket(16, id)`, `truncate(4, name)`."""

    @field_validator("uri")
    @classmethod
    def _of_sql(cls, uri: SecretStr) -> SecretStr:
        if not re.match(r"sqlite(\+pysqlite)?:///", uri.get_secret_value()):
            raise ValueError("give the URL of a SQL catalog in a SQLite file: other catalogs are not proven here")
        return uri

    @field_validator("table")
    @classmethod
    def _named(cls, table: str) -> str:
        if not re.fullmatch(r"\w+\.\w+", table):
            raise ValueError("give NAMESPACE.NAME, of letters, digits and _")
        return table

    @field_validator("warehouse")
    @classmethod
    def _whole(cls, warehouse: str, info: ValidationInfo) -> str:
        if not warehouse or re.match(r"[A-Za-z][\w+.-]*:", warehouse):
            raise ValueError("give a folder: other stores are not proven here")
        folder = (info.context or {}).get("folder") or "."  # of the job's file
        return os.path.realpath(Path(folder) / Path(warehouse).expanduser())
