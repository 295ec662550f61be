"""A job of one sink on a disk that forgets: the real coordinator's driver runs, and what a power cut leaves of them."""

from __future__ import annotations

import errno
import json
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import pyarrow as pa

from exactsink.contract import Backend, Event, ExactsinkError, Retryable
from exactsink.observe.state import StateFile
from exactsink.protocol.commit import Retry, SinkCommit
from exactsink.protocol.coordinator import Batch, Coordinator
from exactsink.protocol.events import Events
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.stores.local import LocalStore
from exactsink.protocol.participant import no_probe, write_partition
from exactsink.protocol.sinks import Sink
from exactsink.protocol.votes import EpochPlan, Vote
from exactsink.testing.driver_run import hashed
from exactsink.toolkit.storage import make_folder, storage_errors
from exactsink_files.backend import FilesBackend, FilesOptions
from exactsink_idempotent_upsert.backend import UpsertBackend, UpsertOptions
from tests.simulation.disk import LOOKS, Disk, Fault, Image, write
from tests.unit import keyed_store
from tests.unit.os_faults import Killed
from tests.unit.upsert_sink import LOG_EVERY_APPLICATION

TARGETS = "targets"
"""What lies below is the business of a target that is durable by itself."""
JOB = "orders"
EPOCHS = [[[0, 1], [2]], [[3, 4], [5]]]
"""Each epoch's rows by partition: their ids."""
CHANGES_OF_A_CLAIM = 12
MANY = 3
"""Of the cuts after each kill, so every manieth is played: they are thousands."""
RESTARTS = 3
TASK_ATTEMPTS = 2


class Broken(AssertionError):
    """The promise, on this disk."""


class Lake:
    """Files on the disk itself."""

    def backend(self, root: Path) -> Backend:
        return FilesBackend(FilesOptions(path=str(root / "lake"), format="json", partition_by=["kind"]))

    def make(self, root: Path) -> None:
        """The sink makes all it needs."""

    def rows(self, root: Path) -> Counter[int]:
        found = [path for path in (root / "lake").rglob("*.json") if "_exactsink" not in path.parts]
        lines = [line for path in found for line in path.read_text().splitlines()]
        return Counter(json.loads(line)["id"] for line in lines)

    def table(self, ids: Sequence[int]) -> pa.Table:
        return pa.table({"id": ids, "kind": [n % 2 for n in ids]})


class Keyed(Lake):
    """Staged rows, proofs beside them, and a store of keys."""

    def backend(self, root: Path) -> Backend:
        return keyed_store.backend(root / TARGETS)

    def make(self, root: Path) -> None:
        keyed_store.make_store(root / TARGETS)

    def rows(self, root: Path) -> Counter[int]:
        return keyed_store.puts(root / TARGETS)

    def table(self, ids: Sequence[int]) -> pa.Table:
        return pa.table({"id": ids})


class Table(Keyed):
    """Staged rows, and a database that counts what is applied to it."""

    def backend(self, root: Path) -> Backend:
        url = f"sqlite:///{root / TARGETS / 'shop.db'}"
        return UpsertBackend(UpsertOptions.model_validate({"url": url, "table": "t", "keys": ["id"]}))

    def make(self, root: Path) -> None:
        with closing(sqlite3.connect(root / TARGETS / "shop.db")) as database:
            database.executescript("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT);" + LOG_EVERY_APPLICATION)

    def rows(self, root: Path) -> Counter[int]:
        with closing(sqlite3.connect(root / TARGETS / "shop.db")) as database:
            return Counter(n for (n,) in database.execute("SELECT id FROM log"))


KINDS: Mapping[str, Lake] = {"lake": Lake(), "keyed": Keyed(), "table": Table()}


@dataclass(frozen=True)
class Cut:
    """What stands after a power cut: the disk, the durable targets, and how many epochs the source has done."""

    image: Image
    targets: frozenset[tuple[str, bytes]]
    done: int


