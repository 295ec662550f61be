"""The effect of a rebase on each sink's rows, computed from the marks, the journal and the checkpoint.

`first` is the first epoch that the checkpoint gives, in the numbers of journal and marks so far.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from exactsink.contract import ConfigError, LineageError, Mark
from exactsink.job.checkpoint import Checkpoint
from exactsink.operate.views import SinkView
from exactsink.protocol.journal.entries import Entry
from exactsink.protocol.journal.log import Log
from exactsink.protocol.journal.records import Decide, Expected, Redecide

__all__ = ["RebasePlan", "SinkTruth", "decided_counts", "in_words", "rebase_plan"]


@dataclass(frozen=True, slots=True)
class SinkTruth:
    """The state of a target, and the effect of a rebase on the sink's rows.

    `named` is the value that the command must repeat for this target, None if it need not. `keeps`: the rebase, or the
    next start, finishes the sink's part of the last decision. Otherwise that part ends.
    """

    view: SinkView
    named: str | None
    keeps: bool
    from_here_on: str

    @property
    def differs(self) -> bool:
        """Whether a start would stop at this sink."""
        return self.view.problem is not None


@dataclass(frozen=True, slots=True)
class RebasePlan:
    """The effect of a rebase: its claim's generation, and the epoch of the checkpoint's next `batch`.

    `goes_on`: journal and checkpoint belong together, and no target is ahead of them. Then epochs keep their numbers,
    and the next start finishes the last decision. Otherwise the rebase finishes it, and the next number is higher than
    any that a target, the journal or the checkpoint knows. `note` says how epochs are counted.
    """

    generation: int
    batch: int
    epoch: int
    goes_on: bool
    note: str
    sinks: Sequence[SinkTruth]

    @property
    def named(self) -> Mapping[str, str]:
        """By sink, the value that the command must repeat for its target."""
        return {truth.view.name: truth.named for truth in self.sinks if truth.named is not None}

    @property
    def keeps(self) -> tuple[str, ...]:
        """The sinks that keep their part of the last decision."""
        return tuple(truth.view.name for truth in self.sinks if truth.keeps)

    def expected(self, log: Log) -> tuple[Expected, ...]:
        """Return the mark that the journal expects from here on of every sink and target that the job has had."""
        marks = {(known.sink, known.target): known for known in log.expected}
        for truth in self.sinks:
            view, key = truth.view, (truth.view.name, truth.view.target)
            if not truth.differs and self.goes_on:
                continue
            known = marks.pop(key, None)  # this target is the sink's latest, so it goes to the end
            if view.mark is not None:
                stays = self.goes_on and truth.keeps and known is not None
                now = known.now if stays and known is not None else view.mark
                marks[key] = Expected(*key, now, view.mark)
        return tuple(marks.values())

    def with_marks(self, marks: Mapping[str, Mark | None]) -> RebasePlan:
        """Return the plan with marks that were read later, by sink."""
        sinks = [replace(t, view=replace(t.view, mark=marks.get(t.view.name, t.view.mark))) for t in self.sinks]
        return replace(self, sinks=sinks)

    def check_named(self, named: Mapping[str, str], batch: int | None) -> None:
        """Refuse values that differ from those of the targets and the checkpoint. Raises ConfigError."""
        if not self.named:
            raise ConfigError(
                "there is nothing to rebase",
                why="the journal, the checkpoint and every target are as a start expects them",
                next="exactsink run JOB.toml",
            )
        holds = {truth.view.name: in_words(truth.view.mark) for truth in self.sinks}
        asked = dict.fromkeys([*self.named, *named])
        wrong = [f"{name} holds {holds.get(name)}" for name in asked if named.get(name) != holds.get(name)]
        if batch != self.batch:
            wrong.append(f"the checkpoint's next batch is {self.batch}")
        if wrong:
            raise ConfigError(
                "the values of this rebase are not those of the targets and the checkpoint",
                why="; ".join(wrong),
                next="`exactsink rebase JOB.toml` prints their values, and the command with them",
            )


@dataclass(frozen=True, slots=True)
class _Case:
    """One journal and one checkpoint, and how the epochs continue."""

    log: Log
    first: int | None
    goes_on: bool
    is_run: bool
    marked: Collection[str]
    counts: Mapping[tuple[str, int], int]

    @property
    def decided(self) -> int | None:
        return self.log.decision.epoch if self.log.decision is not None else None

    def truth(self, view: SinkView) -> SinkTruth:
        """Judge one sink."""
        named = None
        if view.name in self.marked and (view.problem is not None or not self.goes_on):
            named = in_words(view.mark)
        keeps = self._keeps(view)
        return SinkTruth(view, named, keeps, "; ".join(self._words(view, keeps)) or "nothing is missing or doubled")

    def _keeps(self, view: SinkView) -> bool:
        if self.log.decision is None or view.name not in self.log.decision.sinks:
            return False
        if view.problem is not None:  # it may get the last epoch again, as lost rows, while the source still has it
            again = self.goes_on and self.first == self.decided
            return again and bool(view.committables) and view.mark is not None
        return self.goes_on or not (self.is_run or view.count("lost") or view.count("unknown"))

    def _words(self, view: SinkView, keeps: bool) -> Iterator[str]:
        """Yield the effects of a rebase on one sink's rows; none if there are none."""
        differs = view.problem is not None
        if self.goes_on and not differs:
            return
        if view.name not in self.marked:
            unknown = "this sink keeps no mark"
        elif view.mark is None and (differs or not self.log.claims):
            unknown = "its mark is gone"
        elif self.first is None:
            unknown = "the checkpoint is another query's, which may read any rows again, or skip them"
        else:
            yield from self._counted(view, self.first, keeps)
            return
        yield f"can't be known: {unknown}"
        if view.committables and not keeps and (self.first is None or self.first == self.decided):
            yield f"nothing more of epoch {self.decided} is committed here"

    def _counted(self, view: SinkView, first: int, keeps: bool) -> Iterator[str]:
        """Yield the epochs that are missing, and the epochs that come again."""
        differs, known = view.problem is not None, view.expected.now if view.expected is not None else None
        whole = not differs and bool(self.log.claims) and (keeps or not view.committables)
        last = self.log.next_epoch - 1 if whole else _epoch(view.mark)
        if differs and view.mark is not None and view.mark.epoch is not None:
            count, there = self.counts.get((view.name, last)), view.mark.participants
            if known is not None and known.epoch == last:
                yield f"epoch {last} may be another one's, or lack rows"
            elif there is not None and there != count:
                yield f"epoch {last} may lack rows"
        if last + 1 < first:
            yield f"{_epochs(last + 1, first - 1, 'is', 'are')} not read again, and not here: missing"
        if last >= first:
            yield f"{_epochs(first, last, 'comes', 'come')} again: doubled here"
        if self.goes_on and keeps:
            yield f"epoch {self.decided} is written again, and compared with the decision"


