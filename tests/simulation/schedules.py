"""Families of schedules: each knows what may go wrong in it, and runs one schedule after another.

A family is a generator of runs that have been checked to their end; it raises Violation at the first broken promise.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from tests.simulation.backend import SinkStore
from tests.simulation.drivers import Run, no_defect, run, settle
from tests.simulation.world import COPY, OTHER, SINKS, Fault, Schedule, Violation, World

T = TypeVar("T")
FAULTS: tuple[Fault, ...] = ("crash_before", "refused", "answer_lost", "late")
LATE_TASKS = ({}, {0: 3, 1: 25, 2: 6})


@dataclass(frozen=True)
class Lab:
    """How runs are made: with real code, or with a defect planted in a backend."""

    defect: Callable[[SinkStore], None] = no_defect
    not_idempotent: bool = False
    sample: int = 1
    """Of families that have too many schedules for one run, every so manieth."""

    def run(self, schedule: Schedule, between: Callable[[World, int], None] = lambda world, number: None) -> Run:
        made = run(schedule, self.defect, between, not_idempotent=self.not_idempotent)
        stale = [(actor, -n) for actor, count in schedule.stale_lists.items() for n in range(1, count + 1)]
        planned = {*schedule.faults, *schedule.switches, *stale, *schedule.restores}
        if not planned <= made.world.fired:
            raise AssertionError(f"never fired: {planned - made.world.fired}")
        return made

    def thinned(self, schedules: Iterable[T], shift: int = 0) -> Iterator[T]:
        """Return so many of them as the sample asks for; `shift` makes it others."""
        return itertools.islice(schedules, shift % self.sample, None, self.sample)

    def settled(self, schedule: Schedule) -> Run:
        made = self.run(schedule)
        settle(made, self.defect)
        return made


def steps_of(lab: Lab, schedule: Schedule, actor: str = "A") -> range:
    return range(lab.run(schedule).steps.get(actor, 0))


def single_faults(lab: Lab) -> Iterator[Run]:
    """Every fault at every call, with and without late losing attempts, replays cut otherwise."""
    yield lab.settled(Schedule())
    for late_tasks in LATE_TASKS:
        base = Schedule(late_tasks=late_tasks, recut=True)
        for step, fault in itertools.product(steps_of(lab, base), FAULTS):
            yield lab.settled(replace(base, faults={("A", step): fault}))


def crash_pairs(lab: Lab) -> Iterator[Run]:
    """A crash after every call of one driver run that changes anything, and at every call of the next.

    A crash between two reads leaves the world as the one before the first of them does.
    """
    for number, first in enumerate((0, *(step + 1 for step in lab.run(Schedule()).world.changes["A"][:-1]))):
        once = Schedule(faults={("A", first): "crash_before"}, late_tasks=LATE_TASKS[1], recut=True)
        for second in lab.thinned(steps_of(lab, once, "next-0"), number):
            yield lab.settled(replace(once, faults={**once.faults, ("next-0", second): "crash_before"}))


def stalls(lab: Lab) -> Iterator[Run]:
    """A stalls at every call; B claims and runs to every one of its calls; A wakes; both go on."""
    for first in steps_of(lab, Schedule()):
        once = Schedule(switches={("A", first): "B"}, late_tasks=LATE_TASKS[1], recut=True)
        yield lab.settled(once)
        for second in lab.thinned(steps_of(lab, once, "B"), first):
            yield lab.settled(replace(once, switches={**once.switches, ("B", second): "A"}))


def claims_in_holes(lab: Lab) -> Iterator[Run]:
    """B stalls while it claims, A goes on over several epochs and deletes old records, B's claim lands late."""
    base = Schedule(epochs=6, marks=False)  # marks would see many of them a little later
    total = len(steps_of(lab, base)) - 40
    for first, claim_step in lab.thinned(itertools.product(range(4, total), range(6))):
        switches = {("A", first): "B", ("B", claim_step): "A"}
        reached = lab.run(replace(base, switches=switches)).steps
        for back in range(first + 46, min(reached["A"], first + 70), 6):
            yield lab.settled(replace(base, switches={**switches, ("A", back): "B"}))


