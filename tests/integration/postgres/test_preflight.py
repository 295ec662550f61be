"""What a server is asked before the first row: each finding on a server that causes it, and gone once it is fixed."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import cast

import psycopg
import pytest

from exactsink.contract import Retryable
from exactsink_postgres.options import PostgresOptions
from exactsink_postgres.preflight import findings
from tests.integration.postgres.preflight_checks import (
    ROWS,
    SLOTS,
    check,
    context,
    participant,
    prepare,
    reported,
)
from tests.servers.postgres import PostgresServer

pytest_plugins = ["tests.integration.postgres.preflight_fixtures"]


@pytest.mark.parametrize("strategy", ["two_phase", "staged"])
@pytest.mark.parametrize("role", ["postgres", "writer"])
def test_a_good_server_gives_no_finding(server: PostgresServer, strategy: str, role: str) -> None:
    if (strategy, role) == ("staged", "writer"):
        server.execute("GRANT CREATE ON SCHEMA public TO writer; GRANT SELECT ON flights TO writer", "shop")
    found = check(server, role=role, strategy=strategy)
    server.execute("REVOKE CREATE ON SCHEMA public FROM writer; REVOKE SELECT ON flights FROM writer", "shop")
    assert found == []


def test_looking_changes_nothing_and_leaves_no_lock(server: PostgresServer) -> None:
    state = "SELECT (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_locks WHERE database = {})"
    base = server.execute("SELECT oid FROM pg_database WHERE datname = 'shop'")[0][0]
    before = server.execute(state.format(base), "shop")
    made = PostgresOptions.model_validate({"conninfo": server.conninfo("shop"), "table": "new", "create": True})
    with made.server.connect("preflight") as connection:
        list(findings(made, context(), connection, ROWS, 2))
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert server.execute(state.format(base), "shop") == before


# Its prepared transactions


def test_no_slots_at_all_is_an_error_for_two_phase_alone(weak: PostgresServer) -> None:
    first = check(weak, "postgres", participants=40)[0]
    assert (first.severity, "max_prepared_transactions is 0" in first.message) == ("error", True)
    assert "ALTER SYSTEM SET max_prepared_transactions = 80; then restart" in first.fix
    assert 'strategy = "staged"' in first.fix
    assert "prepared" not in reported(check(weak, "postgres", participants=40, strategy="staged"))


def test_slots_of_this_sink_count_as_free_and_those_of_anyone_else_do_not(
    server: PostgresServer, held: list[str]
) -> None:
    for partition in range(4):
        prepare(server, participant(partition))
    found = check(server, participants=SLOTS)
    assert [finding.severity for finding in found] == ["warning"]  # of their age, see below
    for _, gid, database in (
        ("another job's", participant(1, job="shop2"), "shop"),
        ("another database's", participant(8), "other"),
    ):
        prepare(server, gid, database)
    assert "error" not in reported(check(server, participants=SLOTS - 2))
    [error, _] = check(server, participants=SLOTS - 1)
    assert error.severity == "error"
    assert f"{SLOTS - 2} of {SLOTS} slots for prepared transactions are free, an epoch needs 5" in error.message
    assert f"1 in database other (oldest '{participant(8)}' of postgres, " in error.message
    assert f"1 in database shop (oldest '{participant(1, job='shop2')}' of postgres, " in error.message
    assert participant(0) not in error.message
    assert "ALTER SYSTEM SET max_prepared_transactions = 12;" in error.fix
    assert f"max_participants = {SLOTS - 2} in the config" in error.fix


@pytest.mark.parametrize(
    "gid",
    [
        participant(1, sink="orders2"),
        participant(1, job="shop.orders")[5:],  # orders.orders.g3...: another job
        participant(1) + "0.x",
        "shop.orders.somebody's own".replace("'", ""),
        participant(1).replace(".p1", ".p01"),
    ],
)
def test_only_a_whole_id_of_this_job_and_sink_is_its_own(server: PostgresServer, held: list[str], gid: str) -> None:
    prepare(server, gid)
    assert "error" in reported(check(server, participants=SLOTS))
    assert "stand prepared" not in reported(check(server, participants=1))


def test_unbounded_participants_are_reported_how_many_slots_there_are(server: PostgresServer, held: list[str]) -> None:
    prepare(server, "a stranger")
    [warning] = check(server, participants=None)
    assert (warning.severity, warning.fix) == ("warning", f"max_participants = {SLOTS - 1} in the config")
    assert f"{SLOTS - 1} of {SLOTS} slots" in warning.message
    for number in range(SLOTS - 1):
        prepare(server, f"a stranger {number}")
    [error] = check(server, participants=None)
    assert (error.severity, "0 of 6 slots" in error.message) == ("error", True)
    assert "max_participants = 0" not in error.fix
    assert check(server, participants=None, strategy="staged") == []


def test_what_this_job_left_prepared_is_reported_with_its_age_and_the_next_command(
    server: PostgresServer, held: list[str]
) -> None:
    for partition in (3, 1):
        prepare(server, participant(partition))
    [warning] = check(server)
    assert warning.severity == "warning"
    assert "2 transactions of this sink stand prepared, the oldest for " in warning.message
    assert participant(3) in warning.message
    assert participant(1) not in warning.message
    assert "exactsink recover" in warning.fix


def test_what_another_role_left_prepared_can_not_be_ended_by_this_one(server: PostgresServer, held: list[str]) -> None:
    prepare(server, participant(1))
    error, _ = check(server, role="writer")
    assert (error.severity, "role postgres prepared transactions of this sink" in error.message) == ("error", True)
    assert error.fix.startswith("user=postgres in conninfo")
    prepare(server, participant(2), role="writer")
    assert "error" not in reported(check(server))  # a superuser may end them all


# What the server can't be, or is not asked


def test_an_old_server_is_refused_before_it_is_asked_anything() -> None:
    info = SimpleNamespace(server_version=140_012, parameter_status=lambda name: "14.12")
    connection = cast("psycopg.Connection", SimpleNamespace(info=info))
    options = PostgresOptions.model_validate({"table": "flights"})
    [error] = findings(options, context(), connection, ROWS, 1)
    assert error.severity == "error"
    assert "PostgreSQL 14.12" in error.message
    assert "15 or newer" in error.message


def test_transactions_that_are_read_only_are_refused_until_the_role_is_fixed(server: PostgresServer) -> None:
    server.execute("ALTER ROLE writer IN DATABASE shop SET default_transaction_read_only = on")
    [error] = check(server, role="writer")
    assert (error.severity, "read only" in error.message) == ("error", True)
    server.execute(error.fix)
    assert check(server, role="writer") == []
    [error] = check(server, conninfo="options=-c default_transaction_read_only=on")
    assert "out of `options` in conninfo" in error.fix


def test_what_a_role_may_not_be_reported_is_a_warning(server: PostgresServer) -> None:
    server.execute("CREATE DATABASE closed")
    server.execute("CREATE TABLE flights (id bigint, kind text); GRANT INSERT ON flights TO writer", "closed")
    server.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC", "closed")
    [error] = check(server, "closed", role="writer")
    assert (error.severity, "which reports one database from another" in error.message) == ("error", True)
    server.execute(error.fix, "closed")
    server.execute("REVOKE EXECUTE ON FUNCTION pg_is_in_recovery() FROM PUBLIC", "closed")
    for view in ("pg_prepared_xacts", "pg_settings", "pg_stat_database", "pg_stat_activity"):
        server.execute(f"REVOKE SELECT ON {view} FROM PUBLIC", "closed")
    found = check(server, "closed", role="writer")
    assert {finding.severity for finding in found} == {"warning"}
    assert "does not report its prepared transactions: permission denied for view pg_prepared_xacts" in reported(found)
    assert "does not report its timeouts" in reported(found)
    assert "does not report its version, and whether it can be written" in reported(found)


def test_a_lost_session_is_no_finding(server: PostgresServer) -> None:
    options = PostgresOptions.model_validate({"conninfo": server.conninfo("shop"), "table": "flights"})
    with options.server.connect("preflight") as connection:
        server.execute(f"SELECT pg_terminate_backend({connection.info.backend_pid}, 10000)")
        with pytest.raises(Retryable, match="ask the server for its version"):
            list(findings(options, context(), connection, ROWS, 1))


def test_errors_come_first_and_always_in_the_same_order(server: PostgresServer, held: list[str]) -> None:
    prepare(server, participant(1))
    twice = [check(server, participants=None, table="nowhere", lock_timeout_seconds=700) for _ in range(2)]
    assert [finding.severity for finding in twice[0]] == ["error", "warning", "warning", "warning"]
    assert [re.sub(r"[\d.]+ s", "", finding.message) for finding in twice[0]] == [
        re.sub(r"[\d.]+ s", "", finding.message) for finding in twice[1]
    ]
