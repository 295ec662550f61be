"""How a transaction ended, read from the partitions of its rows: is it whole, how did it end, are its markers there.

The coordinator's answer is not enough. An open transaction may lack rows. A coordinator forgets transactions, and it
may report an end as complete while a partition lacks the marker.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exactsink.contract import AlreadyCommitted, Lost, Prepared, Retryable, Unknown
from exactsink.toolkit.waiting import attempts_within
from exactsink_kafka.errors import CLUSTER_NOT_AUTHORIZED, OFFSETS, UNKNOWN_TOPIC_ID, named
from exactsink_kafka.messages import Described, OpenProducer, Seen, Topic
from exactsink_kafka.remedies import Remedies
from exactsink_kafka.transactions import Transaction, Voted
from exactsink_kafka.wire import Place, Wire, Writers

__all__ = ["Ended", "incomplete", "read_back", "resolve", "write_missing_markers"]

MARKER_SECONDS = 3.0
"""How long a marker may be late before it counts as lost."""

_LOG = logging.getLogger(__name__)


def incomplete(wire: Wire, votes: Sequence[Voted]) -> dict[Transaction, Unknown]:
    """Find open transactions that have lost rows: their coordinator would commit them all the same.

    `kafka-transactions.sh abort` ends a transaction in one partition, past its coordinator, and a topic can be deleted
    or made again. An unreachable partition does not block the commit: its later answer would be the same.
    """
    asked = {(written.topic, number) for vote in votes for written in vote.written for number in written.first_offsets}
    topics, writers = wire.ask(wire.about_topics({topic for topic, _ in asked}), wire.about_writers(asked))
    missing = {vote.transaction: _missing_rows(vote, topics, writers) for vote in votes}
    found = {one: what for one, what in missing.items() if what is not None}
    # Another driver may have committed it since it was seen open: its state changes before its markers are written.
    described = wire.describe(one.id for one in found).values()
    still_open = {one.transaction for one in described if one.state == "Ongoing"}
    stays = "It stays open. The brokers abort it at its timeout, and the next start then writes all its rows again"
    return {
        one: Unknown(f"transaction {one.ref} is open, and {what}. {stays}")
        for one, what in found.items()
        if one in still_open
    }


def _missing_rows(
    vote: Voted, topics: Mapping[str, Topic], writers: Mapping[Place, Sequence[OpenProducer]]
) -> str | None:
    """Name rows that an open transaction has lost; None if it is whole."""
    one = vote.transaction
    for written in vote.written:
        there = topics.get(written.topic)
        if there is None or there.id != written.topic_id:
            became = "deleted" if there is None else f"made again, with id {there.id}"
            return f"topic {written.topic} (id {written.topic_id}), which holds its rows, was {became}"
        for number, offset in written.first_offsets.items():
            mine, there_now = (*one.producer, offset), writers.get((written.topic, number))
            if there_now is not None and mine not in [(w.id, w.epoch, w.first_offset) for w in there_now]:
                gone = f"its rows in {written.topic}-{number} from offset {offset} are no longer part of it"
                return f"{gone}: it was ended there manually, or a leader that lagged has lost them"
    return None


# How it ended


@dataclass(frozen=True, slots=True)
class _Start:
    """A transaction's first offset in one partition, and the batch that readers see there."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    seen: Seen

    @property
    def place(self) -> Place:
        return self.topic, self.partition

    @property
    def held(self) -> bool:
        """Return whether an open transaction, this one or an older one, hides the offset from readers."""
        return self.seen.error == 0 and self.seen.stable <= self.offset

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} from offset {self.offset}"


