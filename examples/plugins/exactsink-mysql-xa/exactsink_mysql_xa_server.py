"""A MariaDB or MySQL server: sessions, XA branches and their ends, and its errors as the contract's errors.

The server does not record how a branch ended, and its answer proves nothing. Measured on MariaDB 10.11: if the session
of a branch is just ending, XA COMMIT and XA ROLLBACK answer OK and drop the branch from XA RECOVER, but leave it
prepared, with its locks. After a restart, the server lists it again. So this module ends a branch only when InnoDB
shows that no session holds it.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
from exactsink.contract import BackendOptions, Fatal, Retryable, Txn
from pydantic import Field, SecretStr, field_validator

__all__ = ["Branch", "Session", "XaOptions", "end", "explained", "listed"]

FORMAT = 0x65786173
"""The formatID of our xids: others' branches have another."""
_MODE = (
    "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,"
    "NO_AUTO_VALUE_ON_ZERO"
)

_NO_TABLE, _NO_BRANCH = 1146, 1397
_GONE = (_NO_BRANCH, 1402, 1613, 1614)  # no such branch; or the server had rolled it back
_PASSING = {
    **dict.fromkeys((1040, 1203, 1226), "see how many connections the server and the user may have"),
    **dict.fromkeys((1053, 1927, 2002, 2003, 2006, 2013, 2014, 4031), "check that the server runs"),
    **dict.fromkeys((1021, 1114, 1180), "free space on the server's disk"),
    **dict.fromkeys((1290, 1836), "check whether the server is read-only, for example a replica"),
    **dict.fromkeys((1317, 1969, 3024), "find out what ends statements, for example max_statement_time"),
    1205: "see who holds locks on the table (SHOW ENGINE INNODB STATUS, XA RECOVER)",
    1213: "another transaction had locks that this one needs",
}
"""Codes of errors that may pass, with the place to look at."""
_HINTS = {
    1044: "grant the missing right to the user: `exactsink check` shows the statement",
    1045: "correct user and password in url",
    1049: "make the database, or correct it in url",
    1062: "filter rows with an existing key; or use idempotent_upsert, which replaces rows",
    1142: "grant the missing right to the user: `exactsink check` shows the statement",
    _NO_TABLE: "bring the table back, or set create = true",
    1153: "raise max_allowed_packet",
    1227: "grant the missing right to the user: `exactsink check` shows the statement",
    1665: "set binlog_format to MIXED or ROW",
    1364: "give the column a DEFAULT, or select it into this sink",
}


class XaOptions(BackendOptions):
    """The sink's options in a job's file."""

    url: SecretStr
    """`mysql://user:password@host:3306/database`; `?ssl_ca=FILE` for TLS, `?unix_socket=FILE`."""
    table: Annotated[str, Field(pattern=r"^[^`.]{1,64}$")]
    """The table that rows are appended to, in that database."""
    create: bool = False
    """Whether to make the table if it does not exist."""
    lock_timeout_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    """How long to wait for another session's lock, and for a session to release its branch."""

    @field_validator("url")
    @classmethod
    def _check(cls, url: SecretStr) -> SecretStr:
        given = urlsplit(url.get_secret_value())
        try:
            is_fit = given.port != 0 and given.scheme.partition("+")[0] in ("mysql", "mariadb") and len(given.path) > 1
        except ValueError:  # its text has the port that it read: perhaps half a password
            is_fit = False
        if not is_fit:
            raise ValueError("write mysql://user:password@host:3306/database, and %2F for a / in the password")
        if unknown := dict(parse_qsl(given.query)).keys() - {"unix_socket", "ssl_ca", "ssl_cert", "ssl_key"}:
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}; known are unix_socket, ssl_ca, ssl_cert, ssl_key")
        return url

    @property
    def place(self) -> dict[str, Any]:
        """Return the url's place as the driver's arguments, without the user."""
        given = urlsplit(self.url.get_secret_value())
        place = {"host": given.hostname or "localhost", "port": given.port or 3306, "database": unquote(given.path[1:])}
        return {**place, **dict(parse_qsl(given.query))}