def rebase_plan(
    log: Log,
    views: Sequence[SinkView],
    checkpoint: Checkpoint | None,
    marked: Collection[str],
    counts: Mapping[tuple[str, int], int],
    *,
    early: bool,
) -> RebasePlan:
    """Return the effect of a rebase, from the state of the sinks. Changes nothing.

    A batch run has no `checkpoint`. `marked` are the sinks that keep marks. `counts` are the decided participants by
    sink and epoch, as far back as the journal goes. `early` says that a sink shows rows before the decision, so its
    target may hold rows of the epoch after its mark. Raises the error of a sink that did not answer.
    """
    views = [view for view in views if view.in_config]
    for view in views:
        if not view.asked and view.problem is not None:
            raise view.problem
    batch = 0 if checkpoint is None else checkpoint.next_batch()
    first = 0 if checkpoint is None else _first(log, checkpoint, batch)
    differing = [view for view in views if view.problem is not None]
    goes_on = checkpoint is not None and _follows(log, checkpoint)
    if differing:  # a target that is ahead has these numbers
        goes_on = goes_on and all(_epoch(view.mark) < (first or 0) for view in differing)
    numbers = [_epoch(view.mark) + 1 for view in views]
    epoch = first if goes_on and first is not None else max(log.next_epoch, first or batch, *numbers, 0) + early
    case = _Case(log, first, goes_on, checkpoint is None, marked, counts)
    note = _note(log, first, batch, goes_on=goes_on) if checkpoint is not None else ""
    return RebasePlan(log.last_generation + 2, batch, epoch, goes_on, note, [case.truth(view) for view in views])


def decided_counts(entries: Iterable[Entry]) -> Mapping[tuple[str, int], int]:
    """Count the participants of each sink in each decision that the journal still has."""
    counts = dict[tuple[str, int], int]()
    for record in (entry.record for entry in entries):
        if isinstance(record, Decide):
            counts |= {(name, record.epoch): len(sink.committables) for name, sink in record.sinks.items()}
        elif isinstance(record, Redecide):
            counts[record.sink, record.epoch] = len(record.committables)
    return counts


def in_words(mark: Mark | None) -> str:
    """Return a mark in the form of `rebase --sink NAME=...`."""
    if mark is None:
        return "none"
    return "birth" if mark.epoch is None else str(mark.epoch)


def _first(log: Log, checkpoint: Checkpoint, batch: int) -> int | None:
    """Return the first epoch that the checkpoint gives, None if it belongs to another query than the journal's."""
    return log.base + batch if not log.query_id or checkpoint.query_id() == log.query_id else None


def _follows(log: Log, checkpoint: Checkpoint) -> bool:
    """Return whether the checkpoint continues where the journal ended."""
    if log.query_id == "":  # no query has claimed it yet, for example after a sweep by tokens
        return log.base + checkpoint.next_batch() == log.next_epoch
    try:
        checkpoint.check_follows(lambda: log)
    except LineageError:
        return False
    return bool(log.claims)


def _note(log: Log, first: int | None, batch: int, *, goes_on: bool) -> str:
    if goes_on:
        return f"the checkpoint follows the journal: its next batch, {batch}, stays epoch {first}"
    if first is None:
        return f"the checkpoint is not the journal's: its next batch is {batch}"
    if not log.claims:
        return (
            f"the journal is empty, so the checkpoint's next batch, {batch}, is taken for epoch {batch}. If the job "
            "was ever adopted or rebased, it is another epoch, and nobody can know which rows come again"
        )
    return f"the checkpoint's next batch, {batch}, was epoch {first} so far"


def _epoch(mark: Mark | None) -> int:
    """Return a mark's epoch, -1 before the first."""
    return -1 if mark is None or mark.epoch is None else mark.epoch


def _epochs(low: int, high: int, one: str, several: str) -> str:
    return f"epoch {low} {one}" if low == high else f"epochs {low} to {high} {several}"