def resolve(
    wire: Wire, vote: Voted, answer: str, *, wait_seconds: float
) -> AlreadyCommitted | Lost | Prepared | Unknown:
    """Find out from the partitions how a transaction ended, because its coordinator no longer knows.

    Only positive proof counts. A topic that was made again, an offset that was deleted, and a batch that was compacted
    away prove nothing. Without proof in any partition, return Unknown, with the evidence. Return Prepared if the
    coordinator has forgotten the id and no partition has an end: nobody else ends it then, so the decision may. Raises
    Retryable if an open transaction hides the rows for `wait_seconds`. `answer` is the coordinator's, for the evidence.
    """
    for _ in attempts_within(wait_seconds, first_seconds=0.05, longest_seconds=0.05):
        proof, starts = read_back(wire, vote)
        if proof is not None:
            return proof
        held = [start for start in starts if start.held]
        writers = wire.open_now(vote.places) if held else {}
        before = [
            (one, start) for start in held for one in writers.get(start.place, ()) if one.first_offset < start.offset
        ]
        use = vote.transaction.producer
        mine = {(at, one.first_offset) for at, found in writers.items() for one in found if (one.id, one.epoch) == use}
        if held and mine >= {(start.place, start.offset) for start in held} and _known(wire, vote.transaction) is None:
            if len(held) == len(starts) and {at for at, _ in mine} == set(vote.places):
                return Prepared()
            if not before and (vote.marked is None or vote.marked in writers):
                held = []  # waiting can't help: nobody ends it
        if not held:
            found = "; ".join(_why_unproven(wire, start) for start in starts) or "it recorded no rows"
            return Unknown(f"transaction {vote.transaction.ref}: its coordinator answers {answer}, and {found}")
    raise _hidden(vote, answer, *min(before, key=lambda one: one[0].first_offset, default=(None, held[0])))


def read_back(wire: Wire, vote: Voted) -> tuple[AlreadyCommitted | Lost | None, list[_Start]]:
    """Read each partition at the transaction's first offset: return the first proof, or the places without one."""
    starts = []
    for written in vote.written:
        for partition, offset in written.first_offsets.items():
            seen = wire.look(written.topic_id, partition, offset)
            start = _Start(written.topic, written.topic_id, partition, offset, seen)
            proof = _proof(vote, start)
            if proof is not None:
                return proof, []
            starts.append(start)
    return None, starts


def _proof(vote: Voted, start: _Start) -> AlreadyCommitted | Lost | None:
    one, seen = vote.transaction, start.seen
    if seen.error or start.held or seen.producer != one.producer:
        return None
    # The list holds transactions that end here or later, and a producer has one at a time in a partition.
    if any(producer == one.producer_id and first <= start.offset for producer, first in seen.aborted):
        return Lost(f"transaction {one.ref}: its rows in {start} are aborted (last stable offset {seen.stable})")
    return AlreadyCommitted()


def _why_unproven(wire: Wire, start: _Start) -> str:
    """Return why a place proves nothing."""
    seen = start.seen
    if start.held:
        return f"{start} is open, and nobody will end it"
    if seen.error == UNKNOWN_TOPIC_ID:
        now = wire.topics([start.topic]).get(start.topic)
        became = f"was made again, with id {now.id}" if now is not None else "was deleted"
        return f"topic {start.topic} (id {start.topic_id}), which holds its rows, {became}"
    if start.offset < seen.log_start:
        return f"{start} was deleted: the partition begins at offset {seen.log_start} now"
    if seen.error:
        return f"{start} is not there: {named(seen.error)}, the last stable offset is {seen.stable}"
    if seen.producer is None:
        return f"{start} holds no rows any more: they were compacted away"
    return f"{start} holds rows of producer id {seen.producer[0]}, epoch {seen.producer[1]}"


def _hidden(vote: Voted, answer: str, holder: OpenProducer | None, start: _Start) -> Retryable:
    who = f"producer id {holder.id} (epoch {holder.epoch})" if holder else "a transaction that has just ended"
    what = f"transaction {vote.transaction.ref}: its coordinator answers {answer}, and its rows can't be read yet"
    why = f"{who} holds the last stable offset of {start} at {start.seen.stable}"
    fix = "wait until that transaction is ended (by its owner, or by its timeout), then start the job again; "
    fix += f"kafka-transactions.sh describe-producers --topic {start.topic} --partition {start.partition} shows it"
    return Retryable(what, why=why, next=fix)


# Whether its markers are there


@dataclass(frozen=True, slots=True)
class Ended:
    """A transaction with a decided end, and the partitions that have its rows.

    `sure`: the coordinator has just confirmed it for this very use. Otherwise it is queried before a marker is written.
    """

    transaction: Transaction
    places: tuple[Place, ...]
    commit: bool
    sure: bool


@dataclass(frozen=True, slots=True)
class _Missing:
    """A partition where an ended transaction is still open, because its marker is missing."""

    ended: Ended
    place: Place
    writer: OpenProducer

    def __str__(self) -> str:
        topic, number = self.place
        return f"transaction {self.ended.transaction.ref} in {topic}-{number} from offset {self.writer.first_offset}"


