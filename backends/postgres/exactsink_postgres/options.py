"""The options of a sink that writes to Postgres, and the names of tables in SQL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import psycopg
from pydantic import Field, SecretStr, field_validator

from exactsink.contract import BackendOptions
from exactsink.toolkit.sql import ascii_lower, quoted
from exactsink_postgres.server import Server, pinned

__all__ = ["PostgresOptions", "TableName"]

_IDENTIFIER = r'(?:[A-Za-z_\u0080-\uffff][\w$\u0080-\uffff]*|"(?:[^"]|"")+")'
_LONGEST = 63  # bytes
_NAME = re.compile(rf"(?:({_IDENTIFIER})\.)?({_IDENTIFIER})")


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's name as SQL writes it: `orders`, `sales.orders`, `sales."Odd Name"`; unquoted A to Z are lower case."""

    schema: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read a name. Raises ValueError."""
        found = _NAME.fullmatch(text.strip())
        if found is None:
            raise ValueError(f'{text!r} is not a table name: write orders, sales.orders or sales."Odd Name"')
        name = cls(found[1] and _plain(found[1]), _plain(found[2]))
        if max(len(part.encode()) for part in (name.schema or "", name.name)) > _LONGEST:
            raise ValueError(f"{text!r} is too long: the server cuts a name after {_LONGEST} bytes")
        return name

    @property
    def sql(self) -> str:
        """The name, quoted, for statements."""
        return quoted(self.schema, self.name) if self.schema else quoted(self.name)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


class PostgresOptions(BackendOptions):
    """Options of a sink that inserts into one table.

    TLS, passfiles, service names and libpq's environment work as in psycopg. If `conninfo` leaves out the host, port,
    database or user, exactsink completes it for the tasks from the driver's environment. But if `conninfo` contains
    `${executor:NAME}`, it must itself name host, port, database and user. Tasks get a password only if it is in
    `conninfo`.
    """

    conninfo: SecretStr = Field(default=SecretStr(""), validate_default=True)
    """libpq's connection string or URI: `host=db dbname=shop`, `postgresql://db/shop`, `service=shop`."""
    table: str = Field(min_length=1)
    """The table, as SQL writes it: `orders`, `sales.orders`, `sales."Odd Name"`."""
    create: bool = False
    """Create the table, from the rows' schema, if it does not exist."""
    on_schema_change: Literal["fail", "add_columns"] = "fail"
    """If rows have columns that the table lacks, `fail` refuses the epoch, and `add_columns` adds the columns."""
    strategy: Literal["two_phase", "staged"] = "two_phase"
    """How exactsink commits an epoch: tasks prepare transactions, or rows wait in a staging table."""
    staging_schema: str = Field(default="exactsink_staging", min_length=1)
    """The schema for the staging tables of `staged`. exactsink creates it. Keep no tables of your own there."""
    staging: Literal["logged", "unlogged"] = "logged"
    """Whether staged rows outlive a crash of the server. `unlogged`: a crash loses them, and the job writes them again
    from the source; the server never publishes them, and never sends them to standbys."""
    lock_timeout_seconds: float = Field(default=10, gt=0, le=86_400)
    """How long to wait for a lock, for example of a transaction that a dead task has left. Then the task fails, and
    names the lock's holder."""

    @field_validator("conninfo")
    @classmethod
    def _readable(cls, conninfo: SecretStr) -> SecretStr:
        """Check the string and pin the place. No error repeats it."""
        try:
            return SecretStr(pinned(conninfo.get_secret_value()))
        except psycopg.ProgrammingError:
            raise ValueError(
                "not a libpq connection string: write host=db dbname=shop, or postgresql://user@db/shop"
            ) from None

    @field_validator("table")
    @classmethod
    def _named(cls, table: str) -> str:
        if TableName.parse(table).name.startswith("exactsink_"):
            raise ValueError(f"{table}: names that begin with exactsink_ are taken")
        return table

    @property
    def name(self) -> TableName:
        return TableName.parse(self.table)

    @property
    def server(self) -> Server:
        return Server(self.conninfo)


def _plain(identifier: str) -> str:
    """Fold an identifier as a server with encoding UTF-8 does: only ASCII letters."""
    if identifier.startswith('"'):
        return identifier[1:-1].replace('""', '"')
    return ascii_lower(identifier)
