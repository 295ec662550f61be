"""A recovery while a sink gives no answer: the others are committed, nothing is swept, a repeat settles the rest."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.backend import SinkBackend, SinkCommitter
from tests.unit.conftest import Ended
from tests.unit.manual_job import FOREIGN, Job
from tests.unit.test_coordinator import Bench

from exactsink.contract import (
    AlreadyCommitted,
    Fatal,
    Fenced,
    InDoubtError,
    JobContext,
    LineageError,
    Lost,
    Prepared,
    Retryable,
)
from exactsink.operate.plan import planned
from exactsink.operate.views import SinkView
from exactsink.protocol.coordinator import Coordinator
from exactsink.protocol.journal.records import Action, Clean, Identity, Settled
from exactsink.protocol.reach import OutcomeUnknown, Reach, Start
from exactsink.protocol.sinks import Sink

Command = Callable[..., Ended]
Patch = pytest.MonkeyPatch


@pytest.fixture
def bench() -> Bench:
    """Leave epoch 0 complete, and beside it what tasks have prepared for an epoch that is not decided."""
    bench = Bench()
    driver, writes = bench.driver(), bench.batch(1).write
    driver.run_epoch(bench.batch(0))
    with pytest.raises(Retryable):
        driver.run_epoch(replace(bench.batch(1), write=lambda plan: writes(plan) and _away()))
    return bench


def _away(*_: object) -> Any:
    raise Retryable("the store is away")


def _down(patch: Patch, call: str, *sinks: str) -> None:
    """Let one call to these sinks fail, as when their stores are away."""
    owner: Any = SinkBackend if call == "committer" else SinkCommitter
    real = getattr(owner, call)

    def asked(self: Any, *arguments: Any) -> Any:
        store = self.store if call == "committer" else self._store
        return _away() if store.sink in sinks else real(self, *arguments)

    patch.setattr(owner, call, asked)


def _recover(bench: Bench, sinks: dict[str, Sink] | None = None) -> tuple[Coordinator, Start]:
    """Start as `exactsink recover` does."""
    driver = bench.unstarted(sinks)
    return driver, driver.start("query", lambda epoch: False, sets_aside=True)


def _decide(bench: Bench, epoch: int, *away: str) -> None:
    """Decide an epoch, and commit it in no sink that is away by then. Sweep nothing before."""
    with Patch.context() as patch:
        patch.setattr("exactsink.protocol.sweep.Sweep.older", lambda *_: {})
        driver = bench.driver()
        _down(patch, "commit", *away)
        with pytest.raises(Retryable):
            driver.run_epoch(bench.batch(epoch))


def _states(bench: Bench, sink: str) -> set[tuple[int, str]]:
    return {(txn.epoch, p.state) for txn, p in bench.world.sinks[sink].items()}


@pytest.mark.parametrize("call", ["committer", "mark", "commit", "in_doubt", "abort"])
def test_a_sink_that_is_away_holds_up_no_other(bench: Bench, call: str) -> None:
    _decide(bench, 1, "lake", "table")
    with Patch.context() as patch:
        _down(patch, call, "table")
        driver, start = _recover(bench)
        assert [(name, str(error)) for name, error in start.aside.items()] == [("table", "the store is away")]
        assert bench.said[-1].complete_epoch == (1 if call in ("in_doubt", "abort") else 0), "readers cut there"
        assert {txn.epoch for txn, p in bench.world.sinks["lake"].items() if p.state == "committed"} == {0, 1}
        assert ((1, "aborted") in _states(bench, "lake")) is (call == "abort"), "all marks were seen by then"
        with pytest.raises(Retryable, match="no claim"):
            driver.run_epoch(bench.batch(2))
        driver.leave()
        assert not any(isinstance(kept, Clean) for kept in bench.journal().read().anchors)
    driver, start = _recover(bench)
    assert not start.aside
    assert all((1, "prepared") not in _states(bench, sink) for sink in ("lake", "table"))
    driver.leave()
    assert isinstance(bench.journal().read().anchors[-1], Clean)
    bench.check_applied(2)


@pytest.mark.parametrize("kind", [InDoubtError, LineageError, Fenced, ValueError])
def test_what_an_answer_says_of_the_whole_job_or_of_the_code_sets_no_sink_aside(kind: type[Exception]) -> None:
    reach = Reach(sets_aside=True)
    with pytest.raises(kind), reach.asking("lake"):
        raise kind("said")
    assert reach.aside == {}
    for error in (Retryable("away"), Fatal("no table"), OSError("away"), OutcomeUnknown("in doubt")):
        with reach.asking("lake"):
            raise error
        assert reach.aside == {"lake": error}


def test_nothing_is_swept_while_a_mark_is_unseen_that_may_show_a_lost_decision(bench: Bench) -> None:
    """The journal was put back: it lacks the decision of what the lake has prepared. Only the table shows that."""
    bench.driver()
    before = dict(bench.world.entries)
    _decide(bench, 1, "lake")
    bench.world.entries.clear()
    bench.world.entries.update(before)
    with Patch.context() as patch:
        _down(patch, "mark", "table")
        _, start = _recover(bench)
        assert (list(start.aside), start.swept) == (["table"], {})
    assert (1, "prepared") in _states(bench, "lake")
    with pytest.raises(LineageError, match=r"sink table: .*the journal went back"):
        _recover(bench)


def test_a_mark_that_differs_stops_all_though_another_sink_is_away(bench: Bench, monkeypatch: Patch) -> None:
    _decide(bench, 1, "lake", "table")
    bench.world.births["lake", "sim"] = "another"
    for txn in [txn for txn, p in bench.world.sinks["lake"].items() if p.state == "committed"]:
        del bench.world.sinks["lake"][txn]
    _down(monkeypatch, "mark", "table")
    with pytest.raises(LineageError, match="another journal fed this target"):
        _recover(bench)


@pytest.mark.parametrize("call", ["mark", "commit"])
def test_what_comes_after_a_sink_that_is_away_is_held_back(bench: Bench, monkeypatch: Patch, call: str) -> None:
    _decide(bench, 1, "lake", "table")
    _down(monkeypatch, call, "table")
    sinks = bench.sinks()
    _, start = _recover(bench, {**sinks, "lake": replace(sinks["lake"], after=("table",))})
    assert (list(start.aside), start.held_back) == (["table"], {"lake"})
    assert (1, "committed") not in _states(bench, "lake")


def test_recover_reports_what_is_left_and_keeps_it_with_the_reason(job: Job, command: Command) -> None:
    _with_another_sink(job)
    ended = command("recover", job.file, "--reason", "night shift")
    assert (ended.code, job.rows()) == (75, 6), ended
    assert "not settled: far; the other sinks are committed, and nothing is aborted" in ended.err
    assert command("recover", job.file).code == 75
    first, again = (kept for kept in job.journal.read().anchors if isinstance(kept, Action))
    lake, far = first.settled
    assert (first.reason, lake, "refused" in far.left) == ("night shift", Settled("lake", committed=2), True)
    assert first.outcome == "recovered by an operator, but for far"
    assert again.settled[0] == Settled("lake", stood=2)
    assert isinstance(job.journal.read().anchors[-1], Action), "nothing says that sinks may change"


def _with_another_sink(job: Job) -> None:
    job.decided()
    with open(job.file, "a") as file:
        file.write('[sinks.far]\nbackend = "postgres"\nconninfo = "postgresql://localhost:1/x"\ntable = "t"\n')


def _foreign(job: Job) -> None:
    job.decided()
    job.vote(FOREIGN, 4, 9)


def _file_gone(job: Job) -> None:
    job.decided()
    for folder in (job.folder / "lake" / "_exactsink").glob("*.e0.*"):
        shutil.rmtree(folder)


def _of_another_journal(job: Job) -> None:
    job.sink.backend.committer(JobContext("orders", "lake", "", 1, FOREIGN.lineage)).put_birth()
    job.decided()


def _sink_renamed(job: Job) -> None:
    job.decided()
    path = Path(job.file)
    path.write_text(path.read_text().replace("[sinks.lake]", "[sinks.pond]"))


def _live(job: Job) -> None:
    job.decided()
    job.heartbeat(time.time())


def _other_job(job: Job) -> None:
    job.journal.claim("query-1", "host:17", Identity("other"))


@pytest.mark.parametrize(
    ("state", "code", "options"),
    [
        (Job.decided, 0, ()),
        (_with_another_sink, 75, ()),
        (_foreign, 5, ()),
        (_foreign, 4, ("--sweep-token", FOREIGN.token)),
        (_foreign, 0, ("--sweep-token", FOREIGN.token, "--take-over")),
        (_file_gone, 3, ()),
        (_of_another_journal, 5, ()),
        (_sink_renamed, 2, ()),
        (_live, 4, ()),
        (_other_job, 5, ()),
    ],
)
def test_a_dry_run_ends_as_the_real_one_and_changes_nothing(
    job: Job, command: Command, state: Callable[[Job], object], code: int, options: tuple[str, ...]
) -> None:
    state(job)
    before = _files(job)
    dry = command("recover", job.file, "--dry-run", *options)
    assert _files(job) == before
    real = command("recover", job.file, *options)
    assert (dry.code, real.code) == (code, code), (dry, real)
    assert _words(dry.err) == _words(real.err)
    assert not re.search(r"(sinks are|epoch \d+ is) committed", dry.out + dry.err), "nothing was"
    assert _words(dry.out).splitlines()[1:] == _words(real.out).splitlines()


def _words(text: str) -> str:
    """Leave out what a backend says of its evidence, how old a heartbeat is, and whether it was done or would be."""
    return re.sub(r"in doubt: .*|\d+ s old|recovered: |\b(would be|is|are)\b", "", text)


def _files(job: Job) -> list[tuple[str, bytes]]:
    return [(str(path), path.read_bytes()) for path in sorted(job.folder.rglob("*")) if path.is_file()]


def test_a_plan_leaves_lost_votes_to_the_job_and_holds_back_what_comes_after(bench: Bench) -> None:
    _decide(bench, 1, "lake", "table")
    log, sinks = bench.journal().read(), bench.sinks()
    sinks = {**sinks, "lake": replace(sinks["lake"], after=("table",))}
    assert log.decision is not None
    votes = {name: log.decision.committables(name) for name in sinks}
    view = SinkView("lake", "memory", "memory", "lake", committables=votes["lake"], standings=[Prepared(), Prepared()])
    lost = replace(view, name="table", committables=votes["table"], standings=[Lost("gone"), AlreadyCommitted()])
    plan = planned([view, lost], sinks, log, frozenset(), source_done=False)
    assert (plan.lost, plan.held_back, list(plan.outcomes)) == ({"table": 1}, {"lake"}, ["table"])
    with pytest.raises(InDoubtError, match="the source has gone on"):
        planned([view, lost], sinks, log, frozenset(), source_done=True)
