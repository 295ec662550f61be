"""A job of the night: its files, targets and source, and who acts on it: a driver run, a command, a person.

Everything is real but Spark: `exactsink run FILE`, wherever it is printed, is played by `_drive`. That is the one
substitution. It looks at the sinks as `run` does, starts the product's driver, and keeps a checkpoint as Spark does:
`metadata`, `offsets/N` with the time of planning in it, `commits/N`. Every other command is the command line itself.
Each runs in a process of its own, forked from this one so that nothing has to be imported again.
"""

from __future__ import annotations

import faulthandler
import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.dataset as ds

from exactsink.cli.main import main
from exactsink.cli.opened import Opened
from exactsink.contract import EXIT_BUG, ExactsinkError, Retryable
from exactsink.job.checkpoint import Checkpoint
from exactsink.job.driver import Driver
from exactsink.operate.preflight import Found, ask_sink, look_at_journal, promise_refusals
from exactsink.operate.reachable import reachable
from exactsink.protocol.coordinator import Batch
from exactsink.protocol.events import Events
from exactsink.protocol.participant import Probe, no_probe
from exactsink.protocol.votes import EpochPlan, Vote
from exactsink.testing import Fault
from exactsink.testing.faults import FaultTrigger
from tests.integration.operated_job import votes_of
from tests.printed import Answer
from tests.servers.postgres import PostgresServer

CUT = 6
"""Rows of a batch, in two partitions."""

PARTS = ("journal", "checkpoint", "lake", "table", "db")
HANGS = -1
_LONGEST_SECONDS = 90.0
_SINKS = {
    "lake": 'backend = "files"\npath = "{folder}/lake"\n',
    "table": 'backend = "idempotent_upsert"\nurl = "sqlite:///{folder}/table.db"\ntable = "rows"\nkeys = ["id"]\n'
    "create = true\n",
    "db": 'backend = "postgres"\nconninfo = "{conninfo}"\ntable = "rows"\ncreate = true\n',
}


class NotReachedError(AssertionError):
    """A fault did not fire, so the state that was to be played is none."""


