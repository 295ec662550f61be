"""Which database an URL names. Executors import this module, and of the databases only the one that is named."""

from __future__ import annotations

from exactsink_idempotent_upsert.database import Database
from exactsink_idempotent_upsert.options import UpsertOptions
from exactsink_idempotent_upsert.table import Table

__all__ = ["database_of"]


def database_of(options: UpsertOptions, table: Table) -> Database:
    """Return the database's side of a sink."""
    assert options.product == "sqlite"
    from exactsink_idempotent_upsert.sqlite import SqliteDatabase

    return SqliteDatabase(options.path, table, options.busy_timeout_seconds)
