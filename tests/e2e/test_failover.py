"""A Postgres server is lost between decision and commit: its standby takes over, or a copy of it is put back."""

from __future__ import annotations

import shlex
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from exactsink.cli.main import main
from exactsink.contract import Event, InDoubtError
from exactsink.spark import Job
from exactsink.spark.session import read_source
from exactsink.spark.supervise import supervise
from tests.e2e.jobs import PARTICIPANTS, ROWS_AN_EPOCH, TWO_FILES, in_lake, write_job, write_source
from tests.e2e.postgres_job import Database, database_of
from tests.servers.postgres_pair import Pair, fail_over

Act = Callable[[], object]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack)


@dataclass(frozen=True)
class Sparked:
    """A job with all sinks, whose epoch n has the rows ROWS_AN_EPOCH n and on."""

    spark: SparkSession
    folder: Path
    database: Database

    @property
    def file(self) -> Path:
        return self.folder / "job.toml"

    def run(self, epochs: int, *, decided: Act | None = None, at: tuple[str, str] = ("decide", "after")) -> None:
        """Run until so many epochs are complete; once, after the last one's decision or `at`, `decided` is called."""
        write_job(self.folder, self.database.sinks(), source=TWO_FILES)
        write_source(self.folder, epochs * PARTICIPANTS)
        once = _Once((*at, epochs - 1), decided)
        job = Job.from_toml(self.file, [once])
        supervise(job, lambda: read_source(job.config, self.spark), wait=lambda attempt: None)
        job.close()
        assert once.acted == (decided is not None)

    def stops(self, epochs: int, says: str) -> None:
        """Run, twice, a job that can't go on, and changes nothing."""
        before = self.database.trace()
        for _ in range(2):
            with pytest.raises(InDoubtError, match=says):
                self.run(epochs)
        assert self.database.trace() == before

    def rebase(self, capsys: pytest.CaptureFixture[str]) -> str:
        """Do what `rebase` says is to be done; return what it has shown."""
        assert main(["rebase", str(self.file)]) == 0
        shown = capsys.readouterr().out
        _, command = shown.split("to go on from the targets' marks: exactsink ")
        assert main([*shlex.split(command.splitlines()[0]), "--take-over"]) == 0
        return shown

    def holds(self, table: str) -> Counter[int]:
        return Counter(row for (row,) in self.database.execute(f"SELECT id FROM {table}"))


@dataclass
class _Once:
    """Acts once, at an edge of an epoch."""

    edge: tuple[str, str, int]
    act: Act | None
    acted: bool = field(default=False)

    def __call__(self, event: Event) -> None:
        if self.act and not self.acted and (event.name, event.edge, event.epoch) == self.edge:
            self.acted = True
            self.act()


@pytest.fixture
def job(spark: SparkSession, pair: Pair, tmp_path: Path) -> Iterator[Sparked]:
    with database_of(pair) as database:
        yield Sparked(spark, tmp_path, database)


def _rows(*epochs: int) -> Counter[int]:
    return Counter(row for epoch in epochs for row in range(ROWS_AN_EPOCH * epoch, ROWS_AN_EPOCH * (epoch + 1)))


@pytest.mark.proof
def test_a_synchronous_standby_goes_on_and_one_that_lags_is_rebased(
    pair: Pair, job: Sparked, capsys: pytest.CaptureFixture[str]
) -> None:
    job.run(1)
    late, standby = pair.new(pair.primary), pair.standby()
    job.run(2, decided=partial(fail_over, pair.primary.pid, standby.conninfo()))
    pair.took_over(standby)
    job.run(3)
    assert job.database.amiss(job.folder) == {}

    pair.took_over(late)
    late.start()
    late.execute("SELECT pg_promote()")
    job.stops(4, "sink db: its target holds epoch 0 .* the journal expects epoch 2 ")
    assert job.rebase(capsys).count("epochs 1 to 2 are not read again") == 2
    job.run(4)
    assert in_lake(job.folder) == _rows(0, 1, 2, 3)
    assert job.holds("db") == job.holds("later") == _rows(0, 3)
    assert job.database.prepared == job.database.staged == []


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_a_job_goes_on_while_postgresql_is_switched_over_at_each_step(pair: Pair, job: Sparked) -> None:
    """Planned: the primary stops cleanly, and its standby is promoted. PostgreSQL 15, as Debian has it."""
    points = ("open_epoch", "vote", "decide", "commit:db", "commit:later", "complete")
    job.run(1)
    for epochs, at in enumerate(((point, edge) for point in points for edge in ("before", "after")), start=2):
        standby = pair.standby()
        job.run(epochs, decided=partial(fail_over, pair.primary.pid, standby.conninfo(), signal.SIGINT), at=at)
        pair.took_over(standby)
    assert job.database.amiss(job.folder) == {}
    assert job.database.prepared == job.database.staged == []


def test_a_copy_that_is_put_back_before_the_commit_is_written_again_and_an_older_one_is_rebased(
    pair: Pair, job: Sparked, capsys: pytest.CaptureFixture[str]
) -> None:
    job.run(1)
    pair.primary.save("copy")
    job.run(2, decided=partial(pair.primary.put_back, "copy"))
    assert job.database.amiss(job.folder) == {}

    pair.primary.put_back("copy")
    job.stops(3, "sink db: its target holds epoch 0 .* the journal expects epoch 1 ")
    assert job.rebase(capsys).count("epoch 1 is not read again") == 2
    job.run(3)
    assert in_lake(job.folder) == _rows(0, 1, 2)
    assert job.holds("db") == job.holds("later") == _rows(0, 2)