def write_missing_markers(wire: Wire, ended: Sequence[Ended], fixes: Remedies, seen: Writers) -> None:
    """Wait until the leaders of all partitions have the markers of these ends, and write lost ones. Idempotent.

    `seen`: the open producers there at the moment when the coordinators reported the ends as complete.

    Kafka 4.3.1 loses markers each time that a coordinator is killed between its answer to EndTxn and the markers. The
    next coordinator continues before it knows the partitions' leaders, assumes that the partitions were deleted, and
    reports CompleteCommit. Readers then block there permanently and never see the committed rows. A decided end can't
    change, so the driver may write it. Raises Retryable if the coordinator reports another end, or if the sink's user
    may not write markers.
    """
    for one in _missing(wire, ended, fixes, seen):
        decided = _decided(wire, one, fixes)
        code = wire.mark(decided, one.place, one.writer.coordinator_epoch, commit=one.ended.commit)
        if code:
            allow = f"let this job write it (Kafka 3.7: ClusterAction, not Alter): {fixes.allow('Alter', '--cluster')}"
            fix = allow if code == CLUSTER_NOT_AUTHORIZED else "see that leader's log"
            raise _unfinished(one, f"the leader answers {named(code)} to one", f"{fix}; {_other_fix(one, fixes)}")
        _LOG.warning("%s: the marker of its end was missing, and exactsink has written it", one)


def _missing(wire: Wire, ended: Sequence[Ended], fixes: Remedies, seen: Writers) -> Sequence[_Missing]:
    """Find partitions without a marker after MARKER_SECONDS. Raises Retryable if a partition has no leader.

    A partition of __consumer_offsets may stay unanswered, because the sink's user need not be allowed to read it.
    """
    uses = {one.transaction.producer: one for one in ended}
    places = {place for one in ended for place in one.places}
    left, silent = list[_Missing](), set[Place]()
    for attempt in attempts_within(MARKER_SECONDS if places else 0, first_seconds=0.001, longest_seconds=0.05):
        open_now = wire.open_now(places) if attempt else seen
        left = [
            _Missing(uses[writer.id, writer.epoch], place, writer)
            for place, writers in sorted(open_now.items(), key=lambda entry: (entry[0][0] == OFFSETS, entry[0]))
            for writer in writers
            if place in places and (writer.id, writer.epoch) in uses
        ]
        silent = {place for place in places - open_now.keys() if place[0] != OFFSETS}
        if not left and not silent:
            break
    there = wire.topics({topic for topic, _ in silent})
    for topic, number in sorted(one for one in silent if one[0] in there and one[1] in there[one[0]].partitions):
        what = f"{topic}-{number} may lack the end of a transaction"
        fix = f"start the brokers that this shows: {fixes.show_partitions('unavailable', '--topic', topic)}"
        raise Retryable(what, why="no leader of it answers", next=fix)
    return left


def _known(wire: Wire, one: Transaction) -> Described | None:
    """Return how the coordinator describes a producer; None if it has forgotten the producer, and will never end it."""
    now = wire.describe([one.id]).get(one.id)
    return now if now is not None and now.transaction.producer_id == one.producer_id else None


def _decided(wire: Wire, one: _Missing, fixes: Remedies) -> Transaction:
    """Return the transaction with the epoch that its end gave it. Raises Retryable if the coordinator contradicts.

    A coordinator that has forgotten the id ends nothing: then the end that partitions prove counts, or the decision.
    """
    use, word = one.ended.transaction, "CompleteCommit" if one.ended.commit else "CompleteAbort"
    now = None if one.ended.sure else _known(wire, use)
    if now is None:
        return Transaction(use.id, use.producer_id, use.producer_epoch + 1)
    if now.state != word or not use.is_use_of(now.transaction):
        said = f"its coordinator says {now.state} ({now.transaction.ref}), not {word}"
        raise _unfinished(one, said, _other_fix(one, fixes))
    return now.transaction


def _other_fix(one: _Missing, fixes: Remedies) -> str:
    """Return the other fix: Kafka's tool can end a transaction in one partition, but only abort it."""
    if one.ended.commit:
        return "then start the job again; never abort it manually, because its rows are decided"
    return f"or {fixes.abort_in(*one.place, one.writer.first_offset)}; then start the job again"


def _unfinished(one: _Missing, why: str, fix: str) -> Retryable:
    why = f"readers block there, because the partition has no marker of its end, and {why}"
    return Retryable(f"{one} is ended, and still open there", why=why, next=fix)
