"""What became of a transaction whose coordinator no longer reports: read where its rows began.

Only positive proof counts. A topic that was made again, an offset that was deleted, and a batch that was compacted away
report nothing: without proof in any partition the answer is Unknown, with what was looked at.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exactsink.contract import AlreadyCommitted, Lost, Outcome, Retryable, Unknown
from exactsink_kafka.vote import Transaction, Vote, Written
from exactsink_kafka.wire import OpenProducer, Seen, Topic, Wire
from exactsink_kafka.wire.failures import named

__all__ = ["look_back", "settle", "spoilt"]

_PAUSE_SECONDS = 0.05
_NO_TOPIC_ID = 100


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the rows of a transaction begin in one partition, and what is seen there."""

    topic: Written
    partition: int
    offset: int
    seen: Seen

    @property
    def held(self) -> bool:
        """Whether an open transaction, this one or an older one, keeps readers from here."""
        return self.seen.error == 0 and self.seen.stable <= self.offset

    def __str__(self) -> str:
        return f"{self.topic.topic}-{self.partition} from offset {self.offset}"


def settle(wire: Wire, vote: Vote, answer: str, *, wait_seconds: float) -> AlreadyCommitted | Lost | Unknown:
    """Read until some partition proves it. Raises Retryable when an open transaction hides the rows for so long.

    `answer` is what the coordinator said, for the evidence.
    """
    until = time.monotonic() + wait_seconds
    while True:
        proof, places = look_back(wire, vote)
        if proof is not None:
            return proof
        held = [place for place in places if place.held]
        if not held:
            reported = "; ".join(_nothing(wire, place) for place in places) or "it recorded no rows"
            return Unknown(f"transaction {vote.transaction.ref}: its coordinator answers {answer}, and {reported}")
        if time.monotonic() >= until:
            raise _hidden(wire, vote, answer, held[0])
        time.sleep(_PAUSE_SECONDS)


def spoilt(wire: Wire, votes: Sequence[Vote]) -> dict[Transaction, Outcome]:
    """Find open transactions that lack rows of theirs: their coordinator would commit them all the same.

    `kafka-transactions.sh abort` ends a transaction in one partition, past its coordinator, and a topic can be deleted
    or made again. A partition that can't be asked now holds no commit up: what it answers later is the same.
    """
    topics = wire.topics({topic.topic for vote in votes for topic in vote.written}) if votes else {}
    asked = {
        (w.topic, number) for vote in votes for w in vote.written if w.topic in topics for number in w.first_offsets
    }
    writers = wire.open_now(asked) if asked else {}
    missing = {vote.transaction: _missing(vote, topics, writers) for vote in votes}
    found = {one: what for one, what in missing.items() if what is not None}
    # Another driver may have committed it since it was seen open: markers are written after its state has changed.
    still = {
        reported.transaction
        for reported in wire.describe(one.id for one in found).values()
        if reported.state == "Ongoing"
    }
    return {
        one: Unknown(
            f"transaction {one.ref} is open, and {what}. It stays open: when the brokers have aborted it, at its "
            "timeout, the next start writes all its rows again"
        )
        for one, what in found.items()
        if one in still
    }


def _missing(
    vote: Vote, topics: Mapping[str, Topic], writers: Mapping[tuple[str, int], Sequence[OpenProducer]]
) -> str | None:
    """Return which rows of an open transaction are no longer part of it."""
    one = vote.transaction
    for written in vote.written:
        there = topics.get(written.topic)
        if there is None or there.id != written.topic_id:
            became = "deleted" if there is None else f"made again, with id {there.id}"
            return f"topic {written.topic} (id {written.topic_id}), which its rows are in, was {became}"
        for number, offset in written.first_offsets.items():
            mine, there_now = (one.producer_id, one.producer_epoch, offset), writers.get((written.topic, number))
            if there_now is not None and mine not in [(w.id, w.epoch, w.first_offset) for w in there_now]:
                return (
                    f"its rows in {written.topic}-{number} from offset {offset} are no longer part of it: it was ended "
                    "there by hand, or a leader that lagged has lost them"
                )
    return None


def look_back(wire: Wire, vote: Vote) -> tuple[AlreadyCommitted | Lost | None, list[_Place]]:
    """Look once at each place where the transaction's rows begin: the first proof, and the places without one."""
    places = []
    for topic in vote.written:
        for partition, offset in topic.first_offsets.items():
            place = _Place(topic, partition, offset, wire.look(topic.topic_id, partition, offset))
            proof = _proof(vote, place)
            if proof is not None:
                return proof, []
            places.append(place)
    return None, places


def _proof(vote: Vote, place: _Place) -> AlreadyCommitted | Lost | None:
    one, seen = vote.transaction, place.seen
    if seen.error or place.held or seen.producer != (one.producer_id, one.producer_epoch):
        return None
    # Reported are those that end here or later, and a producer has one transaction at a time in a partition.
    if any(producer == one.producer_id and first <= place.offset for producer, first in seen.aborted):
        return Lost(f"transaction {one.ref}: its rows in {place} are aborted (last stable offset {seen.stable})")
    return AlreadyCommitted()


def _nothing(wire: Wire, place: _Place) -> str:
    """Return why a place reports nothing."""
    seen, name = place.seen, place.topic.topic
    if seen.error == _NO_TOPIC_ID:
        now = wire.topics([name]).get(name)
        became = f"was made again, with id {now.id}" if now is not None else "was deleted"
        return f"topic {name} (id {place.topic.topic_id}), which its rows are in, {became}"
    if place.offset < seen.log_start:
        return f"{place} was deleted: the partition begins at offset {seen.log_start} now"
    if seen.error:
        return f"{place} is not there: {named(seen.error)}, the last stable offset is {seen.stable}"
    if seen.producer is None:
        return f"{place} holds no rows any more: they were compacted away"
    return f"{place} holds rows of producer id {seen.producer[0]}, epoch {seen.producer[1]}"


def _hidden(wire: Wire, vote: Vote, answer: str, place: _Place) -> Retryable:
    where = (place.topic.topic, place.partition)
    holders = sorted(wire.open_in([where])[where], key=lambda one: one.first_offset)
    who = f"producer id {holders[0].id} (epoch {holders[0].epoch})" if holders else "a transaction that has just ended"
    return Retryable(
        f"transaction {vote.transaction.ref}: its coordinator answers {answer}, and its rows can't be read yet",
        why=f"{who} holds the last stable offset of {place} at {place.seen.stable}",
        next="wait until that transaction is ended (by its owner, or by its timeout), then start the job again; "
        f"kafka-transactions.sh describe-producers --topic {where[0]} --partition {where[1]} shows it",
    )
