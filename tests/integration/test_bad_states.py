"""A job brought into each bad state that an operator meets; its commands alone get it out, and rows are counted."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.integration.operated_job import OperatedJob, ids
from tests.servers.postgres import Postgres

Rows = Mapping[str, Counter[int]]


@pytest.fixture
def job(tmp_path: Path, postgres: Postgres, capsys: pytest.CaptureFixture[str]) -> OperatedJob:
    return OperatedJob(tmp_path, postgres.new_database("states"), capsys)


def whole(batches: int) -> Rows:
    """What every sink holds when nothing is lost and nothing doubled."""
    return dict.fromkeys(("lake", "table", "db"), ids(*range(batches)))


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


def test_a_job_whose_folder_was_deleted_ends_what_it_left_and_goes_on(job: OperatedJob) -> None:
    """Nobody knows any more what was decided; the batch is not done, so its rows come again."""
    job.killed("decide", "after", 2)
    [token] = {token for gid in job.prepared for token in re.findall(r"\.g\d+-(\w+)\.", gid)}
    shutil.rmtree(job.history)
    seen, refused = job.exactsink("status"), job.exactsink("recover")
    assert (seen.code, token in seen.out, refused.code, token in refused.err) == (5, True, 5, True)
    assert len(job.prepared) == 2
    sweep = ("recover", "--sweep-token", token)
    assert (job.exactsink(*sweep).code, len(job.prepared)) == (4, 2), "they are young: their driver may be running"
    assert (job.exactsink(*sweep, "--take-over").code, job.prepared) == (0, [])
    assert job.run(4) == 5
    [named] = re.findall(r"go on .*: exactsink rebase \S+ (.*) --yes", job.exactsink("rebase").out)
    assert job.exactsink("rebase", *named.split(), "--yes", "--reason", "its folder was deleted").code == 0
    assert (job.run(4), job.rows) == (0, whole(4))