@dataclass
class Play:
    """A job in a folder, with its source.

    `cuts` gathers what power cuts would leave after a change, wherever `at(change)` says so: all that is not synced or
    nothing of it, and, where `each(change)` says so, each single part of it.
    """

    kind: Lake
    root: Path
    at: Callable[[str], bool] = lambda change: False
    each: Callable[[str], bool] = lambda change: False
    cuts: dict[Cut, str] = field(default_factory=dict)
    done: int = 0
    changes: int = 0
    errors: list[str] = field(default_factory=list)
    may_lose_votes: bool = False
    watched: bool = True

    def __post_init__(self) -> None:
        (self.root / TARGETS).mkdir(parents=True)
        self.kind.make(self.root)
        self.disk = Disk(self.root)
        self.disk.seen = self._changed
        self._attempts = 0

    # -- driver runs

    def run(self, fault: Fault | None = None, *, watched: bool = True) -> ExactsinkError | None:
        """Run a driver, a new process, until the source is done or an error ends it; return that one."""
        self.disk.plan(fault)
        self.watched = watched
        ended: ExactsinkError | None = None
        with self.disk.watched(but=TARGETS) if watched else nullcontext(), suppress(Killed):
            for _ in range(RESTARTS + 1):
                try:
                    self._query()
                    return None
                except Retryable as error:
                    ended = error
                except ExactsinkError as error:
                    ended = error
                    break
        return ended

    def _query(self) -> None:
        with storage_errors(self.root, "the job's folder can't be made"):  # as `Driver` does
            make_folder(self.root / "job")
        sink = Sink("sink", "kind", self.kind.backend(self.root), str(self.root / "job" / "staging" / "sink"))
        coordinator = Coordinator(
            JOB,
            {"sink": sink},
            Journal(LocalStore(self.root / "job" / "journal", block_entries=2), wait=lambda attempt: None),
            Events(JOB, [self._heard]),
            driver="host:1",
            retry=Retry(3, lambda attempt: None),
            save_state=StateFile(self.root / "job" / "state.json").write,
            parallel=_one_by_one,
            now=lambda: 0.0,
        )
        coordinator.start("query", lambda epoch: epoch < self.done)
        while self.done < len(EPOCHS):
            coordinator.run_epoch(self._batch(self.done, sink))
            self.done += 1
        coordinator.close()

    def _batch(self, epoch: int, sink: Sink) -> Batch:
        tables = [self.kind.table(ids) for ids in EPOCHS[epoch]]

        def write(plan: EpochPlan) -> list[Vote]:
            return [vote for number, rows in enumerate(tables) for vote in self._task(plan, sink, number, rows)]

        previous = f"batch {epoch - 1}" if epoch else ""
        return Batch(epoch, f"batch {epoch}", {"sink": tables[0].schema}, write, previous=previous)

    def _task(self, plan: EpochPlan, sink: Sink, number: int, rows: pa.Table) -> list[Vote]:
        """Try a task as Spark does: another attempt after any error, which has to be one of ours here, too."""
        for attempt in range(TASK_ATTEMPTS):
            self._attempts += 1
            batches = [{"sink": (batch, hashed(batch))} for batch in rows.to_batches()]
            try:
                return list(write_partition(plan, {"sink": sink.backend}, number, self._attempts, batches, no_probe))
            except Retryable:
                if attempt + 1 == TASK_ATTEMPTS:
                    raise
        raise AssertionError("a task is tried at least once")

    def _heard(self, event: Event) -> None:
        """Note what was said to be committed and is not on the disk, and votes that it lost."""
        if event.name == "vote_lost" and not self.may_lose_votes:
            self.errors.append(f"a vote was not durable: {event.fields['evidence']}")
        if self.watched and event.name == "commit:sink" and event.edge == "after" and event.epoch is not None:
            shown = self._shown(next(self._left(each=False)))
            if missing := [n for part in EPOCHS[event.epoch] for n in part if not shown[n]]:
                self.errors.append(f"epoch {event.epoch} is reported committed, and {missing} may be gone")

    # -- power cuts

    def _changed(self, change: str) -> None:
        self.changes += 1
        if self.at(change):
            self.note_cuts(f"after change {self.changes}, {change}", each=self.each(change))

    def note_cuts(self, what: str, *, each: bool = False) -> None:
        """Gather what a power cut leaves now."""
        for cut in self._left(each):
            self.cuts.setdefault(cut, what)

    def _left(self, each: bool) -> Iterator[Cut]:
        targets = frozenset((p.name, p.read_bytes()) for p in (self.root / TARGETS).iterdir())
        for image in self.disk.images(each):
            yield Cut(image, targets, self.done)

    def _shown(self, cut: Cut) -> Counter[int]:
        """Count the rows on what a cut leaves, without a driver."""
        with TemporaryDirectory(dir=self.root.parent) as folder:
            _write(Path(folder), cut)
            return self.kind.rows(Path(folder))

    def restart(self, cut: Cut) -> None:
        """Let the machine start again on what a power cut left."""
        for path in self.root.iterdir():
            shutil.rmtree(path)
        _write(self.root, cut)
        self.disk.restarted(cut.image)
        self.done = cut.done

    def check_cuts(self, every: int = 1) -> int:
        """Start the job again on what each cut left, and finish the source's epochs. Raises Broken; counts the cuts."""
        cuts, self.cuts, self.at = list(self.cuts.items())[::every], {}, lambda change: False
        for cut, what in cuts:
            self.restart(cut)
            self.check(self.run(watched=False), f"power cut {what}")
        return len(cuts)

    def check(self, ended: ExactsinkError | None, what: str) -> None:
        """Raise Broken unless the source is done, and each of its rows is there once."""
        rows = self.kind.rows(self.root)
        expected = Counter(n for epoch in EPOCHS for part in epoch for n in part)
        if ended is not None or rows != expected or self.errors:
            raise Broken(f"{what}: ended {ended!r} with {sorted(rows.items())}, {self.errors}")


