"""Count the rows of decided epochs that a topic holds now, from the first offsets that their votes name."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from exactsink.contract import Audit, Retryable
from exactsink_kafka.errors import UNKNOWN_TOPIC_ID, named
from exactsink_kafka.transactions import Voted
from exactsink_kafka.wire import Wire

__all__ = ["audited"]

_Producer = tuple[int, int]
_Place = tuple[str, str, int]


def audited(wire: Wire, epochs: Mapping[int, Sequence[Voted]]) -> dict[int, Audit]:
    """Count the rows of each epoch that a read_committed consumer gets now, without records of other writers.

    Reads only. Raises Retryable if an open transaction hides rows.
    """
    [here] = wire.ask(wire.about_cluster())
    first: dict[_Place, dict[_Producer, int]] = defaultdict(dict)
    for votes in epochs.values():
        for vote in votes:
            for written in vote.written if vote.cluster == here else ():
                for partition, offset in written.first_offsets.items():
                    place = (written.topic, written.topic_id, partition)
                    first[place][vote.transaction.producer] = offset
    rows: Counter[_Producer] = Counter()
    missing: dict[_Place, str] = {}
    for place, begins in sorted(first.items()):
        missing[place] = _count(wire, place, begins, rows)
    return {epoch: _audit(votes, here, rows, missing) for epoch, votes in epochs.items()}


def _audit(votes: Sequence[Voted], here: str, rows: Mapping[_Producer, int], missing: Mapping[_Place, str]) -> Audit:
    if any(vote.cluster != here for vote in votes):
        return Audit(None, f"it was written to cluster {votes[0].cluster}, but bootstrap_servers leads to {here}")
    places = {(w.topic, w.topic_id, number) for vote in votes for w in vote.written for number in w.first_offsets}
    why = "; ".join(missing[place] for place in sorted(places) if missing[place])
    return Audit(sum(rows[vote.transaction.producer] for vote in votes), why or "records of its transactions")


def _count(wire: Wire, place: _Place, first: Mapping[_Producer, int], rows: Counter[_Producer]) -> str:
    """Read a partition from the first of these transactions to the end of the last, and add their rows to `rows`.

    Return why rows are missing; empty if none are. Raises Retryable if an open transaction hides rows.
    """
    topic, topic_id, partition = place
    left, offset, wrong = dict(first), min(first.values()), ""
    while left:
        seen = wire.look(topic_id, partition, offset)
        if seen.error == UNKNOWN_TOPIC_ID:
            return f"topic {topic} was deleted, or made again"
        if offset < seen.log_start:
            begins = f"{topic}-{partition} begins at offset {seen.log_start} now"
            wrong = f"{begins}: retention or DeleteRecords removed the rest"
            offset = seen.log_start
            continue
        if seen.error:
            return f"{topic}-{partition} can't be read from offset {offset}: {named(seen.error)}"
        batch = seen.batch
        if batch is None or batch.first >= seen.stable:
            for holder in wire.open_in([(topic, partition)])[topic, partition]:
                what = f"readers of {topic}-{partition} block at offset {holder.first_offset}: rows after it"
                why = f"producer id {holder.id} (epoch {holder.epoch}) has a transaction open there"
                fix = "wait until its owner or its timeout ends it, then `exactsink verify JOB.toml` again"
                raise Retryable(f"{what} can't be counted", why=why, next=fix)
            break  # the ends of the transactions were compacted away
        if batch.ends:
            left = {one: begin for one, begin in left.items() if one[0] != batch.producer[0] or begin > batch.first}
        elif batch.producer in left and not any(
            one == batch.producer[0] and begin <= batch.first for one, begin in seen.aborted
        ):
            rows[batch.producer] += batch.rows_from(offset)
        offset = batch.last + 1
    return wrong
