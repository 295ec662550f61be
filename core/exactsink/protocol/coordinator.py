"""The driver's side of an epoch: begin, vote, decide, commit, and recover the work that an earlier driver left.

The order of the calls is the protocol's. After a crash at any line, the next `start` and `run_epoch` recover.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from exactsink.contract import Committable, Committer, ExactsinkError, Fenced, InDoubtError, Refused, Retryable
from exactsink.protocol.commit import CommitCalls, CommitResult, Parallel, Retry, all_before, give_up, in_threads
from exactsink.protocol.events import Events
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.log import Decision, Log, fenced_by
from exactsink.protocol.journal.records import Claim, Clean, Columns, Decide, DecidedSink, Identity, Redecide
from exactsink.protocol.lineage import check_follows, check_replay, given_twice, nobody_has_its_rows, out_of_order
from exactsink.protocol.marks import Marks
from exactsink.protocol.quarantine import check_quarantined, quarantined
from exactsink.protocol.reach import EpochResult, Part, Reach, Start
from exactsink.protocol.sinks import Sink, bound_sinks, check_identity, check_kept_sinks, committer_of, is_bound
from exactsink.protocol.sweep import Sweep
from exactsink.protocol.votes import EpochPlan, Judging, SinkPlan, Vote, check_deadlines, check_votes, same_rows, total

__all__ = ["Batch", "Coordinator", "State"]

_REWRITES = 3
"""How often the lost rows of one epoch are written again before the driver gives up."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch from the source.

    `fingerprint` identifies the end of the batch's input: it is equal only for a replay. `previous` is the end of the
    batch before, and so the start of this one; it is empty for the first batch. `schemas` are those of the sinks'
    shaped frames. `write` runs an epoch's tasks over the whole batch, and returns the votes of the winning attempts; it
    can be called again. `ends` are the sources' end offsets, in their own text. `columns` are those of each sink's rows
    before they are shaped.
    """

    epoch: int
    fingerprint: str
    schemas: Mapping[str, pa.Schema]
    write: Callable[[EpochPlan], Sequence[Vote]]
    ends: Sequence[str] = ()
    previous: str = ""
    columns: Mapping[str, Columns] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class State:
    """A job's last complete epoch (None before the first), and the driver that reported it.

    `heartbeat` is the time of its last report (Unix seconds), 0 if the driver has ended.
    """

    complete_epoch: int | None
    generation: int
    driver: str
    heartbeat: float


class Coordinator:
    """Run one claim of a job: `start` once, then `run_epoch` batch after batch, until an error ends it.

    After an error it runs no more epochs. The next driver, in this process or another, makes its own claim.
    """

    def __init__(
        self,
        job: str,
        sinks: Mapping[str, Sink],
        journal: Journal,
        events: Events,
        *,
        driver: str,
        retry: Retry,
        save_state: Callable[[State], None],
        identity: Identity | None = None,
        parallel: Parallel = in_threads,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._job = job
        self._sinks = sinks
        self._journal = journal
        self._events = events
        self._driver = driver
        self._retry = retry
        self._save_state = save_state
        self._parallel = parallel
        self._now = now
        self._identity = replace(identity or Identity(job), sinks=bound_sinks(sinks))
        self._order = all_before({name: sink.after for name, sink in sinks.items()})
        self._claim: Claim | None = None
        self.last_claim: Claim | None = None
        """The claim of `start`, even after an error has taken it from this coordinator."""
        self._committers: dict[str, Committer] = {}
        self._marks = Marks.of({}, {}, lambda: journal.log, retry.wait)
        self._sweep = Sweep(events, journal.whole)
        self._unrepaired = ""  # the command that gives up lost rows; empty if there are none
        self._complete_epoch: int | None = None
        self._finished: int | None = None  # the last epoch that this claim has finished

    def start(
        self,
        query_id: str,
        source_done: Callable[[int], bool],
        sweep_tokens: frozenset[str] = frozenset(),
        *,
        sets_aside: bool = False,
        part: Part | None = None,
    ) -> Start:
        """Claim the job, finish the last decided epoch as far as possible, and sweep older generations.

        `source_done(epoch)` says whether the source has recorded that epoch as done. `sweep_tokens` are foreign claims'
        tokens, for work that an operator also wants swept. `run_epoch` writes lost rows again. With
        `sets_aside`, a sink that does not answer ends only its own part, and every sweep. No epoch can be run then, nor
        after a `part`, which limits the sinks and participants that are committed and swept. Raises LineageError,
        ConfigError, InDoubtError or Retryable. Nothing is committed or swept before the claim is proven valid.
        """
        reach = Reach(sets_aside, part)
        before = self._journal.read()
        check_identity(before, self._identity)
        self._check_sinks(before, source_done)
        with self._events.point("claim"):
            claim = self.last_claim = self._journal.claim(query_id, self._driver, self._identity)
        log = self._journal.log
        self._committers = reach.asked(self._sinks, lambda name: committer_of(self._sinks[name], self._job, log))
        self._marks = Marks.of(self._sinks, self._committers, lambda: self._journal.log, self._retry.wait)
        self._events.report("claimed", generation=claim.generation, driver=self._driver)
        with self._events.point("recommit"), self._fenced_instead(claim):
            done = self._check_sinks(log, source_done)  # another driver may have decided since then
            left = self._recommit(log, reach, done=done)
        with self._events.point("sweep"), self._fenced_instead(claim):
            swept = self._sweep.older(self._committers, log, claim, sweep_tokens, reach)
        self._claim, self._finished = None if reach.aside or part else claim, None
        self._report_state()
        return Start(_counts(left.lost), left.outcomes, swept, left.held_back, reach.aside)

    def leave(self) -> None:
        """Record in the journal that nothing is in doubt, if that is so: then sinks may leave the job, or change.

        For a driver that ends by itself, between two epochs. It runs no epoch afterwards.
        """
        claim, self._claim = self._claim, None
        if claim is None or self._unrepaired:
            return
        try:
            self._journal.keep(Clean())
        except (ExactsinkError, OSError) as error:  # the next start does the work again
            self._events.report("not_left_clean", level=logging.WARNING, error=str(error))

    def run_epoch(self, batch: Batch) -> EpochResult:
        """Write, decide and commit a new batch, or finish and skip a batch that an earlier claim has decided.

        When it returns, every row of the batch is durable and visible in every sink. After any error, nothing decided
        is lost, and the next driver's start removes everything undecided.
        """
        claim, self._claim = self._claim, None  # an error leaves this coordinator without its claim
        if claim is None:
            raise Retryable("this driver has no claim", why="it met an error before", next="start the job again")
        with self._fenced_instead(claim):
            result = self._run(claim, batch)
        self._claim = claim
        return result

    def returned(self, epoch: int) -> None:
        """Report that the source has recorded the epoch as done."""
        self._events.edge("return", "after", epoch)

    def close(self) -> None:
        """Close the sinks' connections. Rolls nothing back."""
        committers, self._committers, self._claim = self._committers, {}, None
        with ExitStack() as closing:  # close all, even if one fails
            for committer in committers.values():
                closing.callback(committer.close)

    def _run(self, claim: Claim, batch: Batch) -> EpochResult:
        if batch.epoch == self._finished:
            raise given_twice(batch.epoch)
        decision = self._journal.log.decision
        skipped = decision is not None and batch.epoch == decision.epoch
        if skipped and decision is not None:
            check_replay(decision, batch.fingerprint, batch.previous)
        else:
            decision = self._decide(claim, batch)
        self._finish(claim, decision, batch)
        self._complete(claim, batch)
        self._finished = batch.epoch
        if skipped:
            self._events.report("epoch_skipped", epoch=batch.epoch, reason="it was decided before, and is finished")
        rows = self._decision().rows
        self._events.edge("return", "before", batch.epoch, rows=rows)
        return EpochResult(batch.epoch, skipped, rows)

    def _check_sinks(self, log: Log, source_done: Callable[[int], bool]) -> bool:
        """Refuse a config that lacks sinks with work in doubt; return whether the source is done with the epoch."""
        done = log.decision is not None and source_done(log.decision.epoch)
        check_kept_sinks(self._sinks, log, source_done=done)
        return done

    def _recommit(self, log: Log, reach: Reach, *, done: bool) -> CommitResult:
        """Commit the last decision again, and compare the marks before and after."""
        decision = log.decision
        if log.decision_is_open and not done:
            self._report_decided()
        self._journal.sum_up()
        self._marks.check_start(reach)
        left = self._commit(decision, reach, source_done=done) if decision is not None else CommitResult({})
        lost = {} if done and not reach.part else _counts(left.lost)  # Spark never repeats a batch that is done
        waiting = left.held_back.union(name for name in self._sinks if not reach.commits(name))
        self._marks.check_committed(lost, waiting, reach)
        if decision is not None:
            self._unrepaired = give_up(decision, left.outcomes) if left.lost else ""
            if left.lost and done and not reach.part:
                raise nobody_has_its_rows(decision.epoch, self._unrepaired)
            open_in = waiting.union(reach.aside)
            is_open = bool(left.lost) or (not done and any(map(decision.committables, open_in)))
            self._complete_epoch = (decision.epoch - 1 if decision.epoch else None) if is_open else decision.epoch
        return left

    def _decide(self, claim: Claim, batch: Batch) -> Decision:
        """Write a new batch, and decide it."""
        expected = self._journal.log.next_epoch
        if batch.epoch != expected:
            raise out_of_order(batch.epoch, expected)
        check_follows(self._journal.log, batch.epoch, batch.previous)
        if self._unrepaired:
            raise nobody_has_its_rows(expected - 1, self._unrepaired)
        with self._events.point("open_epoch", batch.epoch):
            self._marks.open_epoch()
            plan = self._open(claim, batch, dict.fromkeys(self._sinks))
        votes = batch.write(plan)
        with self._events.point("vote", batch.epoch):
            committables = self._accept(plan, votes)
            self._report_written(batch.epoch, votes)
            for name in filter(committables.get, committables):
                self._committers[name].check_votes(batch.epoch, committables[name])
        with self._events.point("decide", batch.epoch):
            columns = batch.columns
            sinks = {n: _decided(sink, committables[n], columns.get(n)) for n, sink in self._sinks.items()}
            marks = self._marks.decided(claim, batch.epoch, sinks)
            self._journal.decide(Decide(batch.epoch, claim.generation, batch.fingerprint, sinks, batch.previous, marks))
        self._report_quarantined(batch.epoch, votes)
        return self._report_decided()

    def _finish(self, claim: Claim, decision: Decision, batch: Batch) -> None:
        """Commit a decided epoch until nothing of it is lost. Lost rows are written again from the batch."""
        for _ in range(_REWRITES):
            lost = self._commit(decision).lost
            if not lost:
                self._unrepaired = ""
                return
            for sink, gone in lost.items():
                self._rewrite(claim, decision, sink, gone, batch)
                decision = self._decision()
        raise Retryable(f"a store lost rows of epoch {batch.epoch} {_REWRITES} times", next="start the job again")

    def _rewrite(self, claim: Claim, decision: Decision, sink: str, gone: Sequence[Committable], batch: Batch) -> None:
        """Write a sink's lost rows again, and replace its decided set once they are proven to be the same rows."""
        lost = {c.txn for c in gone}
        kept = tuple(c for c in decision.committables(sink) if c.txn not in lost)
        only = frozenset(c.txn.partition for c in gone) if kept or self._journal.log.has_given_up(sink) else None
        self._marks.check_rewrite(sink, len(gone))
        plan = self._open(claim, batch, {sink: only})
        again = self._accept(plan, batch.write(plan))[sink]
        if not same_rows(gone, again, by_partition=only is not None):
            raise InDoubtError(
                f"epoch {decision.epoch} lost {len(gone)} votes of sink {sink}, and its replay has other rows",
                why=f"decided were {total(gone)}, the replay gave {total(again)} (rows, digest)"
                + (", or cut them into other partitions" if only else ""),
                next="make the source and the plan replay the same batch (see the job's transform)"
                + (", with the same cores and Spark settings, which decide where Spark cuts it" if only else "")
                + "; then start again",
            )
        self._journal.redecide(Redecide(decision.epoch, sink, claim.generation, (*kept, *again)))
        self._events.report("redecided", epoch=decision.epoch, sink=sink, participants=len(again))

    def _open(self, claim: Claim, batch: Batch, sinks: Mapping[str, frozenset[int] | None]) -> EpochPlan:
        plans = {}
        for name, only in sinks.items():
            most = self._sinks[name].max_participants
            ticket = self._committers[name].open_epoch(batch.epoch, batch.schemas[name], most)
            plans[name] = SinkPlan(ticket, only)
        judged = {
            name: Judging(
                sink.quarantine, self._committers[name].row_rules(batch.schemas[name]), sink.quarantine_at_most
            )
            for name, sink in self._sinks.items()
            if sink.quarantine is not None and (name in sinks or sink.quarantine in sinks)
        }
        return EpochPlan(self._job, batch.epoch, claim.generation, claim.token, plans, judged)

    def _accept(self, plan: EpochPlan, votes: Sequence[Vote]) -> Mapping[str, tuple[Committable, ...]]:
        committables = check_votes(plan, votes)
        check_quarantined(plan, votes)
        margins = {name: sink.backend.traits.max_commit_seconds for name, sink in self._sinks.items()}
        for sink, seconds in check_deadlines(committables, margins, self._now()).items():
            self._report_deadline(plan.epoch, sink, seconds)
        return committables

    def _report_written(self, epoch: int, votes: Sequence[Vote]) -> None:
        for sink in self._sinks:
            of = [vote for vote in votes if vote.sink == sink]
            fields = {"rows": sum(vote.rows for vote in of), "bytes": sum(vote.bytes for vote in of)}
            self._events.report("written", epoch=epoch, level=logging.DEBUG, sink=sink, **fields)

    def _report_quarantined(self, epoch: int, votes: Sequence[Vote]) -> None:
        for sink, found in quarantined(votes).items():
            fields = {"quarantine": self._sinks[sink].quarantine, "rows": found.rows, "reason": found.reason}
            self._events.report("quarantined", epoch=epoch, level=logging.WARNING, sink=sink, **fields)

    def _report_deadline(self, epoch: int, sink: str, seconds: float) -> None:
        """Report how much of a sink's time to keep participants is left; a warning, once half is used."""
        fields = {"sink": sink, "seconds": round(seconds, 3)}
        self._events.report("deadline", epoch=epoch, level=logging.DEBUG, **fields)
        of = self._sinks[sink].backend.traits.prepared_seconds
        if of is not None and seconds < of / 2:
            self._events.report("deadline_near", epoch=epoch, level=logging.WARNING, **fields, of=of)

    def _commit(self, decision: Decision, reach: Reach | None = None, *, source_done: bool = False) -> CommitResult:
        asked = [n for n in decision.sinks if n in self._committers and (reach is None or reach.commits(n))]
        bound = {name: self._committers[name] for name in asked if is_bound(self._sinks, decision, name)}
        marks, words = self._marks, self._journal.log.resolved
        call = CommitCalls(self._events, self._retry, marks.check_commit, words, self._order, marks.possible)
        return call.commit(decision, bound, self._parallel, reach, source_done=source_done)

    def _complete(self, claim: Claim, batch: Batch) -> None:
        self._sweep.losers(self._committers, self._journal.log, claim)
        self._marks.trim()
        self._journal.trim()
        with self._events.point("complete", batch.epoch):
            self._complete_epoch = batch.epoch
            self._report_state()
        self._report_source(batch)

    def _report_source(self, batch: Batch) -> None:
        for sink, committer in self._committers.items():
            try:
                committer.source_reached(batch.epoch, batch.ends)
            except ExactsinkError as error:  # advisory, so no epoch fails because of it
                fields = {"sink": sink, "error": str(error)}
                self._events.report("source_not_reported", epoch=batch.epoch, level=logging.WARNING, **fields)

    @contextmanager
    def _fenced_instead(self, claim: Claim) -> Iterator[None]:
        """Raise Fenced instead if there is a newer claim: then this driver is outdated, and the history is right."""
        try:
            yield
        except (Refused, InDoubtError, Fenced) as refusal:
            fenced = refusal if isinstance(refusal, Fenced) else fenced_by(self._journal.read(), claim)
            if fenced is None:
                raise
            self._events.report("fenced", level=logging.WARNING, generation=claim.generation, by=fenced.why)
            if fenced is refusal:
                raise
            raise fenced from refusal

    def _decision(self) -> Decision:
        decision = self._journal.log.decision
        assert decision is not None
        return decision

    def _report_decided(self) -> Decision:
        decision, journal = self._decision(), self._journal
        fields = {"at": decision.at, "sinks": tuple(decision.sinks), "entries": journal.log.last_seq + 1}
        self._events.report("decided", epoch=decision.epoch, level=logging.DEBUG, **fields, bytes=journal.decided_bytes)
        return decision

    def _report_state(self) -> None:
        generation = self._journal.log.last_generation
        try:
            self._save_state(State(self._complete_epoch, generation, self._driver, self._now()))
        except OSError as error:  # advisory, so no epoch fails because of it
            self._events.report("state_not_saved", level=logging.WARNING, error=str(error))


def _decided(sink: Sink, committables: tuple[Committable, ...], columns: Columns | None) -> DecidedSink:
    return DecidedSink(sink.kind, sink.backend.strategy, sink.backend.target, committables, columns)


def _counts(lost: Mapping[str, Sequence[Committable]]) -> Mapping[str, int]:
    return {sink: len(gone) for sink, gone in lost.items()}
