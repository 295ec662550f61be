"""A journal read as one log: its claims, its last decision, and the proof that participants are undecided."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from exactsink.contract import Committable, Fatal, Fenced, InDoubt, LineageError, Mark, Undecided
from exactsink.protocol.journal.records import (
    Claim,
    Clean,
    Complete,
    Decide,
    DecidedSink,
    Expected,
    Kept,
    Note,
    Record,
    Redecide,
    Resolve,
)

__all__ = [
    "Decision",
    "Log",
    "extended",
    "fenced_by",
    "knows_all",
    "needed",
    "other_journal",
    "summed_up",
    "undecided_before",
    "undecided_losers",
]


_SUMMED_UP = "a start needs nothing from before the claim of this driver"


@dataclass(frozen=True, slots=True)
class Decision:
    """An epoch's decide with the latest redecide of each sink, for recovery, sweep and deletion alike.

    `sums` are those of the records at `seqs`. An operator's rebase leaves only the sinks that it keeps; the others
    commit nothing of it any more. `at` is the time when it was first decided.
    """

    epoch: int
    fingerprint: str
    sinks: Mapping[str, DecidedSink]
    seqs: tuple[int, ...]
    sums: tuple[str, ...] = ()
    previous: str = ""
    marks: tuple[Expected, ...] = ()
    at: float = 0.0

    @property
    def rows(self) -> Mapping[str, int]:
        """The number of rows for each sink."""
        return {name: sink.rows for name, sink in self.sinks.items()}

    def committables(self, sink: str) -> Sequence[Committable]:
        """Return a sink's decided set, empty if the decision does not name the sink."""
        return self.sinks[sink].committables if sink in self.sinks else ()

    def refs(self, sink: str) -> frozenset[str]:
        """Return the refs of a sink's decided participants, which must never be aborted."""
        return frozenset(c.ref for c in self.committables(sink))


@dataclass(frozen=True, slots=True)
class Log:
    """A journal as read at one moment: its last decision, and its anchors (claims and other kept records).

    The anchors go back as far as `needed` says. Unless the log `is_whole`, a participant may have been begun under an
    older claim than these.
    """

    last_seq: int = -1
    last_sum: str = ""
    anchors: tuple[Claim | Kept, ...] = ()
    decision: Decision | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the anchors go back to the first one."""
        return not self.anchors or self.anchors[0].before < 0

    @property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(anchor for anchor in self.anchors if isinstance(anchor, Claim))

    @property
    def is_complete(self) -> bool:
        """Whether every sink has committed the one epoch of this log, a batch run's."""
        return any(isinstance(kept, Complete) for kept in self.anchors)

    @property
    def expected(self) -> tuple[Expected, ...]:
        """The expected marks of the last decision's sinks; empty if there is none."""
        return self.decision.marks if self.decision else ()

    @property
    def resolved(self) -> Mapping[str, Mapping[str, str]]:
        """Return an operator's outcomes for the last decision: by sink, the outcome of each participant's ref."""
        words = dict[str, dict[str, str]]()
        for word in _words(self):
            words.setdefault(word.sink, {}).update(dict.fromkeys(word.participants, word.outcome))
        return words

    def has_given_up(self, sink: str) -> bool:
        """Whether an operator gave up rows of the last decision in a sink.

        Its other lost rows are then written again alone.
        """
        return "given-up" in self.resolved.get(sink, {}).values()

    @property
    def open_claims(self) -> tuple[Claim, ...]:
        """The claims under which work may have been begun that nobody has cleaned up yet.

        Older claims than the log holds may be open as well. Then the oldest one here has all their sinks.
        """
        unclean = [claim for claim in self.claims if claim.seq > self._clean]
        return tuple(unclean or (self.claims[-1:] if self.decision_is_open else ()))

    @property
    def decision_is_open(self) -> bool:
        """Whether nobody has recorded that the whole last decision is committed, since it was taken or rebased."""
        rebased = (claim.seq for claim in self.claims if claim.keeps)
        return self.decision is not None and max(*self.decision.seqs, *rebased, -1, -1) > self._clean

    @property
    def _clean(self) -> int:
        return max((anchor.seq for anchor in self.anchors if isinstance(anchor, Clean)), default=-1)

    @property
    def last_generation(self) -> int:
        return max((claim.generation for claim in self.claims), default=0)

    @property
    def standing_claims(self) -> frozenset[tuple[int, str]]:
        """The (generation, token) of every claim, as far back as the log goes."""
        return frozenset((claim.generation, claim.token) for claim in self.claims)

    @property
    def query_id(self) -> str | None:
        """The Spark query of this journal; None before the first claim, empty if the next query binds it."""
        return self.claims[-1].query_id if self.claims else None

    @property
    def lineage(self) -> str:
        """The journal's own name: the token of its first claim."""
        return self.claims[0].lineage if self.claims else ""

    @property
    def succeeds(self) -> frozenset[str]:
        """The journals that this one continues: those with marks on which an operator has rebased it."""
        return frozenset(self.claims[-1].succeeds if self.claims else ())

    @property
    def base(self) -> int:
        """The epoch that batch 0 of the bound query is, or would be."""
        return self.claims[-1].base if self.claims else 0

    @property
    def next_epoch(self) -> int:
        """The only new epoch that may be decided."""
        first = self.claims[-1].first_epoch if self.claims else 0
        return max(first, self.decision.epoch + 1) if self.decision else first

    @property
    def before(self) -> int:
        """The seq of the newest anchor, -1 if there is none."""
        return self.anchors[-1].seq if self.anchors else -1


