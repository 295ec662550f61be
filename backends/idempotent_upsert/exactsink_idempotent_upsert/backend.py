"""The `idempotent_upsert` backend: its promise, and the rows that a task refuses before it votes.

Strategy staged applies an epoch in one transaction together with its marker, so it appears at one moment and is applied
once, however often and by whomever it is committed. Strategy direct upserts in tasks before the decision, with a guard
on each row. Executors import this module, so it does not import SQLAlchemy.
"""

from __future__ import annotations

import pyarrow as pa

from exactsink.contract import Committer, ConfigError, Fatal, JobContext, Traits, Txn, Validator, Writer
from exactsink.toolkit.roads import Applier, StagedBackend
from exactsink.toolkit.spark_sql import quoted_name
from exactsink.toolkit.sql import ascii_lower
from exactsink_idempotent_upsert.database import Database, Strategy
from exactsink_idempotent_upsert.limits import check_order
from exactsink_idempotent_upsert.options import MYSQL, UpsertOptions
from exactsink_idempotent_upsert.strategies import UpsertApplier, Upserts
from exactsink_idempotent_upsert.table import DELETED, Table

__all__ = ["UpsertBackend", "UpsertOptions"]


class UpsertBackend(StagedBackend):
    """Upsert rows into one table: INSERT .. ON CONFLICT (keys) DO UPDATE."""

    Options = UpsertOptions
    options: UpsertOptions

    @property
    def strategy(self) -> str:
        return self.options.strategy

    @property
    def target(self) -> str:
        return f"{self.options.address}#{self.options.name}"

    @property
    def traits(self) -> Traits:
        return self._database().traits

    def shape(self, schema: pa.Schema) -> list[str] | None:
        """Drop unneeded columns, and add one that says whether a row deletes; NULL means no. Raises ConfigError."""
        options = self.options
        if options.delete_when is None and not options.exclude:
            return None
        for name in options.exclude:
            if name not in schema.names:
                has = ", ".join(schema.names)
                raise ConfigError(f"`exclude` names column {name}, the rows have {has}", next="correct `exclude`")
        kept = [name for name in schema.names if name not in options.exclude or name == options.order_by]
        expressions = [quoted_name(name) for name in kept]
        if options.delete_when is None:
            return expressions
        if DELETED in map(ascii_lower, kept):
            raise ConfigError(f"a column is named {DELETED}, which `delete_when` needs", next="rename it")
        return [*expressions, f"CASE WHEN (\n{options.delete_when}\n) THEN true ELSE false END AS {DELETED}"]

    def check_epoch_column(self, name: str) -> None:
        options, folded = self.options, ascii_lower(name)
        for option, named in (("keys", options.keys), ("exclude", options.exclude), ("set", options.set)):
            if folded in map(ascii_lower, named):
                raise ConfigError(
                    f"table {options.table}: epoch_column {name} is in `{option}`",
                    why="it holds the number of the epoch that wrote the row last, and is stored unchanged",
                    next=f"take it out of `{option}`, or name another column",
                )
        if options.update_columns is not None and folded not in map(ascii_lower, options.update_columns):
            raise ConfigError(
                f"table {options.table}: `update_columns` lacks epoch_column {name}",
                why="a row would keep the number of the epoch that inserted it, although a later epoch changed the row",
                next=f'add "{name}" to `update_columns`',
            )

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return self._strategy().writer(txn, schema, ticket)

    def validator(self, schema: pa.Schema, rules: bytes) -> Validator:
        return self._strategy().validator(schema, rules)

    def committer(self, ctx: JobContext) -> Committer:
        return self._strategy(ctx).committer(ctx)

    def applier(self) -> Applier:
        return UpsertApplier(self._database())

    def check_batch(self, batch: pa.RecordBatch) -> None:
        """Refuse rows that the table can't hold exactly, and NULL keys, because no upsert would match them again."""
        options = self.options
        flag = None if options.delete_when is None else DELETED
        for name in filter(None, (*options.keys, options.order_by, options.version, flag)):
            if name not in batch.schema.names:
                raise Fatal(
                    f"table {options.table}: the rows have no column {name}",
                    why=f"an option names it; they have {', '.join(batch.schema.names)}",
                    next="select the column into this sink, or correct the option",
                )
        database = self._database()
        check_order(database.table, batch)
        problem = database.unstorable(batch)
        if problem is not None:
            raise Fatal(
                f"table {options.table}: a row can't be stored: {problem}",
                why="the database would refuse it after the decision, when it is too late",
                next="cast the column, or filter such rows, before this sink",
            )
        for key in options.keys:
            if missing := database.missing_keys(batch.column(key)):
                raise Fatal(
                    f"table {options.table}: key column {key} is NULL (or NaN) in {missing} rows of a batch",
                    why="NULL equals nothing, so an upsert would insert such a row each time it sees it",
                    next=f"filter `{key} IS NOT NULL`, or fill it, before this sink",
                )

    def _strategy(self, ctx: JobContext | None = None) -> Strategy:
        database = self._database(ctx)
        return database.staged or Upserts(self, database, self.options.table)

    def _database(self, ctx: JobContext | None = None) -> Database:
        return _database_of(self.options, self._table(), ctx)

    def _table(self) -> Table:
        options = self.options
        return Table(
            options.name.name,
            options.keys,
            options.order_by,
            options.create,
            options.exclude,
            deletes=options.delete_when is not None,
            guarded=options.strategy == "direct",
            schema=options.name.schema,
            mode=options.mode,
            update_columns=options.update_columns,
            expressions=tuple(options.set.items()),
            version=options.version,
            add_columns=options.on_schema_change == "add_columns",
        )


def _database_of(options: UpsertOptions, table: Table, ctx: JobContext | None = None) -> Database:
    """Return the parts for a sink's database, and import only its modules. `ctx` is a driver's."""
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
