"""Defects planted in the real code, one at a time: each must be caught by a family of schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from exactsink.contract import Committed, ExactsinkError, Lost, Retryable, Unknown
from exactsink.job.checkpoint import Checkpoint
from exactsink.protocol import commit, coordinator, sweep, votes
from exactsink.protocol.coordinator import Coordinator
from exactsink.protocol.journal import journal, log, records
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.marks import Marks
from exactsink.protocol.reach import Reach
from tests.simulation import changes, restored, schedules
from tests.simulation import defects_of_marks as of_marks
from tests.simulation.backend import SinkStore
from tests.simulation.drivers import Run
from tests.simulation.schedules import Lab

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Defect:
    """A mistake, how it is planted, and the family that must catch it."""

    name: str
    plant: Callable[[Patch], None]
    family: Callable[[Lab], Iterator[Run]]
    lab: Lab = field(default_factory=Lab)


def _swallow_commit_error(patch: Patch) -> None:
    real = commit.CommitCalls._outcomes

    def swallow(self: Any, name: Any, committer: Any, epoch: Any, committables: Any) -> Any:
        try:
            return real(self, name, committer, epoch, committables)
        except Retryable:
            return [Committed() for _ in committables]

    patch.setattr(commit.CommitCalls, "_outcomes", swallow)
    patch.setattr("tests.simulation.drivers.Retry", lambda attempts, wait: commit.Retry(1, wait))


def _commit_before_decide(patch: Patch) -> None:
    real = Coordinator._accept

    def early(self: Any, plan: Any, votes: Any) -> Any:
        accepted = real(self, plan, votes)
        for sink, committables in accepted.items():
            if committables:
                self._committers[sink].commit(plan.epoch, committables)
        return accepted

    patch.setattr(Coordinator, "_accept", early)


def _sweep_before_claim(patch: Patch) -> None:
    real = Coordinator.start

    def early(self: Any, *asked: Any, **options: Any) -> Any:
        found = self._journal.read()
        mine = coordinator.Claim(found.last_generation + 1, "", "", "", "")
        committers = {name: coordinator.committer_of(s, self._job) for name, s in self._sinks.items()}
        sweep.Sweep(self._events, self._journal.whole).older(committers, found, mine)
        return real(self, *asked, **options)

    patch.setattr(Coordinator, "start", early)


def _no_second_listing(patch: Patch) -> None:
    patch.setattr(Journal, "_stands_last", lambda self, claim: True)


def _abort_after_unknown_append(patch: Patch) -> None:
    real = Journal._settle

    def once(self: Any, record: Any) -> Any:
        patch.setattr(journal, "_ATTEMPTS", 1)
        return real(self, record)

    patch.setattr(Journal, "_settle", once)
    decide = Coordinator._decide

    def give_up(self: Any, claim: Any, batch: Any) -> Any:
        try:
            return decide(self, claim, batch)
        except Retryable:
            for committer in self._committers.values():
                own = [p for p in committer.in_doubt() if p.token == claim.token]
                committer.abort(log._proven(own))
            raise

    patch.setattr(Coordinator, "_decide", give_up)


def _delete_claims(patch: Patch) -> None:
    def everything(self: Any, sizes: Any) -> frozenset[int]:
        return frozenset(seq for seq in sizes if seq < self._log.decision.seqs[0])

    patch.setattr(Journal, "_deletable", everything)


def _delete_what_came_after(patch: Patch) -> None:
    real = Journal._deletable

    def unknown_too(self: Any, sizes: Any) -> frozenset[int]:
        known = self._log
        self._log = replace(known, last_seq=max(sizes))
        old = real(self, sizes)
        self._log = known
        return old

    patch.setattr(Journal, "_deletable", unknown_too)


def _skip_flush(store: SinkStore) -> None:
    store.flushes = False


def _trust_a_count(patch: Patch) -> None:
    patch.setattr(votes, "_checked", lambda plan, vote, committable: committable)


def _redecide_not_folded(patch: Patch) -> None:
    patch.setattr(log, "_redecided", lambda decision, record, **_: decision)


def _trust_other_ids(patch: Patch) -> None:
    def trusting(read: Any, mine: Any, sink: str, listed: Any, sweep_tokens: Any = frozenset()) -> Any:
        decided = read.decision.refs(sink) if read.decision else frozenset()
        return log._proven([p for p in listed if p.ref not in decided])

    patch.setattr(sweep, "undecided_before", trusting)


def _skip_by_number(patch: Patch) -> None:
    patch.setattr(coordinator, "check_replay", lambda *_: None)


def _expired_is_lost(patch: Patch) -> None:
    real = commit.CommitCalls._outcomes

    def mistaken(self: Any, *args: Any) -> Any:
        return [Lost(o.evidence) if isinstance(o, Unknown) else o for o in real(self, *args)]

    patch.setattr(commit.CommitCalls, "_outcomes", mistaken)


def _names_not_read(patch: Patch) -> None:
    def careless(self: Any) -> Any:
        found = log.Log()
        for seq in sorted(self._store.list()):
            data = self._store.read(seq)
            if data is not None:
                found = log.extended(found, records.decode(data, seq))
        self._log = found
        return found

    patch.setattr(log, "_redecided", _tolerant)
    patch.setattr(Journal, "read", careless)


def _tolerant(decision: Any, record: Any, **_: Any) -> Any:
    if decision is None or decision.epoch != record.epoch:
        return decision
    sink = replace(decision.sinks[record.sink], committables=record.committables)
    return replace(decision, sinks={**decision.sinks, record.sink: sink}, seqs=(*decision.seqs, record.seq))


def _sweep_with_open_redecide(patch: Patch) -> None:
    real = Coordinator._accept

    def sweeping(self: Any, plan: Any, votes: Any) -> Any:
        read = self._journal.log
        if read.decision is not None and read.decision.epoch == plan.epoch:
            sweep.Sweep(self._events, self._journal.whole).losers(self._committers, read, read.claims[-1])
        return real(self, plan, votes)

    patch.setattr(Coordinator, "_accept", sweeping)


def _newest_claims_only(patch: Patch) -> None:
    """Take what an old claim of this journal began for another journal's work."""
    patch.setattr(sweep, "knows_all", lambda read, listed: True)


