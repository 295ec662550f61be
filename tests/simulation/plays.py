"""Random plays: drivers that die, stall and lose answers; parts that are put back; and a person who does as is printed.

A play is a seed. At its end every row of every sink is counted against the source, and against what was said before it
was done. The operator's commands are the command line's own, over the world's journal, checkpoint and targets.
"""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from types import SimpleNamespace
from unittest.mock import patch

from exactsink.cli import main as command_line
from exactsink.cli.opened import Opened
from exactsink.contract import Fenced
from exactsink.job import commands
from exactsink.operate import actions, settle, views
from tests.printed import Answer, Cost, differences
from tests.printed import Person as Reader
from tests.simulation.drivers import Driver, one_by_one, run
from tests.simulation.files import SourceCheckpoint
from tests.simulation.operators import Person, in_turn
from tests.simulation.schedules import FAULTS, Lab
from tests.simulation.world import JOB, PARTS, SINKS, Crash, Fault, Schedule, Source, Violation, World

BATCH, ROWS = 3, 12
STARTS = 10
START = ("exactsink", "run", "JOB.toml")


@dataclass(frozen=True)
class Play:
    """What came of a seed: whether anything went back, the commands given, and whether it cost rows, as announced."""

    went_back: bool
    commands: int
    costly: bool


class Rows(World):
    """A world whose source is a list of rows: a batch is what lies between two offsets, wherever it is cut."""

    def __init__(self, schedule: Schedule, cut: int) -> None:
        super().__init__(schedule)
        self.sources[JOB] = Ends()
        self.rows, self._cut = ROWS, cut
        self.counting = SINKS  # a part of an epoch that a target can't count is seen by nobody: the guarantee says so
        self.costs: list[Cost] = []
        self.commands = 0

    @property
    def is_over(self) -> bool:
        return self.source.end_of(self.source.done) >= self.rows  # type: ignore[attr-defined]

    def has_more(self, actor: str, source: Source, batch: int) -> bool:
        return batch in source.offsets or source.end_of(batch - 1) < self.rows  # type: ignore[attr-defined]

    def plan_batch(self, actor: str, source: Source, batch: int) -> None:
        first = source.end_of(batch - 1)  # type: ignore[attr-defined]
        end = min(first + (self._cut if source.anew else BATCH), self.rows)
        text = f"v1\n{{{self.clock}}}\n{end}"
        self.call(actor, ConnectionError, lambda: source.offsets.setdefault(batch, text))

    def restore(self, parts: Mapping[str, str]) -> None:
        """Put parts back from a copy, if it was made by then: what was announced before may have gone back, too."""
        if set(parts.values()) <= self.copies.keys():
            super().restore(parts)
            known = [(said, rows) for said, rows in self.costs if said.kind != "unknown"]
            unknown = [cost for cost in self.costs if cost not in known]
            self.costs = [*unknown, *((replace(said, kind="perhaps"), rows) for said, rows in known)]

    def judge_start(self, log: object) -> None:
        """Judge only at the end: what was announced has its say there."""

    def check_exact(self, batches: int) -> None:
        """Judge only at the end."""

    def judge(self) -> bool:
        """Hold all that shows against the source and what was said; return whether that was worth a word."""
        held = {
            sink: Counter({row: n for (target, row), n in self.applied.items() if target == sink}) for sink in SINKS
        }
        source = [f"{number:03}" for number in range(self.rows)]
        wrong, costly = differences({sink: +rows for sink, rows in held.items()}, source, self.costs)
        if wrong:
            raise Violation("; ".join(wrong))
        return costly


class Ends(Source):
    """Its offsets are where each batch ends."""

    def end_of(self, batch: int) -> int:
        return int(self.offsets[batch].splitlines()[-1]) if batch >= 0 else 0

    def planned(self, batch: int) -> tuple[str, ...]:
        return tuple(f"{number:03}" for number in range(self.end_of(batch - 1), self.end_of(batch)))


def scheduled(seed: int) -> tuple[Schedule, int]:
    """Draw what goes wrong, and how a source that went back cuts its input."""
    chance = random.Random(seed)
    faults: dict[tuple[str, int], Fault] = {}
    switches, snapshots, restores = {}, {}, {}
    names = ["A", "B", "C"][: chance.choice([1, 2, 3])]
    for _ in range(chance.randint(0, 3)):
        faults[chance.choice([*names, "next-0", "next-1"]), chance.randrange(60)] = chance.choice(
            (*FAULTS, "crash_after")
        )
    for number in range(chance.choice([0, 1, 1, 1, 2])):
        first, second = sorted(chance.sample(range(70), 2))
        if chance.random() < 0.5:
            second = first + chance.randint(1, 30)  # an epoch ago, or so
        parts = ["checkpoint"] if chance.random() < 0.2 else chance.sample(PARTS, chance.choice([1, 1, 1, 2, 2, 3, 4]))
        actor = chance.choice(["A", "A", "A", "next-0"])
        snapshots[actor if chance.random() < 0.8 else "A", first] = f"copy-{number}"
        restores[actor, second] = dict.fromkeys(parts, f"copy-{number}")
        if "checkpoint" in parts or chance.random() < 0.7:
            faults[actor, second] = "crash_before"
    if not any("checkpoint" in parts for parts in restores.values()):  # which no driver survives
        for _ in range(chance.randint(0, 4)):
            switches[chance.choice(names), chance.randrange(60)] = chance.choice(names)
    losses = {
        (chance.choice(SINKS), chance.randrange(4), chance.randrange(2)) for _ in range(chance.choice([0, 0, 0, 1, 2]))
    }
    late_tasks = {epoch: chance.randint(1, 40) for epoch in range(4) if chance.random() < 0.3}
    schedule = Schedule(
        faults, switches, 4, late_tasks, frozenset(losses), looks=True, snapshots=snapshots, restores=restores
    )
    return schedule, chance.choice([BATCH, 2, 5])