def lost_votes(lab: Lab) -> Iterator[Run]:
    """The backend drops one partition's vote, or a sink's, or two sinks', once decided; a crash at every call."""
    sets = [{("lake", 1, 0)}, {("table", 2, 0), ("table", 2, 1)}, {("lake", 0, 0), ("lake", 0, 1), ("table", 0, 1)}]
    for losses in sets:
        base = Schedule(losses=frozenset(losses))
        yield lab.settled(base)
        for step, fault in lab.thinned(itertools.product(steps_of(lab, base), FAULTS)):
            yield lab.settled(replace(base, faults={("A", step): fault}))
        for step in lab.thinned(steps_of(lab, base)):
            yield lab.settled(replace(base, switches={("A", step): "B"}))
    whole = Schedule(losses=frozenset({("lake", 1, 0), ("lake", 1, 1)}), recut=True)
    for step in steps_of(lab, whole):  # all of a sink lost: the replay may cut its partitions otherwise
        yield lab.settled(replace(whole, faults={("A", step): "crash_before"}))


def ordered(lab: Lab) -> Iterator[Run]:
    """The lake comes after the table: any fault at any call, votes of either lost, a stall before any call."""
    table, lake = ("table", 1, 0), ("lake", 1, 1)
    for losses in (frozenset[tuple[str, int, int]](), frozenset({table}), frozenset({table, lake})):
        base = Schedule(losses=losses, after={"lake": ("table",)}, recut=not losses)
        yield lab.settled(base)
        for step, fault in lab.thinned(itertools.product(steps_of(lab, base), FAULTS)):
            yield lab.settled(replace(base, faults={("A", step): fault}))
        for step in lab.thinned(steps_of(lab, base)):
            yield lab.settled(replace(base, switches={("A", step): "B"}))


def lost_and_crashed(lab: Lab) -> Iterator[Run]:
    """Votes are lost, and two drivers die one after the other, at any calls from the loss on."""
    base = Schedule(losses=frozenset({("lake", 1, 0), ("table", 1, 0), ("table", 1, 1)}))
    for first in lab.run(base).world.changes["A"][8:]:
        once = replace(base, faults={("A", first): "crash_before"})
        for second in lab.thinned(steps_of(lab, once, "next-0"), first):
            yield lab.settled(replace(once, faults={**once.faults, ("next-0", second): "crash_before"}))


def interleaved(lab: Lab) -> Iterator[Run]:
    """A stalled driver and its successor commit in turns, call by call, each participant by itself, lost votes too."""
    for losses in (frozenset[tuple[str, int, int]](), frozenset({("lake", 1, 0)})):
        base = Schedule(losses=losses, looks=True, recut=not losses)
        for first in steps_of(lab, base):
            once = replace(base, switches={("A", first): "B"})
            for second in lab.thinned(steps_of(lab, once, "B"), first):
                turns = {("A", first + turn): "B" for turn in range(6)}
                turns |= {("B", second + turn): "A" for turn in range(6)}
                made = run(replace(base, switches=turns), lab.defect)
                settle(made, lab.defect)
                yield made


def copies(lab: Lab) -> Iterator[Run]:
    """A copy of the job is run beside it, on the same targets, from any moment on: no row shows twice.

    But for a commit of the one between a look and the commit that follows in the other, which nothing sees.
    """
    base = Schedule(looks=True)
    made = lab.run(base)
    for first in sorted({*range(made.steps["A"])} - made.world.commits["A"]):
        once = replace(base, switches={("A", first): COPY})
        made = lab.run(once)
        for second in lab.thinned(sorted({*range(made.steps[COPY])} - made.world.commits[COPY]), first):
            yield lab.run(replace(once, switches={**once.switches, (COPY, second): "A"}))


