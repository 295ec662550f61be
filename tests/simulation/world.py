"""A world in memory: a journal's store, two sinks' backends and a Spark-like source, where every call can go wrong.

Nothing here uses threads, clocks or unseeded chance: a schedule replays to the step.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any, Literal, TypeVar

import greenlet
import pyarrow as pa

from exactsink.contract import ExactsinkError, Txn
from exactsink.protocol.journal import records
from exactsink.protocol.journal.log import Log
from exactsink.protocol.journal.records import BoundSink, Claim, Decide
from exactsink.protocol.journal.stores import SeqTaken

T = TypeVar("T")
Fault = Literal["crash_before", "crash_after", "refused", "answer_lost", "late"]
SINKS = ("lake", "table")
SCHEMA = pa.schema([("row", pa.string())])
CONFIG = tuple(BoundSink(sink, "memory", "memory", sink) for sink in SINKS)
JOB = "sim"
OTHER = "other"
"""A driver of this name is another job's of the same name: it has a journal of its own, and only starts."""

COPY = "copy"
"""A driver of this name runs a copy of the job's journal and checkpoint, made when it starts, on the same targets."""

decode = lru_cache(2048)(records.decode)


class Crash(BaseException):
    """The driver process died."""


class Violation(BaseException):
    """The promise is broken."""


@dataclass(frozen=True)
class Schedule:
    """What goes wrong, and who runs when; both by (actor, its step). `late_tasks` are losing attempts, whose prepare
    lands `n` steps later; `losses` are participants that the backend drops once their epoch is decided."""

    faults: Mapping[tuple[str, int], Fault] = field(default_factory=dict)
    switches: Mapping[tuple[str, int], str] = field(default_factory=dict)
    epochs: int = 3
    late_tasks: Mapping[int, int] = field(default_factory=dict)
    losses: frozenset[tuple[str, int, int]] = frozenset()
    dropped_rows: frozenset[int] = frozenset()
    recut: bool = False
    stale_lists: Mapping[str, int] = field(default_factory=dict)
    empty: frozenset[tuple[str, int]] = frozenset()
    marks: bool = True
    snapshots: Mapping[tuple[str, int], str] = field(default_factory=dict)
    restores: Mapping[tuple[str, int], Mapping[str, str]] = field(default_factory=dict)
    """By (actor, its step): which of PARTS go back to which snapshot; with the checkpoint, no driver survives it."""
    looks: bool = False
    """Whether reading a mark and committing each participant are steps of their own, as they are with restores."""
    configs: Mapping[str, tuple[BoundSink, ...]] = field(default_factory=dict)
    """The sinks of a driver's or an operator's config, where they are not CONFIG."""
    until: Mapping[str, int] = field(default_factory=dict)
    """Before which batch a driver ends of its own will."""
    restarts: int = 6
    after: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Which sinks a sink comes after: no row of it shows where theirs don't yet."""
    away: Mapping[tuple[str, int], frozenset[str]] = field(default_factory=dict)
    """By (actor, its step): which sinks give that actor no answer from then on."""

    @property
    def in_steps(self) -> bool:
        return self.looks or bool(self.restores)


PARTS = ("journal", "checkpoint", *SINKS)


@dataclass
class Participant:
    rows: tuple[str, ...]
    ref: str
    lineage: str = ""
    state: Literal["prepared", "committed", "aborted", "dropped"] = "prepared"
    begun: int = 0
    flushed: bool = True
    strategy: str = "memory"


@dataclass
class Source:
    """A query's checkpoint: what its batches read, and which are done. Batch 0 begins at position `first`."""

    query: str = "query"
    first: int = 0
    done: int = -1
    offsets: dict[int, str] = field(default_factory=dict)
    anew: bool = False
    """Whether it went back: then it cuts what it plans from here on anew."""

    def planned(self, batch: int) -> tuple[str, ...]:
        """Return the rows of a batch that is planned."""
        return rows_of(self.first + batch, self.offsets[batch])


