"""Check the server, before the first row, for problems that fail every epoch or could lose decided rows, with fixes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

import psycopg
import pyarrow as pa

from exactsink.contract import Finding, JobContext, Txn
from exactsink.toolkit.sql import quoted
from exactsink_postgres.errors import origin, ours, shown, unset
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.preflight_table import table_findings
from exactsink_postgres.server import Session, ask
from exactsink_postgres.tables import too_old

__all__ = ["Asks", "findings", "set_on_server", "settings"]

Asks: TypeAlias = Mapping[str, Callable[[], Iterator[Finding]]]
"""Checks, by the words for their subject."""

_PLACE = """
    SELECT pg_is_in_recovery() AS replica, current_setting('transaction_read_only')::bool AS read_only,
        session_user AS login, current_database() AS database,
        (SELECT source FROM pg_settings WHERE name = 'default_transaction_read_only') AS source
"""
_HELD = """
    SELECT gid, owner, database, database = current_database() AS here,
        extract(epoch FROM clock_timestamp() - prepared)::float8 AS age, owner = current_user AS mine,
        (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser
    FROM pg_prepared_xacts ORDER BY prepared, gid
"""
_ROOM_FOR_RETRIES = 2  # a killed attempt may hold a slot until its epoch is committed
_SLOTS_TO_START_WITH = 64
_TIMEOUTS = """
    SELECT name, setting::float8 / 1000 AS seconds, source, session_user AS login, current_database() AS database
    FROM pg_settings WHERE setting::bigint > 0 AND setting::bigint < %(budget)s AND name = ANY (%(names)s) ORDER BY name
"""
_CUT = {
    "idle_in_transaction_session_timeout": "a transaction that waits for its task's next rows",
    "statement_timeout": "the COPY of a task's rows",
    "transaction_timeout": "a task's transaction",
}
_WEAK = {
    "fsync": "a crash of the server's machine may lose or damage committed rows",
    "full_page_writes": "a crash of the server's machine may damage pages that were being written",
    "track_activities": "a stalled task that still writes is not seen, so no sweep can end it and free its locks",
}
_STANDBYS = """
    SELECT current_setting('synchronous_standby_names') AS names
    WHERE current_setting('synchronous_standby_names') <> '' AND NOT EXISTS (
        SELECT FROM pg_stat_replication WHERE sync_state IS NULL OR sync_state IN ('sync', 'quorum'))
"""


def findings(
    options: PostgresOptions,
    ctx: JobContext,
    connection: psycopg.Connection,
    schema: pa.Schema | None,
    participants: int | None,
    asks: Asks | None = None,
) -> Iterator[Finding]:
    """Find why such rows don't fit the table, or why the sink can't keep its guarantee; errors first, in a fixed order.

    Changes nothing and holds no lock, because it runs before the claim and the sweep. `connection` is in autocommit.
    `participants` is the most that an epoch can have, None if it has no limit. Without a `schema` it does not check
    columns. `asks` replace the checks of table and settings. A query that the server refuses becomes a warning. Raises
    Retryable if the session is lost.
    """
    two_phase = options.strategy == "two_phase"
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "its prepared transactions": lambda: _slots(ctx, connection, participants) if two_phase else iter(()),
        "its pooler": lambda: _pooler(options, connection),
        "its timeouts": lambda: _timeouts(ctx, connection),
        "its standbys": lambda: _standbys(connection),
    }
    checks |= asks or {
        f"table {options.name}": lambda: table_findings(options, ctx, connection, schema),
        "its settings": lambda: settings(connection),
    }
    found = list(_asked(connection, "its version, and whether it can be written", lambda: _writable(connection)))
    if not any(finding.severity == "error" for finding in found):  # the rest is for the server that can be written
        for subject, check in checks.items():
            found += _asked(connection, subject, check)
    yield from sorted(found, key=lambda finding: finding.severity != "error")


def set_on_server(settings: Mapping[str, object], *, restart: bool) -> str:
    """Return the statements that change settings of the whole server."""
    after = "then restart the server" if restart else "SELECT pg_reload_conf();"
    return " ".join([*(f"ALTER SYSTEM SET {name} = {value};" for name, value in settings.items()), after])


def _asked(connection: psycopg.Connection, subject: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Return a check's findings. A query that the server refuses is one of them."""
    try:
        yield from check()
    except psycopg.Error as error:
        if connection.closed:
            raise ours(error, f"query the server for {subject}") from error
        with suppress(psycopg.Error):
            connection.rollback()
        role = quoted(connection.info.user)
        fix = f"GRANT pg_monitor TO {role}; (or what the message names), then `exactsink check JOB.toml`"
        yield Finding("warning", f"the server does not report {subject}: {shown(error)}", fix)


def _writable(connection: psycopg.Connection) -> Iterator[Finding]:
    if (refusal := too_old(connection)) is not None:
        yield refusal
        return
    [at] = ask(connection, _PLACE)
    if at["replica"]:
        fix = "name the primary, or all servers and target_session_attrs=read-write, in conninfo"
        yield Finding("error", "the server is a replica: it can't be written", fix)
    elif at["read_only"]:
        message = "transactions are read only here (default_transaction_read_only is on)"
        yield Finding("error", message, unset("default_transaction_read_only", "off", at))


def _slots(ctx: JobContext, connection: psycopg.Connection, participants: int | None) -> Iterator[Finding]:
    """Compare free slots with an epoch's need.

    Slots of this sink itself are freed by the start, so they count as free.
    """
    slots = ask(connection, "SELECT current_setting('max_prepared_transactions')::int AS slots")[0]["slots"]
    if slots == 0:
        wanted = max(_SLOTS_TO_START_WITH, _ROOM_FOR_RETRIES * (participants or 0))
        message = "the server can't prepare transactions: max_prepared_transactions is 0"
        yield Finding("error", message, f'{_raised(wanted)}; or strategy = "staged" in the config, which needs none')
        return
    held = ask(connection, _HELD)
    own = [one for one in held if _is_own(ctx, one)]
    owners = sorted({one["owner"] for one in own if not one["mine"] and not one["superuser"]})
    if owners:
        message = f"role {', '.join(owners)} prepared transactions of this sink: no other role may end them"
        yield Finding("error", message, f"user={owners[0]} in conninfo, the role that prepared them")
    others = [one for one in held if one not in own]
    free = slots - len(others)
    bounded = f"max_participants = {free} in the config"
    if free < (participants or 1):
        message = f"{free} of {slots} slots for prepared transactions are free, an epoch needs {participants or 'some'}"
        message += f"; others hold {len(others)}, the oldest {_named(others[0])}" if others else ""
        ways = [_raised(len(others) + _ROOM_FOR_RETRIES * (participants or _SLOTS_TO_START_WITH))]
        ways += [bounded] if free > 0 else []
        ways += ["have the others' owners commit or roll them back"] if others else []
        yield Finding("error", message, "; or ".join(ways))
    elif participants is None:
        message = f"nothing bounds how many participants an epoch has, and {free} of {slots} slots for prepared "
        yield Finding("warning", message + "transactions are free: an epoch with more fails", bounded)


def _pooler(options: PostgresOptions, connection: psycopg.Connection) -> Iterator[Finding]:
    """Find a name whose meaning other clients of a pool can change: in transaction mode, settings stay behind."""
    if isinstance(connection, Session) and connection.pooled and options.name.schema is None:
        ((schema,),) = connection.execute("SELECT current_schema()").fetchall()
        message = f"a pooler is in front of the server, and table {options.name} is found by search_path, which other "
        fix = f"table = '{quoted(schema)}.{quoted(options.name.name)}' in the config"
        yield Finding("warning", f"{message}clients of the pool may leave set", fix)


def _is_own(ctx: JobContext, held: dict[str, Any]) -> bool:
    txn = Txn.parse(held["gid"])
    return txn is not None and held["here"] and (txn.job, txn.sink) == (ctx.job, ctx.sink)


def _named(held: dict[str, Any]) -> str:
    return f"{held['gid']!r} of {held['owner']} in database {held['database']}, {_duration(held['age'])} old"


def _raised(slots: int) -> str:
    return set_on_server({"max_prepared_transactions": slots}, restart=True)


def _timeouts(ctx: JobContext, connection: psycopg.Connection) -> Iterator[Finding]:
    """Compare the timeouts of this session with the time that an epoch may take."""
    budget = ctx.epoch_budget_seconds
    for found in ask(connection, _TIMEOUTS, budget=budget * 1000, names=list(_CUT)):
        name = found["name"]
        message = f"{name} is {_duration(found['seconds'])}, an epoch may take {_duration(budget)} (epoch_budget): "
        message += f"it may end {_CUT[name]}; {origin(found)} sets it"
        yield Finding("warning", message, unset(name, "0", found))


def settings(connection: psycopg.Connection) -> Iterator[Finding]:
    """Find settings of the server that weaken a commit, or hide sessions from the sweep.

    With fsync = off there is no guarantee. synchronous_commit is not among them, because tasks and driver set it
    themselves.
    """
    off = "SELECT name FROM pg_settings WHERE name = ANY (%(names)s) AND setting = 'off' ORDER BY name"
    for found in ask(connection, off, names=list(_WEAK)):
        name = found["name"]
        fix = set_on_server({name: "on"}, restart=False)
        yield Finding("error" if name == "fsync" else "warning", f"{name} is off: {_WEAK[name]}", fix)


def _standbys(connection: psycopg.Connection) -> Iterator[Finding]:
    """Find that no synchronous standby is there. A role that may not see their state is not answered: no finding."""
    for absent in ask(connection, _STANDBYS):
        message = f"no synchronous standby is connected (synchronous_standby_names is {absent['names']!r}): "
        fix = "bring one back; or, where commits may do without: " + set_on_server(
            {"synchronous_standby_names": "''"}, restart=False
        )
        yield Finding("warning", f"{message}every vote and every commit waits until one is", fix)


def _duration(seconds: float) -> str:
    """Write a time span in the unit that people would."""
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