def _begin_unread(patch: Patch) -> None:
    real = coordinator.check_replay
    patch.setattr(coordinator, "check_replay", lambda d, end, begin: real(d, end, d.previous))


def _no_follows(patch: Patch) -> None:
    patch.setattr(coordinator, "check_follows", lambda *_: None)


def _sources_only(patch: Patch) -> None:
    """Hash the sources' lines of a batch's offsets, not the line with its time and watermark."""

    def fingerprint(self: Any, batch: int) -> str:
        return "".join((self._folder / "offsets" / str(batch)).read_text().splitlines()[2:])

    patch.setattr(Checkpoint, "fingerprint", fingerprint)


def _claim_forgets_redecides(patch: Patch) -> None:
    real = Journal._place

    def place(self: Any, record: Any, seq: int) -> Any:
        found = real(self, record, seq)
        if isinstance(record, records.Claim):
            found |= {"names": found["names"][:1], "name_sums": found["name_sums"][:1]}
        return found

    patch.setattr(Journal, "_place", place)


def _no_sweep_of_older(patch: Patch) -> None:
    """Don't sweep older generations between two epochs; a start still does."""
    real = sweep.undecided_losers

    def own(read: Any, mine: Any, sink: str, listed: Any) -> Any:
        return real(read, mine, sink, [p for p in listed if p.generation == mine.generation])

    patch.setattr(sweep, "undecided_losers", own)


def _no_sweep_at_start(patch: Patch) -> None:
    patch.setattr(sweep.Sweep, "older", lambda *_: {})


def _sweep_beside_sinks_away(patch: Patch) -> None:
    """Sweep the sinks that answer, though another is set aside, whose mark was not seen."""
    real = sweep.Sweep.older

    def older(self: Any, committers: Any, log: Any, mine: Any, tokens: Any, reach: Reach) -> Any:
        answering = {name: committers[name] for name in reach.of(committers)}
        return real(self, answering, log, mine, tokens, Reach(reach.sets_aside))

    patch.setattr(sweep.Sweep, "older", older)


def _clean_ignored(patch: Patch) -> None:
    patch.setattr(log.Log, "_clean", -1)


def _clean_too_early(patch: Patch) -> None:
    """Record at every end of a driver's own that nothing is in doubt, after errors too."""

    def leave(self: Any) -> None:
        with suppress(ExactsinkError, OSError, RuntimeError):
            self._journal.keep(records.Clean())

    patch.setattr(Coordinator, "leave", leave)


def _strategy_not_bound(patch: Patch) -> None:
    real = coordinator.is_bound
    patch.setattr(coordinator, "is_bound", lambda sinks, d, name: real(_as_decided(sinks, d.sinks), d, name))


def _sinks_may_change(patch: Patch) -> None:
    patch.setattr(coordinator, "check_kept_sinks", lambda *_, **__: None)


def _as_decided(sinks: Any, decided: Any) -> Any:
    """Return sinks with the strategies that were decided."""
    return {
        name: SimpleNamespace(
            name=name,
            kind=sink.kind,
            backend=SimpleNamespace(
                target=sink.backend.target,
                strategy=decided[name].strategy if name in decided else sink.backend.strategy,
            ),
        )
        for name, sink in sinks.items()
    }


