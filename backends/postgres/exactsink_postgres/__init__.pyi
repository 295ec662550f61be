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
    passfiles, service names and libpq's environment work as in psycopg. If `conninfo` leaves out the host, port,
    database or user, exactsink passes those of the driver's environment on to the tasks, unless `conninfo` holds
    `${executor:NAME}`: then write them out. A password is passed on only if it is in `conninfo`.

    conninfo: libpq's connection string or URI: `host=db dbname=shop`, `postgresql://db/shop`, `service=shop`.
    table: The table, as SQL writes it: `orders`, `sales.orders`, `sales."Odd Name"`.
    create: Make the table where there is none, from the rows' schema.
    on_schema_change: Whether to refuse the epoch, or to add the columns, if rows have columns that the table
        lacks.
    strategy: How an epoch is committed: tasks prepare transactions, or rows wait in a staging table.
    staging_schema: The schema for the staging tables of `staged`. It is created if it does not exist, and holds
        no user's tables.
    staging: Whether staged rows outlive a crash of the server. `unlogged`: they are lost, and are written again
        from the source; they are never published, nor sent to standbys.
    lock_timeout_seconds: How long to wait for a lock, for example an orphan's, before the task fails and names
        who holds it.
    """
