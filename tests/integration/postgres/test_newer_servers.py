"""What PostgreSQL 17 and 18 have that older ones lack: temporal keys, virtual columns, NOT ENFORCED, a new timeout."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence

import pytest

from exactsink.contract import Fatal, Finding, Retryable
from tests.integration.postgres.sinks import SCHEMA, Branches, Staged, new_sink
from tests.servers.postgres import Postgres, own_postgres, wait_until

_COUNT = itertools.count()
_VIRTUAL = """id bigint, v text, twice bigint GENERATED ALWAYS AS (id * 2) VIRTUAL, owner bigint DEFAULT 9,
    CONSTRAINT even CHECK (twice < 100), CONSTRAINT loose CHECK (id < 0) NOT ENFORCED,
    CONSTRAINT nobody FOREIGN KEY (owner) REFERENCES owners NOT ENFORCED"""
_TEMPORAL = """id bigint, v daterange, k int8range GENERATED ALWAYS AS (int8range(id, id, '[]')) STORED,
    PRIMARY KEY (k, v WITHOUT OVERLAPS)"""
_MAY, _JUNE, _BOTH = "[2026-05-01,2026-06-01)", "[2026-06-01,2026-07-01)", "[2026-05-15,2026-06-15)"


@pytest.fixture(scope="session")
def newest(newest_postgres: Postgres) -> str:
    return newest_postgres.new_database("newest")


@pytest.fixture
def branches(newest: str) -> Iterator[Branches]:
    mine = Branches(newest, f"w{os.getpid()}-{next(_COUNT)}")
    mine.run("CREATE TABLE IF NOT EXISTS owners (id bigint PRIMARY KEY)")
    yield mine
    mine.clean()


@pytest.fixture(params=["two_phase", "staged"])
def sink(request: pytest.FixtureRequest, newest: str, branches: Branches) -> Iterator[Staged]:
    """A sink of either strategy into a table with what only PostgreSQL 18 has."""
    with new_sink(newest, f"CREATE TABLE owners (id bigint PRIMARY KEY); CREATE TABLE t ({_VIRTUAL})") as made:
        yield made.with_(strategy=request.param)


def _checked(sink: Branches | Staged) -> Sequence[Finding]:
    with sink.committer() as committer:
        return list(committer.check(SCHEMA, 2))


def test_virtual_columns_are_the_servers_and_what_is_not_enforced_is_no_finding(sink: Staged) -> None:
    found = "\n".join(finding.message for finding in _checked(sink))
    assert "loose" not in found
    assert "nobody" not in found
    assert "twice (" in found, "the rows lack it, and the server computes it"
    assert sink.commit(1, sink.vote(1, [(1, "a")], [(2, "b")])) == ["Committed"] * 2
    assert sink.rows("SELECT id, v, twice, owner FROM t ORDER BY id") == [(1, "a", 2, 9), (2, "b", 4, 9)]
    with pytest.raises(Fatal, match="constraint even"):
        sink.vote(2, [(50, "too many")])


def test_a_constraint_that_is_enforced_from_now_on_is_checked_in_the_next_epochs_tasks(newest: str) -> None:
    with new_sink(newest, "CREATE TABLE t (id bigint, v text, CONSTRAINT c CHECK (id > 0) NOT ENFORCED)") as sink:
        assert sink.commit(1, sink.vote(1, [(-1, "a")])) == ["Committed"]
        sink.run("DELETE FROM t; ALTER TABLE t DROP CONSTRAINT c; ALTER TABLE t ADD CONSTRAINT c CHECK (id > 0)")
        with pytest.raises(Fatal, match=r"(?s)constraint c.*not decided yet"):
            sink.vote(2, [(-1, "a")])


def test_rows_that_overlap_are_refused_in_their_task_or_named_as_what_only_the_commit_finds(newest: str) -> None:
    with new_sink(newest, f"CREATE TABLE t ({_TEMPORAL}); INSERT INTO t VALUES (1, '{_MAY}')") as sink:
        [late] = [finding for finding in _checked(sink) if "t_pkey" in finding.message]
        assert "WITHOUT OVERLAPS is checked only when a decided epoch is applied" in late.message
        assert late.fix.startswith('strategy = "two_phase"')
        votes = sink.vote(1, [(1, _BOTH)])
        with pytest.raises(Fatal, match=r"(?s)constraint t_pkey.*SQLSTATE 23P01.*epoch is decided"):
            sink.commit(1, votes)
        sink.run("DELETE FROM t")
        assert sink.commit(1, votes) == ["Committed"]
        early = sink.with_(strategy="two_phase")
        assert [finding for finding in _checked(early) if "t_pkey" in finding.message] == []
        with pytest.raises(Fatal, match=r"(?s)constraint t_pkey.*SQLSTATE 23P01.*not decided yet"):
            early.vote(2, [(1, _JUNE)])


def test_overlapping_rows_of_two_partitions_name_both(newest: str, branches: Branches) -> None:
    with new_sink(newest, f"CREATE TABLE t ({_TEMPORAL})") as staged:
        sink = staged.with_(strategy="two_phase", lock_timeout_seconds=0.5)
        ticket = sink.open(1)
        sink.task(ticket, sink.txn(1, 0), (1, _MAY)).pre_commit()
        with pytest.raises(Fatal, match="partitions 0 and 1 of this epoch hold rows with the same unique key"):
            sink.task(ticket, sink.txn(1, 1), (1, _BOTH)).pre_commit()
        sink.abort(sink.txn(1, 0))


def test_a_transaction_timeout_is_found_before_the_first_row_and_named_when_it_ends_a_task(newest: str) -> None:
    with new_sink(newest, "CREATE TABLE t (id bigint, v text)") as sink:
        login = f"brief_{os.getpid()}_{next(_COUNT)}"
        role = f'"{login}"'
        sink.run(f"CREATE ROLE {role} SUPERUSER LOGIN; ALTER ROLE {role} SET transaction_timeout = '300ms'")
        brief = Staged(f"{sink.conninfo} user={login}", given=sink.given).with_(strategy="two_phase")
        [warning] = [finding for finding in _checked(brief) if "transaction_timeout" in finding.message]
        assert f"it may end a task's transaction; ALTER ROLE {role} sets it" in warning.message
        writer = brief.task(brief.open(1), brief.txn(1), (1, "a"))
        late = f"""SELECT 1 FROM pg_stat_activity WHERE usename = '{login}' AND query LIKE '/* exactsink %'
            AND clock_timestamp() - xact_start > '400ms'"""
        wait_until(lambda: sink.run(late) != [], "the timeout of the task's transaction")
        with pytest.raises(Retryable, match=f"transaction_timeout comes from ALTER ROLE {role}") as ended:
            writer.pre_commit()
        assert f"ALTER ROLE {role} SET transaction_timeout = 0;" in ended.value.next
        sink.run(f"{warning.fix} DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.proof
def test_a_release_that_is_too_old_is_refused_by_its_number() -> None:
    with own_postgres(release="14") as server, pytest.raises(Fatal, match=r"PostgreSQL 14.*needs 15 or newer"):
        Staged(server.conninfo()).open(1)
