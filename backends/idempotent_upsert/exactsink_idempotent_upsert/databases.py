"""Which database an URL names. Executors import this module, and of the databases only the one that is named."""

from __future__ import annotations

from exactsink.contract import JobContext
from exactsink_idempotent_upsert.database import Database
from exactsink_idempotent_upsert.options import UpsertOptions
from exactsink_idempotent_upsert.table import Table
from exactsink_idempotent_upsert.urls import MYSQL

__all__ = ["database_of"]


def database_of(options: UpsertOptions, table: Table, ctx: JobContext | None = None) -> Database:
    """Return the database's side of a sink; `ctx` is a driver's."""
    if options.product == "postgresql":
        from exactsink_idempotent_upsert.postgres.database import PostgresDatabase

        url, wait = options.url.get_secret_value(), options.busy_timeout_seconds
        return PostgresDatabase(url, options.address, table, ctx, wait, options.staging_schema)
    if options.product in MYSQL:
        from exactsink_idempotent_upsert.mysql.database import MysqlDatabase

        return MysqlDatabase(options.url.get_secret_value(), options.address, table, options.busy_timeout_seconds)
    if options.product != "sqlite":
        from exactsink_idempotent_upsert.generic.database import GenericDatabase

        return GenericDatabase(options.url.get_secret_value(), options.address, table)
    from exactsink_idempotent_upsert.sqlite.database import SqliteDatabase

    return SqliteDatabase(options.path, table, options.busy_timeout_seconds)
