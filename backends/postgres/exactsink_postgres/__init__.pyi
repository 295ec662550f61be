# Made by docs/generate.py of the backend's options. Edit those, not this file.

from typing import Any, Literal

from typing_extensions import Unpack

from exactsink.contract import SinkKeys

__all__ = ["Postgres"]

def Postgres(
    *,
    conninfo: str = ...,
    table: str,
    create: bool = ...,
    on_schema_change: Literal["fail", "add_columns"] = ...,
    strategy: Literal["two_phase", "staged"] = ...,
    staging_schema: str = ...,
    staging: Literal["logged", "unlogged"] = ...,
    lock_timeout_seconds: float = ...,
    **of_every_sink: Unpack[SinkKeys],
) -> dict[str, Any]:
    """Return the table of a sink, for `Job(sinks={...})`. Options of a sink that inserts into one table. TLS,
    passfiles, service names and libpq's environment work as psycopg has them. Where `conninfo` leaves out the
    host, port, database or user, the driver's environment gives them to the tasks, too, unless it holds
    `${executor:NAME}`: then write them out. A password travels only when it stands in `conninfo`.

    conninfo: libpq's connection string or URI: `host=db dbname=shop`, `postgresql://db/shop`, `service=shop`.
    table: The table, as SQL writes it: `orders`, `sales.orders`, `sales."Odd Name"`.
    create: Make the table where there is none, from the rows' schema.
    on_schema_change: What to do with columns of the rows that the table lacks: refuse the epoch, or add them.
    strategy: How an epoch is committed: tasks prepare transactions, or rows wait in a staging table.
    staging_schema: Where `staged` keeps its staging tables: a schema that is made where there is none, and is no
        user's.
    staging: Whether staged rows outlive a crash of the server. `unlogged`: they are lost, and are written again
        from the source; they are never published, nor sent to standbys.
    lock_timeout_seconds: How long to wait for a lock, for example an orphan's, before the task fails and names
        who holds it.
    """
