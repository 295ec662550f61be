"""Marks on a real server: what stands in the target, in whose session it counts, and what waits for a standby."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import pytest

from exactsink.contract import Mark, Retryable
from tests.integration.postgres.sinks import TOKEN, Branches, Staged, kinds, new_sink
from tests.servers.postgres import PostgresServer, wait_until

STRATEGIES = ["two_phase", "staged"]
BOUND = Mark("l1")
_Answer = TypeVar("_Answer")


# What stands in the target


def test_each_participant_leaves_a_row_that_shows_with_its_rows_and_trimming_leaves_the_highest(
    branches: Branches,
) -> None:
    epoch = branches.table().prepare_many(3)
    assert branches.mark() == BOUND
    branches.end("COMMIT", epoch[1].txn.id)
    assert branches.mark() == Mark("l1", 0, frozenset([TOKEN]), 1)
    assert kinds(branches.outcomes(*epoch)) == ["Committed", "AlreadyCommitted", "Committed"]
    assert branches.mark() == Mark("l1", 0, frozenset([TOKEN]), 3)

    orphan = branches.prepare(0, 9, attempt=7)
    later = branches.writing(0, 10, epoch=1).pre_commit()
    branches.end("COMMIT", later.txn.id)
    for _ in range(2):
        with branches.committer() as committer:
            committer.trim_marks()
        assert branches.mark() == Mark("l1", 1, frozenset([TOKEN]), 1)
        assert _marks(branches) == [(1, later.txn.id)]
    assert kinds(branches.outcomes(*epoch)) == ["AlreadyCommitted"] * 3  # a later epoch stands
    branches.end("COMMIT", orphan.txn.id)  # by an administrator
    assert branches.mark() == Mark("l1", 1, frozenset([TOKEN]), 1)


def _marks(sink: Branches | Staged) -> list[tuple[object, ...]]:
    return sink.run(f"SELECT epoch, ref FROM exactsink_epochs WHERE job = '{sink.job}' ORDER BY 1, 2")


def test_a_staged_epoch_leaves_one_row_with_the_newest_claims_token(sink: Staged) -> None:
    kept, newer = sink.vote(1, [(1, "a")]), replace(sink, generation=2, token="ee").vote(1, [(2, "b")])
    assert sink.mark() == BOUND
    assert sink.commit(1, [*newer, *kept]) == ["Committed"] * 2
    assert sink.mark() == Mark("l1", 1, frozenset(["ee"]))
    assert sink.commit(2, sink.vote(2, [(3, "c")])) == ["Committed"]
    with sink.committer() as committer:
        committer.trim_marks()
    assert _marks(sink) == [(2, "")]
    assert sink.commit(1, [*newer, *kept]) == ["AlreadyCommitted"] * 2
    two_phase = replace(sink, given=(("strategy", "two_phase"),))
    assert two_phase.mark() == Mark("l1", 2, frozenset([TOKEN]))  # strategies may change: it can't count these


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_commit_in_another_session_than_the_marks_does_nothing(sink: Staged, strategy: str) -> None:
    sink = replace(sink, job=f"moved-{strategy}".replace("_", "-"), given=(("strategy", strategy),)).bound()
    votes = sink.vote(1, [(1, "a")])
    died = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
    died += f"WHERE application_name = 'exactsink {sink.job}.out driver'"
    with sink.committer() as committer:
        assert committer.mark() == BOUND
        assert sink.run(died) == [(True,)]
        for _ in range(2):
            with pytest.raises(Retryable, match="the session that had read the mark is lost"):
                committer.commit(1, votes)
        assert sink.rows() == []
        assert committer.mark() == BOUND
        assert kinds(committer.commit(1, votes)) == ["Committed"]
    assert sink.rows() == [(1, "a")]


def test_staged_rows_are_not_applied_on_a_mark_that_has_changed_since_it_was_read(sink: Staged) -> None:
    votes = sink.vote(2, [(1, "a")])
    with sink.committer() as committer:
        committer.mark()
        sink.run("INSERT INTO exactsink_epochs VALUES ('orders', 'out', 1, '', 'l1', 'aa')")
        with pytest.raises(Retryable, match="the mark is not that of the epoch before 2"):
            committer.commit(2, votes)
        committer.mark()
        assert kinds(committer.commit(2, votes)) == ["Committed"]


# Votes and commits that wait for a standby


@pytest.mark.parametrize("setting", ["off", "local"])
def test_votes_and_commits_wait_for_the_standby_whatever_the_role_says(
    server: PostgresServer, setting: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.execute(f"CREATE ROLE {setting} SUPERUSER LOGIN; ALTER ROLE {setting} SET synchronous_commit = {setting}")
    database = server.new_database(setting)
    branches = Branches(database.replace("user=postgres", f"user={setting}"), f"role-{setting}").table()
    with new_sink(branches.conninfo, "CREATE TABLE t (id bigint, v text)") as staged:
        impatient = branches.with_(lock_timeout_seconds=0.4)
        reported = lambda: "which waits for a synchronous standby; bring back the synchronous" in caplog.text  # noqa: E731
        vote = _waits_for_standby(server, lambda: impatient.prepare(0, 1), reported)
        assert kinds(_waits_for_standby(server, lambda: branches.outcomes(vote))) == ["Committed"]
        votes = staged.vote(1, [(1, "a")])
        assert _waits_for_standby(server, lambda: staged.commit(1, votes)) == ["Committed"]
        _waits_for_standby(server, lambda: replace(staged, job="new").bound())
        _waits_for_standby(server, lambda: staged.task(staged.open(2), staged.txn(2), (2, "b")).pre_commit())
    assert branches.ids() == [1]


def _waits_for_standby(
    server: PostgresServer, call: Callable[[], _Answer], then: Callable[[], bool] = lambda: True
) -> _Answer:
    """Make the call while a named standby is absent; it waits, and goes on when it is named no more."""
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    server.name_standbys("nobody")
    try:
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(call)
            try:
                wait_until(lambda: answer.done() or bool(server.execute(waiting)), "the standby to be waited for")
                assert not answer.done(), answer.result()
                wait_until(then, "the wait to be noticed")
            finally:
                server.name_standbys("")
            return answer.result()
    finally:
        server.name_standbys("")