@dataclass(frozen=True, slots=True)
class Branch:
    """A participant's XA branch. Its xid is `job.sink@database`, then its claim, place and session.

    An xid is unique in a server, so it also names the database: two jobs of one name may use a database each.
    """

    scope: bytes
    txn: Txn
    session: int
    begun: int

    @staticmethod
    def scope_of(job: str, sink: str, database: str) -> bytes:
        """Return the part that all xids of a sink share, 64 bytes at most: a longer one ends in its hash."""
        scope = f"{job}.{sink}@{database}".encode()
        return scope if len(scope) <= 64 else scope[:43] + b"~" + hashlib.sha256(scope).hexdigest()[:20].encode()

    @classmethod
    def read(cls, scope: bytes, job: str, sink: str, row: Sequence[Any]) -> Branch | None:
        """Read a row of XA RECOVER; None where it is another's branch."""
        format, length, _, data = row
        data = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
        found = re.fullmatch(rb"g(\d+)-([0-9a-f]+)\.e(\d+)\.p(\d+)\.a(\d+)\.s(\d+)\.t(\d+)", data[length:])
        if format != FORMAT or data[:length] != scope or found is None:
            return None
        generation, epoch, partition, attempt, session, begun = (int(found[at]) for at in (1, 3, 4, 5, 6, 7))
        txn = Txn(job, epoch, sink, generation, found[2].decode(), partition, attempt)
        return cls(scope, txn, session, begun)

    def __str__(self) -> str:
        """Return the xid as statements have it."""
        txn = self.txn
        rest = (
            f"g{txn.generation}-{txn.token}.e{txn.epoch}.p{txn.partition}.a{txn.attempt}.s{self.session}.t{self.begun}"
        )
        if len(rest) > 64:
            raise Fatal(f"{rest} is too long for an xid", why="it may have 64 bytes", next="start under a new job name")
        return f"X'{self.scope.hex()}',X'{rest.encode().hex()}',{FORMAT}"


class Session:
    """A session in autocommit, UTC and READ COMMITTED that refuses values it would cut. Raises the driver's errors."""

    def __init__(self, options: XaOptions) -> None:
        given, place = urlsplit(options.url.get_secret_value()), options.place
        wait = options.lock_timeout_seconds
        if "unix_socket" in place:
            place["ssl_disabled"] = True  # nobody reads a socket on the way
        user = {"user": unquote(given.username or ""), "password": unquote(given.password or "")}
        own = {"charset": "utf8mb4", "autocommit": True, "connect_timeout": 10, "read_timeout": wait + 600}
        self.connection: pymysql.Connection[Any] = pymysql.connect(**{**place, **user, **own})
        try:
            self.rows(
                f"SET SESSION sql_mode = '{_MODE}', time_zone = '+00:00', foreign_key_checks = 1, unique_checks = 1,"
                f" innodb_lock_wait_timeout = {wait}, lock_wait_timeout = {wait}"
            )
            self.rows("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")  # no locks on gaps between keys
            [(mode, self.version, self.id, self.now, self.database)] = self.rows(
                "SELECT @@SESSION.sql_mode, VERSION(), CONNECTION_ID(), UNIX_TIMESTAMP(), DATABASE()"
            )
            if "STRICT_ALL_TABLES" not in mode:
                raise Fatal(f"the session is not strict: sql_mode is {mode}", next="connect without a proxy in between")
        except BaseException:
            self.connection.close()
            raise

    @property
    def is_mariadb(self) -> bool:
        return "mariadb" in self.version.lower()

    def rows(self, statement: str, *values: object) -> Sequence[Any]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return tuple(cursor.fetchall())

    def rows_if_there(self, query: str, *values: object) -> Sequence[Any]:
        """Return the rows of a table that may not be there yet."""
        try:
            return self.rows(query, *values)
        except pymysql.MySQLError as error:
            if _code(error) != _NO_TABLE:
                raise
            return ()

    def is_alive(self) -> bool:
        try:
            self.connection.ping(reconnect=False)
        except pymysql.MySQLError:
            return False
        return True

    def close(self) -> None:
        """End the session, and its branch unless that is prepared. Idempotent."""
        if self.connection.open:
            self.connection.close()

    def held(self) -> set[int] | None:
        """Return the ids of sessions that hold prepared branches, 0 for an unknown id; None if the list is incomplete.

        MySQL releases a branch when it prepares it (xa_detach_on_prepare). MariaDB releases it when its session has
        ended, but lists it in XA RECOVER a moment earlier.
        """
        if not self.is_mariadb:
            return set()
        self.rows("START TRANSACTION WITH CONSISTENT SNAPSHOT")  # so that this session is in the list
        [(_, _, text)] = self.rows("SHOW ENGINE INNODB STATUS")
        self.rows("COMMIT")
        transactions = text.split("---TRANSACTION ")[1:]
        if "truncated..." in text or not any(f"thread id {self.id}," in said for said in transactions):
            return None
        attached = [said for said in transactions if "(PREPARED)" in said and "recovered trx" not in said]
        return {int(found[1]) if (found := re.search(r"thread id (\d+),", said)) else 0 for said in attached}


