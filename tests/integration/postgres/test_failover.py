"""Standbys promoted between two steps of an epoch, copies put back: a job goes on with all its rows, or stops."""

from __future__ import annotations

import itertools
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from exactsink.contract import InDoubtError, JobContext, Mark, Retryable
from exactsink.protocol.journal.records import Expected
from exactsink.testing import Fault, Script
from exactsink.testing.faults import FaultTrigger
from exactsink.testing.processes import KILLED
from tests.integration.postgres.driver_runs import Runs, Step, counted, said, script_of, up_to
from tests.integration.postgres.sinks import Staged
from tests.servers.postgres_pair import Pair, fail_over, halt

TABLES = {"two_phase": "t", "staged": "u"}


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        pair = Pair(stack)
        for table in TABLES.values():
            pair.execute(f"CREATE TABLE {table} (id bigint, kind text)")
        pair.execute("ALTER ROLE postgres SET synchronous_commit = 'off'")
        yield pair


def _goes_on(
    pair: Pair, script: Script, run: Runs, epoch: int, place: str, trips: int = 0, how: signal.Signals = signal.SIGQUIT
) -> str:
    """Fail over at a step of an epoch; return the edge that was reached last when it was done."""
    standby = pair.standby()
    with pytest.raises(Retryable, match="the server is a standby"):
        Staged(standby.conninfo()).mark()
    act = partial(fail_over, pair.primary.pid, standby.conninfo(), how)
    step = Step(act, script.folder / f"step-{epoch}", place, None if trips else epoch, trips)
    code = run(up_to(script, epoch + 1), step)
    pair.took_over(standby) if step.fired else standby.remove()
    assert code == 0, said(script)
    for table in TABLES.values():
        assert counted(pair.conninfo(), table) == Counter(range(20 * epoch + 20)), (place, trips, step.fired)
    assert pair.execute("SELECT count(*) FROM pg_prepared_xacts") == [(0,)]
    return step.fired


def test_a_synchronous_standby_goes_on_wherever_it_is_promoted(pair: Pair, tmp_path: Path, run: Runs) -> None:
    script = script_of(pair.conninfo(), tmp_path / "failover", 4, **TABLES)
    assert run(up_to(script, 1)) == 0
    for epoch, place in enumerate(("after pre_commit", "after decide", "after commit:two-phase"), start=1):
        assert _goes_on(pair, script, run, epoch, place) == place


@pytest.mark.proof
@pytest.mark.parametrize("how", [signal.SIGQUIT, signal.SIGINT], ids=["crash", "switchover"])
def test_a_synchronous_standby_goes_on_before_each_round_trip_of_an_epoch(
    pair: Pair, tmp_path: Path, run: Runs, how: signal.Signals
) -> None:
    script = script_of(pair.conninfo(), tmp_path / "failover", 400, **TABLES)
    assert run(up_to(script, 1)) == 0
    edges = set()
    for epoch in itertools.count(1):
        edge = _goes_on(pair, script, run, epoch, "before open_epoch", epoch, how)
        if not edge:
            break
        edges.add(edge)
    assert edges >= {
        *("before open_epoch", "before write", "before pre_commit"),
        *("before commit:two-phase", "before commit:staged", "after commit:staged"),
    }


LAGS = [
    pytest.param("after open_epoch", {"staged": 0, "two-phase": 0}, marks=pytest.mark.proof),
    pytest.param("after pre_commit", {"staged": 0, "two-phase": 0}, marks=pytest.mark.proof),
    pytest.param("after decide", {"staged": 0, "two-phase": 0}, marks=pytest.mark.proof),
    ("after commit:two-phase", {"staged": 0, "two-phase": 1}),
    pytest.param("after commit:staged", {"staged": 1, "two-phase": 1}, marks=pytest.mark.proof),
]


@pytest.mark.parametrize(("place", "holds"), LAGS)
def test_a_standby_that_lags_stops_the_job_until_it_is_rebased(
    pair: Pair, tmp_path: Path, run: Runs, place: str, holds: Mapping[str, int]
) -> None:
    script = script_of(pair.conninfo(), tmp_path / "lags", 5, **TABLES)
    assert run(up_to(script, 1)) == 0
    late = pair.new(pair.primary)
    late.start()
    step = Step(partial(halt, late.pid, pair.primary.conninfo()), script.folder / "step", place, 1)
    assert run(up_to(script, 3), step) == 0
    assert step.fired
    pair.took_over(late)
    late.stop()
    late.start()
    late.execute("SELECT pg_promote()")
    for _ in range(2):
        assert run(script) == InDoubtError.exit_code
        assert f"sink staged: its target holds epoch {holds['staged']} " in said(script)
        assert "the journal expects epoch 2 " in said(script)
    stood = {table: Counter(range(20 * holds[sink] + 20)) for sink, table in (("staged", "u"), ("two-phase", "t"))}
    assert {table: counted(pair.conninfo(), table) for table in stood} == stood
    assert _rebased(script) == holds
    assert run(script) == 0
    after = Counter(range(60, 100))
    assert {table: counted(pair.conninfo(), table) for table in stood} == {t: n + after for t, n in stood.items()}
    assert pair.execute("SELECT count(*) FROM pg_prepared_xacts") == [(0,)]


def _rebased(script: Script) -> Mapping[str, int | None]:
    """Take what stands in the targets for the truth, as `rebase` does; return it."""
    journal = script.journal
    log = journal.read()
    found = []
    for name, sink in script.sinks.items():
        with closing(sink.backend.committer(JobContext(script.job, name, "", 0, log.lineage))) as committer:
            mark = committer.mark() or Mark("")
            found.append(Expected(name, sink.backend.target, mark, mark))
    journal.claim("query", "operator")
    journal.rebase(found, "query", 3, 3, "operator")
    return {expected.sink: expected.now.epoch for expected in found if expected.now is not None}


EDGES: list[tuple[Literal["before", "after"], str, int]] = [("before", "two-phase", 2), ("after", "staged", 3)]


@pytest.mark.proof
def test_a_server_that_is_put_back_from_a_copy_loses_no_row_in_silence(pair: Pair, tmp_path: Path, run: Runs) -> None:
    server = pair.primary
    script = script_of(pair.conninfo(), tmp_path / "snapshot", 5, **TABLES)

    def killed(batches: int, edge: Literal["before", "after"], sink: str) -> None:
        fault = FaultTrigger(Fault(f"commit:{sink}", edge, "kill", batches - 1), script.folder / f"{batches}.fired")
        assert run(up_to(script, batches), fault) == KILLED

    def hold(batches: int) -> bool:
        return all(counted(pair.conninfo(), table) == Counter(range(20 * batches)) for table in TABLES.values())

    assert run(up_to(script, 1)) == 0
    server.save("e0")
    for edge, sink, batches in EDGES:
        killed(batches, edge, sink)
        server.put_back(f"e{batches - 2}")
        assert run(up_to(script, batches)) == 0
        assert hold(batches), "all is gone, and written again"
        server.save(f"e{batches - 1}")
    killed(4, "before", "two-phase")
    server.save("decided")
    assert run(up_to(script, 4)) == 0
    server.put_back("decided")  # what was complete is only prepared again
    assert run(up_to(script, 4)) == 0
    assert hold(4)
    for saved in (1, 0):
        server.put_back(f"e{saved}")
        assert run(script) == InDoubtError.exit_code
        assert f"its target holds epoch {saved} " in said(script)
        assert hold(saved + 1)
