"""A job brought into each bad state that an operator meets; its commands alone get it out, and rows are counted."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from exactsink.cli.opened import Opened
from exactsink.contract import JobContext
from exactsink.testing import Session
from tests.e2e.postgres_job import Database
from tests.integration.operated_job import ROWS, OperatedJob, ids
from tests.servers.postgres import Postgres, PostgresServer

Rows = Mapping[str, Counter[int]]
FOREIGN = "ffffffffffff"


@pytest.fixture
def job(tmp_path: Path, postgres: Postgres, capsys: pytest.CaptureFixture[str]) -> OperatedJob:
    return OperatedJob(tmp_path, postgres.new_database("states"), capsys)


@pytest.fixture
def on_own_server(tmp_path: Path, own_database: Database, capsys: pytest.CaptureFixture[str]) -> OperatedJob:
    return OperatedJob(tmp_path, own_database.server.conninfo(own_database.name), capsys)


def whole(batches: int) -> Rows:
    """What every sink holds when nothing is lost and nothing doubled."""
    return dict.fromkeys(("lake", "table", "db"), ids(*range(batches)))


def rebase_as_shown(job: OperatedJob, reason: str) -> None:
    """Do what `rebase` prints as the command for what the targets hold."""
    [named] = re.findall(r"go on .*: exactsink rebase \S+ (.*) --yes", job.exactsink("rebase").out)
    assert job.exactsink("rebase", *named.split(), "--yes", "--reason", reason).code == 0


def test_a_healthy_job_is_healthy_in_each_poll(job: OperatedJob) -> None:
    assert job.run(1) == 0
    driver = job.started(20)
    polls = []
    while os.waitid(os.P_PID, driver, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        polls.append(job.exactsink("status"))
    assert os.waitpid(driver, 0)[1] == 0
    assert [poll for poll in polls if poll.code != 0] == []
    assert len({tuple(re.findall("last_decided_epoch: .*", poll.out)) for poll in polls}) > 2, (
        "it was looked at as it ran"
    )
    assert job.rows == whole(20)


def test_votes_lost_by_a_rollback_by_hand_are_written_again(job: OperatedJob) -> None:
    job.killed("decide", "after", 2)
    job.sql(f"ROLLBACK PREPARED '{job.prepared[0]}'")
    seen, dry, real = job.exactsink("status"), job.exactsink("recover", "--dry-run"), job.exactsink("recover")
    assert (seen.code, dry.code, real.code) == (3, 3, 3)
    assert "lost" in seen.out
    assert "exactsink run" in real.err
    assert job.run(4) == 0
    assert job.rows == whole(4)


def test_votes_lost_whose_batch_is_gone_are_given_up_by_name(job: OperatedJob) -> None:
    job.killed("decide", "after", 2)
    gone = next(gid for gid in job.prepared if ".p1." in gid)
    job.sql(f"ROLLBACK PREPARED '{gone}'")
    job.done(3)
    assert job.run(4) == 3
    assert job.exactsink("status").code == 3
    given_up = ("--epoch", "2", "--sink", "db", "--as", "given-up", "--reason", "the source has dropped them")
    shown = job.exactsink("indoubt resolve", *given_up)
    assert (shown.code, f"{ROWS} rows" in shown.out, job.run(4)) == (0, True, 3)
    assert job.exactsink("indoubt resolve", *given_up, "--yes").code == 0
    assert job.run(4) == 0
    assert job.exactsink("status").code == 0
    rows = job.rows
    assert {**rows, "db": rows["db"] + Counter(range(15, 18))} == whole(4)


@pytest.mark.parametrize(("sink", "file"), [("table", "chk.exactsink/staging/table"), ("lake", "lake/_exactsink")])
def test_a_decided_file_that_is_gone_is_written_again(job: OperatedJob, sink: str, file: str) -> None:
    job.killed("decide", "after", 2)
    next((job.folder / file).rglob("*.e2.p0.*")).rename(job.folder / "gone")
    assert [job.exactsink(*how).code for how in (["status"], ["recover", "--dry-run"], ["recover"])] == [3, 3, 3]
    assert sum(job.rows[sink].values()) < ids(0, 1, 2).total()
    assert (job.run(4), job.rows) == (0, whole(4))


def test_a_staged_file_that_is_damaged_is_written_again_by_an_operators_word(job: OperatedJob) -> None:
    job.killed("decide", "after", 2)
    next((job.history / "staging" / "table").rglob("*.arrow")).write_bytes(b"\0" * 100)
    assert [job.exactsink(*how).code for how in (["status"], ["recover", "--dry-run"], ["recover"])] == [3, 3, 3]
    assert (job.run(4), job.rows) == (3, {**whole(3), "table": ids(0, 1)})
    word = ("--epoch", "2", "--sink", "table", "--as", "lost", "--reason", "its disk is bad")
    assert (job.exactsink("indoubt resolve", *word).code, job.run(4)) == (0, 3), "without --yes it is only shown"
    assert job.exactsink("indoubt resolve", *word, "--yes").code == 0
    assert (job.run(4), job.rows) == (0, whole(4))
    assert job.exactsink("status").code == 0


def test_postgres_put_back_from_a_backup_goes_on_without_what_it_lacks(
    on_own_server: OperatedJob, own_server: PostgresServer
) -> None:
    job = on_own_server
    assert job.run(2) == 0
    own_server.save("backup")
    assert job.run(4) == 0
    own_server.put_back("backup")
    seen = job.exactsink("status")
    assert (seen.code, job.exactsink("recover").code, job.run(5)) == (3, 3, 3)
    assert re.search(r"epochs? 2 to 3", seen.out + seen.err)
    rebase_as_shown(job, "its disk died")
    assert job.run(6) == 0
    assert job.rows == {**whole(6), "db": ids(0, 1, 4, 5)}
    assert job.exactsink("status").code == 0


def test_one_sink_that_is_down_keeps_no_other_from_its_rows(
    on_own_server: OperatedJob, own_server: PostgresServer
) -> None:
    job = on_own_server
    job.killed("decide", "after", 1)
    own_server.stop()
    try:
        seen, dry, real = job.exactsink("status"), job.exactsink("recover", "--dry-run"), job.exactsink("recover")
    finally:
        own_server.start()
    assert (seen.code, dry.code, real.code) == (3, 75, 75)
    assert "db" in real.out + real.err
    assert job.rows == {**whole(2), "db": ids(0)}
    assert job.exactsink("recover").code == 0
    assert job.rows == whole(2)
    assert job.run(3) == 0
    assert job.rows == whole(3)


def test_foreign_work_is_reported_and_ended_by_its_token_alone(job: OperatedJob) -> None:
    assert job.run(2) == 0
    sink = Opened.of(job.file).sinks["db"]
    other = Session(sink.backend, JobContext("orders", "db", sink.staging, 1, FOREIGN), FOREIGN)
    rows = pa.table({"id": [-1]})
    other.write(7, 0, other.open(7, rows.schema), rows)
    assert job.exactsink("status").code == 6
    refused = job.exactsink("recover")
    assert (refused.code, f"--sweep-token {FOREIGN}" in refused.err) == (5, True)
    assert (job.run(3), len(job.prepared)) == (5, 1)
    assert job.exactsink("recover", "--sweep-token", FOREIGN).code == 0
    assert (job.run(3), job.prepared, job.rows) == (0, [], whole(3))


def test_another_name_of_the_job_is_refused_by_each_command(job: OperatedJob) -> None:
    job.killed("decide", "after", 1)
    job.edit('name = "orders"', 'name = "other"')
    assert [job.exactsink(name).code for name in ("status", "recover --dry-run", "recover")] == [5, 5, 5]
    assert job.run(3) == 5
    job.edit('name = "other"', 'name = "orders"')
    assert job.exactsink("recover").code == 0
    assert (job.run(3), job.rows) == (0, whole(3))


def test_a_sink_that_was_renamed_in_doubt_is_shown_and_waited_for(job: OperatedJob) -> None:
    job.killed("decide", "after", 1)
    job.edit("[sinks.lake]", "[sinks.pond]")
    seen = job.exactsink("status")
    assert (seen.code, "lake" in seen.out) == (3, True)
    assert (job.exactsink("recover").code, job.run(3)) == (2, 2)
    job.edit("[sinks.pond]", "[sinks.lake]")
    assert job.exactsink("recover").code == 0
    assert (job.run(3), job.rows) == (0, whole(3))


def test_a_batch_run_in_doubt_is_listed_and_finished_and_an_unknown_one_is_refused(job: OperatedJob) -> None:
    assert job.run(2) == 0
    job.killed("decide", "after", 0, run="monday")
    listed = job.exactsink("runs")
    assert re.search("monday.*in doubt", listed.out)
    assert job.exactsink("status", "--run", "tuesday").code == 2
    assert job.exactsink("status", "--run", "monday").code == 3
    assert job.exactsink("recover", "--run", "monday").code == 0
    assert job.run(9, run="monday") == 0
    assert job.rows == dict.fromkeys(whole(0), ids(0, 1, 9))
    assert job.exactsink("status", "--run", "monday").code == 0


def test_recover_of_a_batch_run_that_never_was_is_refused(job: OperatedJob) -> None:
    assert job.run(1) == 0
    assert job.exactsink("recover", "--run", "tuesday").code == 2


@pytest.mark.parametrize("refused_first", [False, True])
def test_a_job_whose_folder_was_deleted_ends_what_it_left_and_goes_on(job: OperatedJob, refused_first: bool) -> None:
    """Nobody knows any more what was decided; the batch is not done, so its rows come again."""
    job.killed("decide", "after", 2)
    [token] = {token for gid in job.prepared for token in re.findall(r"\.g\d+-(\w+)\.", gid)}
    shutil.rmtree(job.history)
    seen, refused = job.exactsink("status"), job.exactsink("recover")
    assert (seen.code, token in seen.out, refused.code, token in refused.err) == (5, True, 5, True)
    assert len(job.prepared) == 2
    assert (job.exactsink("recover", "--sweep-token", token).code, job.prepared) == (0, [])
    assert not refused_first or job.run(4) == 5
    rebase_as_shown(job, "its folder was deleted")
    assert (job.run(4), job.rows) == (0, whole(4))


@pytest.mark.parametrize("refused_first", [False, True])
def test_a_query_that_ran_by_itself_is_adopted_before_and_after_a_refused_start(
    job: OperatedJob, refused_first: bool
) -> None:
    job.done(2)
    assert not refused_first or job.run(4) == 5
    assert job.exactsink("adopt").code == 0
    assert job.run(4) == 0
    assert job.rows == dict.fromkeys(whole(0), ids(2, 3))


def test_a_target_put_back_in_the_midst_of_a_commit_gets_the_decided_epoch_again_and_no_other_does(
    job: OperatedJob,
) -> None:
    assert job.run(1) == 0
    shutil.copy2(job.folder / "table.db", job.folder / "copy")
    job.killed("commit:lake", "after", 2)
    for end in ("-wal", "-shm"):  # the kill may leave them: SQLite would bring the newer rows back out of them
        (job.folder / f"table.db{end}").unlink(missing_ok=True)
    shutil.copy2(job.folder / "copy", job.folder / "table.db")
    assert job.run(3) == 3
    table = job.exactsink("rebase").out
    assert "epoch 1 is not read again, and not here: missing; epoch 2 is written again" in table
    assert table.count("nothing is missing or doubled") == 2
    rebase_as_shown(job, "its disk died")
    assert job.run(4) == 0
    assert job.rows == {**whole(4), "table": ids(0, 2, 3)}
    assert (job.exactsink("status").code, job.prepared) == (0, [])


def test_an_old_checkpoint_put_back_goes_on_with_the_rows_that_a_person_accepts_twice(job: OperatedJob) -> None:
    assert job.run(4) == 0
    job.done(2)
    assert job.run(5) == 5
    assert job.rows == whole(4)
    rebase_as_shown(job, "the checkpoint's disk died")
    assert job.run(5) == 0
    twice = ids(0, 1, 2, 3, 4) + ids(2, 3)
    assert job.rows == {"lake": twice, "table": ids(0, 1, 2, 3, 4), "db": twice}


@pytest.mark.parametrize("needed", [False, True])
def test_a_damaged_record(job: OperatedJob, needed: bool) -> None:
    """One that nothing needs is stepped over; the last decision's stops the job, and what the targets hold goes on."""
    assert job.run(3) == 0
    decided = [path for path in sorted(job.history.glob("journal/*.json")) if '"decide"' in path.read_text()]
    damaged = decided[-1 if needed else 0]
    damaged.write_text(damaged.read_text().replace('"rows": 3', '"rows": 4'))
    checked = job.exactsink("journal verify")
    assert (checked.code, "every start" in checked.out, job.exactsink("history").code) == (3, needed, 0)
    if needed:
        refused = job.exactsink("recover")
        assert (refused.code, "move the journal away, and `exactsink rebase" in refused.err, job.run(5)) == (5, True, 5)
        (job.history / "journal").rename(job.folder / "damaged")
        rebase_as_shown(job, "a record is damaged")
    assert job.exactsink("recover").code == 0
    assert (job.run(5), job.rows) == (0, whole(5))
