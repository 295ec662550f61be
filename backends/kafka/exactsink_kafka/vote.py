"""A participant's vote: the transaction that another process ends, and where its rows lie, as evidence afterwards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from exactsink.contract import Committable, Fatal

__all__ = ["PAYLOAD_VERSION", "Transaction", "Vote", "Written"]

PAYLOAD_VERSION = 1


@dataclass(frozen=True, slots=True)
class Transaction:
    """One use of a transactional id: nothing else ever has the same producer id and epoch."""

    id: str
    producer_id: int
    producer_epoch: int

    @property
    def ref(self) -> str:
        """Name it as committables and listings do."""
        return f"{self.id}/{self.producer_id}/{self.producer_epoch}"

    def is_use_of(self, reported: Transaction) -> bool:
        """Return whether a coordinator means this very use: its epoch, or the one that its end raised it to."""
        return (reported.id, reported.producer_id) == (self.id, self.producer_id) and reported.producer_epoch in (
            self.producer_epoch,
            self.producer_epoch + 1,
        )

    @classmethod
    def of_ref(cls, ref: str) -> Transaction:
        """Read a `ref` back. Raises ValueError when it is none."""
        parts = ref.rsplit("/", 2)
        known = len(parts) == 3 and all(map(str.isdecimal, parts[1:]))
        reported = cls(parts[0], int(parts[1]), int(parts[2])) if known else None
        if reported is None or reported.ref != ref:  # a leading zero is somebody else's spelling
            raise ValueError(f"{ref!r} is no transaction's ref")
        return reported


@dataclass(frozen=True, slots=True)
class Written:
    """Where the transaction's rows begin in the partitions of one topic.

    `topic_id` is the broker's own id of it (a UUID), which a topic made again under the same name does not have;
    `first_offsets` is by partition.
    """

    topic: str
    topic_id: str
    first_offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Vote:
    """The payload of a committable. A transaction ends as one, so one readable partition of it reports all."""

    transaction: Transaction
    cluster: str
    written: tuple[Written, ...]

    def dump(self) -> bytes:
        written = [asdict(topic) for topic in self.written]
        return json.dumps({**asdict(self.transaction), "cluster": self.cluster, "written": written}).encode()

    @classmethod
    def load(cls, committable: Committable) -> Vote:
        """Read a committable's payload. Raises Fatal for a later release's."""
        if committable.version != PAYLOAD_VERSION:
            raise Fatal(
                f"{committable.txn.id}: can't read a vote of version {committable.version}",
                why=f"this release reads version {PAYLOAD_VERSION}",
                next="start the job with the release of exactsink that wrote the epoch",
            )
        reported = json.loads(committable.payload)
        written = tuple(
            Written(w["topic"], w["topic_id"], {int(p): offset for p, offset in w["first_offsets"].items()})
            for w in reported["written"]
        )
        return cls(
            Transaction(reported["id"], reported["producer_id"], reported["producer_epoch"]),
            reported["cluster"],
            written,
        )