def extended(log: Log, record: Record) -> Log:
    """Return the log with one more record at its end."""
    log = replace(log, last_seq=record.seq, last_sum=record.sha256)
    if isinstance(record, Claim | Kept):
        return _told(replace(log, anchors=(*log.anchors, record)), record)
    if isinstance(record, Decide):
        place = ((record.seq,), (record.sha256,))
        sinks, marks = record.sinks, record.marks
        decision = Decision(record.epoch, record.fingerprint, sinks, *place, record.previous, marks, record.at)
        return replace(log, decision=decision)
    taken = any(word.sink == record.sink and word.outcome != "given-up" for word in _words(log))
    return replace(log, decision=_redecided(log.decision, record, resolved=taken))


def needed(walk: Iterable[Claim | Kept], names: Sequence[int]) -> tuple[Claim | Kept, ...]:
    """Take from a walk back over anchors all that a log with these `names` needs. The oldest comes first.

    Those are the anchors back to the claim under which the last epoch was decided. Every statement on that decision
    came later: that it is complete, resolved or rebased. That claim has the sinks of all claims that were open before
    it, because its driver had checked that. The same is true of a claim that is followed by the note of `summed_up`.
    """
    taken, summed = [], False
    for anchor in walk:
        taken.append(anchor)
        if isinstance(anchor, Claim) and (summed or anchor.seq < min(names, default=-1)):
            break
        summed = summed or (isinstance(anchor, Note) and anchor.text == _SUMMED_UP)
    return tuple(reversed(taken))


def summed_up(log: Log, most: int) -> Note | None:
    """Return a note for a claim that has the sinks of all open claims: then no start needs older anchors.

    None if the log has at most `most` anchors, or if an operator resolved the last decision: that record stays needed.
    """
    said = any(isinstance(a, Resolve) or (isinstance(a, Claim) and a.rebased is not None) for a in log.anchors)
    return Note(_SUMMED_UP) if len(log.anchors) > most and not said and not log.is_complete else None


def _words(log: Log) -> Sequence[Resolve]:
    """Return an operator's resolutions of the last decision."""
    epoch = log.decision.epoch if log.decision else None
    return [anchor for anchor in log.anchors if isinstance(anchor, Resolve) and anchor.epoch == epoch]


def _told(log: Log, anchor: Claim | Kept) -> Log:
    """Apply an operator's record to the last decision.

    A rebase leaves the sinks that it keeps, with other marks. Participants that are given up leave the decision. They
    are proven lost, so none of their tokens shows.
    """
    decision = log.decision
    if isinstance(anchor, Claim) and anchor.rebased is not None:
        decision = decision or Decision(anchor.first_epoch - 1, "", {}, ())
        kept = {name: sink for name, sink in decision.sinks.items() if name in anchor.keeps}
        return replace(log, decision=replace(decision, sinks=kept, marks=anchor.rebased))
    if isinstance(anchor, Resolve) and anchor.outcome == "given-up" and decision is not None:
        left = tuple(c for c in decision.committables(anchor.sink) if c.ref not in anchor.participants)
        if anchor.epoch == decision.epoch and len(left) < len(decision.committables(anchor.sink)):
            return replace(log, decision=_with_set(decision, anchor.sink, left))
    return log


def _redecided(decision: Decision | None, record: Redecide, *, resolved: bool = False) -> Decision | None:
    """Fold a redecide in: it replaces that sink's whole set. `resolved`: an operator had resolved the old set."""
    if decision is None or decision.epoch != record.epoch:
        raise Fatal(
            f"journal entry {record.seq} replaces votes of epoch {record.epoch}, which is not the last decided one",
            next="restore the journal from a copy",
        )
    decision = _with_set(decision, record.sink, record.committables, resolved=resolved)
    return replace(decision, seqs=(*decision.seqs, record.seq), sums=(*decision.sums, record.sha256))


