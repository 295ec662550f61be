"""Standbys that are promoted between two steps of an epoch: one that has all goes on, one that lags stops the job."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest

from exactsink.contract import InDoubtError, JobContext, Retryable
from exactsink.protocol.journal.records import Expected
from exactsink.testing import Script
from tests.integration.postgres.driver_runs import Runs, Step, counted, fail_over, halt, said, script_of, up_to
from tests.integration.postgres.sinks import Staged
from tests.servers.postgres import PostgresServer, wait_until

TABLES = {"two_phase": "t", "staged": "u"}


class Pair:
    """A primary and its standby, which take turns; jobs reach the primary by a name for each of the two places."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._places = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="exactsink-pg-")))
        self.primary = self._started(None)
        for table in TABLES.values():
            self.primary.execute(f"CREATE TABLE {table} (id bigint, kind text)")

    @property
    def conninfo(self) -> str:
        hosts = ",".join(str(self._places / place) for place in "ab")
        return f"host={hosts} dbname=postgres user=postgres target_session_attrs=read-write"

    def standby(self) -> PostgresServer:
        """Make a standby, for which every commit waits from now on; promoted, it waits for none."""
        self._wait_for("")
        standby = self._started(self.primary)
        self._wait_for("*")
        synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        wait_until(lambda: self.primary.execute(synchronous) == [(1,)], "the standby")
        return standby

    def promoted(self, standby: PostgresServer) -> None:
        """Take a standby that was promoted for the primary."""
        self.primary.remove()
        self.primary = standby

    def lagging(self) -> PostgresServer:
        """Make a standby for which no commit waits, and which no name leads to."""
        standby = self._new(self.primary)
        standby.start()
        return standby

    def led_to(self, server: PostgresServer) -> None:
        """Let the jobs' name for the primary lead to another server."""
        self._name(server, lambda folder: folder == self.primary.folder)

    def _wait_for(self, standby: str) -> None:
        self.primary.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'")
        self.primary.execute("SELECT pg_reload_conf()")

    def _new(self, of: PostgresServer | None) -> PostgresServer:
        server = PostgresServer({"fsync": "off"}, of)  # who dies here does not come back
        self._stack.callback(server.remove)
        return server

    def _started(self, of: PostgresServer | None) -> PostgresServer:
        server = self._new(of)
        self._name(server, lambda folder: of is None or folder != of.folder)
        server.start()
        return server

    def _name(self, server: PostgresServer, instead: Callable[[Path], bool]) -> None:
        place = next(place for place in map(self._places.joinpath, "ab") if instead(place.resolve()))
        place.unlink(missing_ok=True)
        place.symlink_to(server.folder)


@pytest.fixture(scope="module")
def run() -> Iterator[Runs]:
    with closing(Runs()) as runs:
        yield runs


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack)


def _goes_on(pair: Pair, script: Script, run: Runs, epoch: int, place: str, trips: int = 0) -> str:
    """Fail over at a step of an epoch; return the edge that was reached last when it was done."""
    standby = pair.standby()
    act = partial(fail_over, pair.primary.pid, standby.conninfo())
    step = Step(act, script.folder / f"{epoch}-{place}-{trips}", place, epoch if trips == 0 else None, trips)
    try:
        assert run(up_to(script, epoch + 1), step) == 0, said(script)
    finally:
        pair.promoted(standby) if step.fired else standby.remove()
    for table in TABLES.values():
        assert counted(pair.primary.conninfo(), table) == Counter(range(20 * epoch + 20)), (step, step.fired)
    assert pair.primary.execute("SELECT count(*) FROM pg_prepared_xacts") == [(0,)]
    return step.fired


def test_a_synchronous_standby_goes_on_wherever_it_is_promoted(pair: Pair, tmp_path: Path, run: Runs) -> None:
    script = script_of(pair.conninfo, tmp_path / "failover", 9, **TABLES)
    assert run(up_to(script, 1)) == 0
    standby = pair.standby()
    with pytest.raises(Retryable, match="the server is a standby"):
        Staged(standby.conninfo()).mark()
    standby.remove()
    steps = ("after open_epoch", "after pre_commit", "after decide", "after commit:two-phase")
    for epoch, place in enumerate(steps, start=1):
        assert _goes_on(pair, script, run, epoch, place) == place


@pytest.mark.proof
def test_a_synchronous_standby_goes_on_before_each_round_trip_of_a_driver_run(
    pair: Pair, tmp_path: Path, run: Runs
) -> None:
    script = script_of(pair.conninfo, tmp_path / "failover", 400, **TABLES)
    assert run(up_to(script, 1)) == 0
    seen = set()
    for epoch in itertools.count(1):
        edge = _goes_on(pair, script, run, epoch, "before claim", trips=epoch)
        if not edge:
            break
        seen.add(edge)
    print(epoch, sorted(seen))
