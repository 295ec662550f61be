"""A Postgres server as libpq reaches it: sessions, which server and history it is, and its errors as ours."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from configparser import ConfigParser, ParsingError
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row
from pydantic import SecretStr

from exactsink.contract import ExactsinkError, Fatal, Retryable

if TYPE_CHECKING:
    from typing_extensions import LiteralString

__all__ = ["CONNECT_SECONDS", "History", "MADE_MEANWHILE", "Server", "UNDECIDED", "ask", "explained", "pinned", "place"]

CONNECT_SECONDS = 10

UNDECIDED = "the epoch is not decided yet, and is written again"
"""What becomes of the rows when a task fails."""

MADE_MEANWHILE = (
    psycopg.errors.DuplicateTable,
    psycopg.errors.DuplicateColumn,
    psycopg.errors.DuplicateObject,
    psycopg.errors.UniqueViolation,  # of the catalog's own index
)
"""What a server answers to one of two processes that make the same thing at once."""

_PINNED = {
    "host": "PGHOST",
    "hostaddr": "PGHOSTADDR",
    "port": "PGPORT",
    "dbname": "PGDATABASE",
    "user": "PGUSER",
    "options": "PGOPTIONS",
    "sslmode": "PGSSLMODE",  # a task must never settle for less than the driver
    "gssencmode": "PGGSSENCMODE",
    "channel_binding": "PGCHANNELBINDING",
    "require_auth": "PGREQUIREAUTH",
    "target_session_attrs": "PGTARGETSESSIONATTRS",
}
_TRY_AGAIN = ("08", "40", "53", "57", "58")
_TRY_AGAIN_STATES = ("25006", "25P03", "25P04", "55P03", "55006", "55000")
_PASSWORD = "give the right user and password to the driver and every executor: in conninfo, a passfile or PGPASSWORD"
_TLS = "fix sslmode, sslrootcert or the server's certificate, for the driver and every executor"
_SERVICE = "give the driver and every executor a service file with it (PGSERVICEFILE, ~/.pg_service.conf)"
_FULL = ("too many connections", "remaining connection slots")
_NO_ENTRY = {
    "password": _PASSWORD,
    "authentication": _PASSWORD,
    "channel binding": _PASSWORD,
    "pg_hba.conf": "add a line to the server's pg_hba.conf, or see that user, database and sslmode are meant",
    "certificate": _TLS,
    "private key": _TLS,
    "support SSL": _TLS,
    'service "': _SERVICE,
    'service file "': _SERVICE,
    'database "': "make the database, or fix dbname in conninfo",
    'role "': "make the role, or fix user in conninfo",
    'value: "': "fix conninfo",
    "port number": "fix conninfo",
    "connection option": "fix conninfo",
}
"""What an error of connecting says that no other try can help, and what does."""

_MEND = {
    "22": "cast or filter such values before this sink",
    "23": "fix the rows, or the constraint, then start the job again",
    "25006": "connect to the primary (target_session_attrs=read-write in conninfo), then start the job again",
    "42501": "grant what is missing (`exactsink check` shows the statement), then start the job again",
    "42P01": "bring the table back, or set create = true, then start the job again",
    "53200": "raise max_prepared_transactions (ALTER SYSTEM SET, then restart the server), or lower max_participants",
    "53300": "raise max_connections, or lower max_participants: every running task holds a connection",
}

_HISTORY = """
    SELECT system_identifier::text, (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),
        ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int
    FROM pg_control_system()
"""


@dataclass(frozen=True, slots=True)
class History:
    """Name what a transaction id has a meaning in: one cluster's one database on one timeline.

    `system` is the cluster's identifier, `database` the database's oid. A cluster that was promoted, or restored to an
    earlier point, goes on under another `timeline`: it may use the ids of transactions that it never saw once more.
    """

    system: str
    database: int
    timeline: int

    @classmethod
    def of(cls, connection: psycopg.Connection) -> History:
        """Ask a primary server."""
        row = connection.execute(_HISTORY).fetchone()
        assert row is not None
        return cls(*row)

    def dump(self) -> str:
        return json.dumps(asdict(self))

    def is_same_place(self, other: History) -> bool:
        """Return whether both are the same database, though perhaps on another timeline."""
        return (self.system, self.database) == (other.system, other.database)

    def __str__(self) -> str:
        return f"system {self.system}, database {self.database}, timeline {self.timeline}"


@dataclass(frozen=True, slots=True)
class Server:
    """Where to connect. A value that pickles and shows no secret."""

    conninfo: SecretStr

    def connect(self, name: str) -> psycopg.Connection:
        """Open a session in autocommit; `name` is what administrators see it as. Raises Retryable or Fatal."""
        given = self.conninfo.get_secret_value()
        with explained(f"connect to {place(given)}"):
            return psycopg.connect(
                given,
                autocommit=True,
                prepare_threshold=None,  # a pooler may hand each transaction to another session
                **_defaults(given, {"application_name": name[:63], "connect_timeout": CONNECT_SECONDS}),
                client_encoding="UTF8",
            )


def _defaults(conninfo: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return those parameters that neither the connection string nor the environment says."""
    given = conninfo_to_dict(conninfo)
    variables = {"connect_timeout": "PGCONNECT_TIMEOUT"}
    return {k: v for k, v in wanted.items() if k not in given and variables.get(k, "") not in os.environ}


