"""A sink's store in the simulated world: it prepares, commits, drops votes and forgets, as the schedule says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from exactsink.contract import AlreadyCommitted, Committed, Lost, Outcome, Retryable, Traits, Txn, Unknown
from tests.contract.memory import Rows, Store
from tests.simulation.world import Participant, Violation, World

T = TypeVar("T")


class SinkStore(Store):
    strategy, traits = "memory", Traits(can_lose_votes=True)

    def __init__(self, world: World, actor: str, sink: str) -> None:
        self._world = world
        self._actor = actor
        self._sink = sink
        self._participants = world.sinks[sink]
        self.flushes = True

    def call(self, effect: Callable[[], T], *, reads: bool = False) -> T:
        return self._world.call(self._actor, Retryable, effect, reads=reads)

    def taken(self, txn: Txn, rows: Rows) -> Rows:
        if txn.epoch not in self._world.dropped:
            return rows
        self._world.dropped.discard(txn.epoch)
        return rows[:-1]

    def prepare(self, txn: Txn, rows: Rows) -> bytes:
        self._participants[txn] = Participant(tuple(row["row"] for row in rows), flushed=self.flushes)
        return b""

    def commit(self, txn: Txn, payload: bytes) -> Outcome:
        participant = self._participants.get(txn)
        if participant is None:
            return Unknown(f"{txn.id} is forgotten")
        if participant.state == "dropped":
            return Lost(f"{txn.id} timed out")
        if participant.state == "aborted":
            raise Violation(f"{txn.id} is decided, and was aborted")
        again = participant.state == "committed"
        if not again or self._world.not_idempotent:
            for row in participant.rows:
                self._world.show(self._sink, txn.epoch, row)
        participant.state = "committed"
        return AlreadyCommitted() if again else Committed()

    def abort(self, txn: Txn) -> None:
        participant = self._participants.get(txn)
        if participant is not None and participant.state == "committed":
            raise Violation(f"{txn.id} was committed, and is aborted")
        if participant is not None and participant.state == "prepared":
            participant.state = "aborted"

    def listed(self) -> Iterable[Txn]:
        return [txn for txn, participant in self._participants.items() if participant.state == "prepared"]