class World:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.journals: defaultdict[str, dict[int, bytes]] = defaultdict(dict)
        self.sources = {JOB: Source()}
        self.sinks: defaultdict[str, dict[Txn, Participant]] = defaultdict(dict)
        self.applied: Counter[tuple[str, str]] = Counter()
        self.promised: Counter[tuple[str, str]] = Counter()
        """Rows that an earlier source's batches gave, or that stood there when an operator rebased the journal."""
        self.first_batch = 0
        """The first batch whose rows are not among those."""
        self.decided: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
        self.states: defaultdict[str, list[Any]] = defaultdict(list)
        """What drivers saved, by history; the last one stands."""
        self.steps: Counter[str] = Counter()
        self.changes: defaultdict[str, list[int]] = defaultdict(list)
        self.commits: defaultdict[str, set[int]] = defaultdict(set)
        self.finishes: defaultdict[str, list[int]] = defaultdict(list)
        self.clock = 0
        self.late: list[tuple[int, Callable[[], Any]]] = []
        self.fired: set[tuple[str, int]] = set()
        self.hub = greenlet.getcurrent()
        self.not_idempotent = False
        self.attempts = 0
        self.births: dict[tuple[str, str], str] = {}
        self.sessions: Counter[str] = Counter()
        self.away: defaultdict[str, frozenset[str]] = defaultdict(frozenset)
        self.seen: dict[tuple[str, str], frozenset[Txn]] = {}
        """What showed when an actor read a target's mark last."""
        self.listed: dict[tuple[str, str], int] = {}
        self.copies: dict[str, dict[str, Any]] = {}
        self.went_back = False
        self.restored = 0
        self.judged = True
        """Whether a batch was planned since something went back: then whoever opens its epoch had to see it."""
        self.dropped = set(schedule.dropped_rows)
        self.unlost = set(schedule.losses)
        self.counting: Collection[str] = ("lake",)
        """The sinks whose marks count participants."""
        self.errors: list[ExactsinkError] = []
        """What ended drivers and commands, the newest last."""
        self.written: dict[int, tuple[str, ...]] = {}
        """The rows that each epoch's tasks wrote last."""

    @property
    def entries(self) -> dict[int, bytes]:
        """The job's own journal."""
        return self.journals[JOB]

    @property
    def source(self) -> Source:
        """The job's own checkpoint."""
        return self.sources[JOB]

    @property
    def is_forked(self) -> bool:
        """Whether there are two histories: one that was given up, or a copy's."""
        return self.went_back or COPY in self.sources

    @property
    def is_over(self) -> bool:
        """Whether all that the source has is done."""
        return self.source.first + self.source.done >= self.schedule.epochs - 1

    def has_more(self, actor: str, source: Source, batch: int) -> bool:
        """Return whether the source has this batch for an actor, which may end before of its own will."""
        epochs = self.schedule.epochs
        return source.first + batch < min(epochs, self.schedule.until.get(actor, epochs))

    # -- every call of a driver to anything outside it comes through here

    def call(self, actor: str, failure: type[Exception], effect: Callable[[], T], *, reads: bool = False) -> T:
        """Make a driver's call, or what the schedule makes of it; one that only `reads` leaves the world as it is."""
        step = (actor, self.steps[actor])
        if not reads:
            self.changes[actor].append(step[1])
        self.steps[actor] += 1
        self.clock += 1
        fault = self.schedule.faults.get(step)
        if fault is not None:
            self.fired.add(step)
        self.away[actor] = self.schedule.away.get(step, self.away[actor])
        self._go_back(step)
        if fault == "crash_before":
            self._crash()
        if (target := self.schedule.switches.get(step)) is not None:
            self.fired.add(step)
            self.hub.switch(target)
        self._land()
        if fault == "refused":
            raise failure("refused")
        if fault == "late":
            self.late.append((self.clock + 7, effect))
            raise failure("no answer")
        result = effect()
        if fault == "answer_lost":
            raise failure("answer lost")
        if fault == "crash_after":
            self._crash()
        return result

    # -- what is put back from a copy

    def _copied(self, part: str) -> Any:
        if part == "journal":
            return dict(self.entries)
        if part == "checkpoint":
            return deepcopy(self.source)
        applied = {key: count for key, count in self.applied.items() if key[0] == part}
        births = {key: lineage for key, lineage in self.births.items() if key[0] == part}
        return {txn: replace(p) for txn, p in self.sinks[part].items()}, applied, births

    def _go_back(self, step: tuple[str, int]) -> None:
        """Take a copy, or put parts of one back, as the schedule has it for this step."""
        if (name := self.schedule.snapshots.get(step)) is not None:
            self.fired.add(step)
            self.copies[name] = {part: self._copied(part) for part in PARTS}
        if (parts := self.schedule.restores.get(step)) is not None:
            self.fired.add(step)
            self.restore(parts)

    def restore(self, parts: Mapping[str, str]) -> None:
        """Put these parts back as they were at a snapshot; with the checkpoint, the source cuts its input anew."""
        self.went_back = True
        self.judged = False
        self.restored += 1
        for part, name in parts.items():
            copied = self.copies[name][part]
            if part == "journal":
                self.journals[JOB] = dict(copied)
            elif part == "checkpoint":
                self.sources[JOB] = replace(deepcopy(copied), anew=True)
            else:
                participants, applied, births = copied
                self.sinks[part] = {txn: replace(p) for txn, p in participants.items()}
                self.applied = Counter({k: n for k, n in self.applied.items() if k[0] != part} | applied)
                self.births = {k: lineage for k, lineage in self.births.items() if k[0] != part} | births
                self.sessions[part] += 1

    def copy_job(self) -> None:
        self.journals[COPY] = dict(self.entries)
        self.sources[COPY] = deepcopy(self.source)

    def expected(self, batches: int, source: Source | None = None) -> Counter[tuple[str, str]]:
        """Return what the sinks have to show once so many of the source's batches are done."""
        rows = Counter(self.promised)
        for batch, sink in itertools.product(range(self.first_batch, batches), SINKS):
            if (sink, batch) not in self.schedule.empty:
                rows.update((sink, row) for row in (source or self.source).planned(batch))
        return rows

    def shows(self, sink: str, batch: int) -> bool | None:
        """Return whether a batch's rows show in a sink, None where some do."""
        shown = [self.applied[sink, row] > 0 for row in self.source.planned(batch)]
        return shown[0] if len(set(shown)) == 1 else None

    def check_exact(self, batches: int) -> None:
        """Raise Violation unless the sinks show the rows of the source's first batches, each once, and no others."""
        if self.judged and +self.applied != self.expected(batches):
            raise Violation(f"batch {batches} begins, and shown are {sorted((+self.applied).items())}")

    def judge_start(self, log: Log) -> None:
        """Raise Violation when a start went well, and the sinks show other rows than the last decision left there.

        Of a checkpoint that went back, nothing is seen before its next batch is planned.
        """
        epoch = log.decision.epoch if log.decision else -1
        if self.went_back and not self.source.anew and +self.applied != self.expected(epoch + 1 - log.base):
            raise Violation(f"a start saw nothing, epoch {epoch} is decided, and shown are {sorted(+self.applied)}")

    def is_new(self, token: str, epoch: int) -> bool:
        """Return whether the newest claim's driver begins an epoch that is not decided."""
        found = [decode(self.entries[seq]) for seq in sorted(self.entries)]
        claims = [record for record in found if isinstance(record, Claim)]
        decided = [record.epoch for record in found if isinstance(record, Decide)]
        return bool(claims) and claims[-1].token == token and epoch > max(decided, default=-1)

    def _crash(self) -> None:
        for participants in self.sinks.values():
            for participant in participants.values():
                if not participant.flushed:
                    participant.rows = ()
        raise Crash

    def _land(self) -> None:
        due = [late for late in self.late if late[0] <= self.clock]
        self.late = [late for late in self.late if late[0] > self.clock]
        for _, effect in due:
            with suppress(SeqTaken):
                effect()

    # -- the promise, checked wherever a row becomes visible and wherever a batch is done

    def show(self, target: str, txn: Txn, row: str) -> None:
        """Make a row visible in a target."""
        self.applied[target, row] += 1
        if self.went_back:
            return  # judged when the next epoch begins: what cannot be seen before that is said in the guarantee
        if self.applied[target, row] > 1:
            raise Violation(f"row {row} doubled in {target}")
        if target not in self.decided[txn.job, txn.epoch]:
            raise Violation(f"row {row} is visible in {target} before its epoch's decision")
        if early := [first for first in self.schedule.after.get(target, ()) if not self.applied[first, row]]:
            raise Violation(f"row {row} is visible in {target} before it is in {early[0]}")

    def check(self) -> None:
        """Raise Violation when a row of a batch that is done is not visible in every target of its decision."""
        lost = self.expected(self.source.done + 1) - self.applied
        if self.schedule.configs:
            batches = range(self.source.done + 1)
            named = [(t, row) for b in batches for t in self.decided[JOB, b] for row in self.source.planned(b)]
            lost = Counter(named) - self.applied
        if lost:
            raise Violation(f"rows {sorted(lost)} are lost: their batches are done")

    # -- the source, as Spark's checkpoint keeps it

    def plan_batch(self, actor: str, source: Source, batch: int) -> None:
        self.judged = True
        text = offsets_of(batch, source.anew)
        self.call(actor, ConnectionError, lambda: source.offsets.setdefault(batch, text))

    def finish_batch(self, actor: str, source: Source, batch: int) -> None:
        def effect() -> None:
            source.done = max(source.done, batch)
            if not self.went_back:
                self.check()
                self._check_swept(actor)

        self.finishes[actor].append(self.steps[actor])
        self.call(actor, ConnectionError, effect)

    def _check_swept(self, actor: str) -> None:
        """Raise Violation when an actor, its epoch done, leaves in doubt what an older generation has begun."""
        claims = [record for record in map(decode, self.entries.values()) if isinstance(record, Claim)]
        mine = max((claim.generation for claim in claims if claim.driver == actor), default=0)
        for target, txn, participant in self.in_doubt():
            listed = self.listed.get((actor, target), -1)
            if txn.generation < mine and participant.begun < listed:
                raise Violation(f"{txn.id} was begun by an older generation, and is left in doubt")

    def in_doubt(self) -> list[tuple[str, Txn, Participant]]:
        """Return what is prepared in any target."""
        found = [(target, txn, p) for target, held in self.sinks.items() for txn, p in held.items()]
        return [entry for entry in found if entry[2].state == "prepared"]

    def rolled_back(self, batch: int) -> None:
        """Restore an old checkpoint: batches from here on are planned anew, with other input."""
        self.source.done = batch - 1
        for planned in [b for b in self.source.offsets if b >= batch]:
            self.source.offsets[planned] = offsets_of(planned, anew=True)


def offsets_of(batch: int, anew: bool) -> str:
    """Return a batch's offsets as Spark writes them; input cut anew differs in where it ends, or only in its time."""
    ends, time = ("anew", "") if batch % 2 else ("", "anew")
    return f"v1\n{{{time if anew else ''}}}\nend {batch}{ends if anew else ''}"


@cache
def rows_of(position: int, offsets: str) -> tuple[str, ...]:
    suffix = ".anew" if "anew" in offsets else ""
    return tuple(f"{position}.{index}{suffix}" for index in range(3))


_CUTS = ((0, 0, 1), (1, 0, 0))


@cache
def partitions_of(rows: tuple[str, ...], cut: int) -> Mapping[int, tuple[str, ...]]:
    """Cut a batch's rows into two partitions."""
    cuts = _CUTS[cut % len(_CUTS)]
    return {p: tuple(row for row, where in zip(rows, itertools.cycle(cuts)) if where == p) for p in (0, 1)}
