"""The participants in doubt of a history: their states, and the ones that a reference names. Only reads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from exactsink.contract import AlreadyCommitted, Committable, ConfigError, InDoubt, Lost, Prepared, Standing
from exactsink.operate.views import SinkView

__all__ = ["Doubt", "State", "chosen", "doubts"]

State = Literal["prepared", "lost", "unknown", "not asked", "undecided", "foreign"]
_SHORT = 8


@dataclass(frozen=True, slots=True)
class Doubt:
    """A participant in doubt.

    The first four values of `State` are of decided participants, in the words of `status`. `ref` is the store's own
    name. `partition` and `rows` are known only for decided ones. `evidence` says why it is lost, unknown or not
    queried. `went_back` says that its sink's mark differs from the journal's. Then no more is known.
    `held_back_by` are the sinks that must be committed before its own, and are not yet.
    """

    sink: str
    ref: str
    state: State
    generation: int
    token: str
    epoch: int | None = None
    partition: int | None = None
    rows: int | None = None
    evidence: str = ""
    age_seconds: float | None = None
    deadline: float | None = None
    held_back_by: tuple[str, ...] = ()
    went_back: bool = False

    @property
    def is_decided(self) -> bool:
        return self.state not in ("undecided", "foreign")

    @property
    def short(self) -> str:
        """The short reference. It is permanent, and the same on every machine."""
        return hashlib.sha256(f"{self.sink} {self.ref}".encode()).hexdigest()[:_SHORT]

    @property
    def held(self) -> InDoubt:
        """The participant as its store would list it."""
        return InDoubt(self.ref, self.generation, self.token, self.epoch, self.age_seconds, self.deadline)


def doubts(views: Sequence[SinkView]) -> Sequence[Doubt]:
    """Return all participants in doubt of these sinks: decided and not proven ones, then others that a store holds."""
    return [doubt for view in views for doubt in (*_decided(view), *_others(view))]


def chosen(found: Sequence[Doubt], reference: str) -> Doubt:
    """Return the participant that a reference names: by its short form, the store's name, or a prefix of either.

    Raises ConfigError if it names none, or several.
    """
    exact = [doubt for doubt in found if reference in (doubt.ref, doubt.short)]
    begun = [doubt for doubt in found if doubt.ref.startswith(reference) or doubt.short.startswith(reference)]
    meant = exact or begun
    if len(meant) == 1:
        return meant[0]
    choices = "; ".join(f"{doubt.short} is {doubt.sink}: {doubt.ref}" for doubt in meant)
    raise ConfigError(
        f"{len(meant)} participants in doubt begin with {reference!r}"
        if meant
        else f"nothing in doubt is {reference!r}",
        why=choices or "it was committed or aborted meanwhile, or belongs to another job or batch run",
        next="repeat with one of these" if meant else "exactsink indoubt list JOB.toml",
    )


def _decided(view: SinkView) -> Iterator[Doubt]:
    held = {holding.participant.ref: holding.participant for holding in view.held}
    for committable, standing in zip_longest(view.committables, view.standings):
        if not isinstance(standing, AlreadyCommitted):
            state, evidence = _state(view, standing)
            yield _doubt(view, committable, held.get(committable.ref), state, evidence)


def _state(view: SinkView, standing: Standing | None) -> tuple[State, str]:
    if standing is None:
        return "not asked", "" if view.problem is None else f"{view.problem.what}: {view.problem.why}"
    if isinstance(standing, Prepared):
        return "prepared", ""
    assert not isinstance(standing, AlreadyCommitted)
    return ("lost" if isinstance(standing, Lost) else "unknown"), standing.evidence


def _doubt(view: SinkView, committable: Committable, held: InDoubt | None, state: State, evidence: str) -> Doubt:
    txn = committable.txn
    return Doubt(
        view.name,
        committable.ref,
        state,
        txn.generation,
        txn.token,
        txn.epoch,
        txn.partition,
        committable.rows,
        evidence,
        held.age_seconds if held is not None else None,
        committable.deadline,
        tuple(view.held_back_by),
        went_back=view.asked and view.problem is not None,
    )


def _others(view: SinkView) -> Iterator[Doubt]:
    for holding in view.held:
        if holding.whose != "decided":
            held = holding.participant
            yield Doubt(
                view.name,
                held.ref,
                holding.whose,
                held.generation,
                held.token,
                held.epoch,
                age_seconds=held.age_seconds,
                deadline=held.deadline,
            )
