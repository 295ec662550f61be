"""The options of a sink that upserts, the same for all databases; its URL, with its mistakes and its public part.

Executors import this module, so it imports SQLAlchemy only when options are first read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from exactsink.contract import BackendOptions, ConfigError
from exactsink.toolkit.local_paths import real_path
from exactsink.toolkit.sql import ascii_lower
from exactsink_idempotent_upsert.table import TableName

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

__all__ = ["MYSQL", "SQLITE", "UpsertOptions", "address_of", "checked_url"]

SQLITE = "sqlite:///"
MYSQL = ("mysql", "mariadb")
_WITHOUT_TRANSACTIONS = (
    *("awsathena", "bigquery", "clickhouse", "clickhousedb", "databricks", "druid", "elasticsearch", "hive", "impala"),
    *("kylin", "opensearch", "pinot", "presto", "trino"),
)
_PLACES = ("unix_socket", "host", "port")  # parts of a query that name the server
_WHY_NOT_BOTH = {
    "keys": "which the keys need",
    "update_columns": "which `update_columns` sets",
    "set": "which `set` sets",
    "version": "which is the version: it is stored as it comes, with the rest of its row",
}


def checked_url(text: str, context: Any) -> str:
    """Return the URL as jobs use it. `context` is that of the options' validation. Raises ValueError, ConfigError."""
    try:
        if text.startswith(SQLITE) and not {"?", "%"} & set(text) and find_spec("sqlalchemy"):  # slow to import
            return _sqlite_file(text.removeprefix(SQLITE), context)
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError
    except ModuleNotFoundError as error:
        install = "pip install 'exactsink[idempotent-upsert]'"
        raise ConfigError(f"backend idempotent_upsert needs {error.name}", next=install) from error
    try:
        given = make_url(text)
    except (ArgumentError, ValueError):
        wanted = text.removeprefix("jdbc:").partition(":")[0] if text.startswith("jdbc:") else ""
        right = f"{wanted}://user@host/database" if wanted.isalpha() else f"{SQLITE}path/to/file.db"
        raise ValueError(f"not a SQLAlchemy URL: write {right}") from None
    if given.get_backend_name() == "sqlite":
        return _odd_sqlite_file(given, context)
    if given.get_backend_name() == "postgresql":
        try:
            from exactsink_idempotent_upsert.postgres.columns import libpq_url
        except ModuleNotFoundError as error:
            install = "pip install 'exactsink[postgres]'"
            raise ConfigError(f"upserts into PostgreSQL need {error.name}", next=install) from error
        return libpq_url(given)
    if given.get_backend_name() in MYSQL:
        return _mysql_server(given)
    return _any_database(given, context)


def address_of(text: str) -> str:
    """Return the URL without its user, its password and most of its query."""
    if text.startswith(SQLITE):
        return text
    parts = urlsplit(text)
    place = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name in _PLACES], safe="/")
    server = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme.partition('+')[0]}://{server}{parts.path}{'?' if place else ''}{place}"


def _odd_sqlite_file(given: URL, context: Any) -> str:
    if given.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise ValueError(f"{given.drivername} is not supported: write {SQLITE}path/to/file.db")
    if given.host or given.username or given.password or given.query:
        raise ValueError(f"a SQLite URL holds a path only: {SQLITE}path/to/file.db (four slashes: absolute)")
    return _sqlite_file(given.database, context)


def _sqlite_file(path: str | None, context: Any) -> str:
    if not path or path.startswith((":memory:", "file:")):
        raise ValueError(f"a database in memory ends with its process: name a file, {SQLITE}path/to/file.db")
    return f"{SQLITE}{real_path(path, context)}"


def _mysql_server(given: URL) -> str:
    product, _, driver = given.drivername.partition("+")
    if driver not in ("", "pymysql"):
        raise ValueError(f"{given.drivername} is not supported: write {product}+pymysql://user@host/database")
    if not given.database:
        raise ValueError(f"the URL names no database: write {product}+pymysql://user@host/database")
    try:  # here, once: threads that are the first to import a package, each another part of it, break each other
        import_module("sqlalchemy.dialects.mysql.pymysql")
        import_module("pymysql")
    except ModuleNotFoundError as error:
        raise ConfigError("this database needs PyMySQL", next="pip install 'exactsink[mysql]'") from error
    return given.set(drivername=f"{product}+pymysql").render_as_string(hide_password=False)


