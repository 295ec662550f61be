"""The journal in PostgreSQL when the server, the connection or its settings are not as they should be."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from tests.servers.postgres import Postgres, PostgresServer, own_postgres, wait_until
from tests.unit.sql_stores import JOB, at_commit, decided, execute

from exactsink.contract import Fatal, PreflightError
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.stores import SeqTaken
from exactsink.protocol.journal.stores.sql import SqlStore

IN_TRANSACTION = "SELECT current_setting('transaction_isolation') || ' ' || current_setting('lock_timeout')"
PATIENCE = 120  # seconds until a condition that never comes says so


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.create_database(f"journal_{uuid.uuid4().hex}")


@pytest.fixture
def own() -> Iterator[PostgresServer]:
    """A server that this test may stop."""
    with own_postgres() as server:
        yield server


@contextmanager
def opened(url: str) -> Iterator[SqlStore]:
    store = SqlStore(url, JOB)
    try:
        yield store
    finally:
        store.close()


def database_of(url: str) -> str:
    return str(sa.make_url(url).database)


@pytest.mark.parametrize("setting", ["ROLE off", "DATABASE off", "ROLE remote_write", "ROLE remote_apply"])
def test_a_weaker_synchronous_commit_is_raised_and_a_stronger_one_stays(
    url: str, postgres: Postgres, setting: str
) -> None:
    whose, value = setting.split()
    role = f"role_{uuid.uuid4().hex}"
    name = role if whose == "ROLE" else database_of(url)
    postgres.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    postgres.execute(f"ALTER {whose} {name} SET synchronous_commit = {value}")
    with opened(url.replace("//postgres@", f"//{role}@")) as store, at_commit("SHOW synchronous_commit") as seen:
        store.put(0, b"x")
        store.put(1, b"x")
        store.delete([0])
    assert set(seen) == {"remote_apply" if value == "remote_apply" else "on"}


@pytest.mark.parametrize("kind", ["autocommit=true", "options=-c%20default_transaction_isolation%3Dserializable"])
def test_the_urls_options_do_not_change_how_entries_are_committed(url: str, kind: str) -> None:
    with opened(f"{url}&{kind}") as store, at_commit(IN_TRANSACTION) as seen:
        store.put(0, b"x")
        with pytest.raises(SeqTaken):
            store.put(0, b"y")
    assert set(seen) == {"read committed 30s"}  # what is set for the transaction only is there to its end


def test_what_was_put_outlives_a_server_that_crashes_and_the_same_store_goes_on(own: PostgresServer) -> None:
    own.execute("ALTER ROLE postgres SET synchronous_commit = off")
    with opened(own.url()) as store, opened(own.url()) as other:
        journal = Journal(store, wait=lambda attempt: None)
        journal.claim("query", "driver-1")
        for epoch in range(3):
            journal.decide(decided(epoch))
        own.stop("immediate")
        own.start()
        journal.decide(decided(3))
        own.stop("immediate")
        own.start()
        log = Journal(other, wait=lambda attempt: None).read()
    assert log == journal.log
    assert log.decision is not None
    assert log.decision.epoch == 3


def test_a_connection_cut_after_the_commit_is_settled_by_reading(own: PostgresServer) -> None:
    """The server commits and then waits for a standby that never comes: the answer alone is lost."""
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

    def cut() -> None:
        wait_until(lambda: bool(own.execute(waiting)), "the commit to wait for its standby")
        cuts.extend(own.execute(f"SELECT pg_terminate_backend(pid) FROM ({waiting}) AS cut"))

    cuts: list[tuple[object, ...]] = []
    with opened(own.url()) as store:
        waits: list[int] = []
        journal = Journal(store, wait=waits.append)
        journal.claim("query", "driver-1")
        own.name_standbys("nobody")
        cutter = threading.Thread(target=cut)
        cutter.start()
        journal.decide(decided(0))
        cutter.join(PATIENCE)
        assert (cuts, waits) == ([(True,)], [])
        assert sorted(store.list()) == [0, 1]
        assert journal.read() == journal.log


def test_a_connection_cut_while_idle_costs_one_error_and_no_entry(url: str, postgres: Postgres) -> None:
    cut = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database_of(url)}'"
    with opened(url) as store:
        store.put(0, b"x")
        assert postgres.execute(cut) == [(True,)]
        with pytest.raises(sa.exc.OperationalError):
            store.put(1, b"x")
        assert (list(store.list()), store.read(0)) == ([0], b"x")
        store.put(1, b"x")


def test_one_connection_is_kept_until_an_error(url: str) -> None:
    with opened(url) as store, at_commit("SELECT pg_backend_pid()") as backends:
        store.put(0, b"x")
        store.put(1, b"x")
        with pytest.raises(SeqTaken):
            store.put(1, b"x")
        store.put(2, b"x")
    before, after = dict.fromkeys(backends)  # the second one looked for the entry, and is kept
    assert backends == sorted(backends, key=[before, after].index)


def test_a_replica_is_refused_also_when_the_store_knew_it_as_the_primary(own: PostgresServer) -> None:
    with opened(own.url()) as store, opened(own.url()) as late:
        store.put(0, b"x")
        own.stop()
        (own.folder / "data" / "standby.signal").touch()
        own.start()
        with pytest.raises(sa.exc.OperationalError):
            store.put(1, b"x")  # over the connection that is gone
        for refused in (store, late):
            for call in (refused.list, lambda store=refused: store.put(1, b"x"), lambda store=refused: store.read(0)):
                with pytest.raises(PreflightError, match="is a replica"):
                    call()


def test_a_read_only_role_is_refused(url: str, postgres: Postgres) -> None:
    with opened(url) as store:
        store.put(0, b"x")
    postgres.execute(f"ALTER DATABASE {database_of(url)} SET default_transaction_read_only = on")
    with opened(url) as store:
        for call in (store.list, lambda: store.read(0), lambda: store.put(1, b"x"), lambda: store.delete([0])):
            with pytest.raises(PreflightError, match=r"read-only(?s:.*)default_transaction_read_only = off"):
                call()


def test_a_server_without_fsync_is_refused() -> None:
    with own_postgres({"fsync": "off"}) as server, opened(server.url()) as store:
        with pytest.raises(PreflightError, match=r"fsync = off(?s:.*)next: ALTER SYSTEM SET fsync = on"):
            store.put(0, b"x")
        assert server.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]


def test_a_role_that_may_not_make_the_table_is_given_the_statements_and_they_suffice(
    url: str, postgres: Postgres
) -> None:
    role = f"role_{uuid.uuid4().hex}"
    postgres.execute(f"CREATE ROLE {role} LOGIN")
    with opened(url.replace("//postgres@", f"//{role}@")) as store:
        with pytest.raises(PreflightError) as refused:
            store.put(0, b"x")
        assert "permission denied" in refused.value.why
        create, grant, rest = refused.value.next.removeprefix("have the database's owner run: ").split(";")
        execute(url, create)
        with pytest.raises(Fatal, match="permission denied"):
            store.read(0)
        execute(url, grant.replace("the job's role", role))
        assert rest == ""
        store.put(0, b"x")
        assert (list(store.list()), store.read(0)) == ([0], b"x")
        store.delete([0])
        assert list(store.list()) == []