def _one_by_one(calls: Sequence[Callable[[], SinkCommit]]) -> Sequence[SinkCommit]:
    return [call() for call in calls]


def _write(root: Path, cut: Cut) -> None:
    write(root, cut.image)
    (root / TARGETS).mkdir()
    for name, data in cut.targets:
        (root / TARGETS / name).write_bytes(data)


@dataclass(frozen=True)
class Lab:
    """Where plays of one kind of sink are made; how many of the many, and which alone: those at calls that match.

    `omitted` are the syncs that a planted defect leaves out.
    """

    kind: str
    folder: Path
    every: int = 1
    only: str = ""
    omitted: str = ""

    def play(self) -> Play:
        made = Play(KINDS[self.kind], Path(mkdtemp(dir=self.folder)) / "disk")
        made.disk.omitted = self.omitted
        return made

    def calls(self) -> list[str]:
        """List the calls of a play in which nothing fails."""
        play = self.play()
        play.check(play.run(), "nothing fails")
        return play.disk.calls

    def syncs(self) -> list[int]:
        """Choose among a play's syncs, by their number."""
        syncs = [call for call in self.calls() if call.startswith("fsync")]
        return [nth for nth, call in enumerate(syncs, start=1) if self.chooses(call)][:: self.every]

    def chooses(self, call: str) -> bool:
        return re.search(self.only, call) is not None


def power_cuts(lab: Lab) -> int:
    """The power goes after any change."""
    play = lab.play()
    play.at = play.each = lambda change: play.changes % lab.every == 0 and lab.chooses(change)
    play.check(play.run(), "nothing fails")
    return play.check_cuts()


def kills(lab: Lab) -> int:
    """A driver is killed before any sync; the next one goes on, and the power goes after any of its changes."""
    count = 0
    for nth in lab.syncs():
        play = lab.play()
        play.run(Fault(nth, only="fsync"))
        assert play.disk.fired
        hit, claimed = play.disk.hit, play.changes + CHANGES_OF_A_CLAIM
        play.at, play.each = lambda change: True, lambda change, play=play, to=claimed: play.changes <= to  # type: ignore[misc]
        play.check(play.run(), f"killed before {hit}")
        count += play.check_cuts(max(lab.every, MANY))
    return count


def failed_syncs(lab: Lab) -> int:
    """A sync fails once, and what it was for never gets to the disk; later syncs succeed, then the power goes."""
    count = 0
    for nth in lab.syncs():
        play = lab.play()
        play.may_lose_votes = True
        play.at = lambda change, play=play: play.disk.fired  # type: ignore[misc]
        ended = play.run(Fault(nth, errno.EIO, only="fsync"))
        assert play.disk.fired
        hit, mounts = play.disk.hit, ended is not None and "mount" in ended.next
        if mounts:
            play.cuts.clear()  # the error asks for what the disk holds to be read anew: nothing else counts
        else:
            play.at = lambda change: True
            play.check(play.run(), f"started again after {hit} failed")
        play.note_cuts(f"in the end, after {hit} failed")
        play.cuts = dict(reversed(play.cuts.items()))
        count += play.check_cuts(lab.every)
    return count


def faults(lab: Lab) -> int:
    """Any call fails, before or after it took effect, once or for good; then the disk is well again."""
    cases = [
        Fault(nth, code, after, for_good)
        for nth, call in enumerate(lab.calls(), start=1)
        for code in ([errno.EIO] if call.split()[0] in LOOKS else [errno.ENOSPC, errno.EIO, errno.EROFS])
        for after in (False, True)
        for for_good in (False, True)
        if lab.chooses(call)
    ]
    for fault in cases[:: lab.every]:
        play = lab.play()
        try:
            ended = play.run(fault)
        except OSError as error:
            raise Broken(f"{fault}: {error!r} is none of ours") from error
        assert play.disk.fired
        if ended is not None and not (ended.what and ended.why and ended.next):
            raise Broken(f"{fault}: {ended!r} does not say what, why and what next")
        play.check(play.run(watched=False), f"after {fault}, {play.disk.hit}")
    return len(cases[:: lab.every])
