"""What is listed and rolled back is one job's one sink in one database: prepared, or still being written."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest

from exactsink.contract import InDoubt, Retryable
from tests.integration.postgres.branches import TOKEN, Branches, proven, rows
from tests.servers.postgres import Postgres, wait_until

pytest_plugins = ["tests.servers.fixtures", "tests.integration.postgres.two_phase_fixtures"]


def listed(branches: Branches) -> list[InDoubt]:
    committer = branches.committer()
    try:
        return sorted(committer.in_doubt(), key=lambda participant: participant.ref)
    finally:
        committer.close()


def test_prepared_ones_and_living_sessions_are_listed_and_rolled_back(branches: Branches) -> None:
    branches.table()
    orphan = branches.prepare(0, 1, attempt=4)
    writer = branches.writer(1, epoch=2)
    writer.write(rows(2))

    [prepared, living] = listed(branches)
    assert prepared.ref == orphan.txn.id
    assert living.ref == branches.txn(1, epoch=2).id
    assert (living.generation, living.token, living.epoch) == (1, TOKEN, 2)
    for participant in (prepared, living):
        assert participant.age_seconds is not None
        assert 0 <= participant.age_seconds < 600

    assert branches.sweep() == [prepared.ref, living.ref]
    assert branches.sessions() == []
    assert branches.prepared() == []
    assert listed(branches) == []
    committer = branches.committer()
    committer.abort(proven(prepared, living))  # again: it is done
    committer.close()
    with pytest.raises(Exception, match="terminating connection"):
        writer.pre_commit()
    assert branches.ids() == []


def test_a_session_that_has_prepared_is_listed_once_and_one_that_is_committed_not_at_all(branches: Branches) -> None:
    branches.table()
    writer = branches.writer(0)
    writer.write(rows(1))
    load = writer._load
    load_close, load.close = load.close, lambda: None  # type: ignore[method-assign]
    voted = writer.pre_commit()
    try:
        assert [participant.ref for participant in listed(branches)] == [voted.txn.id]
        assert branches.commit([voted]) == ["Committed"]
        assert listed(branches) == []
    finally:
        load_close()


def test_a_session_is_listed_from_its_last_row_until_it_has_prepared(branches: Branches) -> None:
    """A constraint that is checked at PREPARE waits for a lock, and PREPARE with it."""
    branches.table()
    waits = f'"{branches.job}_waits"'
    branches.run(
        f"CREATE FUNCTION {waits}() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_advisory_xact_lock(77); RETURN NULL; END'",
        f'CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON "{branches.job}" DEFERRABLE INITIALLY DEFERRED '
        f"FOR EACH ROW EXECUTE FUNCTION {waits}()",
    )
    writer = branches.with_(lock_timeout_seconds=60).writer(0)
    writer.write(rows(1))
    with psycopg.connect(branches.conninfo) as session, ThreadPoolExecutor() as pool:
        session.execute("SELECT pg_advisory_xact_lock(77)")
        voted = pool.submit(writer.pre_commit)
        waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 77 AND NOT granted"
        waiting += " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        try:
            wait_until(lambda: bool(branches.run(waiting)), "PREPARE to wait")
            assert [participant.ref for participant in listed(branches)] == [writer._txn.id]
            assert branches.prepared() == []
        finally:
            session.rollback()
        assert [participant.ref for participant in listed(branches)] == [voted.result().txn.id]


def test_one_that_still_writes_and_is_not_among_the_undecided_goes_on(branches: Branches) -> None:
    branches.table()
    lost, winner = branches.writer(0, 0), branches.writer(0, 1)
    lost.write(rows(1))
    winner.write(rows(2))
    committer = branches.committer()
    committer.abort(proven(InDoubt.of(branches.txn(0, 0))))
    committer.close()
    assert branches.commit([winner.pre_commit()]) == ["Committed"]
    with pytest.raises(Retryable):
        lost.pre_commit()
    assert branches.ids() == [2]


def test_no_other_jobs_sinks_databases_or_strangers_work_is_listed_or_touched(
    branches: Branches, postgres: Postgres
) -> None:
    branches.table()
    into = ("table", f'"{branches.job}"')
    name = f"{branches.job}-x".replace("-", "_")
    postgres.create_database(name)
    elsewhere = replace(branches, conninfo=postgres.conninfo(name), generation=5).table()
    others = [
        replace(branches, job=branches.job + "0", given=(into,)),
        replace(branches, job="x" + branches.job, given=(into,)),
        replace(branches, sink="out2"),
        replace(branches, sink="ou"),
        elsewhere,
    ]
    theirs = [other.prepare(0, 10 + n).txn.id for n, other in enumerate(others)]
    strangers = [f"{branches.job}.out.somebody's own", f"{branches.txn(0).id}0", f"{branches.txn(7).id} "]
    strangers[1] = strangers[1].replace(".p0.", ".p00.")
    for n, gid in enumerate(strangers):
        branches.foreign(gid, f'INSERT INTO "{branches.job}" VALUES ({20 + n})')
    living = replace(branches, sink="out2").writer(1)
    living.write(rows(30))
    mine = branches.prepare(0, 1)
    try:
        assert branches.sweep() == [mine.txn.id]
        there = set(branches.prepared()) | set(elsewhere.prepared())
        assert there == {*theirs, *strangers}
        assert living.pre_commit().rows == 1
        committer = branches.committer()
        for ref in (*theirs[:4], *strangers):
            own = branches.prepare(3, 40)
            with pytest.raises(ValueError, match="no participant of sink out"):
                committer.abort(proven(InDoubt.of(own.txn), InDoubt(ref, 1, TOKEN)))
            branches.end("ROLLBACK", own.txn.id)
        committer.abort(proven(InDoubt(theirs[4], 5, TOKEN)))  # this name is this sink's, but in another database
        committer.close()
        assert set(theirs) | set(strangers) <= set(branches.prepared()) | set(elsewhere.prepared())
    finally:
        elsewhere.clean()
