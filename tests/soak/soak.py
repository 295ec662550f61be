"""One job of many sinks that is killed again and again while its servers come and go, and what is measured of it."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.drivers import KILLED, Driver, Drivers
from tests.e2e.jobs import PARTICIPANTS, ROWS_A_BATCH, SPARK, TWO_FILES, lines_of, write_job
from tests.e2e.kafka_job import KafkaSink, kafka_sink_of
from tests.e2e.postgres_job import Database, database_of
from tests.e2e.warm_jvm import WarmJvm
from tests.servers.kafka import KafkaServer, own_kafka
from tests.servers.postgres import PostgresServer, own_postgres
from tests.servers.process import ServerProcess
from tests.servers.s3 import S3Server, own_s3
from tests.soak.growth import Sample, Slope, files_below, open_files, resident, slopes
from tests.soak.plan import Kill, Restart, kills, restarts

AHEAD = 3 * PARTICIPANTS
"""How many files the source is ahead of the job."""
LATEST = 120.0
"""Seconds until a driver has claimed its job, and until it has come to a named point; else it is killed where it is."""
TICK, EVERY, ASKED_EVERY = 0.25, 2.0, 20.0
"""Seconds between two looks at the driver, two samples, and two questions to the servers."""
_TRY_AGAIN = 75
_TABLES = "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'exactsink%'"
_IDLE = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in trans%'"


@dataclass(frozen=True)
class Site:
    """The job's folder and servers: Parquet and SQLite are in the folder, JSON lines on S3."""

    folder: Path
    postgres: PostgresServer
    kafka: KafkaServer
    s3: S3Server
    database: Database
    sink: KafkaSink
    bucket: str

    def job(self, trigger: str) -> Path:
        """Write the job's file."""
        sinks = re.sub(r"\{folder\}/lines", f"s3://{self.bucket}/lines", self.sink.sink() + self.database.sinks())
        conf = "".join(f'"spark.executorEnv.{name}" = "{value}"\n' for name, value in self.s3.environment.items())
        return write_job(self.folder, sinks, f'trigger = "{trigger}"\n', TWO_FILES, SPARK + conf)

    def restart(self, restart: Restart) -> Iterator[None]:
        """Stop a server, then start it again; in between the caller waits."""
        servers: Mapping[str, ServerProcess] = {"postgres": self.postgres, "kafka": self.kafka, "s3": self.s3}
        if restart.server == "postgres":
            self.postgres.stop("immediate" if restart.crash else "fast")
        elif restart.server == "kafka":
            self.kafka.stop("kill" if restart.crash else "term")
        else:
            self.s3.stop("term")  # not in the middle of a Complete: versitygw forgets such an upload, which is Unknown
        yield
        servers[restart.server].start()

    def uploads(self) -> int:
        """Count the unfinished uploads, as versitygw keeps them."""
        return len(list((self.s3.folder / "data" / self.bucket).glob(".sgwtmp/multipart/*/*")))

    def amiss(self) -> Mapping[str, object]:
        """Return what is not as it must be once the job has ended: rows, one by one in every sink, and leftovers."""
        found: dict[str, object] = {**self.database.amiss(self.folder)}
        found |= {f"kafka: {what}": amount for what, amount in self.sink.amiss(self.folder).items()}
        counts = {"unfinished uploads": self.uploads(), "idle in transaction": self.database.execute(_IDLE)[0][0]}
        return found | {what: count for what, count in counts.items() if count}


@contextmanager
def own_site(folder: Path) -> Iterator[Site]:
    """Start the servers, gone at the end. The S3 sink's objects are files in the folder, too."""
    with own_postgres() as postgres, own_kafka() as kafka, own_s3() as s3, database_of(postgres) as database:
        bucket = s3.new_bucket("soak")
        (folder / "lines").symlink_to(s3.folder / "data" / bucket / "lines")
        yield Site(folder, postgres, kafka, s3, database, kafka_sink_of(kafka), bucket)