def listed(session: Session, scope: bytes, job: str, sink: str) -> dict[str, Branch]:
    """Return the prepared branches of one sink by their participants' names, without those of other sinks."""
    branches = (Branch.read(scope, job, sink, row) for row in session.rows("XA RECOVER"))
    return {branch.txn.id: branch for branch in branches if branch is not None}


def end(session: Session, how: str, branches: Mapping[str, Branch], seconds: float) -> set[str]:
    """Commit or roll back (`XA COMMIT`, `XA ROLLBACK`) these branches; return those that the server reported as ended.

    Afterwards all of them have ended, by this call or another's. Raises Retryable if a session still holds one when
    `seconds` have passed.
    """
    done: set[str] = set()
    until = time.monotonic() + seconds
    while branches:
        held = session.held()
        for ref, branch in branches.items():
            if held is not None and not held & {0, branch.session}:
                try:
                    session.rows(f"{how} {branch}")
                    done.add(ref)
                except pymysql.MySQLError as error:
                    if _code(error) not in _GONE:
                        raise
        some = next(iter(branches.values()))
        left = listed(session, some.scope, some.txn.job, some.txn.sink)
        branches = {ref: branch for ref, branch in branches.items() if ref in left}
        if branches and time.monotonic() > until:
            ref, branch = next(iter(branches.items()))
            raise Retryable(
                f"{how} of {ref}: its session {branch.session}, or another that ends it, still holds it",
                why="a branch is ended when no session holds it" if held is not None else "InnoDB's list is incomplete",
                next=f"KILL {branch.session}, unless a new session has that number; then start the job again",
            )
        if branches:
            time.sleep(0.02)
    return done


def _code(error: pymysql.MySQLError) -> int:
    """Return the error's number, the server's or the driver's: 2013 if the connection is closed, 0 if it has none."""
    code = error.args[0] if error.args else ""
    return (code or 2013) if isinstance(code, int) else 0


@contextmanager
def explained(doing: str, safe: str) -> Iterator[None]:
    """Turn the driver's errors into Retryable or Fatal; `safe` is their reason why nothing is lost."""
    try:
        yield
    except pymysql.MySQLError as error:
        code = _code(error)
        what = f"{doing}: {error.args[-1] if error.args else error} ({code})"
        if code in _PASSING:
            raise Retryable(what, why=safe, next=f"{_PASSING[code]}, then start the job again") from error
        fix = _HINTS.get(code, "fix the cause that the server names")
        raise Fatal(what, why=safe, next=f"{fix}, then start the job again") from error
