"""How long a server can prove that a transaction was committed, against the longest pause that the job allows."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from exactsink.contract import Finding, JobContext
from exactsink_postgres.preflight.limits import duration
from exactsink_postgres.server import ask

__all__ = ["evidence_findings"]

_RATE = """
    SELECT sum((xact_commit + xact_rollback) / greatest(watched, %(young)s))::float8 AS per_second,
        max(watched) AS watched, current_setting('vacuum_freeze_min_age')::bigint AS freeze,
        current_setting('autovacuum_freeze_max_age')::bigint AS most
    FROM pg_stat_database, LATERAL (
        SELECT extract(epoch FROM clock_timestamp() - coalesce(stats_reset,
            (SELECT least(writer.stats_reset, archiver.stats_reset)
                FROM pg_stat_bgwriter AS writer, pg_stat_archiver AS archiver)))::float8 AS watched
    ) AS since
"""
_YOUNG_SECONDS = 3600.0  # statistics of less say nothing of a week


def evidence_findings(ctx: JobContext, connection: psycopg.Connection) -> Iterator[Finding]:
    """Estimate how long a commit can be proven, and warn when the job may stand still for longer.

    A repeated COMMIT PREPARED is settled by pg_xact_status. The server keeps a transaction's status while any row of
    any table may need it ("Preventing Transaction ID Wraparound Failures" in the documentation: pg_xact is cut at the
    oldest datfrozenxid). A participant's rows need it until VACUUM freezes them, as a rule from vacuum_freeze_min_age
    transactions on, at most half of autovacuum_freeze_max_age. Mostly it is kept far longer, as every other old row
    keeps it too; but it is no bound: VACUUM FREEZE ends it at once, a DELETE of the rows may, and from 16 on VACUUM may
    freeze a page early. Beyond it the answer is Unknown, never a guess.

    The transactions are the server's own count, of all databases, and more than took an id: those that only read are
    among them. The count survives a clean restart, a crash empties it; either way the same views say since when.
    """
    [now] = ask(connection, _RATE, young=_YOUNG_SECONDS)
    if now["watched"] is None or now["watched"] < _YOUNG_SECONDS:
        return
    kept, pause = min(now["freeze"], now["most"] // 2), ctx.longest_pause_seconds
    known_seconds = kept / max(now["per_second"], 1e-9)
    if known_seconds >= pause:
        return
    needed = _round_up(now["per_second"] * pause)
    message = (
        f"at about {now['per_second']:.3g} transactions a second (measured over {duration(now['watched'])}) the server "
        f"may forget after {duration(known_seconds)} that a transaction was committed (vacuum_freeze_min_age, in "
        f"effect {kept}), the job may stand still for {duration(pause)} (longest_pause): then a commit "
        "may not be provable"
    )
    shorter = f'longest_pause = "{max(int(known_seconds / 60), 1)} minutes" in the config'
    yield Finding("warning", message, "; or ".join([shorter, *_longer(needed, now["most"])]))


def _longer(needed: int, most: int) -> Iterator[str]:
    """Return the statements that make the server remember, where its limits allow it."""
    if needed > 1_000_000_000:
        return
    statement = f"ALTER SYSTEM SET vacuum_freeze_min_age = {needed};"
    if 2 * needed > most:
        yield f"ALTER SYSTEM SET autovacuum_freeze_max_age = {2 * needed}; {statement} then restart the server"
    else:
        yield f"{statement} SELECT pg_reload_conf();"


def _round_up(number: float) -> int:
    return -(-int(number + 1) // 1_000_000) * 1_000_000
