"""The Postgres server that libpq finds: its address, and sessions that commit durably and explain their errors."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import SecretStr

from exactsink.contract import Fatal
from exactsink_postgres.errors import ours
from exactsink_postgres.locks import LockWatch, Waiting

if TYPE_CHECKING:
    from psycopg.abc import PQGen
    from typing_extensions import LiteralString

__all__ = ["KeptSession", "Server", "Session", "ask", "pinned", "place"]

_Answer = TypeVar("_Answer")
_IDLE, _BROKEN = psycopg.pq.TransactionStatus.IDLE, psycopg.pq.TransactionStatus.INERROR
_DEFAULTS = {
    "connect_timeout": 10,
    "keepalives_idle": 30,  # a firewall drops a silent session; a dead one breaks before its next use
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
_PINNED = (
    *("host", "hostaddr", "port", "dbname", "user", "options", "target_session_attrs"),
    *("sslmode", "gssencmode", "channel_binding", "require_auth"),  # a task must never settle for less than the driver
)
_SETTINGS = """SELECT set_config('lock_timeout', '{timeout}', {local}), set_config('synchronous_commit',
    CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, {local}),
    pg_backend_pid()"""
"""Limits waits for locks, and makes commits wait for the synchronous standbys, whatever the role or database sets.

Without it, prepared transactions and their ends are on disk as well, but don't wait for a standby.
"""
_OPTION = re.compile(r"(?:-c\s*|--)([\w.-]+)=")
_POOLED_OPTIONS = (
    "take `options` out of conninfo (and PGOPTIONS), and set it by ALTER ROLE ... SET; or connect past the pooler"
)
_UNTIL_HERE = """SELECT pg_logical_emit_message(true, 'exactsink', '')
    WHERE current_setting('synchronous_standby_names') <> ''"""


class Session(psycopg.Connection):
    """A session in autocommit that names, in its errors, the holder of a lock that it did not get.

    Behind a pooler (`pooled`), each transaction may run in another session of the server, which others use as well.
    Settings are then made for one transaction, and a single statement gets a transaction around it.
    """

    watch: LockWatch | None = None
    lock_timeout = "0"
    pooled = False

    def run(self, statement: str, *given: object) -> psycopg.Cursor[Any]:
        """Run a statement that is made here, its names quoted. Raises psycopg's errors."""
        return self.execute(statement.encode(), given or None)

    def execute(self, query: Any, params: Any = None, **kwargs: Any) -> psycopg.Cursor[Any]:
        if self.pooled and self.info.transaction_status == _IDLE:
            with self.transaction():
                return self.alone(query, params, **kwargs)
        return self.alone(query, params, **kwargs)

    def alone(self, query: Any, params: Any = None, **kwargs: Any) -> psycopg.Cursor[Any]:
        """Run a statement without a transaction around it."""
        return super().execute(query, params, **kwargs)

    @contextmanager
    def transaction(self, *args: Any, **kwargs: Any) -> Iterator[psycopg.Transaction]:
        begins = self.info.transaction_status == _IDLE
        with super().transaction(*args, **kwargs) as transaction:
            if self.pooled and begins:
                self._found(self.alone(self._settings("true")))
            yield transaction
            if self.info.transaction_status == _BROKEN:
                raise psycopg.errors.InFailedSqlTransaction("a statement failed: COMMIT would roll back in silence")

    def begin(self, tag: str) -> None:
        """Begin a transaction with the settings, which end with it. `tag` begins the statement."""
        cursor = self.alone(f"{tag} BEGIN ISOLATION LEVEL READ COMMITTED; {self._settings('true')}".encode())
        cursor.nextset()
        self._found(cursor)

    def settle(self) -> int:
        """Make the settings for transactions, behind a pooler for each of them.

        Return the server's process. Called once.
        """
        pid = self.backend()
        self.pooled = pid != self.info.backend_pid  # a pooler gives its clients numbers of its own
        if not self.pooled:
            self.alone(self._settings("false"))
        elif dropped := self._dropped():
            raise Fatal(
                f"the pooler drops these settings of conninfo: {', '.join(dropped)}",
                why="its ignore_startup_parameters has them, so the server never sees them",
                next=_POOLED_OPTIONS,
            )
        return pid

    def _dropped(self) -> list[str]:
        """Name the settings in `options` of conninfo that the server's session did not get."""
        given = _OPTION.findall(self.info.get_parameters().get("options", ""))
        names = [name.replace("-", "_").lower() for name in given]
        query = "SELECT name FROM pg_settings WHERE name = ANY (%s) AND source <> 'client'"
        return [name for (name,) in self.alone(query, [names])]

    def backend(self) -> int:
        """Return the process that answers at the server now."""
        ((pid,),) = self.alone("SELECT pg_backend_pid()").fetchall()
        return int(pid)

    def await_standbys(self) -> None:
        """Wait until the synchronous standbys have everything that was committed before.

        Through a pooler, no setting applies to COMMIT PREPARED, so a later commit with the setting waits in its place.
        """
        if self.pooled:
            self.execute(_UNTIL_HERE)

    def _settings(self, local: Literal["true", "false"]) -> str:
        return _SETTINGS.format(timeout=self.lock_timeout, local=local)

    def _found(self, settings: psycopg.Cursor[Any]) -> None:
        """Remember the server's process, whose locks the watch queries."""
        ((_, _, pid),) = settings.fetchall()
        if self.watch is not None:
            self.watch.pid = pid

    def wait(self, gen: PQGen[_Answer], *args: Any, **kwargs: Any) -> _Answer:
        return super().wait(gen if self.watch is None else self.watch.generator(gen), *args, **kwargs)

    @contextmanager
    def explained(self, waiting: Waiting) -> Iterator[None]:
        """Turn the server's errors into ours."""
        try:
            yield
        except psycopg.Error as error:
            blocked = self.watch and self.watch.error(error, waiting)
            ended_by = self.watch.advice(error) if self.watch else ""
            raise blocked or ours(error, waiting.doing, waiting.safe, ended_by) from error


