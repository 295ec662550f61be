"""The driver's side: end the transactions of tasks, all with one version of EndTxn, and report how each ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa

from exactsink.contract import (
    AlreadyCommitted,
    Audit,
    Committable,
    Committed,
    Committer,
    ExactsinkError,
    Fatal,
    Finding,
    InDoubt,
    JobContext,
    Lost,
    Mark,
    Outcome,
    Prepared,
    Retryable,
    Standing,
    Undecided,
    Unknown,
)
from exactsink.toolkit.waiting import attempts_within
from exactsink_kafka import errors
from exactsink_kafka.audit import audited
from exactsink_kafka.group import MarkKeeper, report_offsets
from exactsink_kafka.messages import Cluster, Described, Topic
from exactsink_kafka.options import KafkaOptions, slow_because
from exactsink_kafka.outcomes import Ended, incomplete, read_back, resolve, write_missing_markers
from exactsink_kafka.preflight import findings
from exactsink_kafka.remedies import Remedies
from exactsink_kafka.standings import held_by, is_open, said_of, standings, state_of
from exactsink_kafka.transactions import Marking, PoolId, Ticket, Transaction, Voted, prefix
from exactsink_kafka.wire import Place, Wire, Writers

__all__ = ["KafkaCommitter"]

_DECIDED = "the epoch is decided, and is committed again; no row is lost"
_MARKERS_SECONDS = 30.0
_RESOLVE_SECONDS = 10.0
"""How long to wait for an open transaction, perhaps somebody else's, that hides how the rows ended."""


