"""Families in which journal, checkpoint and targets go back in time, by themselves or together.

Each ends well in one of two ways: a driver stops and names what differs, or every sink has each row once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from tests.simulation.drivers import STOPPED, Run, last_start, run
from tests.simulation.schedules import Lab
from tests.simulation.world import PARTS, SINKS, Schedule, Violation

EMPTY = frozenset({("table", 1)})
SUBSETS = [frozenset(parts) for n in range(1, 5) for parts in itertools.combinations(PARTS, n)]


def _to(snapshot: str, *parts: str) -> dict[str, str]:
    return dict.fromkeys(parts, snapshot)


def restores(lab: Lab) -> Iterator[Run]:
    """A driver dies at any call; any subset of journal, checkpoint and targets goes back to any earlier moment."""
    base = Schedule(empty=EMPTY)
    moments = [0, *(step + 1 for step in lab.run(base).world.changes["A"])]
    pairs = itertools.combinations_with_replacement(moments[:-1], 2)
    for (first, second), parts in list(itertools.product(pairs, SUBSETS))[:: lab.sample]:
        crash, back = {("A", second): "crash_before"}, {("A", second): _to("copy", *parts)}
        back = replace(base, faults=crash, snapshots={("A", first): "copy"}, restores=back)
        yield stopped_or_exact(lab, back, whole=parts == frozenset(PARTS))


def failovers(lab: Lab) -> Iterator[Run]:
    """A target, or the journal, goes back to an earlier moment under a driver that lives, between any two calls."""
    base = Schedule(empty=EMPTY, looks=True)
    made = lab.run(base)
    copies = [0, *(step + 1 for step in made.world.changes["A"])]
    pairs = [(first, second) for second in range(made.steps["A"]) for first in copies if first < second]
    subsets = [[part] for part in PARTS if part != "checkpoint"] + [list(SINKS)]
    for (first, second), parts in list(itertools.product(pairs, subsets))[:: lab.sample]:
        back = {("A", second): _to("copy", *parts)}
        yield stopped_or_exact(lab, replace(base, snapshots={("A", first): "copy"}, restores=back))


def stopped_or_exact(lab: Lab, schedule: Schedule, *, whole: bool = False) -> Run:
    """Run to the end, and start once more: a driver stops and says why, or every sink has each row once.

    Where all that belongs together went back together (`whole`), nothing may stop.
    """
    made = run(replace(schedule, recut=True), lab.defect, not_idempotent=lab.not_idempotent)
    world, ends = made.world, [end for end in made.ends.values() if end in STOPPED]
    if not world.went_back or not set(schedule.restores) <= world.fired:
        raise AssertionError("nothing went back")
    if not ends:
        world.schedule = replace(world.schedule, restores={}, snapshots={}, epochs=schedule.epochs + 1)
        ends = [end for end in last_start(made, lab.defect) if end in STOPPED]
    if ends and whole:
        raise Violation(f"nothing is wrong, and a driver ended {ends[0]}")
    if not ends:
        world.check_exact(world.source.done + 1)
    return made
