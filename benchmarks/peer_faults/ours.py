"""Ours under each fault: `exactsink run` on a job's file, killed, and started again."""

from __future__ import annotations

import re
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.e2e.drivers import Drivers
from tests.e2e.jobs import DELTA, ICEBERG, PARTICIPANTS, SPARK, TWO_FILES, ids, write_job, write_source
from tests.e2e.kafka_job import kafka_sink_of
from tests.servers.waiting import wait_until

from benchmarks.peer_faults import held
from benchmarks.peer_faults.plays import BETWEEN, FILES, IN_BATCH, OURS, TIMED_OUT, Play, Played, Stage, require
from exactsink.testing import Fault

__all__ = ["PLAYS"]

_TIMEOUT = 30
_POSTGRES = """
[sinks.{table}]
backend = "postgres"
conninfo = "{conninfo}"
table = "{table}"
columns = ["id", "kind", "amount"]
strategy = "two_phase"
"""
_LAKE = """
[sinks.lake]
backend = "files"
path = "{folder}/lake"
"""
_PREPARED = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
_WARNING = re.compile(r"WARNING exactsink (\w+) .*\btxn=(\S+)")


@dataclass(frozen=True, slots=True)
class _Sink:
    """One of a job's two sinks: its name, its part of the file, and its target's visible rows."""

    name: str
    target: str
    part: str
    seen: Callable[[], Counter[int]]
    undecided: Callable[[], bool]
    """Return whether a task's rows wait there for the decision; in Postgres, those of exactly one task that voted."""


def _kafka(stage: Stage) -> _Sink:
    sink = kafka_sink_of(stage.kafka)
    return _Sink(sink.name, "Kafka", sink.sink(), lambda: stage.in_topic(sink.topic), lambda: sink.held)


def _files(stage: Stage) -> _Sink:
    aside = stage.folder / "lake" / "_exactsink"
    return _Sink("lake", "files", _LAKE, lambda: stage.in_files, lambda: any(aside.rglob("*.tmp")))


def _delta(stage: Stage) -> _Sink:
    records = stage.folder / "delta" / "_exactsink"
    return _Sink("delta", "Delta", DELTA, lambda: stage.in_delta, lambda: any(records.glob(f"*.e{held.EPOCH}.*")))


def _iceberg(stage: Stage) -> _Sink:
    records = stage.folder / "iceberg" / "_exactsink" / "default.shop.rows"
    undecided = partial(records.glob, f"*.e{held.EPOCH}.*")
    return _Sink("iceberg", "Iceberg", ICEBERG, lambda: stage.in_iceberg, lambda: any(undecided()))


def _postgres(stage: Stage) -> _Sink:
    """Make a table. The sink has its name, because the database has the marks of all plays, by their sinks."""
    table = stage.new_table(f"rows{uuid.uuid4().hex[:8]}")
    part = _POSTGRES.format(conninfo=stage.postgres.tcp, table=table)
    return _Sink(table, "Postgres", part, lambda: stage.in_table(table), lambda: len(stage.asked(_PREPARED)) == 1)


def _timed_out(stage: Stage) -> Played:
    sink = kafka_sink_of(stage.kafka)
    job = _job(stage, sink.sink(f"transaction_timeout_seconds = {_TIMEOUT}"), 'epoch_budget = "20 seconds"\n')
    with _drivers(stage) as drivers:
        drivers.killed(job, Fault("decide", "after", "kill", held.EPOCH), jvm=stage.jvm)
        require(sink.epochs == 1 and sink.held, "one epoch is committed, and the next decided and open")
        wait_until(lambda: not sink.held, "the broker to abort what nobody committed")
        require(sink.epochs == 1 and not sink.open, "the decided transactions are aborted")
        reported = _reported(drivers.whole(job, jvm=stage.jvm))
    return Played(ids(FILES), {"Kafka": stage.in_topic(sink.topic)}, reported)


def _in_batch(of: Callable[[Stage], _Sink], stage: Stage) -> Played:
    first, second = of(stage), _postgres(stage)
    job = _job(stage, first.part + second.part, 'transform = "benchmarks.peer_faults.held:hold"\n')

    def one_task_is_done() -> bool:
        return stage.holds and first.undecided() and second.undecided()

    with _drivers(stage) as drivers:
        driver = drivers.start(job)  # with its own JVM, which is killed with it
        driver.until(one_task_is_done, "a task that holds while another has voted")
        driver.send(signal.SIGKILL)
        driver.end()
        require(first.seen() == second.seen() == ids(PARTICIPANTS), "one epoch is committed")
        reported = _reported(drivers.whole(job, jvm=stage.jvm))
    return Played(ids(FILES), {sink.target: sink.seen() for sink in (first, second)}, reported)


def _between(of: Callable[[Stage], _Sink], then: Callable[[Stage], _Sink], stage: Stage) -> Played:
    first, second = of(stage), then(stage)
    job = _job(stage, first.part + second.part)
    fault = Fault(f"commit:{second.name}", "before", "kill", held.EPOCH)
    with _drivers(stage) as drivers:
        drivers.killed(job, fault, first=f"commit:{first.name}", jvm=stage.jvm)
        ahead = first.seen() == ids(2 * PARTICIPANTS) and second.seen() == ids(PARTICIPANTS)
        require(ahead, f"{first.target} is an epoch ahead of {second.target}")
        reported = _reported(drivers.whole(job, jvm=stage.jvm))
    return Played(ids(FILES), {sink.target: sink.seen() for sink in (first, second)}, reported)


PLAYS = (
    Play(f"{OURS}: kafka", TIMED_OUT, _timed_out),
    Play(f"{OURS}: kafka, postgres two_phase", IN_BATCH, partial(_in_batch, _kafka)),
    Play(f"{OURS}: kafka, postgres two_phase", BETWEEN, partial(_between, _kafka, _postgres)),
    Play(f"{OURS}: files, postgres two_phase", IN_BATCH, partial(_in_batch, _files)),
    Play(f"{OURS}: files, postgres two_phase", BETWEEN, partial(_between, _files, _postgres)),
    Play(f"{OURS}: delta, postgres two_phase", IN_BATCH, partial(_in_batch, _delta)),
    Play(f"{OURS}: delta, kafka", BETWEEN, partial(_between, _delta, _kafka)),
    Play(f"{OURS}: iceberg, postgres two_phase", IN_BATCH, partial(_in_batch, _iceberg)),
    Play(f"{OURS}: iceberg, kafka", BETWEEN, partial(_between, _iceberg, _kafka)),
)


def _job(stage: Stage, sinks: str, job: str = "") -> Path:
    write_source(stage.folder, FILES)
    spark = SPARK + "".join(f'"{key}" = "{value}"\n' for key, value in held.CONF.items())
    return write_job(stage.folder, sinks, job, TWO_FILES, spark)


@contextmanager
def _drivers(stage: Stage) -> Iterator[Drivers]:
    with ExitStack() as stack:
        yield Drivers(stage.folder, stack, stage.forks)


def _reported(printed: str) -> str:
    """Return the warnings of a job that ended well, and for how many participants."""
    events = Counter(event for event, _ in set(_WARNING.findall(printed)))
    return "; ".join(["exit 0", *([f"{event} x {count}" for event, count in sorted(events.items())] or ["no warning"])])