class KafkaCommitter(Committer):
    """Commit transactions by producer id and epoch, and find out how the others ended."""

    def __init__(self, options: KafkaOptions, ctx: JobContext) -> None:
        self._options = options
        self._fixes = Remedies(options)
        self._ctx = ctx
        self._wire = Wire(options, f"exactsink {ctx.job}.{ctx.sink} driver")
        self._marks = MarkKeeper(options, ctx, self._wire)
        self._marked_in: object = None
        self._rounds = 0
        self._between_epochs = False
        self._topics: Mapping[str, Topic] | None = None  # as they were when the mark was read, for the next epoch
        self._cluster: Cluster | None = None

    def check_target(self, participants: int | None) -> Iterable[Finding]:
        return self.check(None, participants)

    def check(self, schema: pa.Schema | None, participants: int | None) -> Iterable[Finding]:
        with self._doing("check the target", ""):
            found = list(findings(self._options, self._ctx, self._wire, schema))
            found += self._marks.findings()
            if self._options.writer == "auto" and self._options.topic and (why := slow_because(self._options)):
                what = f"tasks use the plain writer, which takes several times the CPU, because {why}"
                found.append(Finding("warning", what, 'remove it from `producer`, or set writer = "plain"'))
            return sorted(found, key=lambda finding: finding.severity != "error")

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        with self._doing(f"open epoch {epoch}", "the epoch has not begun"):
            topics, self._topics, self._between_epochs = self._topics, None, False
            self._check_topics(self._wire.topics(self._wanted) if topics is None else topics)
            if self._cluster is None:
                self._cluster = self._wire.cluster()
            if self._options.marked_topic is not None:
                self._marks.renew()
        ids, joins, raises = self._options.ids_per_participant, self._cluster.joins, self._cluster.raises
        marking = Marking(self._ctx.lineage, joins, self._wire.keeper(self._marks.group), self._marks.place, raises)
        number, self._rounds = self._rounds, self._rounds + 1
        return Ticket.of_round(number, ids, self._cluster.id, marking).dump()

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        votes = [Voted.load(committable) for committable in committables]
        with self._doing(f"commit epoch {epoch}", _DECIDED):
            wanted = self._wire.about_transactions(vote.transaction.id for vote in votes)
            here, known = self._wire.ask(self._wire.about_cluster(), wanted)
            self._check_session()
            self._check_clock(known)
            ended = self._commit([vote for vote in votes if vote.cluster == here], known)
        self._between_epochs = True
        return [ended[vote.transaction] if vote.cluster == here else _elsewhere(vote, here) for vote in votes]

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        votes = [Voted.load(committable) for committable in committables]
        with self._doing(f"check the outcome of epoch {epoch}", ""):
            wanted = self._wire.about_transactions(vote.transaction.id for vote in votes)
            here, known = self._wire.ask(self._wire.about_cluster(), wanted)
            self._check_session()
            found = standings(self._wire, [vote for vote in votes if vote.cluster == here], known)
        return [found[vote.transaction] if vote.cluster == here else _elsewhere(vote, here) for vote in votes]

    def blocks(self, participant: InDoubt) -> Sequence[str]:
        with self._doing("check which readers a transaction blocks", ""):
            return held_by(self._wire, self._ours(participant.ref))

    def abort(self, undecided: Undecided) -> None:
        wanted = [self._ours(participant.ref) for participant in undecided]
        with self._doing(f"abort {len(wanted)} undecided transactions", "they stay undecided"):
            before = self._wire.describe(one.id for one in wanted)
            ending = {known.transaction for known in before.values() if known.state != "Ongoing"}
            left = [one for one in wanted if one not in ending]  # another EndTxn may change the coordinator's answer
            codes = dict(zip(left, self._wire.end(left, commit=False), strict=True))
            for one, code in codes.items():
                if code not in errors.NOT_OPEN:
                    raise errors.refused("end a transaction", code, self._options, id=one.id)
            places = {place for one in before.values() for place in one.partitions + one.offsets}
            seen = self._await_markers(wanted, "PrepareAbort", places)
            ended = [
                Ended(known.transaction, known.partitions + known.offsets, commit=False, sure=True)
                for known in before.values()
                if codes.get(known.transaction) == 0 and known.state == "Ongoing"
            ]
            write_missing_markers(self._wire, ended, self._fixes, seen)

    def in_doubt(self) -> Iterable[InDoubt]:
        with self._doing("list open transactions", ""):
            listed = self._wire.ongoing(prefix(self._ctx.job, self._ctx.sink))
        now = time.time()
        return [entry for one in listed if (entry := self._entry(one, now)) is not None]

    def audit(self, epochs: Mapping[int, Sequence[Committable]], *, deep: bool) -> Mapping[int, Audit]:
        votes = {epoch: [Voted.load(committable) for committable in voted] for epoch, voted in epochs.items()}
        with self._doing("count the records of its epochs", ""):
            return audited(self._wire, votes)

    def mark(self) -> Mark | None:
        beside = [self._wire.about_topics(self._wanted)] if self._between_epochs else []
        with self._doing("read its mark", ""):
            found, topics = self._marks.read_beside(*beside)
        self._topics = topics[0] if topics else None
        self._marked_in = self._wire.asker.session
        return found

    def put_birth(self) -> Mark:
        with self._doing("bind the target to this journal", "no row is written yet"):
            return self._marks.put_birth()

    def trim_marks(self) -> None:
        """Do nothing: a group keeps only the latest mark."""

    def source_reached(self, epoch: int, ends: Sequence[str]) -> None:
        group = self._options.report_offsets_to
        if group is None:
            return
        try:
            report_offsets(self._wire.admin, group, ends)
        except Retryable:
            self._wire.close()  # the client never looks for its coordinator again
            raise

    def close(self) -> None:
        self._wire.close()

    def _commit(self, votes: Sequence[Voted], before: Mapping[str, Described]) -> Mapping[Transaction, Outcome]:
        were_open = {vote.transaction for vote in votes if is_open(vote, before)}
        self._marks.place = next((place for one in before.values() for place in one.offsets), self._marks.place)
        lacking = incomplete(self._wire, [vote for vote in votes if vote.transaction in were_open])
        whole = [vote for vote in votes if vote.transaction not in lacking]
        ended = [vote.transaction for vote in whole]
        codes = dict(zip(ended, self._wire.end(ended, commit=True), strict=True))
        places = {place for vote in whole for place in vote.places}
        seen = self._await_markers([one for one in ended if codes[one] == 0], "PrepareCommit", places)
        outcomes = {
            vote.transaction: self._outcome(vote, codes[vote.transaction], vote.transaction in were_open)
            for vote in whole
        }
        sure = {one for one in ended if codes[one] == 0 and one in were_open}
        known = [
            Ended(one, vote.places, commit=not isinstance(outcomes[one], Lost), sure=one in sure)
            for vote in whole
            if not isinstance(outcomes[one := vote.transaction], Unknown)
        ]
        write_missing_markers(self._wire, known, self._fixes, seen)
        return lacking | outcomes

    def _outcome(self, vote: Voted, code: int, was_open: bool) -> Outcome:
        one = vote.transaction
        if code == 0 and was_open:
            return Committed()
        if code == 0:  # somebody may have mixed versions of EndTxn on this id: partitions prove more
            return read_back(self._wire, vote)[0] or AlreadyCommitted()
        answer = f"{errors.named(code)} to a commit"
        if code == errors.INVALID_TXN_STATE:
            now = self._wire.describe([one.id]).get(one.id)
            said = said_of(one, now)
            if said is not None:
                return read_back(self._wire, vote)[0] or said
            answer += f", and is at {state_of(now)}"
        elif code not in errors.MOVED_ON:
            raise errors.refused("end a transaction", code, self._options, id=one.id)
        found = resolve(self._wire, vote, answer, wait_seconds=_RESOLVE_SECONDS)
        return Committed() if isinstance(found, Prepared) else found  # its markers are written below

    def _await_markers(self, ended: Iterable[Transaction], state: str, places: Iterable[Place]) -> Writers:
        """Wait until readers see the end: EndTxn's success only means that the end can't be undone.

        Return the producers with open transactions in `places` at that moment. Raises Retryable if markers are late.
        """
        left = {one.id: one.producer_id for one in ended}
        for _ in attempts_within(_MARKERS_SECONDS, first_seconds=0.0005, longest_seconds=0.05):
            known, writers = self._wire.ask(self._wire.about_transactions(left), self._wire.about_writers(places))
            left = {
                one.transaction.id: one.transaction.producer_id
                for one in known.values()
                if one.state == state and one.transaction.producer_id == left[one.transaction.id]
            }
            if not left:
                seen: Writers = writers
                return seen
        raise Retryable(
            f"transaction {next(iter(left))} is ended, but not yet for readers",
            why=f"its markers are not in all partitions after {_MARKERS_SECONDS:.0f} s (state {state})",
            next=f"check that all partitions of its topics have a leader: {self._fixes.show_partitions('unavailable')}",
        )

    def _check_session(self) -> None:
        """Refuse to commit over other connections than the mark was read over: they may lead to another cluster."""
        if self._marked_in is not None and self._wire.asker.session is not self._marked_in:
            what = "the connection to the brokers was lost after the mark was read"
            raise Retryable(what, why="nothing was committed", next="start the job again")

    def _check_clock(self, known: Mapping[str, Described]) -> None:
        """Warn if this driver's clock is behind the brokers', because deadlines then seem later than they are."""
        lag = max((one.started or 0.0 for one in known.values()), default=0.0) - time.time()
        if lag > 1.0 and self._rounds % 100 < 2:  # not each time
            what = "sink %s: this driver's clock is at least %.0f s behind the brokers', so transactions may time out "
            what += "before their epoch is refused, and are then written again: synchronize both clocks (NTP)"
            logging.getLogger(__name__).warning(what, self._ctx.sink, lag)

    @property
    def _wanted(self) -> Sequence[str]:
        """Return the topics that must exist."""
        return [topic for topic in (self._options.topic, self._options.mark_topic) if topic is not None]

    def _check_topics(self, there: Mapping[str, Topic]) -> None:
        for topic in (topic for topic in self._wanted if topic not in there):
            why = f"Kafka at {self._options.bootstrap_servers} does not know it, and sinks do not create topics"
            fix = self._fixes.make_topic(topic, len(self._wire.brokers()))
            raise Fatal(f"there is no topic {topic}", why=why, next=fix)

    def _ours(self, ref: str) -> Transaction:
        """Read a ref of this sink. Raises ValueError for a ref of another."""
        one = Transaction.of_ref(ref)
        pooled = PoolId.parse(one.id)
        if pooled is None or (pooled.job, pooled.sink) != (self._ctx.job, self._ctx.sink):
            raise ValueError(f"{ref!r} is not a participant of sink {self._ctx.sink} of job {self._ctx.job}")
        return one

    def _entry(self, one: Described, now: float) -> InDoubt | None:
        """Make an entry of the listing; None for another sink's id. Age and deadline assume that the clocks agree."""
        pooled = PoolId.parse(one.transaction.id)
        if pooled is None or (pooled.job, pooled.sink) != (self._ctx.job, self._ctx.sink):
            return None
        started = now if one.started is None else one.started
        age, deadline = max(now - started, 0.0), started + one.timeout_seconds
        return InDoubt(one.transaction.ref, pooled.generation, pooled.token, age_seconds=age, deadline=deadline)

    @contextmanager
    def _doing(self, doing: str, safe: str) -> Iterator[None]:
        """Add to errors the sink, the action that failed, and the state that it leaves."""
        try:
            yield
        except ExactsinkError as error:
            why = "; ".join(part for part in (error.why, safe) if part)
            what = f"sink {self._ctx.sink}: {doing}: {error.what}"
            raise type(error)(what, why=why, next=error.next) from error.__cause__


def _elsewhere(vote: Voted, here: str) -> Unknown:
    begun = f"transaction {vote.transaction.ref} was begun in cluster {vote.cluster}"
    return Unknown(f"{begun}, but bootstrap_servers leads to cluster {here}")
