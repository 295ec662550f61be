"""What is listed and rolled back is one job's one sink in one database: prepared, or still being written."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from exactsink.contract import InDoubt, Retryable
from tests.integration.postgres.sinks import TOKEN, Branches
from tests.servers.postgres import Postgres, wait_until


def test_prepared_ones_and_living_sessions_are_listed_and_rolled_back(branches: Branches) -> None:
    orphan = branches.table().prepare(0, 1, attempt=4)
    writer = branches.writing(1, 2, epoch=2)

    prepared, living = sorted(branches.session.listed(), key=lambda participant: participant.ref)
    assert (prepared.ref, living.ref) == (orphan.txn.id, branches.txn(1, epoch=2).id)
    assert (living.generation, living.token, living.epoch) == (1, TOKEN, 2)
    for participant in (prepared, living):
        assert participant.age_seconds is not None
        assert 0 <= participant.age_seconds < 600

    assert branches.sweep() == [prepared.ref, living.ref]
    assert branches.writing_sessions() == branches.prepared() == branches.listed() == []
    branches.session.abort(prepared, living)  # again: it is done
    with pytest.raises(Exception, match="terminating connection"):
        writer.pre_commit()
    assert branches.ids() == []


def test_sessions_of_a_login_that_acts_as_another_role_are_seen_named_and_ended(branches: Branches) -> None:
    """The server shows a session to the role that logged in, and this one acts as another from its first statement."""
    login, other = f'"{branches.job}-login"', f'"{branches.job}-other"'
    branches.run(
        f"CREATE ROLE {other}",
        f"CREATE ROLE {login} LOGIN IN ROLE {other}",
        f"ALTER ROLE {login} SET role = {other}",
        f'CREATE SCHEMA "{branches.job}" AUTHORIZATION {other}',
    )
    place = {"user": login.strip('"'), "options": f'-c search_path="{branches.job}"'}
    mine = replace(branches.with_(lock_timeout_seconds=1), conninfo=make_conninfo(branches.conninfo, **place)).table()
    stalled = mine.writing(1, 2)
    stalled.finish()
    with pytest.raises(Retryable, match=f"of {mine.txn(1).id}.*: an earlier driver of this job began it"):
        replace(mine, generation=2).writing(1, 2).pre_commit()
    assert mine.sweep() == [mine.txn(1).id]
    assert mine.writing_sessions() == []


def test_a_session_that_has_prepared_is_listed_once_and_one_that_is_committed_not_at_all(branches: Branches) -> None:
    writer = branches.table().writing(0, 1)
    close, writer.abort = writer.abort, lambda: None  # type: ignore[method-assign]
    vote = writer.pre_commit()
    try:
        assert branches.listed() == [vote.txn.id]
        assert branches.commit(vote) == ["Committed"]
        assert branches.listed() == []
    finally:
        close()


def test_a_session_is_listed_from_its_last_row_until_it_has_prepared(branches: Branches) -> None:
    """A constraint that is checked at PREPARE waits for a lock, and PREPARE with it."""
    waits = f'"{branches.job}_waits"'
    branches.table().run(
        f"CREATE FUNCTION {waits}() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_advisory_xact_lock(77); RETURN NULL; END'",
        f'CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON "{branches.job}" DEFERRABLE INITIALLY DEFERRED '
        f"FOR EACH ROW EXECUTE FUNCTION {waits}()",
    )
    writer = branches.with_(lock_timeout_seconds=60).writing(0, 1)
    with psycopg.connect(branches.conninfo) as session, ThreadPoolExecutor() as pool:
        session.execute("SELECT pg_advisory_xact_lock(77)")
        vote = pool.submit(writer.pre_commit)
        waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 77 AND NOT granted"
        waiting += " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        try:
            wait_until(lambda: bool(branches.run(waiting)), "PREPARE to wait")
            assert branches.listed() == [branches.txn(0).id]
            assert branches.prepared() == []
        finally:
            session.rollback()
        assert branches.listed() == [vote.result().txn.id]


def test_one_that_still_writes_and_is_not_among_the_undecided_goes_on(branches: Branches) -> None:
    lost, winner = branches.table().writing(0, 1), branches.writing(0, 2, attempt=1)
    branches.abort(branches.txn(0, 0))
    assert branches.commit(winner.pre_commit()) == ["Committed"]
    with pytest.raises(Retryable):
        lost.pre_commit()
    assert branches.ids() == [2]


def test_names_that_look_alike_and_other_databases_are_neither_listed_nor_touched(
    branches: Branches, postgres: Postgres
) -> None:
    """Other jobs and sinks, and foreign work, are the kit's."""
    branches.table()
    name = f"{branches.job}-x".replace("-", "_")
    postgres.create_database(name)
    elsewhere = replace(branches, conninfo=postgres.conninfo(name), generation=5).table()
    theirs = [replace(branches, sink="ou").prepare(0, 10).txn.id, elsewhere.prepare(0, 11).txn.id]
    mine = branches.txn(0).id
    foreign = [f"{branches.job}.out.somebody's own", mine.replace(".p0.", ".p00."), f"{mine} "]
    for n, gid in enumerate(foreign):
        branches.foreign(gid, f'INSERT INTO "{branches.job}" VALUES ({20 + n})')
    assert branches.prepare(0, 1).txn.id == mine
    try:
        assert branches.sweep() == [mine]
        for ref in (theirs[0], *foreign):
            own = branches.prepare(3, 40)
            with pytest.raises(ValueError, match="not a participant of sink out"):
                branches.session.abort(InDoubt.of(own.txn), InDoubt(ref, 1, TOKEN))
            branches.end("ROLLBACK", own.txn.id)
        branches.session.abort(InDoubt(theirs[1], 5, TOKEN))  # this name is this sink's, but in another database
        assert set(branches.prepared()) | set(elsewhere.prepared()) == {*theirs, *foreign}
    finally:
        elsewhere.clean()
