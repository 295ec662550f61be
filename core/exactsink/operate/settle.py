"""An operator's actions on single sinks or participants: settle the named ones, or record an outcome for them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager

from exactsink.contract import Committable, Committer, ConfigError, Lost, Standing, Unknown
from exactsink.job.driver import identity_of
from exactsink.operate.actions import Operator, acting_user
from exactsink.operate.indoubt import chosen, doubts
from exactsink.operate.refusals import Word, held_back, is_foreign, nothing_left
from exactsink.operate.views import look
from exactsink.protocol.commit import all_before
from exactsink.protocol.journal.log import Decision, Log
from exactsink.protocol.journal.records import Resolve
from exactsink.protocol.marks import Marks
from exactsink.protocol.reach import OutcomeUnknown, Part
from exactsink.protocol.sinks import check_identity, is_bound
from exactsink.toolkit.nearest import nearest
from exactsink.toolkit.waiting import backoff

__all__ = ["ASK_SECONDS", "Settler"]

ASK_SECONDS = 10.0
"""How long each sink may take to list its participants in doubt."""


class Settler(Operator):
    """Settle a part of the work in doubt of one history."""

    def part(
        self, sinks: Collection[str], references: Collection[str], tokens: frozenset[str], *, take_over: bool
    ) -> Part | None:
        """Return the part that these names mean: whole sinks, or participants; None if nothing is named.

        A decided participant means its sink's part of the decision. A sink includes the sinks that come before it.
        Raises LineageError for a foreign participant unless `tokens` has its token.
        """
        if not sinks and not references:
            return None
        self.check_allowed(take_over=take_over)
        for name in sinks:
            self._check_known(name)
        _, views = look(self._history, self._sinks, self.read, self.whole, seconds=ASK_SECONDS, thorough=True)
        found = doubts(views)
        meant = [chosen(found, reference) for reference in references]
        for doubt in meant:
            if doubt.state == "foreign" and doubt.token not in tokens:
                raise is_foreign(doubt)
        meant += [doubt for doubt in found if doubt.sink in sinks]
        names = frozenset(sinks).union(doubt.sink for doubt in meant if doubt.is_decided)
        undecided = frozenset((doubt.sink, doubt.ref) for doubt in meant if not doubt.is_decided)
        return Part(self._with_those_before(names), undecided)

    def check_allowed(self, *, take_over: bool) -> Log:
        """Raise the errors of every command here before its claim: another job's journal, or a live driver."""
        log = self._journal.read()
        check_identity(log, identity_of(self._history))
        if not take_over:
            self._refuse_live(take_over, log)
        return log

    def resolve(self, word: Word, *, take_over: bool) -> Sequence[Committable]:
        """Record an operator's outcome for participants in doubt of the last decision. The next start applies it.

        Participants that can be committed are committed first, so that the outcome applies only to the rest. Returns
        the participants that it applies to. Raises ConfigError if there are none.
        """
        self.check_word(word, take_over=take_over)
        log, part = self._journal.log, Part(self._with_those_before([word.sink]))
        self._refuse_live(take_over, log)
        with self._claimed(log.query_id or "", frozenset(), part, sets_aside=True) as start:
            decision = self._worded(self._journal.log, word)
            failure = start.aside.get(word.sink)
            if failure is not None and not isinstance(failure, OutcomeUnknown):
                raise failure
            if word.sink in start.held_back:
                raise held_back(word.sink)
            left = list(zip(decision.committables(word.sink), start.outcomes[word.sink], strict=True))
            named = [(c, o) for c, o in left if isinstance(o, Lost | Unknown) and _is_on(word, c, o)]
            if not named:
                raise nothing_left(word)
            if word.outcome == "lost":
                with self._marks(word.sink) as (_, marks):
                    marks.check_rewrite(word.sink, len(named) + sum(isinstance(outcome, Lost) for _, outcome in left))
            on = [committable for committable, _ in named]
            rows = sum(committable.rows for committable in on)
            reason = f"{word.reason} ({len(on)} participants, {rows} rows; {named[0][1].evidence})"
            refs = tuple(committable.ref for committable in on)
            self._journal.keep(Resolve(acting_user(), reason, word.epoch, word.sink, word.outcome, refs, rows))
            said = f"epoch {word.epoch} of sink {word.sink} is {word.outcome}, says {acting_user()}"
            self._events.report("noted", text=said)
        return on

    def check_word(self, word: Word, *, take_over: bool) -> None:
        """Raise the errors that `resolve` would raise before its claim."""
        self._worded(self.check_allowed(take_over=take_over), word)

    def standings(self, word: Word) -> Sequence[tuple[Committable, Standing]]:
        """Return the state of the decided participants of `word`'s sink, as a commit would find it. Changes nothing."""
        log = self._journal.log
        decided = log.decision.committables(word.sink) if log.decision else ()
        with self._marks(word.sink) as (committer, marks):
            marks.check_start()
            found = marks.possible(word.sink, committer.assess(word.epoch, decided))
            return list(zip(decided, found, strict=True))

    @contextmanager
    def _marks(self, name: str) -> Iterator[tuple[Committer, Marks]]:
        with closing(self._committer(name, self._journal.log)) as committer:
            yield committer, Marks.of({name: self._sinks[name]}, {name: committer}, lambda: self._journal.log, backoff)

    def _with_those_before(self, names: Collection[str]) -> frozenset[str]:
        before = all_before({name: sink.after for name, sink in self._sinks.items()})
        return frozenset(names).union(*(before[name] for name in names))

    def _check_known(self, name: str) -> None:
        if name not in self._sinks:
            near = nearest(name, self._sinks)
            raise ConfigError(f"the config has no sink {name}{near}", next="exactsink indoubt list JOB.toml")

    def _worded(self, log: Log, word: Word) -> Decision:
        """Return the last decision, if `word` applies to it."""
        self._check_known(word.sink)
        decision, name = log.decision, word.sink
        why = ""
        if decision is None:
            why = "the journal is empty, and only a journal has the decisions"
        elif decision.epoch != word.epoch:
            why = f"the last decided one is {decision.epoch}, and all before it are committed"
        elif not decision.committables(name) or not is_bound(self._sinks, decision, name):
            why = f"the last decided epoch, {decision.epoch}, has no rows there, or the config has changed it"
        if why or decision is None:
            what = f"there is nothing to resolve in epoch {word.epoch} in sink {name}"
            raise ConfigError(what, why=why, next="exactsink indoubt list JOB.toml")
        return decision


def _is_on(word: Word, committable: Committable, outcome: Lost | Unknown) -> bool:
    return word.is_on(committable.ref, lost=isinstance(outcome, Lost))
