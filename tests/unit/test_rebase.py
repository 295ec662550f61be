"""An operator's word: rebase on what the targets hold."""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa
import pytest
from tests.simulation.backend import SinkBackend, SinkStore
from tests.simulation.world import CONFIG, SINKS
from tests.unit.conftest import Ended
from tests.unit.manual_job import FOREIGN, Job
from tests.unit.test_coordinator import Bench

from exactsink.contract import InDoubtError, JobContext, LineageError
from exactsink.job.config import load_config
from exactsink.job.history import JobHistory
from exactsink.protocol.journal.log import Log
from exactsink.protocol.journal.records import Expected
from exactsink.testing import Session

Command = Callable[..., Ended]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def found(bench: Bench) -> list[Expected]:
    """Read what stands in the targets, as an operator's command does."""
    marks = {
        bound.name: SinkBackend(SinkStore(bench.world, "A", bound)).committer(JobContext("sim", bound.name, "")).mark()
        for bound in CONFIG
    }
    return [Expected(name, name, mark, mark) for name, mark in marks.items() if mark is not None]


def rebased(bench: Bench, next_batch: int) -> Log:
    journal = bench.journal()
    journal.claim("query", "operator")
    journal.rebase(found(bench), "query", next_batch, "operator")
    return bench.journal().read()


def test_a_rebase_goes_on_from_what_the_targets_hold(bench: Bench) -> None:
    """One target was put back from a copy: its epochs are gone, and the job goes on above all numbers."""
    driver = bench.driver()
    driver.run_epoch(bench.batch(0))
    bench.world.copies["copy"] = {"table": bench.world._copied("table")}
    for epoch in (1, 2):
        driver.run_epoch(bench.batch(epoch))
    bench.world.restore({"table": "copy"})
    with pytest.raises(InDoubtError, match="sink table: its target holds epoch 0"):
        bench.driver(done=2)
    log = rebased(bench, 3)
    assert (log.next_epoch, log.base, log.decision and dict(log.decision.sinks)) == (3, 0, {})
    bench.driver(done=2).run_epoch(bench.batch(3))
    bench.driver(done=3).run_epoch(bench.batch(4))
    shown = {sink: {row[0] for of, row in bench.world.applied if of == sink} for sink in SINKS}
    assert shown == {"lake": {"0", "1", "2", "3", "4"}, "table": {"0", "3", "4"}}


def test_a_rebase_of_an_empty_journal_takes_over_what_another_one_wrote(bench: Bench) -> None:
    for epoch in range(2):
        bench.driver().run_epoch(bench.batch(epoch))
    bench.world.entries.clear()
    with pytest.raises(LineageError, match="another journal fed this target"):
        bench.driver(done=1)
    bench.world.entries.clear()
    log = rebased(bench, 0)  # with a new checkpoint
    assert (log.next_epoch, log.base) == (2, 2)
    foreign = {expected.now and expected.now.lineage for expected in found(bench)}
    assert (log.lineage in foreign, log.succeeds) == (False, foreign)
    bench.driver().run_epoch(bench.batch(2))
    assert {m.now and m.now.lineage for m in (bench.journal().read().decision or log.decision).marks or ()} == {
        log.lineage
    }


# the commands


def test_rebase_shows_what_stands_and_does_nothing_until_all_is_named_and_confirmed(job: Job, command: Command) -> None:
    _, votes = job.decided()
    before = job.journal.read()
    shown = command("rebase", job.file)
    assert shown.code == 0
    assert f"exactsink rebase {job.file}" in shown.out
    plan = command("rebase", job.file, "--sink", "lake=none", "--dry-run")
    assert plan.code == 0
    assert sorted(line for line in plan.out.splitlines() if line.startswith("would ")) == [
        "would claim the job (generation 3), and end every driver before",
        "would end epoch 0: nothing of it is committed any more",
        *sorted(f"would leave to the next start, to sweep lake: {vote.ref}" for vote in votes),
        "would let batch 0 of the checkpoint be epoch 1, and keep your name and reason in the journal",
    ]
    unsure = command("rebase", job.file, "--sink", "lake=none")
    assert (unsure.code, "this can't be undone" in unsure.err) == (2, True)
    assert job.journal.read() == before
    job.heartbeat(time.time())
    for word in ("--yes", "--dry-run"):
        assert command("rebase", job.file, "--sink", "lake=none", word).code == 4
    job.heartbeat(0)
    for word in ("--yes", "--dry-run"):
        wrong = command("rebase", job.file, "--sink", "lake=7", word)
        assert (wrong.code, "names what stands in every target" in wrong.err) == (2, True)
    assert job.journal.read() == before
    assert "will be epoch 1" in command("rebase", job.file, "--sink", "lake=none", "--yes").out
    assert (job.journal.read().last_generation, job.journal.read().next_epoch) == (3, 1)
    assert command("recover", job.file).code == 0
    assert (job.rows(), list((job.folder / "lake" / "_exactsink").rglob("*.tmp"))) == (0, [])


def test_a_runs_rebase_is_of_its_own_history_and_never_writes_its_rows_again(job: Job, command: Command) -> None:
    job.checkpoint("query-1", *range(3))  # the stream's is no business of a run
    history = JobHistory.of(load_config(job.file)[0], "monday")
    words = ("rebase", job.file, "--run", "monday", "--sink", "lake=birth", "--yes")
    foreign = Session(job.sink.backend, JobContext(history.job, "lake", "", 1, FOREIGN.lineage), FOREIGN.token)
    foreign.put_birth()
    assert "--run monday --sink lake=birth --yes" in command("rebase", job.file, "--run", "monday").out
    done = command(*words)
    assert (done.code, "the run will be epoch 0\n  next: call write again, with run='monday'" in done.out) == (0, True)
    log = history.journal(lambda attempt: None).read()
    assert (log.query_id, log.base, log.next_epoch, log.succeeds) == ("run monday", 0, 0, {FOREIGN.lineage})
    foreign.commit(0, foreign.prepare(0, [pa.table({"n": [1]})]))
    for word in ("--yes", "--dry-run"):
        again = command(*words[:4], "--sink", "lake=0", word)
        assert (again.code, "has nothing to go on with: its rows show in lake" in again.err) == (2, True)
