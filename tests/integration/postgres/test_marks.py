"""Marks on a real server: what it proves of the journal that feeds it, and what happens when one of them went back."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import psycopg
import pyarrow as pa
import pytest

from exactsink.contract import InDoubtError, LineageError, Mark, Retryable
from exactsink.protocol.sinks import Sink
from exactsink.testing import Fault, Script
from exactsink.testing.driver_run import run_driver
from exactsink.testing.faults import FaultTrigger
from exactsink.testing.processes import KILLED, ended, start
from tests.integration.postgres.sinks import ROWS, TOKEN, Branches, Staged, kinds, new_sink
from tests.servers.postgres import Postgres, PostgresServer, own_postgres, wait_until

pytest_plugins = ["tests.servers.fixtures"]

STRATEGIES = ["two_phase", "staged"]
BOUND = Mark("l1")
_Answer = TypeVar("_Answer")


@pytest.fixture
def sink(database: str) -> Iterator[Staged]:
    with new_sink(database, "CREATE TABLE t (id bigint, v text)") as sink:
        yield sink


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


def test_of_journals_that_bind_a_target_at_once_one_does(sink: Staged) -> None:
    sink.run("DROP TABLE exactsink_epochs")
    assert sink.mark() is None

    def bind(lineage: str) -> Mark:
        with replace(sink, lineage=lineage).committer() as committer:
            return committer.put_birth()

    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(bind, ("l1", "l2", "l3", "l4")))
    assert found == {sink.mark()}
    assert bind("l9") == sink.mark()


def test_a_table_of_the_release_before_goes_on(sink: Staged) -> None:
    sink.run(
        "DROP TABLE exactsink_epochs",
        "CREATE TABLE exactsink_epochs (job text, sink text, lineage text NOT NULL, epoch bigint NOT NULL, "
        "generation bigint NOT NULL, PRIMARY KEY (job, sink))",
        "INSERT INTO exactsink_epochs VALUES ('orders', 'out', 'l1', 4, 2), ('other', 'out', 'l7', 5, 1)",
    )
    assert sink.mark() == Mark("l1", 4)
    votes = sink.vote(5, [(1, "a")])
    assert sink.commit(5, votes) == ["Committed"]
    assert sink.mark() == Mark("l1", 5, frozenset([TOKEN]))
    assert replace(sink, job="other", lineage="l7").mark() == Mark("l7", 5)


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
        with pytest.raises(Retryable, match="the mark is not the one that epoch 2 follows"):
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
    _name_standby(server, "nobody")
    try:
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(call)
            try:
                wait_until(lambda: answer.done() or bool(server.execute(waiting)), "the standby to be waited for")
                assert not answer.done(), answer.result()
                wait_until(then, "the wait to be noticed")
            finally:
                _name_standby(server, "")
            return answer.result()
    finally:
        _name_standby(server, "")


def _name_standby(server: PostgresServer, name: str) -> None:
    server.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    server.execute("SELECT pg_reload_conf()")
    wait_until(lambda: server.execute("SHOW synchronous_standby_names") == [(name,)], "the setting")


# Jobs whose target, or journal, goes back


def _job(conninfo: str, folder: Path, strategy: str, batches: int) -> Script:
    """Return a job whose batch n has the rows 20 n to 20 n + 19."""
    job = f"{folder.name.replace('_', '-')[:20]}-{strategy.replace('_', '-')}".lower()
    sink = replace(Staged(conninfo, job), given=(("strategy", strategy),))
    folder.mkdir(exist_ok=True)
    return Script(job, folder, {"out": Sink("out", "postgres", sink.backend, "")}, _batches(batches))


def _batches(count: int) -> Sequence[Sequence[pa.Table]]:
    ids = [range(20 * n, 20 * n + 20) for n in range(count)]
    return [[_table(part) for part in (of[:10], of[10:])] for of in ids]


def _table(ids: Sequence[int]) -> pa.Table:
    return pa.table({"id": list(ids), "kind": [f"k{n}" for n in ids]}, schema=ROWS)


class _Runs:
    """Plays driver runs, each in a process of its own, forked from one that has no threads."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))

    def __call__(self, script: Script, fault: Fault | None = None) -> int:
        return self._pool.submit(_play, script, fault).result()

    def close(self) -> None:
        self._pool.shutdown()


def _play(script: Script, fault: Fault | None) -> int:
    trigger = FaultTrigger(fault, script.folder / f"{fault}.fired") if fault else None
    return ended(start(lambda: _drive(script, trigger)))


def _drive(script: Script, trigger: FaultTrigger | None) -> int:
    with open(script.folder / "log", "wb") as log:
        os.dup2(log.fileno(), 1)
    return run_driver(script, trigger)


def _said(script: Script) -> str:
    """Return what the last driver run has printed."""
    return (script.folder / "log").read_text()


@pytest.fixture(scope="module")
def run() -> Iterator[_Runs]:
    runs = _Runs()
    yield runs
    runs.close()


