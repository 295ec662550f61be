"""Transactions whose coordinator says that they are complete, while a partition still holds them open.

Kafka 4.3.1 makes them each time that a coordinator is killed between an end's answer and its markers: it goes on with
the end before it knows who leads the partitions, takes these for deleted, and says CompleteCommit. Readers stand still
there for ever, and rows that are committed are never seen. The end is decided and can't change, so the marker that is
owed is written.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from exactsink.contract import Retryable
from exactsink_kafka.vote import Transaction
from exactsink_kafka.wire import Wire
from exactsink_kafka.wire.failures import named

__all__ = ["Ended", "finish"]

HANGING_SECONDS = 3.0
"""How long a marker may be late before it counts as lost."""

_LOG = logging.getLogger(__name__)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05
_NOT_AUTHORIZED = 31  # CLUSTER_AUTHORIZATION_FAILED


@dataclass(frozen=True, slots=True)
class Ended:
    """A transaction whose end is decided, and the partitions that it has rows in.

    `sure`: the coordinator has just answered so for this very use. Else it is asked again before a marker is written.
    """

    transaction: Transaction
    places: tuple[tuple[str, int], ...]
    commit: bool
    sure: bool

    @property
    def word(self) -> str:
        """What its coordinator calls it."""
        return "CompleteCommit" if self.commit else "CompleteAbort"


@dataclass(frozen=True, slots=True)
class _Hanging:
    """Where an ended transaction is open: from this offset on, under this epoch of its coordinator's."""

    ended: Ended
    topic: str
    partition: int
    offset: int
    coordinator_epoch: int

    def __str__(self) -> str:
        return f"transaction {self.ended.transaction.ref} in {self.topic}-{self.partition} from offset {self.offset}"


def finish(wire: Wire, ended: Sequence[Ended], servers: str) -> None:
    """Wait until the leaders of all partitions have the end, and write it where it got lost. Idempotent.

    Raises Retryable where the coordinator's word is another one, or our user may not write markers.
    """
    for place in _hanging(wire, ended):
        one = _word(wire, place, servers)
        where = (place.topic, place.partition)
        code = wire.mark(one, where, place.coordinator_epoch, commit=place.ended.commit)
        if code:
            allow = f"kafka-acls.sh --bootstrap-server {servers} --add --allow-principal User:... --operation Alter"
            fix = f"let this job write it: {allow} --cluster" if code == _NOT_AUTHORIZED else "see that leader's log"
            raise _unfinished(place, f"the leader answers {named(code)} to one", f"{fix}; {_by_hand(place, servers)}")
        _LOG.warning("%s: its marker was missing (%s): it is written now", place, place.ended.word)


def _hanging(wire: Wire, ended: Sequence[Ended]) -> Sequence[_Hanging]:
    until, pause = time.monotonic() + HANGING_SECONDS, _FIRST_PAUSE
    while (left := _open(wire, ended)) and time.monotonic() < until:
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
    return left


def _open(wire: Wire, ended: Iterable[Ended]) -> list[_Hanging]:
    """Find where they are open. A partition that can't be asked now is passed over."""
    places = {(one.transaction.producer_id, one.transaction.producer_epoch): one for one in ended}
    asked = {place for one in places.values() for place in one.places}
    writers = wire.open_now(asked) if asked else {}
    return [
        _Hanging(places[writer.id, writer.epoch], topic, number, writer.first_offset, writer.coordinator_epoch)
        for (topic, number), there in sorted(writers.items())
        for writer in there
        if (writer.id, writer.epoch) in places
    ]


def _word(wire: Wire, place: _Hanging, servers: str) -> Transaction:
    """Return the transaction with the epoch that its end raised it to, if that end is still its coordinator's word."""
    one = place.ended.transaction
    if place.ended.sure:
        return Transaction(one.id, one.producer_id, one.producer_epoch + 1)
    reported = wire.describe([one.id]).get(one.id)
    if reported is None or reported.state != place.ended.word or not one.is_use_of(reported.transaction):
        said = "knows the id no more" if reported is None else f"says {reported.state} ({reported.transaction.ref})"
        raise _unfinished(place, f"its coordinator {said}, not {place.ended.word}", _by_hand(place, servers))
    return reported.transaction


def _by_hand(place: _Hanging, servers: str) -> str:
    """Return the tool's command where there is one: it can only abort."""
    if place.ended.commit:
        return "then start the job again; never abort it by hand, its rows are decided"
    tool = f"kafka-transactions.sh --bootstrap-server {servers} abort --topic {place.topic}"
    return f"or {tool} --partition {place.partition} --start-offset {place.offset}; then start the job again"


def _unfinished(place: _Hanging, why: str, fix: str) -> Retryable:
    return Retryable(
        f"{place} is ended, and still open there",
        why=f"readers stand still before it; no marker of its end is there, and {why}",
        next=fix,
    )
