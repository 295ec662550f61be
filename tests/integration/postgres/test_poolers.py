"""PgBouncer in front of the server: session and transaction mode keep the promise, statement mode is refused."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from exactsink.contract import Fatal, Retryable
from tests.integration.postgres.sinks import ROWS, Branches
from tests.servers.pgbouncer import PgBouncer, own_pgbouncer
from tests.servers.postgres import Postgres, PostgresServer, wait_until

SETTINGS = "SELECT current_setting('lock_timeout'), current_setting('synchronous_commit')"


@pytest.fixture(scope="module", params=["session", "transaction"])
def pooler(request: pytest.FixtureRequest, postgres: Postgres) -> Iterator[PgBouncer]:
    """A pooler that hands on sessions as they were left."""
    with own_pgbouncer(postgres, request.param, server_reset_query="", server_idle_timeout="600") as pooler:
        yield pooler


@pytest.fixture
def table(pooler: PgBouncer, branches: Branches) -> Branches:
    """A job that reaches its table through the pooler."""
    return through(pooler, branches.table().with_(lock_timeout_seconds=1))


def through(pooler: PgBouncer, branches: Branches) -> Branches:
    return replace(branches, conninfo=pooler.conninfo(str(conninfo_to_dict(branches.conninfo)["dbname"])))


def test_no_setting_is_left_to_the_pools_other_clients(table: Branches) -> None:
    before = table.run(SETTINGS)
    epoch = table.prepare_many(3)
    with table.committer() as driver:
        driver.mark()
        driver.commit(0, epoch)
        driver.trim_marks()
        assert table.run(SETTINGS) == before
    assert table.run(SETTINGS) == before
    assert table.ids() == [0, 1, 2]


def test_who_holds_a_lock_is_named_though_the_pooler_numbers_its_clients(table: Branches) -> None:
    earlier = replace(table, generation=0).prepare(0, 1)
    with pytest.raises(Retryable, match=f"blocked by prepared transaction {earlier.txn.id}"):
        table.prepare(1, 1)
    table.clean()
    with table.committer() as driver, psycopg.connect(table.conninfo) as holder:
        driver.mark()
        holder.execute("LOCK TABLE exactsink_epochs IN ACCESS EXCLUSIVE MODE")
        ((pid,),) = holder.execute("SELECT pg_backend_pid()").fetchall()
        with pytest.raises(Retryable, match=f"blocked by session {pid},"):
            driver.mark()


def test_a_name_without_a_schema_is_reported_as_search_path_may_be_another_clients(table: Branches) -> None:
    found = []
    for name in (f'"{table.job}"', f'public."{table.job}"'):
        with table.with_(table=name).committer() as driver:
            found.append([finding.message for finding in driver.check(ROWS, 2)])
    assert ["search_path" in message for message in found[0]] == [True]
    assert found[1] == []


def test_nothing_is_committed_once_the_pooler_leads_to_a_server_that_lacks_the_mark(table: Branches) -> None:
    """As after a failover to a standby that lagged behind, which the driver's connection to the pooler outlives."""
    votes = table.prepare_many(1)
    with table.committer() as driver:
        driver.mark()
        table.run(f"DELETE FROM exactsink_epochs WHERE job = '{table.job}'")
        with pytest.raises(Retryable, match="the pooler leads to another server"):
            driver.commit(0, votes)
    assert table.prepared() == [votes[0].txn.id]


def test_a_pooler_that_dies_leaves_a_session_that_the_sweep_ends(
    postgres: Postgres, branches: Branches, pooler: PgBouncer
) -> None:
    """It waits for a lock, and does not see that its client is gone."""
    direct = branches.table()
    with own_pgbouncer(postgres, pooler.pool_mode) as dying, ThreadPoolExecutor(1) as pool:
        held = direct.prepare(0, 1)
        both = [held.txn.id, direct.txn(1).id]
        lost = pool.submit(through(dying, direct).with_(lock_timeout_seconds=60).prepare, 1, 1)
        look = f"SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND strpos(query, '{both[1]}') > 0"
        wait_until(lambda: direct.run(look) != [], "the second task to wait for the first one's key")
        assert direct.listed() == both
        dying.crash()
        with pytest.raises(Retryable):
            lost.result()
        dying.start()
        driver = replace(through(dying, direct), generation=2)
        assert driver.sweep() == both
        assert (driver.listed(), driver.writing_sessions()) == ([], [])


@pytest.fixture(scope="module")
def slow(server: PostgresServer) -> Branches:
    """A job whose role's commits wait for no standby, and its table."""
    server.execute("ALTER ROLE postgres SET synchronous_commit = local")
    return Branches(server.new_database("slow"), "slow").table()


def test_a_commit_through_a_pooler_waits_for_the_standby_whatever_the_role_says(
    server: PostgresServer, slow: Branches
) -> None:
    with own_pgbouncer(server, "transaction") as pooler, ThreadPoolExecutor(1) as pool:
        table = through(pooler, slow)
        votes = table.prepare_many(1)
        server.name_standbys("absent")
        done = pool.submit(table.commit, *votes)
        replicates = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        wait_until(lambda: server.execute(replicates) == [(1,)], "the commit to wait")
        assert not done.done()
        server.name_standbys("")
        assert done.result() == ["Committed"]


def test_what_a_pooler_can_not_do_is_refused_with_what_can(postgres: Postgres, branches: Branches) -> None:
    direct = branches.table()
    with own_pgbouncer(postgres, "statement") as pooler:
        for refused in (lambda: through(pooler, direct).mark(), lambda: through(pooler, direct).writing(0, 1)):
            with pytest.raises(Fatal, match="statement pooling mode") as error:
                refused()
            assert "pool_mode = session or transaction" in error.value.next
    with own_pgbouncer(postgres, "session") as pooler:
        with_options = replace(
            direct, conninfo=make_conninfo(through(pooler, direct).conninfo, options="-cwork_mem=1MB")
        )
        with pytest.raises(Fatal, match="unsupported startup parameter: options"):
            with_options.mark()
    with own_pgbouncer(postgres, "session", ignore_startup_parameters="options") as pooler:
        with_options = replace(
            direct, conninfo=make_conninfo(through(pooler, direct).conninfo, options="-cwork_mem=1MB")
        )
        with with_options.committer() as driver:
            for _ in range(2):
                with pytest.raises(Fatal, match="the pooler drops these settings of conninfo: work_mem"):
                    driver.mark()
