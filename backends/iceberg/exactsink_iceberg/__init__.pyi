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
    """Return the table of a sink, for `Job(sinks={...})`. What a job's file may say of such a sink.

    uri: The catalog, which the driver alone opens: a SQL catalog's database as a URL of SQLAlchemy, for example
        `sqlite:////lake/catalog.db`, or the address of a REST catalog.
    catalog: The catalog's name; a SQL catalog's database can hold several.
    catalog_options: What else pyiceberg's catalog takes, for example `token`; `type` chooses a catalog that has
        no `uri`.
    warehouse: Where new tables go, and exactsink's own records: a folder that the driver and all executors share,
        or `s3://bucket/path`. For S3 the environment has address and credentials, as for Delta.
    table: The table, NAMESPACE.NAME.
    branch: The branch of the table that gets the rows. One that does not exist begins at the end of `main`.
    mode: For batch runs: whether rows are added, or replace all rows of the partitions that they are in.
    on_schema_change: What to do with columns of the rows that the table lacks: refuse the epoch, or add them.
    create: Whether to make the table, with the rows' columns, if there is none.
    partition_by: How a new table is partitioned, for example `kind`, `day(ts)`, `bucket(16, id)`, `truncate(4,
        name)`.
    keep_snapshots: How many snapshots of this sink the table keeps; older ones are expired as the job goes on.
        Unset keeps all.
    """