def _up_to(script: Script, count: int) -> Script:
    return replace(script, batches=script.batches[:count])


def _counted(conninfo: str) -> Counter[int]:
    with psycopg.connect(conninfo) as session:
        return Counter(itertools.chain.from_iterable(session.execute("SELECT id FROM t").fetchall()))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_journal_that_is_put_back_from_a_copy_stops_the_job(
    postgres: Postgres, tmp_path: Path, strategy: str, run: _Runs
) -> None:
    there = postgres.new_database("journal")
    postgres.execute("CREATE TABLE t (id bigint, kind text)", there.split("dbname=")[1].split()[0])
    script = _job(there, tmp_path / there.split("dbname=")[1].split()[0], strategy, 4)
    assert run(_up_to(script, 1)) == 0
    shutil.copytree(script.folder / "journal", tmp_path / "copy")
    assert run(_up_to(script, 3)) == 0
    shutil.rmtree(script.folder / "journal")
    shutil.copytree(tmp_path / "copy", script.folder / "journal")
    for _ in range(2):
        assert run(script) == LineageError.exit_code
        said = _said(script)
        assert "its target holds epoch 2 " in said
        assert "the journal expects epoch 0 " in said
    assert _counted(there) == Counter(range(60))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_standby_that_lags_behind_stops_the_job_and_one_that_does_not_goes_on(
    tmp_path: Path, strategy: str, run: _Runs
) -> None:
    with own_postgres() as primary, own_postgres(of=primary) as synchronous:
        primary.execute("CREATE TABLE t (id bigint, kind text)")
        primary.execute("ALTER ROLE postgres SET synchronous_commit = 'off'")
        _name_standby(primary, "*")
        both = f"host={primary.folder},{synchronous.folder} dbname=postgres user=postgres"
        script = _job(f"{both} target_session_attrs=read-write", tmp_path / "failover", strategy, 4)
        assert run(_up_to(script, 1)) == 0
        with pytest.raises(Retryable, match="the server is a standby"):
            Staged(synchronous.conninfo()).mark()
        late = PostgresServer(of=primary)
        try:
            assert run(_up_to(script, 3), Fault("commit:out", "before", "kill", 2)) == KILLED
            primary.stop("immediate")
            synchronous.execute("SELECT pg_promote()")
            synchronous.execute("ALTER SYSTEM RESET synchronous_standby_names; ")
            synchronous.execute("SELECT pg_reload_conf()")
            assert run(_up_to(script, 3)) == 0
            assert _counted(synchronous.conninfo()) == Counter(range(60))

            synchronous.stop()
            late.start()
            late.execute("SELECT pg_promote()")
            late.execute("ALTER SYSTEM RESET synchronous_standby_names")
            late.execute("SELECT pg_reload_conf()")
            lagging = replace(script, sinks=_led_to(script, synchronous, late))
            for _ in range(2):
                assert run(lagging) == InDoubtError.exit_code
                said = _said(script)
                assert "its target holds epoch 0 " in said
                assert "the journal expects epoch 2 " in said
            assert _counted(late.conninfo()) == Counter(range(20))
        finally:
            late.remove()


def _led_to(script: Script, gone: Postgres, now: Postgres) -> dict[str, Sink]:
    """Return the sinks of a job whose servers' names lead to another server now, as a name service would."""
    gone.folder.rename(gone.folder.with_suffix(".gone"))
    gone.folder.symlink_to(now.folder)
    return dict(script.sinks)


@pytest.mark.proof
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_server_that_is_put_back_from_a_copy_loses_no_row_in_silence(
    tmp_path: Path, strategy: str, run: _Runs
) -> None:
    with own_postgres() as server:
        server.execute("CREATE TABLE t (id bigint, kind text)")
        script = _job(server.conninfo(), tmp_path / "snapshot", strategy, 5)
        assert run(_up_to(script, 1)) == 0
        server.save("e0")
        for edge, batches in (("before", 2), ("after", 3)):  # prepared, or committed: both are gone, and written again
            fault = Fault("commit:out", edge, "kill", batches - 1)  # type: ignore[arg-type]
            assert run(_up_to(script, batches), fault) == KILLED
            server.put_back(f"e{batches - 2}")
            assert run(_up_to(script, batches)) == 0
            assert _counted(server.conninfo()) == Counter(range(20 * batches))
            server.save(f"e{batches - 1}")
        assert run(_up_to(script, 4), Fault("commit:out", "before", "kill", 3)) == KILLED
        server.save("decided")
        assert run(_up_to(script, 4)) == 0
        server.put_back("decided")  # what was complete is only prepared again
        assert run(_up_to(script, 4)) == 0
        assert _counted(server.conninfo()) == Counter(range(80))
        for saved, holds in (("e1", 1), ("e0", 0)):
            server.put_back(saved)
            assert run(script) == InDoubtError.exit_code
            assert f"its target holds epoch {holds} " in _said(script)
            assert _counted(server.conninfo()) == Counter(range(20 * holds + 20))