def _with_set(
    decision: Decision, name: str, committables: tuple[Committable, ...], *, resolved: bool = False
) -> Decision:
    """Return the decision with another set for one sink."""
    sink = replace(decision.sinks[name], committables=committables)
    marks = tuple(_remarked(m, sink, resolved=resolved) if m.sink == name else m for m in decision.marks)
    return replace(decision, sinks={**decision.sinks, name: sink}, marks=marks)


def _remarked(expected: Expected, sink: DecidedSink, *, resolved: bool) -> Expected:
    """Return the expected mark of a sink with a replaced set.

    Participants that were proven lost never show, so only the tokens of the new set may. If an operator declared them
    lost, the old tokens may show as well. A sink without rows keeps the mark of the epoch before.
    """
    now = expected.now
    if expected.target != sink.target or now is None:
        return expected
    if not sink.committables:
        return replace(expected, now=expected.before)
    tokens = frozenset(c.txn.token for c in sink.committables) | (now.tokens if resolved else frozenset())
    return replace(expected, now=Mark(now.lineage, now.epoch, tokens, len(sink.committables)))


def fenced_by(log: Log, mine: Claim) -> Fenced | None:
    """Return the error for a driver if the log has a newer claim than `mine`, None if `mine` is the newest."""
    newer = [claim for claim in log.claims if claim.seq > mine.seq]
    if not newer:
        return None
    return Fenced(
        f"generation {mine.generation} is fenced",
        why=f"{newer[-1].driver} has claimed the job as generation {newer[-1].generation}",
        next="leave the job to that driver; `exactsink status JOB.toml` shows it",
    )


def knows_all(log: Log, listed: Iterable[InDoubt]) -> bool:
    """Return whether the log knows who began these. Otherwise the whole journal must be read."""
    standing = log.standing_claims
    return log.is_whole or all((participant.generation, participant.token) in standing for participant in listed)


def undecided_before(
    log: Log, mine: Claim, sink: str, listed: Sequence[InDoubt], sweep_tokens: frozenset[str] = frozenset()
) -> Undecided:
    """Prove which of a sink's listed participants were begun under an older claim of this journal, and are not decided.

    `log` was read after `mine` was appended. No older generation can decide any more, so the proof stays true. A
    participant raises LineageError if the journal lacks its claim, because somebody else may yet decide it. For
    `sweep_tokens`, an operator has declared that nobody will.
    """
    standing = log.standing_claims
    decided = log.decision.refs(sink) if log.decision else frozenset()
    found = []
    for participant in listed:
        if participant.ref in decided:
            continue
        claim = (participant.generation, participant.token)
        if participant.token in sweep_tokens and claim not in standing:
            found.append(participant)
            continue
        if claim not in standing or participant.generation >= mine.generation:
            foreign = sweep_tokens.union(p.token for p in listed if (p.generation, p.token) not in standing)
            raise other_journal(sink, participant, mine.generation, foreign)
        found.append(participant)
    return _proven(found)


def undecided_losers(log: Log, mine: Claim, sink: str, listed: Iterable[InDoubt]) -> Undecided:
    """Prove which of a sink's listed participants lost in my own generation, or were begun under an older claim.

    A loser was begun up to the decided epoch, and is not in it. The proof holds only between that epoch's commit and
    the next epoch's tasks. Foreign work is left to the next start.
    """
    decision, standing = log.decision, log.standing_claims
    decided, epoch = (decision.refs(sink), decision.epoch) if decision else (frozenset[str](), -1)
    found = []
    for participant in listed:
        claim = (participant.generation, participant.token)
        older = claim in standing and participant.generation < mine.generation
        own = claim == (mine.generation, mine.token) and (participant.epoch is None or participant.epoch <= epoch)
        if (older or own) and participant.ref not in decided:
            found.append(participant)
    return _proven(found)


def _proven(participants: Sequence[InDoubt]) -> Undecided:
    undecided: Undecided = object.__new__(Undecided)  # type: ignore[arg-type]  # its constructor refuses everyone
    undecided._participants = tuple(participants)
    return undecided


def other_journal(sink: str, participant: InDoubt, generation: int, tokens: Collection[str] = ()) -> LineageError:
    """Return the error for a participant that this journal does not know, for a driver of this generation.

    `tokens` are the other known foreign ones, because a command sweeps all of them or none.
    """
    sweep = "".join(f" --sweep-token {token}" for token in sorted(filter(None, {participant.token, *tokens})))
    return LineageError(
        f"sink {sink} holds {participant.ref}, begun under a claim that is not an older one of this journal",
        why="another journal uses this job's name, or this journal went back in time "
        f"(this driver is generation {generation})",
        next="give this job another name and a new checkpoint; or, once no other job runs under this name, list that "
        f"work, and repeat without --dry-run to abort it: exactsink recover JOB.toml{sweep} --dry-run",
    )
