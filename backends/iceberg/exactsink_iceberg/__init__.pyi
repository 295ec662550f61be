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

    uri: The catalog: a SQL catalog's database as a URL of SQLAlchemy, for example `sqlite:////lake/catalog.db`,
        or the address of a REST catalog. Only the driver opens it.
    catalog: The catalog's name; a SQL catalog's database can hold several.
    catalog_options: More options of pyiceberg's catalog, for example `token`. `type` chooses a catalog that has
        no `uri`.
    warehouse: The place of new tables and of exactsink's own records: a folder that the driver and all executors
        share, or `s3://bucket/path`. For S3, set address and credentials in the environment, as for Delta.
    table: The table, NAMESPACE.NAME.
    branch: The branch of the table that gets the rows. A branch that does not exist begins at the end of `main`.
    mode: For batch runs: add the rows (`append`), or replace all rows of their partitions
        (`overwrite_partitions`).
    on_schema_change: If the table lacks columns of the rows: refuse the epoch (`fail`), or add the columns
        (`add_columns`).
    create: Whether to make the table, with the rows' columns, if there is none.
    partition_by: The partitions of a new table, for example `kind`, `day(ts)`, `bucket(16, id)`, `truncate(4,
        name)`.
    keep_snapshots: How many snapshots of this sink the table keeps. The job expires older ones. If not set, it
        keeps all.
    """
