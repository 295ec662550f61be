"""What a server is asked before the first row: can it give what the sink asks for, and which statement fixes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pyarrow as pa

from exactsink.contract import Finding, JobContext, Txn
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.preflight.evidence import evidence_findings
from exactsink_postgres.preflight.grants import table_findings
from exactsink_postgres.preflight.limits import duration, session_findings, setting_findings, timeout_findings, unset
from exactsink_postgres.server import ask, explained

__all__ = ["OLDEST_VERSION", "findings"]

OLDEST_VERSION = 15

_PLACE = """
    SELECT pg_is_in_recovery() AS replica, current_setting('transaction_read_only')::bool AS read_only,
        session_user AS login, current_database() AS database
"""
_SOURCE = "SELECT source FROM pg_settings WHERE name = 'default_transaction_read_only'"
_HELD = """
    SELECT gid, owner, database, database = current_database() AS here,
        extract(epoch FROM clock_timestamp() - prepared)::float8 AS age, owner = current_user AS mine,
        (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser
    FROM pg_prepared_xacts ORDER BY prepared, gid
"""
_CLOSED = """
    SELECT signature, quote_ident(current_user) AS role FROM unnest(%(functions)s::text[]) AS signature
    WHERE NOT has_function_privilege(signature, 'EXECUTE')
"""
_HISTORY = ["pg_control_system()", "pg_current_wal_lsn()", "pg_walfile_name(pg_lsn)"]
_SLOTS = "SELECT current_setting('max_prepared_transactions')::int AS slots"
_ROOM_FOR_RETRIES = 2  # a killed attempt may hold a slot until its epoch is committed
_SLOTS_TO_START_WITH = 64


def findings(
    options: PostgresOptions,
    ctx: JobContext,
    connection: psycopg.Connection,
    schema: pa.Schema,
    participants: int | None,
) -> Iterator[Finding]:
    """Find what keeps such rows from the table, or the sink from its promise; errors first, in a fixed order.

    Changes nothing and holds no lock: it runs before the claim and the sweep. `connection` is in autocommit.
    `participants` is the most that an epoch can have, None when nothing bounds it. What a server can't be asked is a
    warning. Raises Retryable when the session is lost.
    """
    two_phase = options.strategy == "two_phase"
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("its version, and whether it can be written", lambda: _writable(connection)),
        ("its prepared transactions", lambda: _slots(ctx, connection, participants) if two_phase else iter(())),
        ("which database it is", lambda: _history(connection)),
        (f"table {options.name}", lambda: table_findings(options, ctx, connection, schema)),
        ("what this job has prepared", lambda: _own(ctx, connection)),
        ("its connections", lambda: session_findings(connection, participants)),
        ("its timeouts", lambda: timeout_findings(options, ctx, connection)),
        ("its settings", lambda: setting_findings(connection)),
        ("how long it knows of a commit", lambda: evidence_findings(ctx, connection) if two_phase else iter(())),
    ]
    found: list[Finding] = []
    for subject, check in checks:
        found += _asked(connection, subject, check)
        if check is checks[0][1] and any(finding.severity == "error" for finding in found):
            break  # the rest is for the server that can be written
    yield from sorted(found, key=lambda finding: finding.severity != "error")


def _asked(connection: psycopg.Connection, subject: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Return a check's findings; what the server refuses to report is one of them."""
    try:
        yield from check()
    except psycopg.Error as error:
        if connection.closed:
            with explained(f"ask the server for {subject}"):
                raise
        with suppress(psycopg.Error):
            connection.rollback()
        said = error.diag.message_primary or str(error)
        message = f"the server does not report {subject}: {said} (SQLSTATE {error.sqlstate})"
        fix = "let the role read it (GRANT pg_monitor TO ..., or what the message names), then `exactsink check`"
        yield Finding("warning", message, fix)


def _writable(connection: psycopg.Connection) -> Iterator[Finding]:
    version = connection.info.server_version
    if version < OLDEST_VERSION * 10_000:
        reported = connection.info.parameter_status("server_version")
        message = f"the server is PostgreSQL {reported}, this sink needs {OLDEST_VERSION} or newer"
        yield Finding("error", message, f"pg_upgrade to PostgreSQL {OLDEST_VERSION} or newer")
        return
    [at] = ask(connection, _PLACE)
    if at["replica"]:
        message = "the server is a replica: it can't be written"
        yield Finding(
            "error", message, "name the primary, or all servers and target_session_attrs=read-write, in conninfo"
        )
    elif at["read_only"]:
        source = ask(connection, _SOURCE)[0]["source"]
        message = "transactions are read only here (default_transaction_read_only is on)"
        yield Finding(
            "error", message, unset("default_transaction_read_only", "off", source, at["login"], at["database"])
        )


def _history(connection: psycopg.Connection) -> Iterator[Finding]:
    for closed in ask(connection, _CLOSED, functions=_HISTORY):
        message = f"role {closed['role']} may not call {closed['signature']}, which reports one database from another"
        statement = f"GRANT EXECUTE ON FUNCTION {closed['signature']} TO {closed['role']};"
        yield Finding("error", message, statement)


def _slots(ctx: JobContext, connection: psycopg.Connection, participants: int | None) -> Iterator[Finding]:
    """Compare free slots with what an epoch needs. What this sink holds itself is committed or swept at the start."""
    slots = ask(connection, _SLOTS)[0]["slots"]
    if slots == 0:
        wanted = max(_SLOTS_TO_START_WITH, _ROOM_FOR_RETRIES * (participants or 0))
        message = "the server prepares no transactions: max_prepared_transactions is 0"
        yield Finding("error", message, f'{_raised(wanted)}; or strategy = "staged" in the config, which needs none')
        return
    others = [held for held in ask(connection, _HELD) if not _is_own(ctx, held)]
    free = slots - len(others)
    if free < (participants or 1):
        needed = "some" if participants is None else str(participants)
        message = f"{free} of {slots} slots for prepared transactions are free, an epoch needs {needed}"
        message += f"; others hold {_reported(others)}" if others else ""
        wanted = len(others) + _ROOM_FOR_RETRIES * (participants or _SLOTS_TO_START_WITH)
        ways = [_raised(wanted), *([f"max_participants = {free} in the config"] if free > 0 else [])]
        ways += ["have the others' owners commit or roll them back"] if others else []
        yield Finding("error", message, "; or ".join(ways))
    elif participants is None:
        message = (
            f"nothing bounds how many participants an epoch has, and {free} of {slots} slots for prepared "
            "transactions are free: an epoch with more fails"
        )
        yield Finding("warning", message, f"max_participants = {free} in the config")


def _own(ctx: JobContext, connection: psycopg.Connection) -> Iterator[Finding]:
    """Report what this sink left prepared: it keeps its locks, and VACUUM from removing what was deleted since."""
    own = [held for held in ask(connection, _HELD) if _is_own(ctx, held)]
    strangers = sorted({held["owner"] for held in own if not held["mine"] and not held["superuser"]})
    if strangers:
        message = f"role {', '.join(strangers)} prepared transactions of this sink: no other role may end them"
        yield Finding("error", message, f"user={strangers[0]} in conninfo, as it was when they were prepared")
    if own:
        oldest = own[0]
        message = (
            f"{len(own)} transactions of this sink stand prepared, the oldest for {duration(oldest['age'])} "
            f"({oldest['gid']}): they keep their locks, and VACUUM from removing dead rows"
        )
        yield Finding("warning", message, "exactsink recover JOB.toml, or start the job: both commit or roll back")


def _is_own(ctx: JobContext, held: dict[str, Any]) -> bool:
    txn = Txn.parse(held["gid"])
    return txn is not None and held["here"] and (txn.job, txn.sink) == (ctx.job, ctx.sink)


def _reported(others: list[dict[str, Any]]) -> str:
    """Return who holds slots: how many in each database, and the oldest."""
    counts = Counter(held["database"] for held in others)
    oldest = {held["database"]: held for held in reversed(others)}
    return ", ".join(
        f"{count} in database {database} (oldest {oldest[database]['gid']!r} of {oldest[database]['owner']}, "
        f"{duration(oldest[database]['age'])} old)"
        for database, count in sorted(counts.items())
    )


def _raised(slots: int) -> str:
    return f"ALTER SYSTEM SET max_prepared_transactions = {slots}; then restart the server"
