"""The state of a job's sinks: which participants are proven committed, and which each sink holds. Only reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Literal

from exactsink.contract import (
    AlreadyCommitted,
    Committable,
    Committer,
    ExactsinkError,
    InDoubt,
    Lost,
    Mark,
    Prepared,
    Standing,
    Unknown,
)
from exactsink.job.checkpoint import Checkpoint
from exactsink.job.history import JobHistory
from exactsink.operate.asking import ask_all
from exactsink.operate.reachable import import_clients, knock, late_sink
from exactsink.protocol.commit import all_before, resolved_by
from exactsink.protocol.journal.log import Log, knows_all
from exactsink.protocol.journal.records import BoundSink, Expected
from exactsink.protocol.marks import Marks, difference, expected_of, is_at, is_part
from exactsink.protocol.sinks import Sink, bound_sinks, committer_of, is_bound, lacking_sinks

__all__ = ["ASKED_SECONDS", "Holding", "SinkView", "assess", "look", "word_of"]

ASKED_SECONDS = 1.5
"""How long each sink may take to answer, all of them in parallel."""

_LOOKS = 3
"""How often the sinks are read again while a driver appends to the journal."""

_SOURCE = ""
_NOT_ASKED = "not asked"
_WORDS = {Prepared: "prepared", AlreadyCommitted: "committed", Lost: "lost", Unknown: "unknown"}


@dataclass(frozen=True, slots=True)
class Holding:
    """A participant that a sink holds, and its kind: decided, undecided (for the sweep), or foreign."""

    sink: str
    participant: InDoubt
    whose: Literal["decided", "undecided", "foreign"]


@dataclass(frozen=True, slots=True)
class SinkView:
    """The state of one sink.

    `committables` are those of the last decision, each with its state in `standings`. `standings` is empty if the store
    was not queried (`asked` is false), and `problem` then says why: the store is down, or hangs; or the config lacks
    the sink (`in_config` is false) and work may be left there. If the store was queried, `problem` says why its `mark`
    differs from the journal's. `held_back_by` are the sinks before it (`after`) that are not proven.
    """

    name: str
    backend: str
    strategy: str
    target: str
    in_config: bool = True
    asked: bool = True
    committables: Sequence[Committable] = ()
    standings: Sequence[Standing] = ()
    mark: Mark | None = None
    expected: Expected | None = None
    held: Sequence[Holding] = ()
    held_back_by: Sequence[str] = ()
    problem: ExactsinkError | None = None

    @property
    def is_proven(self) -> bool:
        """Whether this sink's whole part of the last decision is proven committed."""
        return self.count("committed") == len(self.committables)

    def count(self, word: str) -> int:
        """Count the committables in this state: committed, prepared, lost, unknown or not asked."""
        if word == _NOT_ASKED:
            return len(self.committables) - len(self.standings)
        return sum(word_of(standing) == word for standing in self.standings)

    def holds(self, whose: str) -> int:
        """Count the participants of this kind that the store holds: decided, undecided or foreign."""
        return sum(holding.whose == whose for holding in self.held)


@dataclass(frozen=True, slots=True)
class _Answer:
    """A store's answer. With a `problem`, its mark does not fit, and the decision was not checked any further."""

    mark: Mark | None
    problem: ExactsinkError | None
    standings: Sequence[Standing]
    listed: Sequence[InDoubt]


def look(
    history: JobHistory,
    sinks: Mapping[str, Sink],
    read: Callable[[], Log],
    whole: Callable[[], Log],
    *,
    seconds: float = ASKED_SECONDS,
    thorough: bool = False,
) -> tuple[Log, Sequence[SinkView]]:
    """Read the journal and assess the sinks. Repeat if a driver has appended meanwhile, unless all is well."""
    import_clients(sinks, history.job)
    log, views = _looked(read, partial(assess, history, sinks, whole=whole, seconds=seconds, thorough=thorough))
    for view in views:
        if view.problem is not None:
            history.commands.name(view.problem)
    return log, views


def _looked(read: Callable[[], Log], assessed: Callable[[Log], Sequence[SinkView]]) -> tuple[Log, Sequence[SinkView]]:
    log = read()
    for _ in range(_LOOKS):
        views = assessed(log)
        before, log = log, read()
        settled = all(view.is_proven and view.problem is None and not view.holds("foreign") for view in views)
        if settled or log.last_seq == before.last_seq:
            return before, views
    if before.decision and log.decision and before.decision.epoch < log.decision.epoch:
        views = [_passed(view) for view in views]  # the driver was faster than this read
    return before, views


