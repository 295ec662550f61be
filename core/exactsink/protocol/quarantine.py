"""Rows that a sink can't hold go to its quarantine, another sink of the job, in the same epoch.

Every row goes to exactly one of the two: a judge chooses before the writer gets the row. Rows of both sinks are
counted, summed and decided together, like those of any sink. The verdict depends on the row, and on rules that were
read for it, so a replay of either sink's lost rows finds the same rows. If the rules have changed, the digest differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from exactsink.contract import Backend, ExactsinkError, Fatal, Retryable, Txn, Validator
from exactsink.contract.validation import picked
from exactsink.protocol.checked import broken, calling
from exactsink.protocol.votes import EpochPlan, Judging, Vote
from exactsink.toolkit.row_json import row_json, safe_text

__all__ = ["QUARANTINE_ROWS", "BadRows", "Judge", "check_quarantined", "quarantine_schema", "quarantined"]

QUARANTINE_ROWS = pa.schema(
    pa.field(name, pa.int64() if name == "epoch" else pa.string(), nullable=False)
    for name in ("id", "sink", "epoch", "reason", "row")
)
"""A quarantine's columns.

`id` names the job, the sink, the epoch, the partition and the row's number there. It is unique, so a table can have it
as its key. The digest excludes it, because a replay may cut rows in other places.
"""

_MOST_REASON = 500

_Rows = tuple[pa.RecordBatch, pa.Array]


@dataclass(frozen=True, slots=True)
class BadRows:
    """How many rows of a sink are bad, and the reason for the first one."""

    rows: int
    reason: str


def quarantine_schema(backend: Backend) -> pa.Schema:
    """Return the schema of a quarantine's rows for its writer. Raises ConfigError if the sink can't be a quarantine."""
    return backend.shape_in_task(pa.RecordBatch.from_pylist([], schema=QUARANTINE_ROWS)).schema


class Judge:
    """One task's judge of one sink's rows. `txn` is the sink's own in this task."""

    def __init__(self, txn: Txn, judging: Judging, backend: Backend) -> None:
        self.quarantine = judging.quarantine
        self.found = BadRows(0, "")
        self._txn = txn
        self._judging = judging
        self._backend = backend
        self._validator: Validator | None = None

    def split(self, batch: pa.RecordBatch, hashes: pa.Array) -> tuple[_Rows, _Rows | None]:
        """Return the rows for the sink, and those for its quarantine, if any, each with their hashes.

        Raises Fatal once there are more bad rows than may go to the quarantine.
        """
        reasons = self._judged(batch) if batch.num_rows else {}
        if not reasons:
            return (batch, hashes), None
        good = [place for place in range(batch.num_rows) if place not in reasons]
        return (picked(batch, good), hashes.take(pa.array(good, pa.int64()))), self._bad(batch, hashes, reasons)

    def close(self) -> None:
        if self._validator is not None:
            self._validator.close()

    def _judged(self, batch: pa.RecordBatch) -> Mapping[int, str]:
        with calling(self._txn.sink, self._backend, "validator", in_task=True):
            return self._judge(batch)

    def _judge(self, batch: pa.RecordBatch) -> Mapping[int, str]:
        if self._validator is None:
            self._validator = self._backend.validator(batch.schema, self._judging.rules)
        reasons, last = dict[int, str](), -1
        for place, why in self._validator.bad_rows(batch):
            if not last < place < batch.num_rows:
                raise broken(self._txn.sink, self._backend, f"its validator names row {place} twice, or out of order")
            last = place
            reasons[place] = safe_text(why)[:_MOST_REASON]
            self.found = BadRows(self.found.rows + 1, self.found.reason or reasons[place])
            if self.found.rows > self._judging.at_most:
                raise _too_many(self._txn.sink, self._judging, self.found)
        return reasons

    def _bad(self, batch: pa.RecordBatch, hashes: pa.Array, reasons: Mapping[int, str]) -> _Rows:
        txn, first = self._txn, self.found.rows - len(reasons) + 1
        rows = [
            {
                "id": f"{txn.job}.{txn.sink}.e{txn.epoch}.p{txn.partition}.n{number}",
                "sink": txn.sink,
                "epoch": txn.epoch,
                "reason": reason,
                "row": row_json(batch.slice(place, 1)),
            }
            for number, (place, reason) in enumerate(reasons.items(), start=first)
        ]
        own = [_hash(txn.sink, hashes[place].as_py(), reason) for place, reason in reasons.items()]
        return pa.RecordBatch.from_pylist(rows, schema=QUARANTINE_ROWS), pa.array(own, pa.int64())


def quarantined(votes: Sequence[Vote]) -> Mapping[str, BadRows]:
    """Return the bad rows that tasks found, by sink; sinks without bad rows are left out."""
    found: dict[str, BadRows] = {}
    for vote in votes:
        if vote.quarantined:
            before = found.get(vote.sink, BadRows(0, vote.reason))
            found[vote.sink] = BadRows(before.rows + vote.quarantined, before.reason)
    return found


def check_quarantined(plan: EpochPlan, votes: Sequence[Vote]) -> None:
    """Refuse an epoch with too many bad rows (Fatal), or with other rows in a quarantine than those found bad."""
    found = quarantined(votes)
    for sink, judging in plan.judged.items():
        if sink in found and found[sink].rows > judging.at_most:
            raise _too_many(sink, judging, found[sink])
    for name in {judging.quarantine for judging in plan.judged.values()} & plan.sinks.keys():
        judged = [sink for sink, judging in plan.judged.items() if judging.quarantine == name]
        if not plan.sinks.keys() >= {*judged}:  # a replay of its lost rows: the decision has their rows and digest
            continue
        bad = sum(found[sink].rows for sink in judged if sink in found)
        got = sum(vote.rows for vote in votes if vote.sink == name)
        if bad != got:
            raise Retryable(
                f"epoch {plan.epoch} is refused before its decision: quarantine {name} got {got} rows",
                why=f"{bad} rows of {', '.join(judged)} were found bad",
                next="start the job again, which writes the batch again; if the error comes back, report it",
            )


def _hash(sink: str, row: int, reason: str) -> int:
    """Hash a quarantined row from its own hash, its sink, and the reason."""
    digest = hashlib.blake2b(f"{sink}\0{row}\0{reason}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _too_many(sink: str, judging: Judging, found: BadRows) -> ExactsinkError:
    return Fatal(
        f"sink {sink}: more than {judging.at_most:,} rows of one epoch can't be written (quarantine_at_most)",
        why=f"the first: {found.reason}; nothing of the epoch is decided",
        next=f"fix the rows' source, the frame or the target; or, if they all belong in {judging.quarantine}, raise "
        f"quarantine_at_most in [sinks.{sink}]; then start the job again",
    )
