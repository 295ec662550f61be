# Made by docs/generate.py of the backend's options. Edit those, not this file.

from typing import Any

from typing_extensions import Unpack

from exactsink.contract import SinkKeys

__all__ = ["Iceberg"]

def Iceberg(
    *,
    uri: str,
    catalog: str = ...,
    warehouse: str,
    table: str,
    create: bool = ...,
    partition_by: list[str] | tuple[str, ...] = ...,
    **of_every_sink: Unpack[SinkKeys],
) -> dict[str, Any]:
    """Return the table of a sink, for `Job(sinks={...})`. What a job's file may say of such a sink.

    uri: The SQL catalog's database, as a URL of SQLAlchemy, for example `sqlite:////lake/catalog.db`.
    catalog: The catalog's name inside that database.
    warehouse: The warehouse: a folder that the driver and all executors share. Other stores are refused.
    table: The table, NAMESPACE.NAME.
    create: Whether to make the table, with the rows' columns, if there is none.
    partition_by: How a new table is partitioned, for example `kind`, `day(ts)`, `bucket(16, id)`, `truncate(4,
        name)`.
    """