def assess(
    history: JobHistory,
    sinks: Mapping[str, Sink],
    log: Log,
    whole: Callable[[], Log],
    *,
    seconds: float = ASKED_SECONDS,
    thorough: bool = False,
) -> Sequence[SinkView]:
    """Return the state of each sink, then of each former sink that the last decision or an open claim names.

    The source is queried first, then all sinks in parallel, each for at most so many seconds. `whole()` reads the log
    back to its first claim. Call `import_clients` before, because an import counts as the store's time. Changes
    nothing, and disturbs no driver. `thorough` checks each participant, even if the mark proves them all: a participant
    that is lost nevertheless was replaced by a record that this journal lacks, and a commit finds it unknown.
    """
    calls = {name: partial(_ask, sink, history.job, log, seconds, thorough=thorough) for name, sink in sinks.items()}
    # The source first: sinks that are queried later hold every epoch that the source has recorded as done.
    source_done = ask_all({_SOURCE: partial(_is_source_done, history, log)}, seconds).get(_SOURCE) is True
    answers = ask_all(calls, seconds)
    listed = (answer.listed for answer in answers.values() if isinstance(answer, _Answer))
    log = log if knows_all(log, chain.from_iterable(listed)) else whole()
    done = source_done or not log.decision_is_open
    views = {name: _view(sink, log, answers.get(name, late_sink(sink, seconds)), done) for name, sink in sinks.items()}
    return [*_held_back(sinks, views), *_former(sinks, log, source_done=source_done)]


def word_of(standing: Standing | None) -> str:
    """Return a committable's state as a word: committed, prepared, lost, unknown, or not asked."""
    return _NOT_ASKED if standing is None else _WORDS[type(standing)]


def _is_source_done(history: JobHistory, log: Log) -> bool:
    """Return whether the source has recorded the last decision as done: that proves that it was committed once."""
    if log.decision is None or history.run is not None:
        return log.is_complete
    return Checkpoint(history.checkpoint).is_epoch_done(log.decision.epoch, log)


def _ask(sink: Sink, job: str, log: Log, seconds: float, *, thorough: bool) -> _Answer:
    """Query one sink's store. Another driver may commit meanwhile, and then the mark, read once more, shows it."""
    mark = problem = None
    standings: Sequence[Standing] = ()
    with closing(committer_of(sink, job, log)) as committer:
        knock(f"sink {sink.name}", sink.backend.servers, seconds)
        marks = Marks.of({sink.name: sink}, {sink.name: committer}, lambda: log, lambda attempt: None)
        if not sink.backend.traits.marks and _decided(sink, log):
            standings = _standings(sink, log, committer, marks)
        for _ in range(2 if sink.backend.traits.marks else 0):
            mark = committer.mark()
            problem = marks.problem(sink.name, mark)
            standings = () if (proven := _proves(sink, log, mark)) else standings
            if problem is not None or (proven and not (thorough and _decided(sink, log))):
                break
            standings = standings or _standings(sink, log, committer, marks)
        return _Answer(mark, problem, standings, list(committer.in_doubt()))


def _standings(sink: Sink, log: Log, committer: Committer, marks: Marks) -> Sequence[Standing]:
    """Assess the decided committables, as a commit would find them.

    A loss that the mark contradicts is Unknown. An operator's outcome replaces an Unknown.
    """
    assert log.decision is not None
    words, committables = log.resolved.get(sink.name, {}), _decided(sink, log)
    possible = marks.possible(sink.name, committer.assess(log.decision.epoch, committables))
    return [resolved_by(words.get(c.ref), one) for c, one in zip(committables, possible, strict=True)]


def _decided(sink: Sink, log: Log) -> Sequence[Committable]:
    """Return this sink's committables in the last decision, if that names the sink as the config has it now."""
    decision = log.decision
    if decision is None or sink.name not in decision.sinks or not is_bound({sink.name: sink}, decision, sink.name):
        return ()
    return decision.committables(sink.name)


