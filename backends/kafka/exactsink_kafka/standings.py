"""The state of transactions, and the readers that an open one blocks. This module only reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from exactsink.contract import AlreadyCommitted, Lost, Prepared, Standing, Unknown
from exactsink_kafka.messages import Described, OpenProducer
from exactsink_kafka.outcomes import incomplete, read_back, resolve
from exactsink_kafka.transactions import Transaction, Voted
from exactsink_kafka.wire import Place, Wire

__all__ = ["held_by", "is_open", "said_of", "standings", "state_of"]


def standings(wire: Wire, votes: Sequence[Voted], known: Mapping[str, Described]) -> Mapping[Transaction, Standing]:
    """Return the standings that a commit of these transactions would find, without committing.

    `known`: their coordinators' descriptions of just now. Raises Retryable if an open transaction of another producer
    hides how one ended.
    """
    waiting = [vote for vote in votes if is_open(vote, known)]
    found: dict[Transaction, Standing] = {vote.transaction: Prepared() for vote in waiting}
    found |= incomplete(wire, waiting)
    ended = [vote for vote in votes if vote.transaction not in found]
    found |= {vote.transaction: _ended(wire, vote, known.get(vote.transaction.id)) for vote in ended}
    # A marker of its end may be late, or lost: a commit waits for it, or writes it.
    committed = [vote for vote in ended if found[vote.transaction] == AlreadyCommitted()]
    writers = wire.open_now({place for vote in committed for place in vote.places})
    still = {(writer.id, writer.epoch) for there in writers.values() for writer in there}
    uses = [vote.transaction for vote in committed]
    return found | {one: Prepared() for one in uses if one.producer in still}


def _ended(wire: Wire, vote: Voted, known: Described | None) -> AlreadyCommitted | Lost | Prepared | Unknown:
    """Return how a transaction ended, by its partitions, else by its coordinator."""
    said = said_of(vote.transaction, known)
    if said is not None:
        return read_back(wire, vote)[0] or said
    return resolve(wire, vote, f"that it is at {state_of(known)}", wait_seconds=0)


def is_open(vote: Voted, known: Mapping[str, Described]) -> bool:
    found = known.get(vote.transaction.id)
    return found is not None and found.state == "Ongoing" and found.transaction == vote.transaction


def said_of(one: Transaction, known: Described | None) -> AlreadyCommitted | Lost | None:
    """Return the outcome that a coordinator reports of this very use; None if it reports none."""
    if known is None or not one.is_use_of(known.transaction):
        return None
    if known.state in ("CompleteAbort", "PrepareAbort"):
        said = f"its coordinator says {known.state} ({known.transaction.ref})"
        return Lost(f"transaction {one.ref} was aborted: {said}")
    return AlreadyCommitted() if known.state in ("CompleteCommit", "PrepareCommit") else None


def state_of(known: Described | None) -> str:
    return "an unknown id" if known is None else f"{known.state} (now {known.transaction.ref})"


def held_by(wire: Wire, one: Transaction) -> Sequence[str]:
    """Return which readers an open transaction blocks, a sentence for each partition; none if it is not open now."""
    known = wire.describe([one.id]).get(one.id)
    if known is None or known.state.startswith(("Empty", "Complete")) or not one.is_use_of(known.transaction):
        return []
    until = _until(known)
    found = wire.open_now(known.partitions)
    return [sentence for place in known.partitions if (sentence := _held(one, place, found.get(place, ()), until))]


def _held(one: Transaction, place: Place, writers: Sequence[OpenProducer], until: str) -> str:
    mine = min((w.first_offset for w in writers if (w.id, w.epoch) == one.producer), default=-1)
    if mine < 0:
        return ""
    where = f"{place[0]}-{place[1]}"
    first = min(writers, key=lambda writer: writer.first_offset)
    if first.first_offset < mine:
        ahead = f"another open transaction, of producer id {first.id}, from offset {first.first_offset}"
        return f"readers of {where} with isolation.level=read_committed wait at {ahead}; then at offset {mine}, {until}"
    return f"readers of {where} with isolation.level=read_committed get no row from offset {mine} on, {until}"


def _until(known: Described) -> str:
    if known.state != "Ongoing":
        return f"until its end is in all partitions (it is at {known.state})"
    if known.started is None:
        return "until it ends"
    ends = datetime.fromtimestamp(known.started + known.timeout_seconds, timezone.utc)
    after = f"{known.timeout_seconds:.0f} s after it began"
    return f"until it ends: the brokers abort it at {ends:%Y-%m-%d %H:%M:%S} UTC by their clock, {after}"
