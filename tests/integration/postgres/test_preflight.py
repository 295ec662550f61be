"""What a server is asked before the first row: each finding on a server that causes it, and gone once it is fixed."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import psycopg
import pytest

from exactsink.contract import Retryable
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.preflight import findings
from tests.integration.postgres.preflight_checks import SLOTS, check, context, participant, prepare, reported
from tests.integration.postgres.sinks import ROWS
from tests.servers.postgres import PostgresServer, own_postgres, wait_until


@pytest.fixture(scope="module")
def weak() -> Iterator[PostgresServer]:
    """A server as it should not be. It can become a replica: the test that does so is the last one to use it."""
    weak = {"max_prepared_transactions": "0", "fsync": "off", "full_page_writes": "off", "track_activities": "off"}
    with own_postgres(weak) as server:
        server.execute("CREATE TABLE flights (id bigint, kind text)")
        yield server


@pytest.mark.parametrize("strategy", ["two_phase", "staged"])
@pytest.mark.parametrize("role", ["postgres", "writer"])
def test_a_good_server_gives_no_finding(shop: PostgresServer, strategy: str, role: str) -> None:
    shop.execute("GRANT CREATE ON SCHEMA public TO writer; GRANT SELECT ON flights TO writer", "shop")
    shop.execute(
        "CREATE SCHEMA IF NOT EXISTS exactsink_staging; GRANT ALL ON SCHEMA exactsink_staging TO writer", "shop"
    )
    found = check(shop, role=role, strategy=strategy)
    shop.execute("REVOKE CREATE ON SCHEMA public FROM writer; REVOKE SELECT ON flights FROM writer", "shop")
    shop.execute("DROP SCHEMA exactsink_staging", "shop")
    assert found == []


def test_looking_changes_nothing_and_leaves_no_lock(shop: PostgresServer) -> None:
    state = "SELECT (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_locks WHERE database = {})"
    base = shop.execute("SELECT oid FROM pg_database WHERE datname = 'shop'")[0][0]
    before = shop.execute(state.format(base), "shop")
    made = PostgresOptions.model_validate({"conninfo": shop.conninfo("shop"), "table": "new", "create": True})
    with made.server.connect("preflight") as connection:
        list(findings(made, context(), connection, ROWS, 2))
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert shop.execute(state.format(base), "shop") == before


# Its prepared transactions


def test_no_slots_at_all_is_an_error_for_two_phase_alone(weak: PostgresServer) -> None:
    first = check(weak, "postgres", participants=40)[0]
    assert first.severity == "error"
    assert "max_prepared_transactions is 0" in first.message
    assert "ALTER SYSTEM SET max_prepared_transactions = 80; then restart" in first.fix
    assert 'strategy = "staged"' in first.fix
    assert "prepared" not in reported(check(weak, "postgres", participants=40, strategy="staged"))


def test_slots_of_this_sink_count_as_free_and_those_of_anyone_else_do_not(shop: PostgresServer, held: None) -> None:
    for partition in range(4):
        prepare(shop, participant(partition))
    assert check(shop, participants=SLOTS) == []
    prepare(shop, participant(8), "other")
    prepare(shop, participant(1, sink="orders2"))
    assert check(shop, participants=SLOTS - 2) == []
    [error] = check(shop, participants=SLOTS - 1)
    assert error.severity == "error"
    assert f"{SLOTS - 2} of {SLOTS} slots for prepared transactions are free, an epoch needs 5" in error.message
    assert f"others hold 2, the oldest '{participant(8)}' of postgres in database other, " in error.message
    assert "ALTER SYSTEM SET max_prepared_transactions = 12;" in error.fix
    assert f"max_participants = {SLOTS - 2} in the config" in error.fix


def test_unbounded_participants_are_reported_how_many_slots_there_are(shop: PostgresServer, held: None) -> None:
    prepare(shop, "foreign")
    [warning] = check(shop, participants=None)
    assert (warning.severity, warning.fix) == ("warning", f"max_participants = {SLOTS - 1} in the config")
    assert f"{SLOTS - 1} of {SLOTS} slots" in warning.message
    for number in range(SLOTS - 1):
        prepare(shop, f"foreign {number}")
    [error] = check(shop, participants=None)
    assert error.severity == "error"
    assert "0 of 6 slots" in error.message
    assert "max_participants = 0" not in error.fix
    assert check(shop, participants=None, strategy="staged") == []


def test_what_another_role_left_prepared_can_not_be_ended_by_this_one(shop: PostgresServer, held: None) -> None:
    prepare(shop, participant(1))
    [error] = check(shop, role="writer")
    assert error.severity == "error"
    assert "role postgres prepared transactions of this sink" in error.message
    assert error.fix.startswith("user=postgres in conninfo")
    prepare(shop, participant(2), role="writer")
    assert check(shop) == []  # a superuser may end them all


# What the server can't be, or is not asked


def test_an_old_server_is_refused_before_it_is_asked_anything() -> None:
    info = SimpleNamespace(server_version=140_012, parameter_status=lambda name: "14.12")
    connection = cast("psycopg.Connection", SimpleNamespace(info=info))
    options = PostgresOptions.model_validate({"table": "flights"})
    [error] = findings(options, context(), connection, ROWS, 1)
    assert error.severity == "error"
    assert "PostgreSQL 14.12" in error.message
    assert "15 or newer" in error.message


def test_transactions_that_are_read_only_are_refused_until_the_role_is_fixed(shop: PostgresServer) -> None:
    shop.execute("ALTER ROLE writer IN DATABASE shop SET default_transaction_read_only = on")
    [error] = check(shop, role="writer")
    assert error.severity == "error"
    assert "read only" in error.message
    shop.execute(error.fix)
    assert check(shop, role="writer") == []
    [error] = check(shop, conninfo="options=-c default_transaction_read_only=on")
    assert "out of `options` in conninfo" in error.fix


def test_what_a_role_may_not_be_reported_is_a_warning(shop: PostgresServer) -> None:
    shop.execute("CREATE DATABASE closed")
    shop.execute("CREATE TABLE flights (id bigint, kind text); GRANT INSERT ON flights TO writer", "closed")
    [error] = check(shop, "closed", role="writer")
    assert error.severity == "error"
    assert "may not make table public.exactsink_epochs" in error.message
    shop.execute(error.fix, "closed")
    assert check(shop, "closed", role="writer") == []
    shop.execute("REVOKE EXECUTE ON FUNCTION pg_is_in_recovery() FROM PUBLIC", "closed")
    for view in ("pg_prepared_xacts", "pg_settings", "pg_stat_replication"):
        shop.execute(f"REVOKE SELECT ON {view} FROM PUBLIC", "closed")
    found = check(shop, "closed", role="writer")
    assert {finding.severity for finding in found} == {"warning"}
    assert "does not report its prepared transactions: permission denied for view pg_prepared_xacts" in reported(found)
    assert "does not report its timeouts" in reported(found)
    assert "does not report its version, and whether it can be written" in reported(found)


def test_a_lost_session_is_no_finding(shop: PostgresServer) -> None:
    options = PostgresOptions.model_validate({"conninfo": shop.conninfo("shop"), "table": "flights"})
    with options.server.connect("preflight") as connection:
        shop.execute(f"SELECT pg_terminate_backend({connection.info.backend_pid}, 10000)")
        with pytest.raises(Retryable, match="query the server for its version"):
            list(findings(options, context(), connection, ROWS, 1))


# Its timeouts and settings


@pytest.mark.parametrize("name", ["statement_timeout", "idle_in_transaction_session_timeout"])
@pytest.mark.parametrize("where", ["", " IN DATABASE shop"])
def test_a_timeout_shorter_than_an_epoch_is_reported(shop: PostgresServer, name: str, where: str) -> None:
    shop.execute(f"ALTER ROLE writer{where} SET {name} = '59999ms'")
    assert check(shop, role="writer", ctx=context(epoch_budget_seconds=59.0)) == []
    [warning] = check(shop, role="writer", ctx=context(epoch_budget_seconds=60.0))
    assert warning.severity == "warning"
    assert f"{name} is 60 s" in warning.message
    shop.execute(warning.fix)
    assert check(shop, role="writer", ctx=context(epoch_budget_seconds=60.0)) == []


def test_a_server_that_may_lose_what_it_committed_is_reported(weak: PostgresServer) -> None:
    found = check(weak, "postgres", strategy="staged")
    weaker = [("warning", "full_page_writes is off"), ("warning", "track_activities is off")]
    assert [(f.severity, f.message.split(":")[0]) for f in found] == [("error", "fsync is off"), *weaker]
    assert found[0].fix == "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf();"


def test_synchronous_standbys_that_are_all_absent_are_reported(shop: PostgresServer) -> None:
    shop.name_standbys('one, "the other"')
    try:
        [warning] = check(shop, role="writer")
        assert warning.severity == "warning"
        assert "(synchronous_standby_names is 'one, \"the other\"'): every vote and every commit" in warning.message
        for statement in warning.fix.split(": ")[1].split("; "):
            shop.execute(statement)
        wait_until(lambda: check(shop, role="writer") == [], "the setting to be gone")
    finally:
        shop.name_standbys("")


def test_a_replica_is_refused(weak: PostgresServer) -> None:
    weak.stop()
    (weak.folder / "data" / "standby.signal").touch()
    weak.start()
    [error] = check(weak, "postgres")
    assert error.severity == "error"
    assert "replica" in error.message
    assert "target_session_attrs=read-write" in error.fix
