"""The URL of a database: which one it is, what is wrong with it, and what of it may be shown.

Executors import this module: SQLAlchemy only where options are first read.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from exactsink.contract import ConfigError
from exactsink.toolkit.local_paths import real_path

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

__all__ = ["MYSQL", "SQLITE", "address_of", "checked_url"]

SQLITE = "sqlite:///"
MYSQL = ("mysql", "mariadb")
_WITHOUT_TRANSACTIONS = (
    *("awsathena", "bigquery", "clickhouse", "clickhousedb", "databricks", "druid", "elasticsearch", "hive", "impala"),
    *("kylin", "opensearch", "pinot", "presto", "trino"),
)
_PLACES = ("unix_socket", "host", "port")  # of a query, what says which server it is


def checked_url(text: str, context: Any) -> str:
    """Return the URL as jobs use it; `context` is what the options are read with. Raises ValueError, ConfigError."""
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
        raise ValueError(f"not a SQLAlchemy URL: write {SQLITE}path/to/file.db") from None
    if given.get_backend_name() == "sqlite":
        return _odd_sqlite_file(given, context)
    if given.get_backend_name() == "postgresql":
        try:
            from exactsink_idempotent_upsert.postgres.url import libpq_url
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
    if find_spec("pymysql") is None:
        raise ConfigError("this database needs PyMySQL", next="pip install 'exactsink[mysql]'")
    return given.set(drivername=f"{product}+pymysql").render_as_string(hide_password=False)


def _any_database(given: URL, context: Any) -> str:
    from sqlalchemy.exc import NoSuchModuleError

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
