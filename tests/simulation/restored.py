"""Families in which journal, checkpoint and targets go back in time, by themselves or together.

Each ends well in one of two ways: a driver stops and names what differs, or every sink has each row once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
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
    for (first, second), parts in lab.thinned(itertools.product(pairs, SUBSETS)):
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
    for (first, second), parts in lab.thinned(itertools.product(pairs, subsets)):
        back = {("A", second): _to("copy", *parts)}
        yield stopped_or_exact(lab, replace(base, snapshots={("A", first): "copy"}, restores=back))


def forks(lab: Lab) -> Iterator[Run]:
    """All goes back to a moment between two batches and runs on, cut anew; then a part of what was given up is back.

    The latest moments come first: they show most.
    """
    base = Schedule(epochs=2)
    world = lab.run(base).world
    copies = [0, *(step + 1 for step in world.finishes["A"][:-1])]
    pairs = [(first, step + 1) for first in copies for step in world.changes["A"][-2::-1] if step >= first]
    for number, (first, second) in enumerate(lab.thinned(pairs)):
        once = restored_at(base, first, second, PARTS)
        moves = run(once, lab.defect).world.changes["next-0"][-2::-1]
        for third, parts in lab.thinned(itertools.product(moves, SUBSETS), number):
            yield stopped_or_exact(lab, back_again(once, third + 1, parts, crash=True))


def failbacks(lab: Lab) -> Iterator[Run]:
    """A target fails over to an earlier moment between two drivers, and back under the next one, between two calls."""
    base = Schedule(epochs=2)
    pairs = itertools.combinations([0, *(step + 1 for step in lab.run(base).world.changes["A"])], 2)
    for number, ((first, second), sink) in enumerate(lab.thinned(itertools.product(pairs, SINKS))):
        once = restored_at(base, first, second, [sink])
        for third in lab.thinned(range(run(once, lab.defect).steps["next-0"]), number):
            yield stopped_or_exact(lab, back_again(once, third, [sink], crash=False))


def restored_at(base: Schedule, first: int, second: int, parts: Iterable[str]) -> Schedule:
    """Let A die at a step, and these parts go back to an earlier one; keep a copy of what was given up."""
    snapshots = {("A", first): "early", ("A", second): "late"}
    back = {("A", second): _to("early", *parts)}
    return replace(base, faults={("A", second): "crash_before"}, snapshots=snapshots, restores=back, recut=True)


def back_again(once: Schedule, third: int, parts: Iterable[str], *, crash: bool) -> Schedule:
    """Put back under the next driver what was given up, and let that driver die there or not."""
    faults, step = dict(once.faults), ("next-0", third)
    if crash:
        faults[step] = "crash_before"
    return replace(once, faults=faults, restores={**once.restores, step: _to("late", *parts)})


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
