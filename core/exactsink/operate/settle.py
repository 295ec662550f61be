"""What an operator does to what is in doubt, sink by sink or one by one: commit, abort, or give one's word on it.

Each claims first, as every command that acts, and keeps an action in the journal. The plan of each raises what the deed
would raise, as far as it can be seen without a claim, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

from exactsink.contract import (
    Committable,
    Committer,
    ConfigError,
    ExactsinkError,
    Fenced,
    InDoubtError,
    Lost,
    Refused,
    Standing,
    Unknown,
)
from exactsink.job.driver import identity_of
from exactsink.job.stop import driver_name
from exactsink.observe.state import LIVE_SECONDS
from exactsink.operate.actions import COMMIT_ATTEMPTS, Operator, acting_user
from exactsink.operate.indoubt import Doubt
from exactsink.operate.refusals import (
    GIVEN_UP,
    Word,
    check_journal,
    failure_of,
    is_decided,
    is_foreign,
    nothing_left,
)
from exactsink.protocol.commit import CommitCalls, Retry, SinkCommit, all_before, in_threads
from exactsink.protocol.journal.log import Decision, Log
from exactsink.protocol.journal.records import Claim, Resolve
from exactsink.protocol.marks import Marks
from exactsink.protocol.sinks import check_identity, check_kept_sinks, committer_of, is_bound
from exactsink.protocol.sweep import Sweep
from exactsink.toolkit.waiting import backoff

__all__ = ["Settler"]


@dataclass(frozen=True, slots=True)
class _Claimed:
    """A claim that stands, with a committer for each sink."""

    claim: Claim
    log: Log
    committers: Mapping[str, Committer]


class Settler(Operator):
    """Settles what one history left in doubt."""

    def check_allowed(self, *, take_over: bool) -> Log:
        """Raise what every command here raises before it claims: for another job's journal, or a driver that lives."""
        log = self._journal.read()
        check_identity(log, identity_of(self._history))
        if not take_over:
            self._refuse_live(take_over, log)
        return log

    def commit(self, sinks: Collection[str], *, reason: str, take_over: bool) -> Mapping[str, Sequence[Committable]]:
        """Commit what is decided in these sinks, after those that come before them; return what stands committed now.

        Raises InDoubtError for what is lost, unknown or held back, once all that can be is committed.
        """
        self.decided(sinks, take_over=take_over)
        with self._claimed_for(sinks, take_over) as claimed:
            decision = self._decided(claimed.log, sinks)
            results, error = self._tried(claimed, decision, sinks)
            failed = {name: said for name in sinks if (said := failure_of(name, results)) is not None}
            if error is not None or failed:
                raise error or next(iter(failed.values()))
            for name in sinks:
                self._marks(claimed, [name]).check_committed({})
            done = {name: decision.committables(name) for name in sinks}
            counts = ", ".join(f"{name}: {_counted(committed)}" for name, committed in done.items())
            self._keep("indoubt commit", f"epoch {decision.epoch} committed: {counts}", reason)
        return done

    def decided(self, sinks: Collection[str], *, take_over: bool) -> Decision:
        """Return the last decision, if all of these sinks have rows in it as the config has them."""
        return self._decided(self.check_allowed(take_over=take_over), sinks)

    def _decided(self, log: Log, sinks: Collection[str]) -> Decision:
        decision = log.decision
        for name in sinks:
            if decision is None or not decision.committables(name) or not is_bound(self._sinks, decision, name):
                raise ConfigError(
                    f"nothing is decided in sink {name} that could be in doubt",
                    why="the journal is empty, and only a journal knows what was decided"
                    if decision is None
                    else f"the last decided epoch, {decision.epoch}, has no rows there, or the config has changed it",
                    next="exactsink indoubt list JOB.toml",
                )
        assert decision is not None
        return decision

    def abort(
        self, found: Sequence[Doubt], tokens: frozenset[str], *, reason: str, take_over: bool, without_journal: bool
    ) -> int:
        """Abort these participants, once a claim of mine proves them undecided; return how many it were.

        Foreign ones go by their tokens, each of which is named. `without_journal`: the job has none any more, and a new
        one is begun.
        """
        self.check_abort(found, tokens, take_over=take_over, without_journal=without_journal)
        with self._claimed_for(self._sinks, take_over, compared=not without_journal) as claimed:
            sweep = Sweep(self._events, self._journal.whole)
            refs = frozenset((doubt.sink, doubt.ref) for doubt in found)
            swept = sweep.chosen(claimed.committers, claimed.log, claimed.claim, refs, tokens)
            foreign = f", of the tokens {', '.join(sorted(tokens))}" if tokens else ""
            names = ", ".join(f"{sink} {ref}" for sink, ref in sorted(swept))
            self._keep("indoubt abort", f"{len(swept)} participants aborted{foreign}: {names}", reason)
        return len(swept)

    def check_abort(
        self, found: Sequence[Doubt], tokens: frozenset[str], *, take_over: bool, without_journal: bool
    ) -> None:
        """Raise what `abort` would before it claims."""
        log = self.check_allowed(take_over=take_over)
        check_journal(log, without_journal=without_journal)
        decision = log.decision
        done = decision is not None and self._done()(decision.epoch)
        check_kept_sinks(self._sinks, log, source_done=done)
        for doubt in found:
            if doubt.is_decided:
                raise is_decided(doubt)
            if doubt.state == "foreign" and doubt.token not in tokens:
                raise is_foreign(doubt)
            young = doubt.age_seconds is not None and doubt.age_seconds < LIVE_SECONDS
            if doubt.state == "foreign" and young and not take_over:
                raise Fenced(
                    f"{doubt.ref} was begun {doubt.age_seconds:.0f} s ago: a driver may be at work",
                    why="its journal is elsewhere, so nothing here can stop that driver",
                    next=f"stop it, and repeat once that is {LIVE_SECONDS:.0f} s old; or with --take-over",
                )

    def resolve(self, word: Word, *, take_over: bool) -> Sequence[Committable]:
        """Take an operator's word on what is in doubt of the last decision; the next start goes by it.

        What can be committed there is committed first, so that the word is on what is left. Returns the participants
        that it is on. Raises ConfigError when there are none.
        """
        self.check_word(word, take_over=take_over)
        with self._claimed_for([word.sink], take_over) as claimed:
            decision = self._worded(claimed.log, word)
            results, _ = self._tried(claimed, decision, [word.sink])
            result = results.get(word.sink)
            if result is None or result.error is not None:
                failure = failure_of(word.sink, results)
                assert failure is not None
                raise failure
            left = {c.ref: (c, o) for c, o in zip(result.committables, result.outcomes, strict=True)}
            named = [(c, o) for ref, (c, o) in left.items() if _is_on(word, ref, o)]
            if not named:
                raise nothing_left(word)
            if word.outcome == GIVEN_UP:
                lost = sum(isinstance(outcome, Lost) for _, outcome in left.values())
                self._marks(claimed, [word.sink]).check_rewrite(word.sink, lost)
            on = [committable for committable, _ in named]
            evidence = next(o.evidence for _, o in named if isinstance(o, Lost | Unknown))
            self._keep_word(word, on, f"{word.reason} ({_counted(on)}; {evidence})")
        return on

    def check_word(self, word: Word, *, take_over: bool) -> None:
        """Raise what `resolve` would before it claims."""
        self._worded(self.check_allowed(take_over=take_over), word)

    def _worded(self, log: Log, word: Word) -> Decision:
        """Return the last decision, if the word is on it."""
        decision = self._decided(log, [word.sink])
        if decision.epoch != word.epoch:
            raise ConfigError(
                f"there is nothing to resolve of epoch {word.epoch} in sink {word.sink}",
                why=f"the last decided one is {decision.epoch}, and all before it are committed",
                next="exactsink indoubt list JOB.toml",
            )
        return decision

    def standings(self, word: Word) -> Sequence[tuple[Committable, Standing]]:
        """Return how what is decided in a word's sink stands, as a commit would find it. Changes nothing."""
        name, log = word.sink, self._journal.log
        sink, decided = self._sinks[name], log.decision.committables(name) if log.decision else ()
        with closing(committer_of(sink, self._history.job, log)) as committer:
            Marks.of({name: sink}, {name: committer}, lambda: log, backoff).check_start()
            return list(zip(decided, committer.assess(word.epoch, decided), strict=True))

    @contextmanager
    def _claimed_for(self, sinks: Collection[str], take_over: bool, *, compared: bool = True) -> Iterator[_Claimed]:
        """Claim, and hold the marks against the journal: of these sinks, and of all others that answer."""
        journal = self._journal
        self._refuse_live(take_over, journal.log)
        claim = journal.claim(journal.log.query_id or "", f"operator on {driver_name()}", self._identity())
        self._events.report("claimed", generation=claim.generation, driver=claim.driver)
        with ExitStack() as closing:
            committers = {}
            for name, sink in self._sinks.items():
                committers[name] = committer_of(sink, self._history.job, journal.log)
                closing.callback(committers[name].close)
            claimed = _Claimed(claim, journal.log, committers)
            for name in self._sinks if compared else ():
                try:
                    self._marks(claimed, [name]).check_start()
                except (ExactsinkError, OSError) as error:
                    if name in sinks or isinstance(error, InDoubtError | Refused | Fenced):
                        raise  # else it is away, and is not needed
            yield claimed

    def _marks(self, claimed: _Claimed, sinks: Collection[str]) -> Marks:
        chosen = {name: self._sinks[name] for name in sinks}
        return Marks.of(chosen, claimed.committers, lambda: self._journal.log, backoff)

    def _tried(
        self, claimed: _Claimed, decision: Decision, sinks: Collection[str]
    ) -> tuple[Mapping[str, SinkCommit], ExactsinkError | None]:
        """Commit these sinks, and those that come before them; return what came of each, and the gravest error."""
        before = all_before({name: sink.after for name, sink in self._sinks.items()})
        names = frozenset(sinks).union(*(before[name] for name in sinks))
        bound = {n: claimed.committers[n] for n in decision.sinks if n in names and is_bound(self._sinks, decision, n)}
        results: list[SinkCommit] = []

        def noting(calls: Sequence[Callable[[], SinkCommit]]) -> Sequence[SinkCommit]:
            done = in_threads(calls)
            results.extend(done)
            return done

        marks, retry = self._marks(claimed, bound), Retry(COMMIT_ATTEMPTS, backoff)
        calls = CommitCalls(self._events, retry, marks.check_commit, claimed.log.resolved, before)
        error = None
        try:
            calls.commit(decision, bound, noting, source_done=self._done()(decision.epoch))
        except ExactsinkError as found:
            error = found
        return {result.sink: result for result in results}, error

    def _keep_word(self, word: Word, on: Sequence[Committable], reason: str) -> None:
        refs, rows = tuple(committable.ref for committable in on), sum(committable.rows for committable in on)
        self._journal.keep(Resolve(acting_user(), reason, word.epoch, word.sink, word.outcome, refs, rows))
        self._events.report(
            "noted", text=f"epoch {word.epoch} of sink {word.sink} is {word.outcome}, says {acting_user()}"
        )


def _counted(committables: Sequence[Committable]) -> str:
    return f"{len(committables)} participants, {sum(committable.rows for committable in committables)} rows"


def _is_on(word: Word, ref: str, outcome: object) -> bool:
    return isinstance(outcome, Lost | Unknown) and word.is_on(ref, lost=isinstance(outcome, Lost))
