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
    """Return the table of a sink, for `Job(sinks={...})`. Options of a sink that upserts into one table. `keys` are
    the columns that identify a row. By default, the last row with the same keys wins. `order_by`, `version` and
    `mode` change that.

    url: A SQLAlchemy URL: `sqlite:///path/to/file.db`, `postgresql://user@host/shop` (libpq's defaults and
        environment complete it), `mysql+pymysql://user:password@host/database`, or the URL of another installed
        dialect.
    table: The table, as SQL writes it: `orders`, `sales.orders`, `"Odd Name"`.
    keys: The columns that identify a row.
    mode: The effect of a row if its keys exist in the table.  `upsert` sets the row's columns. `insert_if_absent`
        changes nothing. `replace` replaces the whole row; columns that the rows lack get their default.
    update_columns: The columns that an upsert changes in an existing row; it sets the other columns only in a new
        row. Default: all columns except the keys.
    set: SQL of the database for columns of an existing row, for example `{ total = "daily.total + excluded.total"
        }`.  The table's name means the existing row, and `excluded` the incoming row. Only with strategy
        `staged`.
    version: A column of the rows. A row never replaces a row with a greater version, in the same epoch or in the
        table.
    create: Create the table if it does not exist.
    on_schema_change: If rows have columns that the table lacks, `fail` refuses them, and `add_columns` adds the
        columns.
    order_by: A column of the rows. Of rows with the same keys in one epoch, the row with its greatest value wins
        (with `insert_if_absent`, the smallest). It has no effect between epochs.
    delete_when: A SQL condition on the columns of the job's frame. If it is true for the row that wins, the
        table's row with the same keys is deleted.
    exclude: Columns of the rows that are not stored, for example a column for `delete_when`.
    strategy: When exactsink upserts rows: `staged` after the decision, `direct` before it, while tasks run.
    staging_schema: For PostgreSQL: the schema of the staging tables. Default: `exactsink_staging`.
    busy_timeout_seconds: How long to wait for another program's lock on the database file, or on rows.
    """