def _other_query_proves(patch: Patch) -> None:
    patch.setattr(Checkpoint, "is_epoch_done", lambda self, epoch, read: self.next_batch() > epoch - read.base)


def _all_at_once(patch: Patch) -> None:
    patch.setattr(commit, "_waves", lambda before: [list(before)])


def _tried_all_the_same(patch: Patch) -> None:
    """Commit a sink in its turn, though one that it comes after is not committed."""
    patch.setattr(commit, "_is_committed", lambda result, source_done: True)


def _held_back_taken_for_committed(patch: Patch) -> None:
    real = Marks.check_committed
    patch.setattr(Marks, "check_committed", lambda self, lost, held_back, reach: real(self, lost))


def _nothing(patch: Patch) -> None:
    """The defect lies in the backend, not in the core."""


DEFECTS = (
    Defect("swallow a commit error", _swallow_commit_error, schedules.single_faults),
    Defect("commit before decide", _commit_before_decide, schedules.single_faults),
    Defect("sweep before claim", _sweep_before_claim, schedules.claims_in_holes),
    Defect("no second listing", _no_second_listing, schedules.claims_in_holes),
    Defect("abort after an unknown append", _abort_after_unknown_append, schedules.single_faults),
    Defect("delete claims", _delete_claims, schedules.stalls),
    Defect("delete what came after", _delete_what_came_after, schedules.claims_in_holes),
    Defect("not idempotent", _nothing, schedules.single_faults, Lab(not_idempotent=True)),
    Defect("skip the flush", _nothing, schedules.single_faults, Lab(defect=_skip_flush)),
    Defect("trust a count", _trust_a_count, schedules.dropped_rows),
    Defect("sinks not one after another", _all_at_once, schedules.ordered),
    Defect("a sink tried before those it comes after", _tried_all_the_same, schedules.ordered),
    Defect("a sink held back taken for committed", _held_back_taken_for_committed, schedules.ordered),
    Defect("redecide not folded", _redecide_not_folded, schedules.lost_votes),
    Defect("trust another journal's ids", _trust_other_ids, schedules.two_journals),
    Defect("skip by number alone", _skip_by_number, schedules.rolled_back_checkpoints),
    Defect("take expired evidence for lost", _expired_is_lost, schedules.expired_evidence),
    Defect("go on past a stale listing", _names_not_read, schedules.stale_listings),
    Defect("sweep while a redecide is open", _sweep_with_open_redecide, schedules.lost_votes),
    Defect("prove orphans by the newest claims alone", _newest_claims_only, schedules.stalls),
    Defect("take a newer mark", of_marks.lenient("newer"), restored.restores, Lab(sample=13)),
    Defect("take an older mark", of_marks.lenient("older"), restored.failovers, Lab(sample=7)),
    Defect("take a part for the whole", of_marks.lenient("participants"), restored.failovers, Lab(sample=7)),
    Defect("no look when an epoch is opened", of_marks.bind_only, restored.failovers, Lab(sample=7)),
    Defect("tokens of marks not compared", of_marks.tokens_unread, restored.forks, Lab(sample=3)),
    Defect("no look at start", of_marks.no_start_look, restored.restores, Lab(sample=13)),
    Defect("no look before lost rows are written again", of_marks.no_rewrite_look, restored.failbacks, Lab(sample=7)),
    Defect("a replaced set's tokens are expected still", of_marks.old_tokens, restored.failbacks, Lab(sample=7)),
    Defect("where a replayed batch begins not compared", _begin_unread, restored.forks, Lab(sample=3)),
    Defect("where a new batch begins not compared", _no_follows, restored.forks, Lab(sample=3)),
    Defect("a fingerprint of the sources' lines", _sources_only, schedules.rolled_back_checkpoints),
    Defect("a claim forgets redecides", _claim_forgets_redecides, schedules.lost_and_crashed, Lab(sample=7)),
    Defect("older generations not swept between epochs", _no_sweep_of_older, schedules.stalls),
    Defect("older generations not swept at start", _no_sweep_at_start, schedules.single_faults),
    Defect("a sweep while a sink is away", _sweep_beside_sinks_away, changes.recovered_with_sinks_away),
    Defect("a clean end ignored", _clean_ignored, changes.changed_configs),
    Defect("a clean end recorded too early", _clean_too_early, changes.changed_configs),
    Defect("a decision's sink known without its strategy", _strategy_not_bound, changes.changed_configs),
    Defect("sinks change under work in doubt", _sinks_may_change, changes.changed_configs),
    Defect("another query's checkpoint proves an epoch", _other_query_proves, changes.forgotten),
    Defect("a higher epoch taken for committed", of_marks.above_is_committed, schedules.copies),
    Defect("no look before a commit", of_marks.unread, restored.failovers, Lab(sample=7)),
)
