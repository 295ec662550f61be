"""The driver's side: end what tasks began, all with one version of EndTxn, and say what became of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager

import pyarrow as pa

from exactsink.contract import (
    AlreadyCommitted,
    Committable,
    Committed,
    Committer,
    ExactsinkError,
    Fatal,
    Finding,
    InDoubt,
    JobContext,
    Lost,
    Outcome,
    Retryable,
    Undecided,
    Unknown,
)
from exactsink_kafka.group import report_offsets
from exactsink_kafka.hanging import Ended, finish
from exactsink_kafka.ids import PoolId, Ticket, prefix, slots_of
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.preflight import findings
from exactsink_kafka.settle import look_back, settle, spoilt
from exactsink_kafka.vote import Transaction, Vote
from exactsink_kafka.wire import Described, Wire
from exactsink_kafka.wire.failures import NOT_AUTHORIZED, named, refused_id

__all__ = ["KafkaCommitter"]

_DECIDED = "the epoch is decided, and is committed again; no row is lost"
_INVALID_STATE, _UNSUPPORTED = 48, 35
_MOVED_ON = frozenset({47, 49, 90})
"""INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED: the coordinator knows of later uses only."""
_NOT_OPEN = _MOVED_ON | {0, _INVALID_STATE}
_MARKERS_SECONDS = 30.0
_SETTLE_SECONDS = 10.0
"""How long to wait for an open transaction, perhaps somebody else's, that hides how the rows ended."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05


