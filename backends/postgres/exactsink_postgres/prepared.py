"""Prepared transactions of this database: which there are, and their end, many in one round trip."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import psycopg
from psycopg import sql

from exactsink.contract import ExactsinkError, Fatal, Retryable

__all__ = ["Prepared", "finish", "list_prepared", "same_xid"]

_LIST = """
    SELECT gid, transaction::text::bigint, owner FROM pg_prepared_xacts
    WHERE gid = ANY (%s) AND database = current_database()
"""
_MAY_BE_LEFT = (
    psycopg.errors.UndefinedObject,  # somebody else ended it
    psycopg.errors.ObjectNotInPrerequisiteState,  # somebody else is about to
    psycopg.errors.InsufficientPrivilege,
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared transaction: its name, the lower 32 bits of its transaction id, and the role that may end it."""

    gid: str
    xid: int
    owner: str


def same_xid(listed: int, xid: int) -> bool:
    """Hold a listed id, which has 32 bits, against a whole one."""
    return listed == xid % (1 << 32)


def list_prepared(connection: psycopg.Connection, gids: Iterable[str]) -> dict[str, Prepared]:
    """Return those of `gids` that stand prepared in this database."""
    rows = connection.execute(_LIST, (list(gids),)).fetchall()
    return {row[0]: Prepared(*row) for row in rows}


def finish(
    connection: psycopg.Connection, how: Literal["COMMIT", "ROLLBACK"], wanted: Iterable[Prepared], doing: str
) -> set[str]:
    """Commit or roll back what stands prepared; give the gids that the server says this call ended.

    An error stops a pipeline: the later ones are sent again. What is gone meanwhile was ended by somebody else, and is
    the caller's to settle. Raises Retryable when one is busy, Fatal when it belongs to another role, after all
    others have had their turn; and psycopg's errors.
    """
    done: set[str] = set()
    stuck: list[tuple[Prepared, psycopg.Error]] = []
    pending = list(wanted)
    pipelined = psycopg.Pipeline.is_supported()
    while pending:
        ended, error = _send(connection, how, pending, pipelined)
        done.update(one.gid for one in pending[:ended])
        if isinstance(error, psycopg.errors.ActiveSqlTransaction) and pipelined:
            pending, pipelined = pending[ended:], False  # this server takes no two of them in one pipeline
            continue
        if error is not None:
            if not isinstance(error, _MAY_BE_LEFT):
                raise error
            stuck.append((pending[ended], error))
        pending = pending[ended + 1 :]
    if stuck:
        _check_gone(connection, stuck, doing)
    return done


def _send(
    connection: psycopg.Connection, how: str, pending: Sequence[Prepared], pipelined: bool
) -> tuple[int, psycopg.Error | None]:
    """Return how many were ended, from the first on, and the error that stopped the next one."""
    answers: list[psycopg.Cursor] = []
    failed = None
    try:
        with connection.pipeline() if pipelined else nullcontext():
            for one in pending:
                statement = sql.SQL(how + " PREPARED {}").format(sql.Literal(one.gid))
                answers.append(connection.execute(statement))
    except psycopg.Error as error:
        failed = error
    ended = [answer.statusmessage for answer in answers].count(f"{how} PREPARED")
    if failed is None and ended < len(pending):
        raise AssertionError(f"the server answered {[answer.statusmessage for answer in answers]}")
    return ended, failed


def _check_gone(connection: psycopg.Connection, stuck: Sequence[tuple[Prepared, psycopg.Error]], doing: str) -> None:
    """Raise an error for one that is still there, the gravest first."""
    there = list_prepared(connection, [one.gid for one, _ in stuck])
    left = [_left(one, error, doing) for one, error in stuck if one.gid in there]
    if left:
        raise max(left, key=lambda error: isinstance(error, Fatal))


def _left(one: Prepared, error: psycopg.Error, doing: str) -> ExactsinkError:
    said = f"{error.diag.message_primary} (SQLSTATE {error.sqlstate})"
    what = f"{doing}: prepared transaction {one.gid} (transaction id {one.xid}) stays"
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return Fatal(
            what,
            why=f"{said}: role {one.owner} prepared it, and no other role but a superuser may end it",
            next=f"connect as {one.owner} (user={one.owner} in conninfo), as when it was prepared; then start again",
        )
    return Retryable(what, why=f"another session is about to end it: {said}", next="start the job again")
