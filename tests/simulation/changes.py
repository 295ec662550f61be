"""Families in which people act: they change a job's sinks, give commands, and put another checkpoint at its path."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from exactsink.contract import Txn
from exactsink.protocol.journal.records import BoundSink, Decide
from tests.simulation.backend import SinkStore
from tests.simulation.drivers import STOPPED, Driver, Run, run, settle
from tests.simulation.operators import Person
from tests.simulation.restored import SUBSETS
from tests.simulation.schedules import FAULTS, LATE_TASKS, Lab, steps_of
from tests.simulation.world import CONFIG, SINKS, Fault, Participant, Schedule, Violation, World, decode

LAKE, TABLE = CONFIG
CONFIGS = {
    "a sink more": ((LAKE,), CONFIG),
    "a sink less": (CONFIG, (LAKE,)),
    "another target": (CONFIG, (LAKE, replace(TABLE, target="other table"))),
    "another strategy": (CONFIG, (replace(LAKE, strategy="other"), TABLE)),
}
LATER = [f"next-{number}" for number in range(8)] + ["last"]


def actor_of(world: World, name: str, defect: Callable[[SinkStore], None]) -> Driver | Person:
    """Make a driver, or who gives the command of this name."""
    is_person = name.partition("-")[0] in ("recover", "adopt", "rebase", "resolve")
    return (Person if is_person else Driver)(world, name, defect)


def _commanded(world: World, name: str, lab: Lab) -> str:
    person = Person(world, name, lab.defect)
    person.run()
    return person.end


def changed_configs(lab: Lab) -> Iterator[Run]:
    """A driver ends, cleanly or at any call, and the next one has other sinks; where that is refused, who runs
    `recover` with the old ones is let through."""
    for before, after in CONFIGS.values():
        base = changing(before, after)
        for step, fault in [(-1, None), *itertools.product(steps_of(lab, base), ("crash_before", "refused"))]:
            faults = {("A", step): fault} if fault else {}
            yield changed(lab, replace(base, faults=faults))


def changing(before: tuple[BoundSink, ...], after: tuple[BoundSink, ...]) -> Schedule:
    """Let the first driver have other sinks than those that come later."""
    configs = {"A": before, "recover": before, **dict.fromkeys(LATER, after)}
    return Schedule(configs=configs, restarts=1, until={"A": 2})


def changed(lab: Lab, schedule: Schedule) -> Run:
    commands: list[str] = []

    def recover(world: World, number: int) -> None:
        if number == 1 and not world.is_over:
            commands.append(_commanded(world, "recover", lab))

    made = run(schedule, lab.defect, recover, stopping=STOPPED - {"ConfigError", "gave up"})
    refused = [name for name, end in made.ends.items() if end == "ConfigError"]
    if refused not in ([], ["next-0"]) or (refused and made.ends["A"] == "finished") or set(commands) - {"finished"}:
        raise Violation(f"a change of sinks is refused: {made.ends}, recover: {commands}")
    made.world.schedule = replace(made.world.schedule, restarts=6)
    settle(made, lab.defect)
    return made


def recovered(lab: Lab) -> Iterator[Run]:
    """A driver dies at any call, or is stalled there, and an operator recovers the job; that one may die, too."""
    for step in steps_of(lab, Schedule()):
        once = Schedule(late_tasks=LATE_TASKS[1], recut=True)
        stalled = replace(once, switches={("A", step): "recover"})
        made = run(stalled, lab.defect, actor=actor_of)
        settle(made, lab.defect)
        yield made
        once = replace(once, faults={("A", step): "crash_before"})
        deaths = [(f"recover-{n}", n) for n in range(0, 24, 4)]
        for name, death in lab.thinned(deaths, step):
            dead = replace(once, faults={**once.faults, (name, death): "crash_before"})
            made = run(dead, lab.defect, lambda world, number, name=name: _first(world, number, name, lab))
            settle(made, lab.defect)
            yield made


def recovered_with_sinks_away(lab: Lab) -> Iterator[Run]:
    """An operator recovers a job whose driver died while sinks are away, with a journal that may be an old one."""
    for seed in lab.thinned(range(1300)):
        yield recovered_by_seed(lab, seed)


def recovered_by_seed(lab: Lab, seed: int) -> Run:
    """Play one: commands beside sinks that go and come; under some the journal goes back, and is brought back after.

    Nothing is lost then: with all sinks and its own journal the job goes on by itself, and is exact.
    """
    chance = random.Random(seed)
    crash = chance.randrange(1, 75)
    faults: dict[tuple[str, int], Fault] = {("A", crash): "crash_before"}
    snapshots, restores, away = {("A", chance.randrange(crash)): "old"}, {}, {}
    names = [f"recover-{number}" for number in range(chance.randint(1, 3))]
    for name in names:
        for step in (0, *(chance.randrange(1, 30) for _ in range(2))):
            away[name, step] = frozenset(sink for sink in SINKS if chance.random() < 0.4)
        if chance.random() < 0.6:
            at = (name, chance.choice([0, 0, chance.randrange(1, 30)]))
            snapshots[at], restores[at] = name, {"journal": "old"}
        if chance.random() < 0.3:
            faults[name, chance.randrange(30)] = chance.choice((*FAULTS, "crash_after"))
    losses = frozenset({(chance.choice(SINKS), chance.randrange(3), chance.randrange(2))} if seed % 3 == 0 else ())
    schedule = Schedule(
        faults, {}, 3, LATE_TASKS[seed % 2], losses, looks=True, snapshots=snapshots, restores=restores, away=away
    )

    def recover(world: World, number: int) -> None:
        for name in names if number == 0 else ():
            prepared = _prepared_of_shown(world)
            _commanded(world, name, lab)
            if aborted := [txn.id for txn, p in prepared.items() if p.state == "aborted"]:
                raise Violation(f"{aborted} are decided, another sink shows it, and they were aborted")
            if name in world.copies:
                world.restore({"journal": name})

    made = run(schedule, lab.defect, recover)
    settle(made, lab.defect)
    made.world.check_exact(made.world.source.done + 1)
    return made


def _prepared_of_shown(world: World) -> Mapping[Txn, Participant]:
    """Return what is decided and not yet committed, where something of that decision shows in any target."""
    shown = {(t.epoch, t.token) for held in world.sinks.values() for t, p in held.items() if p.state == "committed"}
    records = [record for record in map(decode, world.entries.values()) if isinstance(record, Decide)]
    named = {c.txn for record in records for sink in record.sinks.values() for c in sink.committables}
    return {t: p for _, t, p in world.in_doubt() if t in named and (t.epoch, t.token) in shown}


def _first(world: World, number: int, name: str, lab: Lab) -> None:
    if number == 0:
        _commanded(world, name, lab)


def adopted(lab: Lab) -> Iterator[Run]:
    """A driver dies at any call, its checkpoint is gone or another query's, and an operator adopts that."""
    losses = frozenset({("table", 1, 0)})
    for lost, name, step in itertools.product(
        (frozenset[tuple[str, int, int]](), losses), ("adopt", "adopt-other"), range(52)
    ):
        once = Schedule(faults={("A", step): "crash_before"}, losses=lost, late_tasks=LATE_TASKS[1])
        made = run(once, lab.defect, lambda world, number, name=name: _first(world, number, name, lab))
        settle(made, lab.defect)
        yield made