class KafkaCommitter(Committer):
    """Commit transactions by producer id and epoch, and settle by reading what is no longer there to be committed."""

    def __init__(self, options: KafkaOptions, ctx: JobContext) -> None:
        self._options = options
        self._ctx = ctx
        self._wire = Wire(options.connection, f"exactsink {ctx.job}.{ctx.sink} driver")
        self._rounds = 0
        self._cluster: str | None = None

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        with self._doing("check the target", ""):
            return list(findings(self._options, self._ctx, self._wire, schema, participants))

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        with self._doing(f"open epoch {epoch}", "the epoch has not begun"):
            self._check_topic()
            if self._cluster is None:
                self._cluster = self._wire.cluster_id()
        slots = slots_of(participants, self._options.ids_per_participant)
        ticket = Ticket.of_round(self._rounds, slots, self._cluster)
        self._rounds += 1
        return ticket.dump()

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        votes = [Vote.load(committable) for committable in committables]
        with self._doing(f"commit epoch {epoch}", _DECIDED):
            here = self._wire.cluster_id()
            ended = self._commit([vote for vote in votes if vote.cluster == here])
        return [ended[vote.transaction] if vote.cluster == here else _elsewhere(vote, here) for vote in votes]

    def abort(self, undecided: Undecided) -> None:
        wanted = [self._ours(participant.ref) for participant in undecided]
        with self._doing(f"abort {len(wanted)} undecided transactions", "they are undecided, and stay so"):
            before = self._wire.describe(one.id for one in wanted)
            codes = dict(zip(wanted, self._wire.end(wanted, commit=False), strict=True))
            for one, code in codes.items():
                if code not in _NOT_OPEN:
                    raise self._refused(one, code)
            self._await_markers(wanted, "PrepareAbort")
            ended = [
                reported
                for reported in before.values()
                if codes.get(reported.transaction) == 0 and reported.state == "Ongoing"
            ]
            finish(
                self._wire,
                [Ended(reported.transaction, reported.partitions, commit=False, sure=True) for reported in ended],
                self._options.bootstrap_servers,
            )

    def in_doubt(self) -> Iterable[InDoubt]:
        with self._doing("list open transactions", ""):
            listed = self._wire.ongoing(prefix(self._ctx.job, self._ctx.sink))
        now = time.time()
        return [entry for one in listed if (entry := self._entry(one, now)) is not None]

    def source_reached(self, epoch: int, ends: Sequence[str]) -> None:
        group = self._options.report_offsets_to
        if group is None:
            return
        try:
            report_offsets(self._wire.admin, group, ends)
        except Retryable:
            self._wire.close()  # the client keeps to the coordinator that it once found
            raise

    def close(self) -> None:
        self._wire.close()

    def _commit(self, votes: Sequence[Vote]) -> Mapping[Transaction, Outcome]:
        before = self._wire.describe(vote.transaction.id for vote in votes)
        were_open = {vote.transaction for vote in votes if _is_open(vote, before)}
        spoiled = spoilt(self._wire, [vote for vote in votes if vote.transaction in were_open])
        whole = [vote for vote in votes if vote.transaction not in spoiled]
        ended = [vote.transaction for vote in whole]
        codes = dict(zip(ended, self._wire.end(ended, commit=True), strict=True))
        self._await_markers([one for one in ended if codes[one] == 0], "PrepareCommit")
        outcomes = {
            vote.transaction: self._outcome(vote, codes[vote.transaction], vote.transaction in were_open)
            for vote in whole
        }
        sure = {one for one in ended if codes[one] == 0 and one in were_open}
        known = [vote for vote in whole if not isinstance(outcomes[vote.transaction], Unknown)]
        finish(self._wire, [_ended(vote, outcomes, sure) for vote in known], self._options.bootstrap_servers)
        return spoiled | outcomes

    def _outcome(self, vote: Vote, code: int, was_open: bool) -> Outcome:
        one = vote.transaction
        if code == 0 and was_open:
            return Committed()
        if code == 0:  # also when somebody mixed versions of EndTxn on this id: what readers see is stronger
            return look_back(self._wire, vote)[0] or AlreadyCommitted()
        if code == _INVALID_STATE:
            reported = self._wire.describe([one.id]).get(one.id)
            said = _said(one, reported)
            if said is not None:
                return look_back(self._wire, vote)[0] or said
            state = "an unknown id" if reported is None else f"{reported.state} (now {reported.transaction.ref})"
            answer = f"{named(code)} to a commit, and is at {state}"
            return settle(self._wire, vote, answer, wait_seconds=_SETTLE_SECONDS)
        if code in _MOVED_ON:
            return settle(self._wire, vote, f"{named(code)} to a commit", wait_seconds=_SETTLE_SECONDS)
        raise self._refused(one, code)

    def _await_markers(self, ended: Iterable[Transaction], state: str) -> None:
        """Wait until readers see the end: EndTxn's success says only that it can't be undone."""
        until, pause = time.monotonic() + _MARKERS_SECONDS, _FIRST_PAUSE
        left = {one.id: one.producer_id for one in ended}
        while left:
            reported = self._wire.describe(left)
            left = {
                one.transaction.id: one.transaction.producer_id
                for one in reported.values()
                if one.state == state and one.transaction.producer_id == left[one.transaction.id]
            }
            if left and time.monotonic() >= until:
                raise Retryable(
                    f"transaction {next(iter(left))} is ended, and not yet for readers",
                    why=f"its markers are not in all partitions after {_MARKERS_SECONDS:.0f} s (state {state})",
                    next="see that all partitions of its topics have a leader: kafka-topics.sh --bootstrap-server "
                    f"{self._options.bootstrap_servers} --describe --unavailable-partitions",
                )
            if left:
                time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _check_topic(self) -> None:
        topic, servers = self._options.topic, self._options.bootstrap_servers
        if topic is not None and topic not in self._wire.topics([topic]):
            raise Fatal(
                f"there is no topic {topic}",
                why=f"Kafka at {servers} does not know it, and no sink makes topics",
                next=f"kafka-topics.sh --bootstrap-server {servers} --create --topic {topic} --partitions 4",
            )

    def _ours(self, ref: str) -> Transaction:
        """Read a ref of this sink's. Raises ValueError for any other."""
        one = Transaction.of_ref(ref)
        pooled = PoolId.parse(one.id)
        if pooled is None or (pooled.job, pooled.sink) != (self._ctx.job, self._ctx.sink):
            raise ValueError(f"{ref!r} is no participant of sink {self._ctx.sink} of job {self._ctx.job}")
        return one

    def _entry(self, one: Described, now: float) -> InDoubt | None:
        """Make a listing's entry; age and deadline by the broker's clock, as far as this one agrees with it."""
        pooled = PoolId.parse(one.transaction.id)
        if pooled is None or (pooled.job, pooled.sink) != (self._ctx.job, self._ctx.sink):
            return None
        started = now if one.started is None else one.started
        return InDoubt(
            one.transaction.ref,
            pooled.generation,
            pooled.token,
            age_seconds=max(now - started, 0.0),
            deadline=started + one.timeout_seconds,
        )

    def _refused(self, one: Transaction, code: int) -> ExactsinkError:
        if code in NOT_AUTHORIZED:
            return refused_id("end a transaction", one.id, code, self._options.connection)
        if code == _UNSUPPORTED:
            return Fatal("end a transaction", why=named(code), next="use brokers of Apache Kafka 4.0 or newer")
        return Retryable(f"transaction {one.ref} can't be ended now", why=named(code), next="start the job again")

    @contextmanager
    def _doing(self, doing: str, safe: str) -> Iterator[None]:
        """Return in errors what was being done, and what that leaves."""
        try:
            yield
        except ExactsinkError as error:
            why = "; ".join(part for part in (error.why, safe) if part)
            what = f"sink {self._ctx.sink}: {doing}: {error.what}"
            raise type(error)(what, why=why, next=error.next) from error.__cause__


def _is_open(vote: Vote, reported: Mapping[str, Described]) -> bool:
    found = reported.get(vote.transaction.id)
    return found is not None and found.state == "Ongoing" and found.transaction == vote.transaction


def _ended(vote: Vote, outcomes: Mapping[Transaction, Outcome], sure: AbstractSet[Transaction]) -> Ended:
    one = vote.transaction
    places = tuple((written.topic, number) for written in vote.written for number in written.first_offsets)
    return Ended(one, places, commit=not isinstance(outcomes[one], Lost), sure=one in sure)


def _said(one: Transaction, reported: Described | None) -> Outcome | None:
    """Take a coordinator's word where it speaks of this very use."""
    if reported is None or not one.is_use_of(reported.transaction):
        return None
    if reported.state in ("CompleteAbort", "PrepareAbort"):
        return Lost(
            f"transaction {one.ref} was aborted: its coordinator says {reported.state} ({reported.transaction.ref})"
        )
    if reported.state in ("CompleteCommit", "PrepareCommit"):
        return AlreadyCommitted()
    return None


def _elsewhere(vote: Vote, here: str) -> Unknown:
    return Unknown(
        f"transaction {vote.transaction.ref} was begun in cluster {vote.cluster}, and bootstrap_servers leads to "
        f"cluster {here}"
    )
