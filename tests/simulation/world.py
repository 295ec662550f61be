"""A world in memory: a journal's store, two sinks' backends and a Spark-like source, where every call can go wrong.

Nothing here uses threads, clocks or unseeded chance: a schedule replays to the step.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeVar

import greenlet
import pyarrow as pa

from exactsink.contract import Txn
from exactsink.protocol.journal.records import Decide, Redecide, decode
from exactsink.protocol.journal.stores import SeqTaken

T = TypeVar("T")
Fault = Literal["crash_before", "crash_after", "refused", "answer_lost", "late"]
SINKS = ("lake", "table")
SCHEMA = pa.schema([("row", pa.string())])


OTHER = "other"
"""A driver of this name is another job's of the same name: it has a journal of its own, and only starts."""


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


@dataclass
class Participant:
    rows: tuple[str, ...]
    state: Literal["prepared", "committed", "aborted", "dropped"] = "prepared"
    flushed: bool = True


class World:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.entries: dict[int, bytes] = {}
        self.other_entries: dict[int, bytes] = {}
        self.sinks: dict[str, dict[Txn, Participant]] = {sink: {} for sink in SINKS}
        self.applied: Counter[tuple[str, str]] = Counter()
        self.done = -1
        self.offsets: dict[int, str] = {}
        self.decided: set[int] = set()
        self.steps: Counter[str] = Counter()
        self.changes: defaultdict[str, list[int]] = defaultdict(list)
        self.clock = 0
        self.late: list[tuple[int, Callable[[], Any]]] = []
        self.fired: set[tuple[str, int]] = set()
        self.hub = greenlet.getcurrent()
        self.not_idempotent = False
        self.attempts = 0
        self.dropped = set(schedule.dropped_rows)
        self.unlost = set(schedule.losses)

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

    def show(self, sink: str, epoch: int, row: str) -> None:
        """Make a row visible in a sink."""
        self.applied[sink, row] += 1
        if self.applied[sink, row] > 1:
            raise Violation(f"row {row} doubled in {sink}")
        if epoch not in self.decided:
            raise Violation(f"row {row} is visible in {sink} before its epoch's decision")

    def check(self) -> None:
        """Raise Violation when a row of a batch that is done is not visible in every sink."""
        for epoch, sink in itertools.product(range(self.done + 1), SINKS):
            for row in itertools.chain(*partitions_of(epoch, self.offsets[epoch], 0).values()):
                if not self.applied[sink, row]:
                    raise Violation(f"row {row} lost in {sink}: its batch is done")

    # -- the source, as Spark's checkpoint keeps it

    def plan_batch(self, actor: str, batch: int) -> str:
        return self.call(actor, ConnectionError, lambda: self.offsets.setdefault(batch, f"offsets-{batch}"))

    def finish_batch(self, actor: str, batch: int) -> None:
        def effect() -> None:
            self.done = max(self.done, batch)
            self.check()

        self.call(actor, ConnectionError, effect)

    def rolled_back(self, batch: int) -> None:
        """Restore an old checkpoint: batches from here on are planned anew, with other input."""
        self.done = batch - 1
        for planned in [b for b in self.offsets if b >= batch]:
            self.offsets[planned] = f"offsets-{planned}-anew"


class Store:
    """A journal's store, as one driver reaches it."""

    def __init__(self, world: World, actor: str) -> None:
        self._world = world
        self._actor = actor
        self._entries = world.other_entries if actor == OTHER else world.entries
        self._lists = 0

    def put(self, seq: int, data: bytes) -> None:
        def effect() -> None:
            if seq in self._entries:
                raise SeqTaken(seq)
            self._entries[seq] = data
            self._decided(data)

        self._world.call(self._actor, ConnectionError, effect)

    def _decided(self, data: bytes) -> None:
        record = decode(data)
        if isinstance(record, Decide):
            self._world.decided.add(record.epoch)
        if isinstance(record, Decide | Redecide):
            for sink, epoch, partition in list(self._world.unlost):
                if epoch == record.epoch:
                    for txn, participant in self._world.sinks[sink].items():
                        if (txn.epoch, txn.partition) == (epoch, partition) and participant.state == "prepared":
                            participant.state = "dropped"
                            self._world.unlost.discard((sink, epoch, partition))

    def read(self, seq: int) -> bytes | None:
        return self._world.call(self._actor, ConnectionError, lambda: self._entries.get(seq), reads=True)

    def list(self) -> Sequence[int]:
        def effect() -> Sequence[int]:
            seqs = sorted(self._entries)
            self._lists += 1
            if self._lists <= self._world.schedule.stale_lists.get(self._actor, 0):
                self._world.fired.add((self._actor, -self._lists))
                return [*seqs[:-2], *seqs[-1:]]  # a stale listing lacks the entry before the last
            return seqs

        return self._world.call(self._actor, ConnectionError, effect, reads=True)

    def delete(self, seqs: Iterable[int]) -> None:
        gone = list(seqs)

        def effect() -> None:
            for seq in gone:
                self._entries.pop(seq, None)

        self._world.call(self._actor, ConnectionError, effect)

    def close(self) -> None:
        pass


def rows_of(epoch: int) -> tuple[str, ...]:
    return tuple(f"{epoch}.{index}" for index in range(3))


_CUTS = ((0, 0, 1), (1, 0, 0))


@cache
def partitions_of(epoch: int, fingerprint: str, cut: int) -> Mapping[int, tuple[str, ...]]:
    """Cut a batch's rows into two partitions; other input has other rows."""
    suffix = ".anew" if fingerprint.endswith("anew") else ""
    rows = rows_of(epoch)
    cuts = _CUTS[cut % len(_CUTS)]
    return {p: tuple(row + suffix for row, where in zip(rows, cuts, strict=True) if where == p) for p in (0, 1)}