def _any_database(given: URL, context: Any) -> str:
    from sqlalchemy.exc import NoSuchModuleError

    if given.drivername == "postgres":
        raise ValueError("postgres:// is not supported: write postgresql://user@host/database")
    if given.get_backend_name() == "postgresql":  # its staged rows have a road of their own
        raise ValueError(f"{given.drivername} is not supported by portable SQL")
    if given.get_backend_name() in _WITHOUT_TRANSACTIONS:
        raise ValueError(f"{given.drivername} has no transactions, so that rows and marker can't be stored as one")
    try:
        dialect = given.get_dialect()
        dialect.import_dbapi()
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise ValueError(f"{given.drivername} is not supported here: {error}") from None
    if dialect.is_async:
        raise ValueError(f"{given.drivername} is not supported: it is asynchronous")
    if given.get_backend_name() == "duckdb":
        if not given.database or given.database.startswith(":memory:"):
            raise ValueError("a database in memory ends with its process: name a file, duckdb:///path/to/file.db")
        given = given.set(database=real_path(given.database, context))
    return given.render_as_string(hide_password=False)


class UpsertOptions(BackendOptions):
    """Options of a sink that upserts into one table.

    `keys` are the columns that identify a row. By default, the last row with the same keys wins. `order_by`, `version`
    and `mode` change that.
    """

    url: SecretStr
    """A SQLAlchemy URL: `sqlite:///path/to/file.db`, `postgresql://user@host/shop` (libpq's defaults and environment
    complete it), `mysql+pymysql://user:password@host/database`, or the URL of another installed dialect."""
    table: str = Field(min_length=1)
    """The table, as SQL writes it: `orders`, `sales.orders`, `"Odd Name"`."""
    keys: tuple[str, ...] = Field(min_length=1)
    """The columns that identify a row."""
    mode: Literal["upsert", "insert_if_absent", "replace"] = "upsert"
    """The effect of a row if its keys exist in the table.

    `upsert` sets the row's columns. `insert_if_absent` changes nothing. `replace` replaces the whole row; columns that
    the rows lack get their default.
    """
    update_columns: tuple[str, ...] | None = None
    """The columns that an upsert changes in an existing row; it sets the other columns only in a new row. Default: all
    columns except the keys."""
    set: Mapping[str, str] = Field(default_factory=dict)
    """SQL of the database for columns of an existing row, for example `{ total = "daily.total + excluded.total" }`.

    The table's name means the existing row, and `excluded` the incoming row. Only with strategy `staged`."""
    version: str | None = None
    """A column of the rows. A row never replaces a row with a greater version, in the same epoch or in the table."""
    create: bool = False
    """Create the table if it does not exist."""
    on_schema_change: Literal["fail", "add_columns"] = "fail"
    """If rows have columns that the table lacks, `fail` refuses them, and `add_columns` adds the columns."""
    order_by: str | None = None
    """A column of the rows. Of rows with the same keys in one epoch, the row with its greatest value wins (with
    `insert_if_absent`, the smallest). It has no effect between epochs."""
    delete_when: str | None = Field(default=None, min_length=1)
    """A SQL condition on the columns of the job's frame. If it is true for the row that wins, the table's row with the
    same keys is deleted."""
    exclude: tuple[str, ...] = ()
    """Columns of the rows that are not stored, for example a column for `delete_when`."""
    strategy: Literal["staged", "direct"] = "staged"
    """When exactsink upserts rows: `staged` after the decision, `direct` before it, while tasks run."""
    staging_schema: str | None = Field(default=None, min_length=1)
    """For PostgreSQL: the schema of the staging tables. Default: `exactsink_staging`."""
    busy_timeout_seconds: float = Field(default=30, ge=0)
    """How long to wait for another program's lock on the database file, or on rows."""

    @property
    def product(self) -> str:
        """The database, as SQLAlchemy names its dialect."""
        return self.url.get_secret_value().partition(":")[0].partition("+")[0]

    @property
    def address(self) -> str:
        """The URL without its secrets, by which a sink is identified."""
        return address_of(self.url.get_secret_value())

    @property
    def path(self) -> Path:
        return Path(self.url.get_secret_value().removeprefix(SQLITE))

    @property
    def name(self) -> TableName:
        """The table's name, as PostgreSQL folds it there."""
        if self.product == "postgresql":
            return TableName.parse(self.table.strip(), ascii_lower)
        return TableName.parse(self.table)

    @field_validator("url")
    @classmethod
    def _known_url(cls, url: SecretStr, info: ValidationInfo) -> SecretStr:
        """Check the URL, and make a file's path absolute where the options are first read. No error repeats the URL."""
        return SecretStr(checked_url(url.get_secret_value(), info.context))

    @field_validator("table")
    @classmethod
    def _not_a_reserved_table(cls, table: str) -> str:
        name = TableName.parse(table)
        if ascii_lower(name.name).startswith(("exactsink_", "sqlite_")):
            raise ValueError(f"{table}: names that begin with exactsink_ or sqlite_ are taken")
        return table

    @field_validator("keys", "update_columns")
    @classmethod
    def _distinct(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if names is not None and ("" in names or len(frozenset(map(ascii_lower, names))) < len(names)):
            raise ValueError("name each column once: no name may be empty, and none may come twice")
        return names

    @model_validator(mode="after")
    def _agree(self) -> UpsertOptions:
        for why in (*self._senseless(), *self._unknown_there()):
            raise ValueError(why)
        for option, names in (("keys", self.keys), ("update_columns", self.update_columns or ()), ("set", self.set)):
            self._refuse_both("exclude", self.exclude, option, names)
        for option in ("update_columns", "set"):
            self._refuse_both(option, getattr(self, option) or (), "keys", self.keys)
        if self.version is not None:
            for option in ("keys", "set", "exclude"):
                self._refuse_both(option, getattr(self, option), "version", (self.version,))
        return self

    def _senseless(self) -> Iterator[str]:
        """Explain which options make no sense together, on any database."""
        direct, mode = self.strategy == "direct", self.mode
        if direct and self.delete_when is not None:
            why = "a deleted row loses the version that guards it, so that an older, late write would bring it back"
            yield f"strategy direct can't delete: {why}; use strategy staged"
        if direct and self.set:
            why = "its tasks write before the decision, and an epoch that is written again would apply `set` again"
            yield f"strategy direct can't count: {why}; use strategy staged"
        if mode == "insert_if_absent" and (self.update_columns or self.set or self.version or self.delete_when):
            fix = "leave out `update_columns`, `set`, `version` and `delete_when`, or use mode upsert"
            yield f"mode insert_if_absent never changes an existing row: {fix}"
        if mode == "replace" and (self.update_columns is not None or self.set):
            yield "mode replace replaces the whole row: leave out `update_columns` and `set`, or use mode upsert"
        if self.update_columns == () and not self.set:
            yield "`update_columns` is empty, so an existing row never changes: use mode insert_if_absent"
        if self.version is not None and self.order_by is not None:
            yield "`version` also orders the rows of an epoch: leave out `order_by`"

    def _unknown_there(self) -> Iterator[str]:
        """Explain which options the database, or its strategy, lacks."""
        product, known = self.product, self.product in ("sqlite", *MYSQL, "postgresql")
        if product == "sqlite" and self.name.schema not in (None, "main"):
            yield "a SQLite file has no schemas: quote a name that has a dot, '\"sales.orders\"'"
        if self.strategy == "direct" and not known:
            yield "strategy direct needs a database whose conditional writes are known: use strategy staged"
        if self.on_schema_change == "add_columns" and not known:
            yield "columns can't be added to a table that is reached by portable SQL: leave out `on_schema_change`"
        if self.staging_schema is not None and (product == "sqlite" or self.strategy == "direct"):
            who = "SQLite" if product == "sqlite" else "strategy direct"
            yield f"{who} has no staging tables: leave out `staging_schema`"

    def _refuse_both(self, one: str, names: Iterable[str], other: str, others: Iterable[str]) -> None:
        if both := frozenset(names) & frozenset(others):
            raise ValueError(f"`{one}` names {', '.join(sorted(both))}, {_WHY_NOT_BOTH[other]}")
