"""The job's files in the simulated world: a journal's store, and the checkpoint as the product reads it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from exactsink.job.checkpoint import Checkpoint
from exactsink.protocol.journal.records import Decide, Redecide
from exactsink.protocol.journal.stores import SeqTaken
from tests.simulation.world import JOB, Source, Violation, World, decode


class Store:
    """A journal's store, as one driver reaches it."""

    def __init__(self, world: World, actor: str, history: str = JOB) -> None:
        self._world = world
        self._actor = actor
        self._history = history
        self._lists = 0

    @property
    def _entries(self) -> dict[int, bytes]:
        return self._world.journals[self._history]

    def put(self, seq: int, data: bytes) -> None:
        def effect() -> None:
            if seq in self._entries:
                raise SeqTaken(seq)
            if b'"kind": "redecide"' in data:
                self._check_given_up(decode(data))
            self._entries[seq] = data
            self._decided(data)

        self._world.call(self._actor, ConnectionError, effect)

    def _check_given_up(self, new: Redecide) -> None:
        """Raise Violation when participants are given up for lost that showed when their target was looked at last."""
        for record in map(decode, self._entries.values()):
            if isinstance(record, Decide) and record.epoch == new.epoch:
                target, old = record.sinks[new.sink].target, record.sinks[new.sink].committables
                gone = {c.txn for c in old}.difference(c.txn for c in new.committables)
                if gone & self._world.seen.get((self._actor, target), frozenset()):
                    raise Violation(f"epoch {new.epoch} of {new.sink} is written again, and was seen to show")

    def _decided(self, data: bytes) -> None:
        if b'decide", ' not in data:  # as a kind: all others need no look
            return
        record = decode(data)
        if isinstance(record, Decide):
            txns = [c.txn for sink in record.sinks.values() for c in sink.committables]
            job = txns[0].job if txns else JOB
            self._world.decided[job, record.epoch].update(sink.target for sink in record.sinks.values())
        if isinstance(record, Decide | Redecide) and self._world.unlost:
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


class Place:
    """A path in the checkpoint of a source in memory."""

    def __init__(self, source: Source, name: str = "") -> None:
        self._source = source
        self._name = name

    def __truediv__(self, name: str) -> Place:
        return Place(self._source, f"{self._name}/{name}")

    def exists(self) -> bool:
        return self._text() is not None

    def read_text(self) -> str:
        text = self._text()
        if text is None:
            raise FileNotFoundError(self._name)
        return text

    def read_bytes(self) -> bytes:
        return self.read_text().encode()

    def _text(self) -> str | None:
        if self._name == "/metadata":
            return json.dumps({"id": self._source.query}) if self._source.query else None
        return self._source.offsets.get(int(self._name.removeprefix("/offsets/")))


class SourceCheckpoint(Checkpoint):
    """The product's reader over a source in memory."""

    def __init__(self, source: Source) -> None:
        super().__init__(Place(source))  # type: ignore[arg-type]
        self._source = source

    def next_batch(self) -> int:
        return self._source.done + 1
