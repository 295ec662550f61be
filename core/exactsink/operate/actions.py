"""An operator's actions on a job without its source: recover, adopt another checkpoint, resolve, rebase.

Each claims first, so a driver that still runs is fenced, and each records an action in the journal.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial

from exactsink.contract import Committer, ConfigError, Fenced, InDoubt, LineageError, Retryable
from exactsink.job.checkpoint import Checkpoint
from exactsink.job.driver import coordinator_of, identity_of, user_name
from exactsink.job.history import JobHistory
from exactsink.job.stop import driver_name
from exactsink.observe.state import LIVE_SECONDS, is_ahead, is_live, last_heard
from exactsink.operate.asking import ask_all
from exactsink.operate.plan import planned, planned_sweep
from exactsink.operate.reachable import import_clients
from exactsink.operate.rebase import RebasePlan, decided_counts, in_words, rebase_plan
from exactsink.operate.recovery import Recovery
from exactsink.operate.refusals import check_old, votes_lost
from exactsink.operate.views import assess
from exactsink.protocol.commit import CommitCalls, Retry, all_before, give_up, in_threads
from exactsink.protocol.coordinator import State
from exactsink.protocol.events import Events
from exactsink.protocol.journal.log import Log, other_journal
from exactsink.protocol.journal.records import Action, Clean, Complete, Identity, Settled
from exactsink.protocol.marks import Marks
from exactsink.protocol.reach import Part, Reach, Start
from exactsink.protocol.sinks import Sink, bound_sinks, check_identity, committer_of
from exactsink.protocol.sweep import Sweep
from exactsink.toolkit.waiting import backoff

__all__ = ["COMMIT_ATTEMPTS", "Operator", "acting_user"]

_PLAN_SECONDS = 60.0
"""How long a store may take before a plan reports it as unreachable: as long as its own timeouts, unless it hangs."""

COMMIT_ATTEMPTS = 3

_ROLE = "operator on "


class Operator:
    """Act on one history: a job's, or a batch run's."""

    def __init__(self, history: JobHistory, sinks: Mapping[str, Sink], checkpoint: Checkpoint, events: Events) -> None:
        self._history = history
        self._sinks = sinks
        self._checkpoint = checkpoint
        self._events = events
        self._journal = history.journal(backoff)

    def read(self) -> Log:
        """Read the journal."""
        return self._journal.read()

    def whole(self) -> Log:
        """Read further back, to the journal's first claim."""
        return self._journal.whole()

    def close(self) -> None:
        """Close the journal. Idempotent."""
        self._journal.close()

    def checkpoint_problem(self, seconds: float) -> LineageError | None:
        """Return why the checkpoint does not follow the journal; None if it does, or did not answer in time."""
        if self._history.run is not None:
            return None
        call = partial(self._checkpoint.check_follows, self._journal.read)
        problem = ask_all({"checkpoint": call}, seconds).get("checkpoint")
        return problem if isinstance(problem, LineageError) else None

    def recover(
        self,
        *,
        take_over: bool,
        sweep_tokens: frozenset[str] = frozenset(),
        reason: str = "",
        part: Part | None = None,
    ) -> Recovery:
        """Commit the last decided epoch again, and abort undecided work, as a driver's start does, but without Spark.

        A sink that does not answer is set aside, and then nothing is swept. The result's `left` says so, and names the
        lost participants: only the job has their rows. A batch run becomes complete once all its sinks are committed.
        `sweep_tokens` are foreign tokens, for work that is also aborted; an empty journal is claimed only to sweep
        those. With a `part`, nothing else is committed or aborted, and the journal does not record that the job is
        clean. Idempotent. Raises Fenced while a driver may be alive, unless `take_over`.
        """
        log = self._journal.read()
        self._refuse_live(take_over, log)
        self._check_tokens(sweep_tokens, part, take_over=take_over)
        if not log.claims:
            return self._recover_unclaimed(sweep_tokens, reason, part)
        with self._claimed(log.query_id or "", sweep_tokens, part, sets_aside=True) as start:
            recovery = self._recovery(start, part)
            whole_run = self._history.run is not None and part is None
            if whole_run and recovery.epoch is not None and recovery.left() is None:
                self._complete_run(recovery.epoch)
            swept = f", and swept the tokens {', '.join(sorted(sweep_tokens))}" if sweep_tokens else ""
            left = [sink.sink for sink in recovery.settled if sink.left]
            but = f", but for {', '.join(left)}" if left else swept
            self._keep("recover", f"recovered by an operator{_in_part(part)}{but}", reason, recovery.settled)
        return recovery

    def recovery_plan(
        self, *, take_over: bool, sweep_tokens: frozenset[str] = frozenset(), part: Part | None = None
    ) -> Recovery:
        """Return the result that `recover` would return, and raise its errors. Changes nothing."""
        log = self._journal.read()
        if not take_over:
            self._refuse_live(take_over, log)
        check_identity(log, identity_of(self._history))
        self._check_tokens(sweep_tokens, part, take_over=take_over)
        import_clients(self._sinks, self._history.job)
        views = assess(self._history, self._sinks, log, self._journal.whole, seconds=_PLAN_SECONDS)
        if not log.claims:
            return self._recovery(planned_sweep(views, log, sweep_tokens, part), part, planned=True)
        done = log.decision is not None and self._done()(log.decision.epoch)
        start = planned(views, self._sinks, log, sweep_tokens, part, source_done=done)
        return self._recovery(start, part, planned=True)

    def _recover_unclaimed(self, sweep_tokens: frozenset[str], reason: str, part: Part | None) -> Recovery:
        """Sweep work of another journal, for example a deleted one, if the operator has named all of its tokens.

        Marks are not compared, because there is no decision to commit, and marks prove nothing about named tokens.
        """
        reach = Reach(sets_aside=True, part=part)
        listed = reach.asked(self._sinks, lambda name: self._listed(name, sweep_tokens))
        if reach.aside or not any(listed.values()) or (part is not None and not part.refs):
            return self._recovery(Start({}, {}, {}, frozenset(), reach.aside), part)
        claim = self._journal.claim("", f"{_ROLE}{driver_name()}", self._identity())
        log = self._journal.log
        with ExitStack() as opened:
            committers = reach.asked(
                self._sinks, lambda name: opened.enter_context(closing(self._committer(name, log)))
            )
            swept = Sweep(self._events, self._journal.whole).older(committers, log, claim, sweep_tokens, reach)
        recovery = self._recovery(Start({}, {}, swept, frozenset(), reach.aside), part)
        said = f"an operator swept the tokens {', '.join(sorted(sweep_tokens))} of another journal"
        self._keep("recover", f"{said}{_in_part(part)}", reason, recovery.settled)
        if not reach.aside and part is None:
            self._journal.keep(Clean())
        return recovery

    def _check_tokens(self, sweep_tokens: frozenset[str], part: Part | None, *, take_over: bool) -> None:
        """Refuse a token that nobody has used, a mistyped one: it is in no sink's work, no claim, and no older sweep.

        A sink that does not answer may hold its work. Then nothing is swept, and the answer says so. Also refuse
        foreign work that was begun recently, because nothing here fences its driver: raises Fenced.
        """
        if not sweep_tokens:
            return
        reach, log = Reach(sets_aside=True), self._journal.whole()
        held = reach.asked(self._sinks, self._held)
        said = " ".join(entry.outcome for entry in log.anchors if isinstance(entry, Action))
        foreign = sweep_tokens.difference(claim.token for claim in log.claims)
        meant = [(sink, p) for sink, found in held.items() for p in found if p.token in foreign]
        unknown = sorted(token for token in foreign - {p.token for _, p in meant} if token not in said)
        if unknown and not reach.aside:
            raise ConfigError(
                f"no sink holds work of token {', '.join(unknown)}",
                why="nothing is swept while a token is wrong",
                next="`exactsink indoubt list JOB.toml --json` shows each participant's token",
            )
        if not take_over:
            check_old([p for sink, p in meant if part is None or (sink, p.ref) in part.refs])

    def _held(self, name: str) -> Sequence[InDoubt]:
        with closing(self._committer(name, self._journal.log)) as committer:
            return list(committer.in_doubt())

    def _committer(self, name: str, log: Log) -> Committer:
        return committer_of(self._sinks[name], self._history.job, log)

    def _listed(self, name: str, sweep_tokens: frozenset[str]) -> int:
        """Count the participants that a sink holds. Raises LineageError for one with another token."""
        for participant in (listed := self._held(name)):
            if participant.token not in sweep_tokens:
                raise other_journal(name, participant, self._journal.log.last_generation + 1, sweep_tokens)
        return len(listed)

    def _recovery(self, start: Start, part: Part | None, *, planned: bool = False) -> Recovery:
        return Recovery.of(self._journal.log, self._sinks, start, part, planned=planned)

    def adopt(self, *, take_over: bool, reason: str = "") -> tuple[int, int]:
        """Continue the journal with the checkpoint that exists now or, if there is none, with the next new one.

        The last decision is committed first. Returns the next batch and its epoch: a new one, unless the journal has
        decided this batch already.
        """
        log = self._journal.read()
        query_id = self._checkpoint.query_id() or ""
        batch = self._checkpoint.next_batch()
        planned = self._checkpoint.previous(batch + 1)
        self._refuse_bound(log, query_id, batch)
        self._refuse_live(take_over, log)
        with self._claimed((log.query_id or "") if log.claims else query_id, frozenset()) as start:
            claim = self._journal.adopt(query_id, batch, self._journal.log.claims[-1].driver, planned)
            self._events.report("adopted", query_id=query_id or "the next one", base=claim.base)
            self._keep(
                "adopt",
                f"adopted {query_id or 'the next new query'}: its batch {batch} is epoch {claim.first_epoch}",
                reason,
                self._recovery(start, None).settled,
            )
        return batch, claim.first_epoch

    def _refuse_bound(self, log: Log, query_id: str, batch: int) -> None:
        """Refuse to adopt the checkpoint that the journal belongs to, unless a refused start has only claimed it."""
        follows = log.base + batch == log.next_epoch
        if not log.claims or log.query_id != query_id or (log.decision is None and not follows):
            return
        fits = follows or (log.decision is not None and log.base + batch == log.decision.epoch)
        raise ConfigError(
            "there is nothing to adopt",
            why=f"the journal belongs to query {query_id}, and so does the checkpoint"
            if query_id
            else "the journal is bound to no query, and takes the next one",
            next="exactsink run JOB.toml"
            if fits
            else "one of the two is an older copy: restore the newer one; or `exactsink rebase JOB.toml`, which "
            "goes on from the targets' marks",
        )

    def rebase_plan(self, *, take_over: bool) -> RebasePlan:
        """Return the steps of a rebase, and its effect on each sink's rows. Changes nothing.

        Raises ConfigError for a batch run with visible rows, Fenced while a driver may be alive, unless `take_over`,
        LineageError for another job's journal, and the error of a sink that does not answer.
        """
        log = self._journal.read()
        check_identity(log, identity_of(self._history))
        if not take_over:
            self._refuse_live(take_over, log)
        import_clients(self._sinks, self._history.job)
        views = assess(self._history, self._sinks, log, self._journal.whole, seconds=_PLAN_SECONDS, thorough=True)
        checkpoint = self._checkpoint if self._history.run is None else None
        marked = [name for name, sink in self._sinks.items() if sink.backend.traits.marks]
        early = any(sink.backend.traits.visible_early for sink in self._sinks.values())
        differing = any(view.problem is not None for view in views)
        counts = decided_counts(self._journal.entries()) if differing else {}
        plan = rebase_plan(log, views, checkpoint, marked, counts, early=early)
        self._refuse_shown(plan)
        return plan

    def rebase(self, named: Mapping[str, str], batch: int | None, *, reason: str, take_over: bool) -> RebasePlan:
        """Continue from the present state of the named targets. Return the plan that was carried out.

        `named` repeats each target's mark: an epoch's number, `birth` or `none`. `batch` is the checkpoint's next
        one. Raises ConfigError if either is wrong, and the errors of `rebase_plan`. An empty journal gets its first
        claim.
        """
        plan = self.rebase_plan(take_over=take_over)
        plan.check_named(named, plan.batch if self._history.run is not None else batch)
        log, driver = self._journal.log, f"{_ROLE}{platform.node()}"
        self._refuse_live(take_over, log)
        query_id = f"run {self._history.run}" if self._history.run is not None else self._checkpoint.query_id() or ""
        claim = self._journal.claim(log.query_id if log.claims and log.query_id else query_id, driver, self._identity())
        if claim.seq != log.last_seq + 1:
            raise Retryable("the journal was written to while it was read", next="exactsink rebase JOB.toml")
        if plan.goes_on:
            first, at = claim.first_epoch, claim.first_epoch - claim.base
            self._journal.rebase(plan.expected(log), query_id, at, first, driver, plan.keeps)
        else:
            plan = self._finished(plan)
            self._journal.rebase(plan.expected(log), query_id, plan.batch, plan.epoch, driver)
        words = "; ".join(f"{t.view.name} at {in_words(t.view.mark)}: {t.from_here_on}" for t in plan.sinks)
        self._keep("rebase", f"rebased, batch {plan.batch} is epoch {plan.epoch}. {words}", reason)
        return plan

    def _finished(self, plan: RebasePlan) -> RebasePlan:
        """Commit the part of the last decision that the plan keeps, as no later start can. Return it with new marks.

        Raises the errors of a commit, and InDoubtError for lost participants: then nothing is rebased.
        """
        log, committers = self._journal.log, {}
        if log.decision is None or not plan.keeps:
            return plan
        with ExitStack() as opened:
            for name in plan.keeps:
                committers[name] = opened.enter_context(closing(self._committer(name, log)))
            kept = {name: self._sinks[name] for name in plan.keeps}
            marks = Marks.of(kept, committers, lambda: self._journal.log, backoff)
            before = all_before({name: sink.after for name, sink in self._sinks.items()})
            retry = Retry(COMMIT_ATTEMPTS, backoff)
            calls = CommitCalls(self._events, retry, marks.check_commit, log.resolved, before, marks.possible)
            done = self._done()(log.decision.epoch)
            left = calls.commit(log.decision, committers, in_threads, source_done=done)
            if left.lost:
                word = give_up(log.decision, left.outcomes)
                raise votes_lost({name: len(gone) for name, gone in left.lost.items()}, word)
            stands = {name: committers[name].mark() for name in marks.sinks}
        return plan.with_marks(stands)

    def _refuse_shown(self, plan: RebasePlan) -> None:
        """Refuse to continue a batch run with a visible row, because a second write would double the row."""
        marks = {truth.view.name: truth.view.mark for truth in plan.sinks}
        shown = [name for name, mark in marks.items() if mark is not None and mark.epoch is not None]
        if self._history.run is not None and (shown or self._journal.log.is_complete):
            where = f"its rows show in {', '.join(shown)}" if shown else "it is complete"
            raise ConfigError(
                f"batch run {self._history.run} can't be continued: {where}",
                why="a run is one epoch: if it is written again, the rows that show are doubled",
                next="compare the targets with the run's rows, and write the missing rows in a run of another name",
            )

    def _identity(self) -> Identity:
        return replace(identity_of(self._history), sinks=bound_sinks(self._sinks))

    @contextmanager
    def _claimed(
        self, query_id: str, sweep_tokens: frozenset[str], part: Part | None = None, *, sets_aside: bool = False
    ) -> Iterator[Start]:
        """Claim, commit again and sweep, then hold the claim.

        Unless it `sets_aside`, raises InDoubtError for lost participants.
        """
        journal, events = self._journal, self._events
        coordinator = coordinator_of(self._history, self._sinks, journal, events, self._save, _ROLE)
        with closing(coordinator):
            start = coordinator.start(query_id, self._done(), sweep_tokens, sets_aside=sets_aside, part=part)
            if start.lost and not sets_aside:
                raise votes_lost(start.lost, give_up(journal.log.decision, start.outcomes))
            yield start
            if self._history.run is None or journal.log.decision is None:  # a decided run's sinks never change
                coordinator.leave()

    def _complete_run(self, epoch: int) -> None:
        """Record that every sink has committed a batch run. From then on a call returns its result."""
        if not self._journal.log.is_complete:
            self._journal.keep(Complete(epoch))

    def _done(self) -> Callable[[int], bool]:
        journal, checkpoint = self._journal, self._checkpoint
        if self._history.run is not None:
            return lambda epoch: journal.log.is_complete
        return lambda epoch: checkpoint.is_epoch_done(epoch, journal.log)

    def _save(self, state: State) -> None:
        """Record the job's progress, and that no driver is at work."""
        self._history.make()
        self._history.state().write(replace(state, heartbeat=0.0))

    def _keep(self, command: str, outcome: str, reason: str, settled: tuple[Settled, ...] = ()) -> None:
        self._journal.keep(Action(acting_user(), command, reason=reason, outcome=outcome, settled=settled))
        self._events.report("noted", text=outcome)

    def _refuse_live(self, take_over: bool, log: Log) -> None:
        state = self._history.last_state()
        if state is None or not (is_live(state) or is_ahead(state)):
            return
        if take_over:
            self._events.report("taken_over", generation=log.last_generation)
            return
        raise Fenced(
            f"driver {state.driver} may be running: {last_heard(state)}",
            why="this command claims the job, which would stop that driver",
            next="stop it first, then repeat with --take-over"
            if is_ahead(state)
            else f"stop it first, wait until the heartbeat is {LIVE_SECONDS:.0f} s old, or repeat with --take-over",
        )


def _in_part(part: Part | None) -> str:
    """Return the affected part of the job, for the journal."""
    if part is None:
        return ""
    return ": only " + ", ".join([*sorted(part.sinks), *(f"{sink} {ref}" for sink, ref in sorted(part.refs))])


def acting_user() -> str:
    """Return the acting user, and the machine."""
    return f"{user_name()} on {platform.node()}"