def play(lab: Lab, seed: int) -> Play:
    """Play one seed to its end. Raises Violation."""
    schedule, cut = scheduled(seed)
    world = Rows(schedule, cut)

    def between(world: World, number: int) -> None:
        assert isinstance(world, Rows)
        _as_told(world, lab, f"person-{number}")

    run(schedule, lab.defect, between, world=world, stopping=frozenset(), not_idempotent=lab.not_idempotent)
    world.schedule = replace(schedule, faults={}, switches={}, restores={}, snapshots={}, late_tasks={})
    world.clock += 10_000
    world.rows += BATCH
    for number in range(STARTS):
        _as_told(world, lab, f"person-{number}")
        last = Driver(world, f"last-{number}", lab.defect)
        last.run()
        if last.end == "finished":
            break
    else:
        raise Violation(f"after {STARTS} starts the job stands still: {world.errors[-1:]}")
    if not world.is_over or world.in_doubt():
        raise Violation(f"not over, or in doubt: {world.in_doubt()}")
    return Play(world.went_back, world.commands, world.judge())


def _as_told(world: Rows, lab: Lab, name: str) -> None:
    """Do what the last error says, command after command, until the next start is asked for. Raises Violation."""
    if not world.errors:
        return
    error = world.errors[-1]
    world.errors.clear()
    if isinstance(error, Fenced):
        return  # the job is left to the newer driver

    def give(words: Sequence[str]) -> Answer:
        if words == START:
            return Answer(words, 0)  # the next driver is it
        world.commands += 1
        return Commands(world, name, lab.defect).exactsink(words)

    def by_hand(text: str) -> bool:
        if "move the journal away" not in text or not world.entries:
            return False
        world.journals[JOB] = {}
        return True

    def shows(sink: str, epoch: int) -> bool:
        return all(world.applied[sink, row] for row in world.written.get(epoch, ()))

    person = Reader(SINKS, lambda: world.written, give, by_hand, START, shows, world.costs)
    problem = person.follow(Answer(START, error.exit_code, err=f"{error}\n"))
    if problem or any(said.endswith("70") for said in person.failed):
        raise Violation(f"{problem or person.failed}: {error}")


class Commands(Person):
    """An operator at the command line of this world."""

    def exactsink(self, words: Sequence[str]) -> Answer:
        """Be the command line, once. A command that is killed says nothing."""
        out, err = io.StringIO(), io.StringIO()
        with self._here(), redirect_stdout(out), redirect_stderr(err):
            try:
                code = command_line.main(words[1:])
            except Crash:
                code = -9
        return Answer(words, code, out.getvalue(), err.getvalue())

    @contextmanager
    def _here(self) -> Iterator[None]:
        """Let commands open this world's job, in whichever file it is looked for."""
        operator = self._operator
        opened = SimpleNamespace(
            path="JOB.toml",
            config=SimpleNamespace(job=SimpleNamespace(name=JOB)),
            sinks=self._sinks,
            history=SimpleNamespace(
                job=JOB,
                run=None,
                checkpoint="checkpoint",
                journal=lambda wait: operator()._journal,
                commands=commands.Commands("JOB.toml"),
            ),
            operator=operator,
        )
        with ExitStack() as patches:
            for owner, name, new in (
                (Opened, "of", staticmethod(lambda path, run=None: opened)),
                (command_line, "start_log", lambda *_: None),
                (actions, "coordinator_of", self._coordinator),
                *((actions, name, _nothing) for name in ("import_clients", "backoff")),
                *((settle, name, _nothing) for name in ("import_clients", "backoff")),
                *((module, "ask_all", in_turn) for module in (actions, views)),
                *((module, "in_threads", one_by_one) for module in (actions, settle)),
                (views, "import_clients", _nothing),
                (views, "Checkpoint", lambda folder: SourceCheckpoint(self.world.source)),
            ):
                patches.enter_context(patch.object(owner, name, new, create=True))
            yield


def _nothing(*_: object) -> None:
    """Neither wait nor import."""


def counted(one: Play) -> Mapping[str, int]:
    """Return what a play was, to be added up."""
    return {
        "plays": 1,
        "with a part put back": int(one.went_back),
        "commands": one.commands,
        "plays that cost what was announced": int(one.costly),
    }


def plays(lab: Lab, seeds: range) -> Iterator[Play]:
    """Play these seeds. Raises Violation, which names the seed."""
    for seed in seeds:
        try:
            yield play(lab, seed)
        except Violation as violation:
            raise Violation(f"python -m tests.simulation --seed {seed} --plays 1: {violation}") from None
