"""The table that an epoch's rows go into: made and widened where the options say so, else refused when it can't."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psycopg
import pyarrow as pa

from exactsink.contract import ExactsinkError, Fatal, JobContext, Txn
from exactsink_postgres.locks import LockWatch, blocked, timed_out
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.server import MADE_MEANWHILE, explained
from exactsink_postgres.tables import Table, add_column_statements, create_statement, problems, read_table

__all__ = ["open_table"]


def open_table(
    connection: psycopg.Connection, options: PostgresOptions, ctx: JobContext, epoch: int, schema: pa.Schema
) -> Table:
    """Return the table, fit for rows of `schema`. Idempotent, also from two processes at once.

    Raises Fatal, with column and statement, where it can't take the rows; Retryable where a lock did not come.
    """
    opening = _Opening(connection, options, ctx, epoch)
    with opening.in_time():
        table = opening.read()
        if table is None and options.create:
            opening.change([create_statement(options.name, schema)])
            table = opening.read()
        if table is not None and options.on_schema_change == "add_columns":
            missing = add_column_statements(table, schema)
            if missing:
                opening.change(missing)
                table = opening.read()
    if table is None:
        raise Fatal(
            f"sink {ctx.sink}: there is no table {options.name}",
            why="it does not exist, or is on no schema of the role's search_path",
            next=f"make it ({_created(options, schema)}), or set create = true",
        )
    for finding in problems(table, schema):
        if finding.severity == "error":
            raise Fatal(f"sink {ctx.sink}: {finding.message}", next=finding.fix)
    return table


def _created(options: PostgresOptions, schema: pa.Schema) -> str:
    try:
        return create_statement(options.name, schema)
    except Fatal as no_type:
        return no_type.what


class _Opening:
    """Reads and changes a table's definition, on a session that waits for no lock longer than the options say.

    Reading one waits, too, behind whoever changes the table.
    """

    def __init__(self, connection: psycopg.Connection, options: PostgresOptions, ctx: JobContext, epoch: int) -> None:
        self._connection = connection
        self._options = options
        self._doing = f"sink {ctx.sink}: prepare table {options.name} for epoch {epoch}"
        self._driver = Txn(ctx.job, epoch, ctx.sink, ctx.generation, "", -1, -1)

    def read(self) -> Table | None:
        with self._connection.transaction():
            return read_table(self._connection, self._options.name)

    def change(self, statements: Sequence[str]) -> None:
        """Run the statements, in one transaction. What another process made meanwhile stands."""
        with suppress(*MADE_MEANWHILE), self._connection.transaction():
            for statement in statements:
                self._connection.execute(statement.encode())

    @contextmanager
    def in_time(self) -> Iterator[None]:
        """Return who holds a lock that does not come in time."""
        pid, seconds = self._connection.info.backend_pid, self._options.lock_timeout_seconds
        watch = LockWatch(self._options.server, pid, seconds)
        try:
            with explained(self._doing, "the epoch has not begun"), watch.working():
                yield
        except ExactsinkError as error:
            if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                seen = watch.blocker
                if seen is None:
                    raise timed_out(self._doing, watch.writers_to(self._options.name.sql)) from error.__cause__
                raise blocked(self._doing, self._driver, seen) from error.__cause__
            raise
        finally:
            watch.close()
