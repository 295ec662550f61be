"""A scenario of the kit: its name, its promise, the function that plays it, and the capabilities that it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from exactsink.contract import Backend
from exactsink.testing.context import Context
from exactsink.testing.target import HOOKS, ConformanceTarget
from exactsink.toolkit.roads import StagedBackend

__all__ = ["CAPABILITIES", "Capability", "Scenario", "lacking"]

Capability = Literal[
    "atomic_visibility",
    "can_lose_votes",
    "hidden_until_decided",
    "several_jobs",
    "marks",
    "applier",
    "order",
    "destroy_evidence",
    "foreign",
    "previous",
    "validates_rows",
    "unfit",
]

CAPABILITIES: Mapping[Capability, str] = {
    "atomic_visibility": "the traits don't set `atomic_visibility`: an epoch does not appear at one moment",
    "can_lose_votes": "the traits don't set `can_lose_votes`, and the `ConformanceTarget` has no `lose_votes`",
    "hidden_until_decided": "the traits set `visible_early`: rows are visible before the decision",
    "several_jobs": "the traits set `needs_epoch_order`: the sink takes the epochs of one job only",
    "marks": "the traits don't set `marks`: the target keeps no marks",
    "applier": "the backend is not a `StagedBackend`, or the traits don't set `needs_shared_staging`",
    "order": "the `ConformanceTarget` has no `order`",
    "destroy_evidence": "the `ConformanceTarget` has no `destroy_evidence`",
    "foreign": "the `ConformanceTarget` has no `foreign`",
    "previous": "the `ConformanceTarget` has no `previous`",
    "validates_rows": "the traits don't set `validates_rows`: the backend can't judge rows without writing them",
    "unfit": "the `ConformanceTarget` has no `unfit`",
}
"""The capabilities that a scenario may need, each with the reason for a skip. There is no other reason for one."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """`promise` holds if the scenario passes; `play` raises Broken if not. `failure` is the incident behind it."""

    name: str
    promise: str
    failure: str
    play: Callable[[Context], None]
    needs: tuple[Capability, ...] = ()


def lacking(scenario: Scenario, backend: Backend, target: ConformanceTarget) -> str:
    """Return the first capability that the scenario needs and the target lacks; empty if it can be played."""
    traits = backend.traits
    for need in scenario.needs:
        if need in HOOKS:
            there = target.gives(need)
        elif need == "hidden_until_decided":
            there = not traits.visible_early
        elif need == "can_lose_votes":
            there = traits.can_lose_votes or target.gives("lose_votes")
        elif need == "several_jobs":
            there = not traits.needs_epoch_order
        elif need == "applier":
            there = isinstance(backend, StagedBackend) and traits.needs_shared_staging
        else:
            there = bool(getattr(traits, need))
        if not there:
            return f"needs {need}: {CAPABILITIES[need]}"
    return ""