def _proves(sink: Sink, log: Log, mark: Mark | None) -> bool:
    """Return whether the mark proves all of the last decision, or there is nothing to prove."""
    known = expected_of(log, sink.name, sink.backend.target)
    return not _decided(sink, log) or (known is not None and is_at(mark, known.now))


def _view(sink: Sink, log: Log, answer: _Answer | ExactsinkError, done: bool) -> SinkView:
    """Make a sink's view from its store's answer. `done` says that everything was committed once."""
    backend, committables = sink.backend, _decided(sink, log)
    known = expected_of(log, sink.name, backend.target)
    view = SinkView(sink.name, sink.kind, backend.strategy, backend.target, committables=committables, expected=known)
    if isinstance(answer, ExactsinkError):
        return replace(view, asked=False, problem=answer)
    standings, problem = answer.standings, answer.problem
    words = set(map(word_of, standings))
    if _proves(sink, log, answer.mark) and known is not None and "lost" in words:
        problem = difference(log, sink.name, answer.mark, known.now)
    elif _proves(sink, log, answer.mark) and (done or "unknown" not in words):
        standings = _all_committed(committables)
    elif known is not None and backend.traits.marks:
        gone = done and words & {"lost", "unknown"}
        shows = words == {"committed"} and sink.name not in log.resolved
        if shows and not done and is_part(answer.mark, known.now):  # in mid-commit: rows show, and their mark is begun
            standings = (Prepared(),) * len(committables)
        elif problem is None and (gone or shows):
            problem = difference(log, sink.name, answer.mark, known.now)  # the mark is gone, or proves less
    elif done:
        standings = [AlreadyCommitted() if isinstance(s, Unknown) else s for s in standings]  # expired evidence
    if problem is not None:
        standings = (Unknown(f"{problem.what}: {problem.why}"),) * len(committables)
    held = _holdings(sink.name, log, answer.listed)
    return replace(view, standings=standings, mark=answer.mark, held=held, problem=problem)


def _all_committed(committables: Sequence[Committable]) -> Sequence[Standing]:
    return (AlreadyCommitted(),) * len(committables)


def _holdings(sink: str, log: Log, listed: Sequence[InDoubt]) -> Sequence[Holding]:
    decided = log.decision.refs(sink) if log.decision else frozenset()
    standing = log.standing_claims
    found = []
    for held in listed:
        known = (held.generation, held.token) in standing
        found.append(Holding(sink, held, "decided" if held.ref in decided else "undecided" if known else "foreign"))
    return found


def _held_back(sinks: Mapping[str, Sink], views: Mapping[str, SinkView]) -> Sequence[SinkView]:
    """Add to each sink that is not proven the sinks before it that are not proven either."""
    before = all_before({name: sink.after for name, sink in sinks.items()})
    behind = {name for name, view in views.items() if not view.is_proven}
    waits = {name: tuple(sorted(before[name] & behind)) for name in behind}
    return [replace(view, held_back_by=waits.get(name, ())) for name, view in views.items()]


def _former(sinks: Mapping[str, Sink], log: Log, *, source_done: bool) -> Sequence[SinkView]:
    """Return the sinks that the last decision or an open claim names, and that the config lacks or has changed."""
    decided = log.decision.sinks if log.decision else {}
    bound = {BoundSink(name, sink.backend, sink.strategy, sink.target): sink for name, sink in decided.items()}
    refused: dict[BoundSink, ExactsinkError] = {}
    for lacking, refusal in lacking_sinks(sinks, log, source_done=source_done):
        refused.setdefault(lacking, refusal)
    if log.is_complete:
        refused.clear()  # a run's sinks may change once it is decided
    views = []
    for former in dict.fromkeys([*bound, *refused]):
        if former in bound_sinks(sinks):
            continue
        view = SinkView(former.name, former.backend, former.strategy, former.target, in_config=False, asked=False)
        committables = bound[former].committables if former in bound else ()
        standings = _all_committed(committables) if source_done or not log.decision_is_open else ()
        problem = refused.get(former)
        views.append(replace(view, committables=committables, standings=standings, problem=problem))
    return views


def _passed(view: SinkView) -> SinkView:
    """Return the view after a later decision: its own epoch is committed, whatever the sink seemed to hold."""
    if not view.asked:
        return view
    return replace(view, standings=_all_committed(view.committables), held_back_by=(), problem=None)