@dataclass(frozen=True, slots=True)
class Server:
    """Where to connect. A value that pickles and shows no secret."""

    conninfo: SecretStr

    def connect(self, name: str, lock_timeout_seconds: float = 0) -> Session:
        """Open a session. `name` is its application_name, for administrators. Raises Retryable or Fatal.

        With a lock timeout, a watch reports the holders of locks; `settle`, or `begin`, sets the server's timeout.
        """
        conninfo = self.conninfo.get_secret_value()
        defaults: dict[str, Any] = {"application_name": name[:63], **_DEFAULTS}
        around = {"connect_timeout"} if "PGCONNECT_TIMEOUT" in os.environ else set()
        for given in conninfo_to_dict(conninfo).keys() | around:
            defaults.pop(given, None)
        try:
            session = Session.connect(
                conninfo,
                autocommit=True,
                prepare_threshold=None,  # a pooler may hand each transaction to another session
                client_encoding="UTF8",
                **defaults,
            )
            session.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # of its transactions, whatever the role's
        except psycopg.Error as error:
            raise ours(error, f"connect to {place(conninfo)}") from error
        if lock_timeout_seconds:
            session.lock_timeout = f"{math.ceil(lock_timeout_seconds * 1000)}ms"
            asking = partial(self.connect, "exactsink: who holds a lock")
            session.watch = LockWatch(asking, session.info.backend_pid, lock_timeout_seconds)
        return session


class KeptSession:
    """Gives a session in autocommit that answers: the last one, or a new one in its place. For one thread at a time.

    No statement waits for a lock longer than `lock_timeout_seconds`, and commits are durable.
    """

    def __init__(self, server: Server, name: str, lock_timeout_seconds: float) -> None:
        self._connect = partial(server.connect, name, lock_timeout_seconds)
        self._session: Session | None = None
        self._pid = 0

    @contextmanager
    def use(self, waiting: Waiting) -> Iterator[Session]:
        """Return the session for a call. The server's errors become ours."""
        session = self._session
        pid = None if session is None else _answering(session)
        if session is None or pid is None:
            self.close()
            session = self._connect()
            try:
                with session.explained(waiting):
                    self._pid = session.settle()
            except BaseException:
                session.close()
                raise
            self._session = session
        elif pid != self._pid:
            session.pooled = True  # by one that passes the server's own numbers on
        with session.explained(waiting):
            yield session

    def close(self) -> None:
        """End the session. Idempotent; `use` opens another one."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _answering(session: Session) -> int | None:
    """Return the server's process, None if the session accepts no statement, for example after an interruption."""
    try:
        pid = session.backend()
    except psycopg.Error:
        return None
    return pid if session.info.transaction_status == _IDLE else None


def pinned(conninfo: str) -> str:
    """Add this process's libpq environment to a connection string, so that tasks connect to the same place, as safely.

    The string itself has precedence, then a service, then the environment, then this process's user: libpq itself
    reports the result. A password stays where it is: in the string, in a passfile, or in PGPASSWORD. So do paths of
    passfiles, certificates and service files. Raises psycopg.ProgrammingError if it is not such a string.
    """
    given, here = conninfo_to_dict(conninfo), {}
    # With a version of TLS that doesn't exist, libpq resolves its parameters, and stops before it connects.
    attempt = psycopg.pq.PGconn.connect_start(make_conninfo(conninfo, ssl_min_protocol_version="none").encode())
    for option in attempt.info:
        name, value = option.keyword.decode(), (option.val or b"").decode()
        around = os.environ.get((option.envvar or b"").decode())
        if name in _PINNED and name not in given and value and (value == around or name == "user"):
            here[name] = value
    attempt.finish()
    service = given.get("service") or os.environ.get("PGSERVICE")
    return make_conninfo(conninfo, **here, **({"service": str(service)} if service else {}))


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
    """Run a query and return its rows by column name. Raises psycopg's errors."""
    cursor = connection.execute(query, parameters or None)
    names = [column.name for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
