"""The tasks' votes, and whether they may be decided: counts and deadlines must agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from exactsink.contract import Committable, ExactsinkError, Retryable, Txn

__all__ = [
    "EpochPlan",
    "Judging",
    "SinkPlan",
    "Vote",
    "check_deadlines",
    "check_votes",
    "same_rows",
    "sum_digests",
    "total",
]


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """The data that one sink's writers need in every task. `only` limits a replay to the partitions with lost rows."""

    ticket: bytes
    only: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Judging:
    """How tasks judge one sink's rows: the backend's rules, the quarantine, and the most bad rows for it."""

    quarantine: str
    rules: bytes
    at_most: int


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The plan that every task of an epoch gets: the epoch, and each sink's ticket. Sinks that it lacks write nothing.

    `judged` are the sinks with a quarantine. A replay of either judges again, and writes only that one.
    """

    job: str
    epoch: int
    generation: int
    token: str
    sinks: Mapping[str, SinkPlan]
    judged: Mapping[str, Judging] = field(default_factory=dict)

    @property
    def read(self) -> Sequence[str]:
        """The sinks that need rows of a frame: the sinks to be written, and the sinks to be judged for a quarantine."""
        taken = {judging.quarantine for judging in self.judged.values()}
        return [name for name in dict.fromkeys((*self.sinks, *self.judged)) if name not in taken]

    def txn(self, sink: str, partition: int, attempt: int) -> Txn:
        return Txn(self.job, self.epoch, sink, self.generation, self.token, partition, attempt)


@dataclass(frozen=True, slots=True)
class Vote:
    """One task's vote on one sink: the rows that its writer got, as the framework counted them, and the committable.

    `refusal` replaces the committable if the task met an error that a retry can't help. `bytes` are those of the rows
    as Arrow had them in memory; they are for metrics, and decide nothing. `quarantined` counts the sink's bad rows,
    which went to its quarantine; `reason` is that of the first.
    """

    sink: str
    partition: int
    rows: int
    committable: Committable | None
    refusal: ExactsinkError | None = None
    bytes: int = 0
    quarantined: int = 0
    reason: str = ""


def sum_digests(digests: Sequence[int]) -> int:
    """Sum row hashes modulo 2^64: the order of rows and partitions does not matter."""
    return sum(digests) % (1 << 64)


def check_votes(plan: EpochPlan, votes: Sequence[Vote]) -> dict[str, tuple[Committable, ...]]:
    """Refuse an epoch if its votes don't agree with the rows that the writers got. Return each sink's committables.

    Raises a task's own refusal, otherwise Retryable: Spark replays the batch, and the next claim sweeps this try.
    """
    for vote in votes:
        if vote.refusal is not None:
            raise vote.refusal
    accepted: dict[str, list[Committable]] = {sink: [] for sink in plan.sinks}
    voted: set[tuple[str, int]] = set()
    refs: set[tuple[str, str]] = set()
    for vote in sorted(votes, key=lambda v: (v.sink, v.partition)):
        if vote.sink not in accepted or (vote.sink, vote.partition) in voted:
            raise _refused(plan, vote, "the sink is not part of this epoch, or voted twice")
        voted.add((vote.sink, vote.partition))
        if vote.committable is None:
            if vote.rows:
                raise _refused(plan, vote, f"{vote.rows} rows were handed to its writer, and there is no committable")
            continue
        if (vote.sink, vote.committable.ref) in refs:
            raise _refused(plan, vote, f"its store knows another participant by the same name, {vote.committable.ref}")
        refs.add((vote.sink, vote.committable.ref))
        accepted[vote.sink].append(_checked(plan, vote, vote.committable))
    return {sink: tuple(committables) for sink, committables in accepted.items()}


def check_deadlines(
    committables: Mapping[str, Sequence[Committable]], margins: Mapping[str, float], now: float
) -> Mapping[str, float]:
    """Refuse an epoch if a sink's earliest deadline leaves less time to commit than its margin (seconds).

    Returns the seconds that are left, for the sinks with deadlines.
    """
    deadlines = {sink: [c.deadline for c in voted if c.deadline is not None] for sink, voted in committables.items()}
    left = {sink: min(known) - now for sink, known in deadlines.items() if known}
    for sink, seconds in left.items():
        if seconds < margins[sink]:
            raise Retryable(
                f"sink {sink}: {seconds:.1f} s are left to commit in",
                why=f"its backend may drop prepared work, and a commit may take {margins[sink]:.1f} s; "
                "the deadline is held against this driver's clock",
                next="give the backend a longer transaction timeout: Spark gives this batch again, so smaller batches "
                "only help later; where epochs are short, set the clocks of driver and servers right (NTP)",
            )
    return left


def total(committables: Sequence[Committable]) -> tuple[int, int]:
    """Sum up rows and digests."""
    return sum(c.rows for c in committables), sum_digests([c.digest for c in committables])


def same_rows(gone: Sequence[Committable], again: Sequence[Committable], *, by_partition: bool) -> bool:
    """Compare a replay with the lost participants: in total, or by partition if others of the sink are not lost."""
    if not by_partition:
        return total(gone) == total(again)
    old = {c.txn.partition: (c.rows, c.digest) for c in gone}
    new = {c.txn.partition: (c.rows, c.digest) for c in again}
    return old == new


def _checked(plan: EpochPlan, vote: Vote, committable: Committable) -> Committable:
    txn = committable.txn
    if txn != plan.txn(vote.sink, vote.partition, txn.attempt):
        raise _refused(plan, vote, f"its committable belongs to {txn.id}")
    if committable.rows != vote.rows:
        why = f"{vote.rows} rows were handed to its writer, and its committable says {committable.rows}"
        raise _refused(plan, vote, why)
    return committable


def _refused(plan: EpochPlan, vote: Vote, why: str) -> Retryable:
    return Retryable(
        f"epoch {plan.epoch} is refused before its decision: sink {vote.sink}, partition {vote.partition}",
        why=why,
        next="start the job again, which writes the batch again; if it fails again, the backend drops or repeats rows",
    )
