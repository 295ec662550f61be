"""What bounds or weakens a sink's sessions, and how long a server remembers a commit: reported before the first row."""

from __future__ import annotations

import pytest

from exactsink.contract import Finding, JobContext
from tests.integration.postgres.preflight_checks import (
    check,
    context,
)
from tests.servers.postgres import PostgresServer

pytest_plugins = ["tests.integration.postgres.preflight_fixtures"]

# Its connections, timeouts and settings


@pytest.mark.parametrize("limit", ["ROLE writer", "DATABASE shop"])
def test_a_connection_limit_below_the_participants_is_reported(server: PostgresServer, limit: str) -> None:
    server.execute(f"ALTER {limit} CONNECTION LIMIT 3")
    try:
        [warning] = check(server, role="writer", participants=3)
        assert (warning.severity, "has 2 of 3 connections free" in warning.message) == ("warning", True)
        assert check(server, role="writer", participants=2) == []
        server.execute(f"ALTER {limit.replace('writer', 'postgres')} CONNECTION LIMIT 3")
        assert check(server, participants=3) == []  # a superuser has no limit
        server.execute(warning.fix.split(";")[0])
        assert check(server, role="writer", participants=3) == []
    finally:
        for limited in ("ROLE writer", "ROLE postgres", "DATABASE shop"):
            server.execute(f"ALTER {limited} CONNECTION LIMIT -1")


def test_a_server_with_few_connections_is_reported(server: PostgresServer) -> None:
    assert check(server, participants=16, strategy="staged") == []
    [warning] = check(server, participants=17, strategy="staged")
    assert "the server has 16 of 17 connections free, an epoch has up to 17 participants" in warning.message
    assert warning.fix.startswith("ALTER SYSTEM SET max_connections = 21; then restart")


@pytest.mark.parametrize("name", ["statement_timeout", "idle_in_transaction_session_timeout"])
@pytest.mark.parametrize("where", ["", " IN DATABASE shop"])
def test_a_timeout_shorter_than_an_epoch_is_reported(server: PostgresServer, name: str, where: str) -> None:
    server.execute(f"ALTER ROLE writer{where} SET {name} = '59999ms'")
    assert check(server, role="writer", ctx=context(epoch_budget_seconds=59.0)) == []
    [warning] = check(server, role="writer", ctx=context(epoch_budget_seconds=60.0))
    assert (warning.severity, f"{name} is 60 s" in warning.message) == ("warning", True)
    server.execute(warning.fix)
    assert check(server, role="writer", ctx=context(epoch_budget_seconds=60.0)) == []


def test_a_lock_timeout_beyond_the_epoch_is_reported(server: PostgresServer) -> None:
    assert check(server, lock_timeout_seconds=59, ctx=context(epoch_budget_seconds=60.0)) == []
    [warning] = check(server, lock_timeout_seconds=60, ctx=context(epoch_budget_seconds=60.0))
    assert (warning.severity, warning.fix) == ("warning", "lock_timeout_seconds = 10 in the config")


def test_a_server_that_may_lose_what_it_committed_is_reported(weak: PostgresServer) -> None:
    found = check(weak, "postgres", strategy="staged")
    reported = [(finding.severity, finding.message.split(":")[0]) for finding in found]
    weaker = [("warning", "full_page_writes is off"), ("warning", "track_activities is off")]
    assert reported == [("error", "fsync is off"), *weaker]
    assert found[0].fix == "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf();"


def test_a_replica_is_refused(weak: PostgresServer) -> None:
    weak.stop()
    (weak.folder / "data" / "standby.signal").touch()
    weak.start()
    [error] = check(weak, "postgres")
    assert (error.severity, "replica" in error.message) == ("error", True)
    assert "target_session_attrs=read-write" in error.fix


# How long a commit can be proven

HOUR, DAY = 3600, 86_400


def rated(
    server: PostgresServer, per_second: float, watched: float, *, ctx: JobContext, reset: bool = True
) -> list[Finding]:
    """Check against statistics that stand before the server's own on the search path."""
    ids = int(per_second * watched)
    since = f"clock_timestamp() - interval '{watched} s'"
    server.execute(
        f"""DROP SCHEMA IF EXISTS rated CASCADE; CREATE SCHEMA rated;
        CREATE VIEW rated.pg_stat_database AS SELECT datid, numbackends, {ids // 2} / count(*) OVER () AS xact_commit,
            {ids // 2} / count(*) OVER () AS xact_rollback, {since if reset else "NULL::timestamptz"} AS stats_reset
            FROM pg_catalog.pg_stat_database;
        CREATE VIEW rated.pg_stat_bgwriter AS SELECT {since} AS stats_reset;
        CREATE VIEW rated.pg_stat_archiver AS SELECT clock_timestamp() AS stats_reset""",
        "shop",
    )
    return check(server, conninfo="options=-c search_path=rated,pg_catalog,public", ctx=ctx)


@pytest.mark.parametrize("reset", [True, False])
def test_a_pause_longer_than_the_server_remembers_commits_is_reported_both_ways_out(
    server: PostgresServer, reset: bool
) -> None:
    # vacuum_freeze_min_age is 50 million: at 100 a second that is 5.8 days
    [warning] = rated(server, 100, 2 * HOUR, ctx=context(), reset=reset)
    assert warning.severity == "warning"
    assert "at about 100 transactions a second (measured over 2 hours)" in warning.message
    assert "may forget after 5.79 days" in warning.message
    assert "stand still for 7 days (longest_pause)" in warning.message
    assert warning.fix == (
        'longest_pause = "8333 minutes" in the config; or '
        "ALTER SYSTEM SET vacuum_freeze_min_age = 61000000; SELECT pg_reload_conf();"
    )


def test_what_autovacuum_freezes_anyway_is_raised_with_it(server: PostgresServer) -> None:
    [warning] = rated(server, 300, 2 * HOUR, ctx=context())
    assert (
        "autovacuum_freeze_max_age = 364000000; ALTER SYSTEM SET vacuum_freeze_min_age = 182000000; then" in warning.fix
    )


def test_a_pause_that_the_server_remembers_or_statistics_of_less_than_an_hour_are_no_finding(
    server: PostgresServer,
) -> None:
    assert rated(server, 100, 2 * HOUR, ctx=context(longest_pause_seconds=5.0 * DAY)) == []
    assert rated(server, 80, 2 * HOUR, ctx=context()) == []
    assert rated(server, 1e6, HOUR - 60, ctx=context()) == []