def pinned(conninfo: str) -> str:
    """Add to a connection string what libpq's environment says here, so that tasks go to the same place, as safely.

    What stands in the string goes first, then a service, then the environment, then this process's user, as libpq has
    it. A password stays where it is: in the string, in a passfile, or in PGPASSWORD; and so do paths of passfiles,
    certificates and service files. Raises psycopg.ProgrammingError for what is no such string.
    """
    given = conninfo_to_dict(conninfo)
    service = given.get("service") or os.environ.get("PGSERVICE")
    reported = _service_keys(str(service)) if service else set()
    known = {*given, *reported}
    here = {key: os.environ[name] for key, name in _PINNED.items() if key not in known and os.environ.get(name)}
    if service:
        here["service"] = str(service)
    if "user" not in {*known, *here} and (reported or not service) and (user := _this_user()):
        here["user"] = user
    return make_conninfo(conninfo, **here)


def _service_keys(service: str) -> set[str]:
    """Name what a service says, as far as the file is where libpq's documentation looks for it."""
    config = os.environ.get("PGSYSCONFDIR")
    files = [os.environ.get("PGSERVICEFILE") or os.path.expanduser("~/.pg_service.conf")]
    files += [os.path.join(config, "pg_service.conf")] if config else []
    for file in files:
        found = ConfigParser(
            default_section="",
            delimiters=("=",),
            comment_prefixes=("#",),
            allow_no_value=True,
            strict=False,
            interpolation=None,
        )
        with suppress(OSError, ParsingError, UnicodeDecodeError):
            found.read(file, encoding="utf-8")
            if found.has_section(service):
                return set(found[service])
    return set()


def _this_user() -> str | None:
    """Name the operating system's user, whom libpq logs in as when nobody is named."""
    defaults = {option.keyword: option.val for option in psycopg.pq.Conninfo.get_defaults()}
    user = defaults.get(b"user")
    return user.decode() if user else None


def place(conninfo: str) -> str:
    """Name the database that a connection string leads to, without user or secret."""
    given = conninfo_to_dict(conninfo)
    name = str(given.get("dbname") or "")
    if given.get("service"):
        return f"postgres://service:{given['service']}/{name}"
    host = str(given.get("host") or given.get("hostaddr") or "")
    hosts, ports = host.split(","), str(given.get("port") or "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    where = ",".join(h + (f":{p}" if p else "") for h, p in zip(hosts, ports, strict=False))
    return f"postgres://{where}/{name}"


def ask(connection: psycopg.Connection, query: LiteralString, **parameters: object) -> list[dict[str, Any]]:
    """Run a query and give its rows by column name. Raises psycopg's errors."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, parameters or None).fetchall()


@contextmanager
def explained(doing: str, safe: str = "") -> Iterator[None]:
    """Turn the server's errors into ours: `doing` says what failed, `safe` what becomes of the rows."""
    try:
        yield
    except psycopg.Error as error:
        raise _ours(error, doing, safe) from error


def _ours(error: psycopg.Error, doing: str, safe: str) -> ExactsinkError:
    diag, state = error.diag, error.sqlstate or ""
    said = diag.message_primary or " ".join(str(error).split()) or type(error).__name__
    parts = [
        f"SQLSTATE {state}" if state else "",
        diag.message_detail or "",
        diag.context or "",
        diag.message_hint or "",
    ]
    where = [
        diag.schema_name and diag.table_name and f"table {diag.schema_name}.{diag.table_name}",
        diag.column_name and f"column {diag.column_name}",
    ]
    where.append(diag.constraint_name and f"constraint {diag.constraint_name}")
    named = ", ".join(filter(None, where))
    why = "; ".join(part.rstrip(".").replace("\n", "; ") for part in (*parts, safe) if part)
    what = f"{doing}: {named + ': ' if named else ''}{said}"
    entry = _no_entry(error, state)
    fix = _MEND.get(state) or _MEND.get(state[:2]) or entry
    if not entry and _may_pass(error, state):
        return Retryable(what, why=why, next=fix or "see that the server is up, then start the job again")
    return Fatal(what, why=why, next=fix or "fix what the server names, then start the job again")


def _no_entry(error: psycopg.Error, state: str) -> str | None:
    """Return what helps when nobody is let in, for a reason that stays. Such an error has no state, only words."""
    said = str(error)
    if state or not isinstance(error, psycopg.OperationalError) or any(words in said for words in _FULL):
        return None
    return next((fix for words, fix in _NO_ENTRY.items() if words in said), None)


def _may_pass(error: psycopg.Error, state: str) -> bool:
    """Return whether trying again may help."""
    if not state:
        return isinstance(error, psycopg.OperationalError)
    return state in _TRY_AGAIN_STATES or state.startswith(_TRY_AGAIN)
