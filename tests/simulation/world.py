"""A world in memory: a journal's store, two sinks' backends and a Spark-like source, where every call can go wrong.

Nothing here uses threads, clocks or unseeded chance: a schedule replays to the step.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeVar

import greenlet
import pyarrow as pa

from exactsink.contract import Txn
from exactsink.protocol.journal.records import Claim, Decide, Redecide, decode
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
    empty: frozenset[tuple[str, int]] = frozenset()
    marks: bool = True
    snapshot: tuple[str, int] | None = None
    restores: Mapping[tuple[str, int], frozenset[str]] = field(default_factory=dict)
    """By (actor, its step): which of PARTS go back to the snapshot; with the checkpoint, no driver survives it."""


PARTS = ("journal", "checkpoint", *SINKS)


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
        self.births: dict[str, str] = {}
        self.sessions: Counter[str] = Counter()
        self.copy: dict[str, Any] = {}
        self.went_back = False
        self.judged = True
        """Whether a batch was planned since something went back: then whoever opens its epoch had to see it."""
        self.anew = False
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
            return self.done, dict(self.offsets)
        applied = {key: count for key, count in self.applied.items() if key[0] == part}
        return deepcopy(self.sinks[part]), applied, self.births.get(part)

    def _go_back(self, step: tuple[str, int]) -> None:
        """Take the copy, or put parts of it back, as the schedule has it for this step."""
        if step == self.schedule.snapshot:
            self.fired.add(step)
            self.copy = {part: self._copied(part) for part in PARTS}
        if (parts := self.schedule.restores.get(step)) is not None:
            self.fired.add(step)
            self.restore(parts)

    def restore(self, parts: Iterable[str]) -> None:
        """Put these parts back as they were at the snapshot; with the checkpoint, the source cuts its input anew."""
        self.went_back = True
        self.judged = False
        for part in parts:
            copied = deepcopy(self.copy[part])
            if part == "journal":
                self.entries.clear()
                self.entries.update(copied)
            elif part == "checkpoint":
                self.done, self.offsets = copied
                self.anew = True
            else:
                self._restore_sink(part, *copied)

    def _restore_sink(self, sink: str, participants: Any, applied: Any, birth: str | None) -> None:
        self.sinks[sink] = participants
        self.applied = Counter({key: count for key, count in self.applied.items() if key[0] != sink} | applied)
        self.births.pop(sink, None)
        if birth is not None:
            self.births[sink] = birth
        self.sessions[sink] += 1

    def check_exact(self, epochs: int) -> None:
        """Raise Violation unless every sink shows the rows of the source's first epochs, each once, and no others."""
        for sink in SINKS if self.judged else ():
            expected = Counter({(sink, row): 1 for epoch in range(epochs) for row in self.planned(sink, epoch)})
            shown = Counter({key: count for key, count in self.applied.items() if key[0] == sink and count})
            if shown != expected:
                raise Violation(f"epoch {epochs} begins, and {sink} shows {sorted(shown.items())}")

    def planned(self, sink: str, epoch: int) -> Sequence[str]:
        """Return the rows that a sink gets of a batch."""
        if (sink, epoch) in self.schedule.empty:
            return ()
        return list(itertools.chain(*partitions_of(epoch, self.offsets[epoch], 0).values()))

    def is_new(self, token: str, epoch: int) -> bool:
        """Return whether the newest claim's driver begins an epoch that is not decided."""
        records = [decode(self.entries[seq]) for seq in sorted(self.entries)]
        claims = [record for record in records if isinstance(record, Claim)]
        decided = [record.epoch for record in records if isinstance(record, Decide)]
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

    def show(self, sink: str, epoch: int, row: str) -> None:
        """Make a row visible in a sink."""
        self.applied[sink, row] += 1
        if self.went_back:
            return  # judged when the next epoch begins: what cannot be seen before that is said in the guarantee
        if self.applied[sink, row] > 1:
            raise Violation(f"row {row} doubled in {sink}")
        if epoch not in self.decided:
            raise Violation(f"row {row} is visible in {sink} before its epoch's decision")

    def check(self) -> None:
        """Raise Violation when a row of a batch that is done is not visible in every sink."""
        for epoch, sink in itertools.product(range(self.done + 1), SINKS):
            for row in self.planned(sink, epoch):
                if not self.applied[sink, row]:
                    raise Violation(f"row {row} lost in {sink}: its batch is done")

    # -- the source, as Spark's checkpoint keeps it

    def plan_batch(self, actor: str, batch: int) -> str:
        name = f"offsets-{batch}-anew" if self.anew else f"offsets-{batch}"
        self.judged = True
        return self.call(actor, ConnectionError, lambda: self.offsets.setdefault(batch, name))

    def finish_batch(self, actor: str, batch: int) -> None:
        def effect() -> None:
            self.done = max(self.done, batch)
            if not self.went_back:
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

    def newest(self) -> int:
        return max(self.list(), default=-1)

    def sizes(self, seqs: Sequence[int]) -> Mapping[int, int]:
        def effect() -> Mapping[int, int]:
            return {seq: len(self._entries[seq]) for seq in seqs if seq in self._entries}

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