def forgotten(lab: Lab) -> Iterator[Run]:
    """A store without marks forgets all; another query's checkpoint proves nothing of it, an operator's word does."""
    for name, step in itertools.product(("adopt-other", "resolve"), steps_of(lab, Schedule(marks=False))):
        ends: list[str] = []

        def between(world: World, number: int, name: str = name, ends: list[str] = ends) -> None:
            if number:
                return
            for participants in world.sinks.values():
                for txn in [t for t, p in participants.items() if p.state in ("committed", "prepared")]:
                    del participants[txn]
            ends.append(_commanded(world, name, lab))

        made = run(Schedule(faults={("A", step): "crash_before"}, marks=False), lab.defect, between)
        made.world.check()
        if name == "resolve":
            settle(made, lab.defect)
        yield made


def rebased(lab: Lab) -> Iterator[Run]:
    """A part of the world goes back, and an operator rebases the journal: what showed stays, what comes is exact."""
    moments = [0, *(step + 1 for step in lab.run(Schedule()).world.changes["A"])]
    pairs = itertools.combinations_with_replacement(moments[:-1], 2)
    for (first, second), parts in lab.thinned(itertools.product(pairs, SUBSETS)):
        back = {("A", second): dict.fromkeys(parts, "copy")}
        crash = {("A", second): "crash_before"}
        once = Schedule(faults=crash, snapshots={("A", first): "copy"}, restores=back, recut=True)
        ends: list[str] = []

        def rebase(world: World, number: int, ends: list[str] = ends) -> None:
            if number == 0:
                world.judged = True
                ends.append(_commanded(world, "rebase", lab))

        made = run(once, lab.defect, rebase)
        if set(made.ends.values()) & STOPPED or ends != ["finished"]:
            raise Violation(f"after a rebase, a driver stops: {made.ends}, {ends}")
        made.world.check_exact(made.world.source.done + 1)
        yield made
