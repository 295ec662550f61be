"""The options of a sink that writes an Iceberg table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from exactsink.contract import BackendOptions
from exactsink.toolkit.local_paths import real_path

__all__ = ["PROVEN_CATALOGS", "IcebergOptions"]

PROVEN_CATALOGS = {"sqlite": "sql", "postgresql": "sql", "http": "rest", "https": "rest"}
"""The schemes of `uri` that exactsink is tested with, and pyiceberg's name of each catalog."""


class IcebergOptions(BackendOptions):
    """Options of a sink that writes an Iceberg table."""

    uri: SecretStr | None = None
    """The catalog: the SQLAlchemy URL of a SQL catalog's database, for example `sqlite:////lake/catalog.db`, or the
    address of a REST catalog. Only the driver opens the catalog. A relative path of an SQLite file begins at the
    folder of the job's file."""
    catalog: str = "default"
    """The catalog's name. The database of a SQL catalog can hold several catalogs."""
    catalog_options: Mapping[str, SecretStr] = Field(default_factory=dict)
    """Further options of pyiceberg's catalog, for example `token`. Without `uri`, `type` sets the kind of catalog."""
    warehouse: str
    """Where new tables and exactsink's own records go: a folder that the driver and all executors share, or
    `s3://bucket/path`.

    On S3, exactsink takes address and credentials from the environment: `AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`,
    `AWS_PROFILE` and so on.
    """
    table: str
    """The table, as `NAMESPACE.NAME`."""
    branch: str = "main"
    """The branch of the table that gets the rows. A branch that does not exist begins at the end of `main`."""
    mode: Literal["append", "overwrite_partitions"] = "append"
    """For batch runs. `append`: add the rows. `overwrite_partitions`: replace all rows of partitions that get rows."""
    on_schema_change: Literal["fail", "add_columns"] = "fail"
    """If rows have columns that the table lacks, `fail` refuses the epoch, and `add_columns` adds the columns."""
    create: bool = True
    """Create the table, with the rows' columns, if it does not exist."""
    partition_by: tuple[str, ...] = ()
    """The partition fields of a new table, for example `kind`, `day(ts)`, `bucket(16, id)`, `truncate(4, name)`. An
    existing table keeps its own."""
    keep_snapshots: int | None = Field(default=None, ge=1)
    """How many snapshots of this sink the table keeps. The job expires older ones. Default: all."""

    @model_validator(mode="before")
    @classmethod
    def _no_keys(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and "keys" in given:
            raise ValueError(
                'an upsert here would rewrite files; for rows with keys, use backend = "idempotent_upsert"'
            )
        return given

    @model_validator(mode="after")
    def _fits(self) -> IcebergOptions:
        if self.uri is None and "type" not in self.catalog_options:
            raise ValueError("give uri, the catalog's address")
        if self.keep_snapshots is not None and self.mode == "overwrite_partitions":
            raise ValueError("leave keep_snapshots out: a batch run expires no snapshots of other runs")
        return self

    @property
    def catalog_kind(self) -> str:
        """Return pyiceberg's name of the kind of catalog."""
        scheme = re.split(r"[+:]", self.uri.get_secret_value())[0] if self.uri is not None else ""
        given = self.catalog_options.get("type")
        return given.get_secret_value() if given is not None else PROVEN_CATALOGS.get(scheme, scheme)

    @field_validator("uri")
    @classmethod
    def _of_a_file(cls, uri: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        file = re.fullmatch(r"(sqlite(?:\+\w+)?:///)([^?:]+)(.*)", uri.get_secret_value()) if uri is not None else None
        return SecretStr(f"{file[1]}{real_path(file[2], info.context)}{file[3]}") if file is not None else uri

    @field_validator("table")
    @classmethod
    def _named(cls, table: str) -> str:
        if not re.fullmatch(r"\w+(\.\w+)+", table):
            raise ValueError("give NAMESPACE.NAME, of letters, digits and _")
        return table

    @field_validator("warehouse")
    @classmethod
    def _whole(cls, warehouse: str, info: ValidationInfo) -> str:
        if url := re.fullmatch(r"s3[an]?://([^/@:?#\s]+/[^?#\s]*[^/?#\s])/?", warehouse):
            return f"s3://{url[1]}"
        if not warehouse or re.match(r"[A-Za-z][\w+.-]*:", warehouse) or re.search(r"[?#%]", warehouse):
            raise ValueError("give a local folder or s3://bucket/path, without ? # %: other stores are not supported")
        return real_path(warehouse, info.context)