def stale_listings(lab: Lab) -> Iterator[Run]:
    """Two drivers crash, the second with its claim standing; the third's first listing lacks the entry before it."""
    for first in steps_of(lab, Schedule(marks=False)):
        once = Schedule(faults={("A", first): "crash_before"}, marks=False)
        for second in steps_of(lab, once, "next-0")[5:9]:
            twice = replace(once, faults={**once.faults, ("next-0", second): "crash_before"})
            made = lab.run(replace(twice, stale_lists={"next-1": 2}))
            if made.ends["next-1"] == "LineageError":
                made.world.check()  # a claim was lacking: work begun under it looks like another journal's
            else:
                settle(made, lab.defect)
            yield made


def dropped_rows(lab: Lab) -> Iterator[Run]:
    """A backend's writer drops a row, once: the epoch is refused and written anew."""
    for epochs in ({0}, {1}, {0, 2}):
        yield lab.settled(Schedule(dropped_rows=frozenset(epochs)))


def expired_evidence(lab: Lab) -> Iterator[Run]:
    """A backend forgets what it committed before Spark records the batch: the job stops, and doubles nothing."""
    for step in steps_of(lab, Schedule(marks=False)):
        once = Schedule(faults={("A", step): "crash_before"}, marks=False)

        def forget(world: World, number: int) -> None:
            for participants in world.sinks.values():
                for txn in [t for t, p in participants.items() if p.state == "committed"]:
                    del participants[txn]

        made = lab.run(once, forget)
        made.world.check()
        stopped = [end for end in made.ends.values() if end == "InDoubtError"]
        if not stopped and made.world.source.done < once.epochs - 1:
            raise Violation(f"neither done nor stopped: {made.ends}")
        yield made


def rolled_back_checkpoints(lab: Lab) -> Iterator[Run]:
    """The checkpoint is restored from an older copy, and its source cuts other input: the job stops."""
    for step, back in itertools.product(steps_of(lab, Schedule()), (0, 1)):

        def restore(world: World, number: int, back: int = back) -> None:
            world.rolled_back(max(0, world.source.done + 1 - back))

        made = lab.run(Schedule(faults={("A", step): "crash_before"}), restore)
        made.world.check()
        yield made


def two_journals(lab: Lab) -> Iterator[Run]:
    """Another job of the same name starts while this one has work prepared: it stops, and touches nothing."""
    for base in (Schedule(marks=False), Schedule()):
        for step in steps_of(lab, base):
            made = lab.run(replace(base, switches={("A", step): OTHER}))
            if made.ends[OTHER] not in ("LineageError", "finished"):
                raise Violation(f"the other job ended {made.ends[OTHER]}")
            if made.ends["A"] != "finished":
                raise Violation(f"this job ended {made.ends['A']}")
            yield made


def random_walks(lab: Lab, seeds: range) -> Iterator[Run]:
    """Two or three drivers, several faults, late tasks and lost votes, by seed."""
    for seed in seeds:
        yield random_walk(lab, seed)


def random_walk(lab: Lab, seed: int) -> Run:
    chance = random.Random(seed)
    faults, switches = {}, {}
    names = ["A", "B", "C"][: chance.choice([2, 2, 3])]
    for _ in range(chance.randint(1, 4)):
        faults[chance.choice([*names, "next-0"]), chance.randrange(50)] = chance.choice((*FAULTS, "crash_after"))
    for _ in range(chance.randint(1, 5)):
        switches[chance.choice(names), chance.randrange(60)] = chance.choice(names)
    losses = {
        (chance.choice(SINKS), chance.randrange(4), chance.randrange(2)) for _ in range(chance.choice([0, 0, 1, 2]))
    }
    late_tasks = {epoch: chance.randint(1, 40) for epoch in range(4) if chance.random() < 0.5}
    schedule = Schedule(faults, switches, 4, late_tasks, frozenset(losses))
    made = run(schedule, lab.defect, not_idempotent=lab.not_idempotent)
    settle(made, lab.defect)
    return made