class Soak:
    """Runs the job, kill after kill, and then on without kills. One thread: servers die with the one that made them."""

    def __init__(self, site: Site, drivers: Drivers, jvm: WarmJvm, seed: int, between: tuple[float, float]) -> None:
        self._site, self._drivers, self._jvm = site, drivers, jvm
        self._job = site.job("1 second")
        self._began = self._sampled = self._asked = time.monotonic()
        self._files = 0
        sinks = re.findall(r"(?m)^\[sinks\.(.+)\]", self._job.read_text())
        self._kills = kills(seed, sinks, between[0])
        self._restarts = restarts(seed, between[1])
        self._restart = next(self._restarts)
        self._restart_at = self._began + self._restart.pause
        self.samples: list[Sample] = []
        self.quiet: list[Sample] = []
        self.killed: Counter[str] = Counter()
        self.restarted: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.lost: set[tuple[str, str]] = set()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def rows(self) -> int:
        """How many rows the source has given."""
        return self._files * ROWS_A_BATCH

    @property
    def epoch(self) -> int:
        """The job's last complete epoch, -1 before the first."""
        found = self._state.get("complete_epoch")
        return -1 if found is None else int(found)

    @property
    def _state(self) -> Mapping[str, Any]:
        with suppress(FileNotFoundError):
            return dict(json.loads((self._site.folder / "checkpoint.exactsink" / "state.json").read_text()))
        return {}

    @property
    def of_last_driver(self) -> Sequence[Slope]:
        """How things went while the last driver was warm."""
        return slopes(self.quiet[len(self.quiet) // 4 :])

    def kill_until(self, end: float) -> None:
        """Start the job and kill it, until so many seconds after the beginning."""
        while self.seconds < end:
            self._killed(next(self._kills))

    def run_until(self, end: float) -> None:
        """Let one driver run on, then ask it to end: SIGTERM. Its own memory and files are sampled beside the rest."""
        driver = self._start()
        while (code := self._watch(driver, end - self.seconds, self.quiet)) is not None:
            self._again(driver, code)
            driver = self._start()
        driver.send(signal.SIGTERM)
        if code := driver.exit_code():  # cut off, say: a server was away for longer than it may take for its end
            self._again(driver, code)
        self._end(driver)

    def drain(self) -> None:
        """Run the job over the rest of its source."""
        self._drivers.whole(self._site.job("available_now"), jvm=self._jvm, environment=self._site.s3.environment)

    def _start(self, kill: Kill | None = None) -> Driver:
        faults = kill.faults(self.epoch) if kill else ()
        jvm = None if kill and kill.cold else self._jvm
        return self._drivers.start(self._job, *faults, jvm=jvm, environment=self._site.s3.environment)

    def _killed(self, kill: Kill) -> None:
        before, driver = self._state.get("generation"), self._start(kill)
        code = self._watch(driver, LATEST, self.samples, lambda: self._state.get("generation") != before)
        if code is None:
            code = self._watch(driver, LATEST if kill.point else kill.seconds, self.samples)
        if code is None:
            driver.send(signal.SIGKILL)
            self.killed["late, at any moment" if kill.point else str(kill)] += 1
        elif code == KILLED:
            self.killed[str(kill)] += 1
        driver.exit_code()
        self._end(driver)
        if code not in (None, KILLED):
            self._again(driver, code)

    def _again(self, driver: Driver, code: int | None) -> None:
        """Take the end of a driver run that nobody asked for: to start it again is all that an operator may need."""
        self._end(driver)
        said = re.findall(r"(?m)^exactsink: (.*)", driver.reported)
        self.ended[f"{code}: {said[-1][:100] if said else '?'}"] += 1
        assert code == _TRY_AGAIN, f"ended with {code}: {driver.reported[-6000:]}"

    def _end(self, driver: Driver) -> None:
        """Let a driver run be over, and keep which decided participants it found lost: no fault here takes one."""
        driver.end()
        self.lost |= lost_votes(driver.reported)

    def _watch(
        self, driver: Driver, seconds: float, samples: list[Sample], until: Callable[[], bool] = lambda: False
    ) -> int | None:
        """Feed the job, sample it, and restart what is due; return how its driver ended, None when it has not.

        For so many seconds at most, or `until` something is so.
        """
        end = self.seconds + seconds
        while (code := driver.ended_within(TICK)) is None and self.seconds < end and not until():
            self._feed()
            now = time.monotonic()
            if now >= self._restart_at:
                self._restart_server(driver)
            elif now >= self._sampled + EVERY:
                self._sampled = now
                samples.append(Sample(self.seconds, self.epoch, self._measured(driver)))
        return code

    def _restart_server(self, driver: Driver) -> None:
        for _ in self._site.restart(self._restart):
            driver.ended_within(self._restart.down)
        self.restarted[f"{self._restart.server}{', crash' if self._restart.crash else ''}"] += 1
        self._restart = next(self._restarts)
        self._restart_at = time.monotonic() + self._restart.pause

    def _feed(self) -> None:
        folder, wanted = self._site.folder, PARTICIPANTS * (self.epoch + 1) + AHEAD
        (folder / "source").mkdir(exist_ok=True)
        while self._files < wanted:
            path = folder / f"{self._files}.new"
            path.write_text("".join(f"{line}\n" for line in lines_of(self._files)))
            os.utime(path, (1_700_000_000 + self._files, 1_700_000_000 + self._files))
            path.rename(folder / "source" / f"{self._files}.json")
            self._files += 1

    def _measured(self, driver: Driver) -> Mapping[str, float]:
        history = self._site.folder / "checkpoint.exactsink"
        found: dict[str, Any] = {}
        for what, place in (("journal", history / "journal"), ("staging", history / "staging")):
            found[f"{what}: files"], found[f"{what}: bytes"] = files_below(place)
        found["lake: hidden files, marks too"] = files_below(self._site.folder / "lake" / "_exactsink")[0]
        found["S3: unfinished uploads"] = self._site.uploads()
        for who, pids in (("driver", [driver.pid]), ("JVM", [self._jvm.pid]), ("workers", self._jvm.workers)):
            found[f"{who}: MiB"], found[f"{who}: open files"] = resident(pids), open_files(pids)
        if self.epoch >= 0 and time.monotonic() >= self._asked + ASKED_EVERY:
            self._asked = time.monotonic()
            found["postgres: prepared"] = len(self._site.database.prepared)
            found["postgres: tables"] = self._site.database.execute(_TABLES)[0][0]
            found["postgres: markers"] = self._site.database.execute("SELECT count(*) FROM exactsink_epochs")[0][0]
            found["kafka: transactional ids"] = len(ids := self._site.sink.ids)
            found["kafka: open transactions"] = sum(each.state == "Ongoing" for each in ids.values())
        return found


def lost_votes(reported: str) -> set[tuple[str, str]]:
    """Return which participants of which sinks a driver's log says are lost."""
    return set(re.findall(r" vote_lost .*?\bsink=(\S+) txn=(\S+)", reported))
