# Made by docs/generate.py of the backend's options. Edit those, not this file.

from collections.abc import Mapping
from typing import Any, Literal

from typing_extensions import Unpack

from exactsink.contract import SinkKeys

__all__ = ["Upsert"]

def Upsert(
    *,
    url: str,
    table: str,
    keys: list[str] | tuple[str, ...],
    mode: Literal["upsert", "insert_if_absent", "replace"] = ...,
    update_columns: list[str] | tuple[str, ...] | None = ...,
    set: Mapping[str, str] = ...,
    version: str | None = ...,
    create: bool = ...,
    on_schema_change: Literal["fail", "add_columns"] = ...,
    order_by: str | None = ...,
    delete_when: str | None = ...,
    exclude: list[str] | tuple[str, ...] = ...,
    strategy: Literal["staged", "direct"] = ...,
    staging_schema: str | None = ...,
    busy_timeout_seconds: float = ...,
    **of_every_sink: Unpack[SinkKeys],
) -> dict[str, Any]:
    """Return the table of a sink, for `Job(sinks={...})`. Options of a sink that upserts into one table. `keys` name
    the columns that identify a row. If an epoch has several rows with the same keys, the last one wins (by
    partition, then row order). With `order_by`, the row with the greatest value there wins; NULL is the lowest,
    and among equals the last wins. `order_by` compares only rows of one epoch, never the table's: a later epoch
    always wins. `version` compares with the table as well. `delete_when` is an SQL condition: a row for which it
    is true deletes its key's row instead, in the same order. It may read any column of the job's frame. `exclude`
    names columns of the rows that are not stored, such as the one that `delete_when` reads.

    url: A SQLAlchemy URL: `sqlite:///path/to/file.db`, `postgresql://user@host/shop` (the rest as libpq has it),
        `mysql+pymysql://user:password@host/database`, or that of another dialect that is installed.
    table: The table, as SQL writes it: `orders`, `sales.orders`, `"Odd Name"`.
    keys: The columns that identify a row.
    mode: What a row does if its key exists:  `upsert` sets its columns; `insert_if_absent` does nothing, so that
        the first row stays (with `order_by` the least one); `replace` replaces the row, with the default in
        columns that the rows lack.
    update_columns: Columns that are set where the key is there; the others only in a new row. All but the keys
        when left out.
    set: SQL of the database for columns of an existing row, `{ total = "daily.total + excluded.total" }`.  The
        table's name means the existing row, `excluded` the incoming one. Only with strategy staged.
    version: A column of the rows. A row never replaces one with a greater version, neither of this epoch nor in
        the table.
    create: Make the table where there is none.
    on_schema_change: Whether to refuse the job, or to add the columns, if rows have columns that the table lacks.
    order_by: Of rows with the same keys in one epoch, the one with the greatest value here wins.
    delete_when: A SQL condition; a row for which it is true deletes its key's row.
    exclude: Columns of the rows that are not stored.
    strategy: When rows are upserted: after the decision, or by the tasks.
    staging_schema: The schema of staging tables, on databases that need them.
    busy_timeout_seconds: How long to wait for another program's lock on the file, or on rows.
    """
