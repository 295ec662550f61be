# Made by docs/generate.py of the backend's options. Edit those, not this file.

from collections.abc import Mapping
from typing import Any, Literal

from typing_extensions import Unpack

from exactsink.contract import SinkKeys

__all__ = ["Iceberg"]

def Iceberg(
    *,
    uri: str | None = ...,
    catalog: str = ...,
    catalog_options: Mapping[str, str] = ...,
    warehouse: str,
    table: str,
    branch: str = ...,
    mode: Literal["append", "overwrite_partitions"] = ...,
    on_schema_change: Literal["fail", "add_columns"] = ...,
    create: bool = ...,
    partition_by: list[str] | tuple[str, ...] = ...,
    keep_snapshots: int | None = ...,
    **of_every_sink: Unpack[SinkKeys],
) -> dict[str, Any]:
    """Return the table of a sink, for `Job(sinks={...})`. Options of a sink that writes an Iceberg table.

    uri: The catalog: the SQLAlchemy URL of a SQL catalog's database, for example `sqlite:////lake/catalog.db`, or
        the address of a REST catalog. Only the driver opens the catalog. A relative path of an SQLite file begins
        at the folder of the job's file.
    catalog: The catalog's name. The database of a SQL catalog can hold several catalogs.
    catalog_options: Further options of pyiceberg's catalog, for example `token`. Without `uri`, `type` sets the
        kind of catalog.
    warehouse: Where new tables and exactsink's own records go: a folder that the driver and all executors share,
        or `s3://bucket/path`.  On S3, exactsink takes address and credentials from the environment:
        `AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, `AWS_PROFILE` and so on.
    table: The table, as `NAMESPACE.NAME`.
    branch: The branch of the table that gets the rows. A branch that does not exist begins at the end of `main`.
    mode: For batch runs. `append`: add the rows. `overwrite_partitions`: replace all rows of partitions that get
        rows.
    on_schema_change: If rows have columns that the table lacks, `fail` refuses the epoch, and `add_columns` adds
        the columns.
    create: Create the table, with the rows' columns, if it does not exist.
    partition_by: The partition fields of a new table, for example `kind`, `day(ts)`, `bucket(16, id)`,
        `truncate(4, name)`. An existing table keeps its own.
    keep_snapshots: How many snapshots of this sink the table keeps. The job expires older ones. Default: all.
    """
