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
    database or user, exactsink completes it for the tasks from the driver's environment. But if `conninfo`
    contains `${executor:NAME}`, it must itself name host, port, database and user. Tasks get a password only if
    it is in `conninfo`.

    conninfo: libpq's connection string or URI: `host=db dbname=shop`, `postgresql://db/shop`, `service=shop`.
    table: The table, as SQL writes it: `orders`, `sales.orders`, `sales."Odd Name"`.
    create: Create the table, from the rows' schema, if it does not exist.
    on_schema_change: If rows have columns that the table lacks, `fail` refuses the epoch, and `add_columns` adds
        the columns.
    strategy: How exactsink commits an epoch: tasks prepare transactions, or rows wait in a staging table.
    staging_schema: The schema for the staging tables of `staged`. exactsink creates it. Keep no tables of your
        own there.
    staging: Whether staged rows outlive a crash of the server. `unlogged`: a crash loses them, and the job writes
        them again from the source; the server never publishes them, and never sends them to standbys.
    lock_timeout_seconds: How long to wait for a lock, for example of a transaction that a dead task has left.
        Then the task fails, and names the lock's holder.
    """