@dataclass
class NightJob:
    """One state's job, in a folder of its own, and in a database of its own where it has the sink `db`."""

    folder: Path
    server: PostgresServer
    sinks: Sequence[str] = ("lake", "table", "db")
    uid: int = 0
    """As whom the service and its operator run; 0 is this process's user."""

    as_root: bool = False
    """Whether the next command is given by root, though the service is another user's."""

    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.database = f"night_{uuid.uuid4().hex[:12]}"
        self.checkpoint, self.history = self.folder / "chk", self.folder / "chk.exactsink"
        self.file = self.folder / "job.toml"
        if "db" in self.sinks:
            self.server.create_database(self.database)
        head = f'[job]\nname = "orders"\ncheckpoint = "{self.checkpoint}"\n\n'
        given = {"folder": self.folder, "conninfo": self.server.conninfo(self.database)}
        self.file.write_text(head + "\n".join(f"[sinks.{s}]\n{_SINKS[s].format(**given)}" for s in self.sinks))
        self.rows, self.cut = 0, CUT
        if self.uid:
            for path in (self.folder, self.file):
                os.chown(path, self.uid, self.uid)

    def warm(self) -> None:
        """Import all that a driver run and an operator need: processes that are forked from this one have it then."""
        self.rows = CUT
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            self._drive(None)
            for name in ("status", "recover", "rebase", "verify", "check"):
                main([name, str(self.file), *(["--no-spark"] if name == "check" else [])])

    # -- who acts

    def batches(self, count: int) -> Answer:
        """Let so many more batches arrive, and run the job over them."""
        self.rows += count * CUT
        return self.do("exactsink", "run", str(self.file))

    def do(self, *words: str, fault: Fault | None = None, clock: float = 0.0) -> Answer:
        """Do what the words say, `exactsink run` as a driver run that may meet a fault or has another clock."""
        mark = self.folder / f"{uuid.uuid4().hex[:8]}.fired"
        trigger = FaultTrigger(fault, mark) if fault is not None else None
        ended = self._ended(words, self._forked(words, trigger, clock))
        self.as_root = False
        self._say(ended)
        if trigger is not None and not trigger.fired:
            raise NotReachedError(f"{fault} did not fire:\n{ended}")
        return ended

    def killed(self, point: str, edge: str, epoch: int | None) -> None:
        """Let two more batches arrive, and kill the driver there."""
        self.rows += 2 * CUT
        ended = self.do("exactsink", "run", str(self.file), fault=Fault(point, edge, "kill", epoch))  # type: ignore[arg-type]
        if ended.code != -signal.SIGKILL:
            raise NotReachedError(f"the driver was not killed:\n{ended}")

    def stalled(self, point: str, edge: str, epoch: int) -> int:
        """Let two more batches arrive, and stop the driver there with SIGSTOP; return its process id."""
        self.rows += 2 * CUT
        words = ("exactsink", "run", str(self.file))
        pid = self._forked(words, FaultTrigger(Fault(point, edge, "stall", epoch), self.folder / "stall"), 0.0)  # type: ignore[arg-type]
        if not os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1]):
            raise NotReachedError("the driver was not stalled")
        return pid

    def _say(self, ended: Answer) -> None:
        self.said.append(f"$ {' '.join(ended.words)}\n{ended.out}{ended.err}exit {ended.code}\n")

    def wake(self, pid: int) -> Answer:
        """Let a stalled driver go on to its end."""
        os.kill(pid, signal.SIGCONT)
        ended = self._ended(("exactsink", "run", "(woken)"), pid)
        self._say(ended)
        return ended

    def minute_passes(self) -> None:
        """Let a minute pass: a heartbeat that is not a live driver's is older then."""
        for path in self.history.rglob("state.json"):
            state = json.loads(path.read_text())
            if isinstance(state.get("heartbeat"), int | float) and state["heartbeat"] <= time.time():
                path.write_text(json.dumps({**state, "heartbeat": state["heartbeat"] - 61}))

    def _forked(self, words: Sequence[str], trigger: FaultTrigger | None, clock: float) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = EXIT_BUG
        try:
            for number, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(self.folder.parent / name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o666), number)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
            faulthandler.enable(sys.stderr)
            os.chdir(self.folder)
            if self.uid and not self.as_root and words[0] != "sudo":
                os.setgroups([])
                os.setgid(self.uid)
                os.setuid(self.uid)
            if clock:
                now = time.time
                time.time = lambda: now() + clock
            code = self._answer(words, trigger)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _answer(self, words: Sequence[str], trigger: FaultTrigger | None) -> int:
        if words[0] != "exactsink":
            return subprocess.run([word for word in words if word != "sudo"]).returncode
        return self._drive(trigger) if words[1] == "run" else main(words[1:])

    def _ended(self, words: Sequence[str], pid: int) -> Answer:
        """Wait for a process; one that takes too long hangs. It prints where, and is killed."""
        handle, until, hangs = os.pidfd_open(pid), time.monotonic() + _LONGEST_SECONDS, False
        try:
            while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                if time.monotonic() > until:
                    os.kill(pid, signal.SIGKILL if hangs else signal.SIGABRT)
                    hangs, until = True, until + 5
                time.sleep(0.01)
        finally:
            os.close(handle)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out, err = ((self.folder.parent / name).read_text() for name in ("out", "err"))
        return Answer(tuple(words), HANGS if hangs else code, out, err)

    # -- a driver run, with Spark's part

    def _drive(self, trigger: FaultTrigger | None) -> int:
        try:
            opened = Opened.of(self.file)
            reachable(opened.config, opened.sinks)
            name, schema = opened.config.job.name, pa.schema([("id", pa.int64())])
            findings = {sink: ask_sink(name, bound, schema) for sink, bound in opened.sinks.items()}
            refusals, warnings = look_at_journal(opened.config)
            Found(findings, [*promise_refusals(opened.config, opened.sinks, stream=True), *refusals], warnings).refuse()
            driver = Driver(opened.history, opened.sinks, Events(opened.history.job, [trigger] if trigger else []))
            with closing(driver):
                self._batches(driver, opened, trigger.probe if trigger else no_probe)
            return 0
        except OSError as error:  # as `supervise` explains it
            refused = Retryable("the system refused a file", why=str(error), next="fix that, then start the job again")
            print(f"exactsink: {refused}", file=sys.stderr)
            return refused.exit_code
        except ExactsinkError as error:
            print(f"exactsink: {error}", file=sys.stderr)
            return error.exit_code

    def _batches(self, driver: Driver, opened: Opened, probe: Probe) -> None:
        checkpoint, journal = Checkpoint(opened.config.checkpoint), driver.journal
        query = checkpoint.query_id()
        if query is None:
            checkpoint.check_bound(journal.read())
            query = str(uuid.uuid4())
            for name in ("commits", "offsets"):
                (self.checkpoint / name).mkdir(parents=True, exist_ok=True)
            _put(self.checkpoint / "metadata", json.dumps({"id": query}))
        (self.checkpoint / "commits").mkdir(exist_ok=True)  # as Spark does at each start
        driver.coordinator.start(query, lambda epoch: checkpoint.is_epoch_done(epoch, journal.log))
        number = checkpoint.next_batch()
        while (rows := self._planned(number)) is not None:
            epoch = journal.log.base + number
            previous, fingerprint = checkpoint.previous(number), checkpoint.fingerprint(number)
            schemas = dict.fromkeys(opened.sinks, pa.schema([("id", pa.int64())]))
            write = self._tasks(opened, rows, probe)
            driver.coordinator.run_epoch(Batch(epoch, fingerprint, schemas, write, previous=previous))
            (self.checkpoint / "commits" / str(number)).write_text("v1\n{}")
            driver.coordinator.returned(epoch)
            number += 1

    def _tasks(self, opened: Opened, rows: range, probe: Probe) -> Callable[[EpochPlan], Sequence[Vote]]:
        half = (len(rows) + 1) // 2
        parts = [pa.table({"id": pa.array(part, pa.int64())}) for part in (rows[:half], rows[half:])]
        backends = {name: sink.backend for name, sink in opened.sinks.items()}

        def write(plan: EpochPlan) -> Sequence[Vote]:
            with open(self.folder / "ledger", "a") as ledger:
                print(json.dumps([plan.epoch, rows.start, rows.stop]), file=ledger)
                if os.geteuid() == 0:
                    os.fchown(ledger.fileno(), self.uid, self.uid)  # this program's own file
            return votes_of(plan, backends, parts, probe)

        return write

    def _planned(self, number: int) -> range | None:
        """Return a batch's rows, planned now if they were not; None where the source has no more."""
        start, plan = self._end_of(number - 1), self.checkpoint / "offsets" / str(number)
        if not plan.exists():
            if start >= self.rows:
                return None
            _put(plan, f'v1\n{{"batchTimestampMs":{time.time_ns()}}}\n{min(start + self.cut, self.rows)}')
        return range(start, self._end_of(number))

    def _end_of(self, number: int) -> int:
        plan = self.checkpoint / "offsets" / str(number)
        return int(plan.read_text().splitlines()[-1]) if number >= 0 else 0

    # -- what is kept, and put back

    def save(self) -> None:
        """Copy each part as it is now: a backup."""
        for name, path in self._places().items():
            if path.exists():
                (self.folder / "copy").mkdir(exist_ok=True)
                subprocess.run(["cp", "-a", path, self.folder / "copy" / name], check=True)
        if "db" in self.sinks:
            self.server.execute(f"CREATE DATABASE {self.database}_copy TEMPLATE {self.database}")

    def put_back(self, *parts: str) -> None:
        """Put these parts back from the backup: what they held since is gone."""
        for part in parts:
            if part == "db":
                self.drop_database()
                self.server.execute(f"CREATE DATABASE {self.database} TEMPLATE {self.database}_copy")
                continue
            path = self._places()[part]
            self.remove(path)
            for end in ("-wal", "-shm"):  # a killed driver leaves them: SQLite would apply them to the older file
                path.with_name(path.name + end).unlink(missing_ok=True)
            subprocess.run(["cp", "-a", self.folder / "copy" / part, path], check=True)

    def drop_database(self) -> None:
        """Drop the sink db's database, and what stands prepared in it."""
        for gid in self.prepared():
            self.server.execute(f"ROLLBACK PREPARED '{gid}'", self.database)
        self.server.execute(f"DROP DATABASE {self.database} WITH (FORCE)")

    def remove(self, path: Path) -> None:
        """Delete a file or a folder that has to be there."""
        if not path.exists():
            raise NotReachedError(f"{path} is not there")
        (shutil.rmtree if path.is_dir() else os.unlink)(path)

    def prepared(self) -> Sequence[str]:
        """Return what stands prepared in the sink db's database."""
        found = self.server.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid", self.database
        )
        return [str(gid) for (gid,) in found]

    def _places(self) -> Mapping[str, Path]:
        places = {"journal": self.history, "checkpoint": self.checkpoint}
        return {**places, "lake": self.folder / "lake", "table": self.folder / "table.db"}

    # -- what is there

    def ledger(self) -> Mapping[int, range]:
        """Return which rows each epoch was planned with last."""
        lines = (self.folder / "ledger").read_text().splitlines() if (self.folder / "ledger").exists() else []
        return {epoch: range(start, stop) for epoch, start, stop in map(json.loads, lines)}

    def held(self) -> Mapping[str, Counter[int]]:
        """Return how often a reader finds each row, by sink."""
        return {sink: Counter(getattr(self, f"_in_{sink}")()) for sink in self.sinks}

    def _in_lake(self) -> list[int]:
        files = [str(path) for path in (self.folder / "lake").glob("*.parquet")]
        return ds.dataset(files, format="parquet").to_table()["id"].to_pylist() if files else []

    def _in_table(self) -> Iterator[int]:
        if not (self.folder / "table.db").exists():
            return
        with closing(sqlite3.connect(self.folder / "table.db")) as connection:
            yield from (number for (number,) in connection.execute("SELECT id FROM rows"))

    def _in_db(self) -> list[int]:
        with psycopg.connect(self.server.conninfo(self.database), autocommit=True) as session:
            return [number for (number,) in session.execute("SELECT id FROM rows").fetchall()]


def _put(path: Path, text: str) -> None:
    """Write a file as Spark does: whole, or not there."""
    made = path.with_name(f".{path.name}.tmp")
    made.write_text(text)
    made.rename(path)
