"""Operators in the simulated world: the product's commands, over a journal, a checkpoint and targets in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from exactsink.contract import ExactsinkError
from exactsink.operate import actions, views
from exactsink.operate.actions import Operator
from exactsink.operate.refusals import Word
from exactsink.operate.settle import Settler
from exactsink.protocol.coordinator import Coordinator
from exactsink.protocol.events import Events
from exactsink.protocol.journal.journal import Journal
from tests.simulation.backend import SinkStore
from tests.simulation.drivers import coordinator_over, ended, one_by_one, sinks_of
from tests.simulation.files import SourceCheckpoint, Store
from tests.simulation.world import JOB, SINKS, Source, World


def in_turn(calls: Mapping[str, Callable[[], Any]], seconds: float) -> Mapping[str, Any]:
    """Ask as `ask_all` does, without threads."""
    answers = {}
    for name, call in calls.items():
        try:
            answers[name] = call()
        except ExactsinkError as error:
            answers[name] = error
    return answers


class Person:
    """An operator who gives one command, whatever driver may live."""

    def __init__(self, world: World, command: str, hidden_defect: Callable[[SinkStore], None]) -> None:
        self.world = world
        self.name = command
        self.end = "running"
        self._sinks = sinks_of(world, command, hidden_defect)

    def run(self) -> None:
        command = self.name.partition("-")[0]
        with (
            patch.object(actions, "coordinator_of", self._coordinator),
            patch.object(actions, "in_threads", one_by_one),
            patch.object(actions, "import_clients"),
            patch.object(views, "ask_all", in_turn),
            patch.object(views, "Checkpoint", lambda folder: SourceCheckpoint(self.world.source)),
        ):
            self.end = ended(lambda: getattr(self, f"_{command}")())

    def _operator(self) -> Settler:
        history = SimpleNamespace(
            job=JOB,
            run=None,
            checkpoint="checkpoint",
            folder=SimpleNamespace(mkdir=lambda **_: None),
            journal=lambda wait: Journal(Store(self.world, self.name), keep_epochs=1, wait=lambda _: None),
            state=lambda: SimpleNamespace(write=lambda state: None),
            last_state=lambda: None,
        )
        checkpoint = SourceCheckpoint(self.world.source)
        return Settler(history, self._sinks, checkpoint, Events(JOB))  # type: ignore[arg-type]

    def _coordinator(self, history: Any, sinks: Any, journal: Journal, *_: object) -> Coordinator:
        return coordinator_over(journal, sinks, self.name)

    def _recover(self) -> None:
        self._settle(self._operator())

    def _settle(self, operator: Operator, *tokens: str) -> None:
        if (left := operator.recover(take_over=True, sweep_tokens=frozenset(tokens)).left()) is not None:
            raise left

    def _adopt(self) -> None:
        """Let the journal go on with another checkpoint, whose next batch reads on from what is decided."""
        world, old = self.world, self.world.source
        other = ("other", 7) if self.name == "adopt-other" else ("", -1)
        world.sources[JOB] = Source(query=other[0], done=other[1])
        try:
            batch, _ = self._operator().adopt(take_over=True)
        except BaseException:
            world.sources[JOB] = old  # it is brought back
            raise
        decided = sum(1 for job, _ in world.decided if job == JOB)
        world.sources[JOB].first = decided - batch
        world.promised, world.first_batch = world.expected(decided, old), batch

    def _rebase(self) -> None:
        """Go on from what the targets hold, and from the checkpoint's next batch; sweep what another history began."""
        operator, source = self._operator(), self.world.source
        plan = operator.rebase_plan(take_over=True)
        if plan.named:
            plan = operator.rebase(plan.named, plan.batch, reason="restored", take_over=True)
        foreign = {txn.token for _, txn, _ in self.world.in_doubt()}
        recovered = operator.recover(take_over=True, sweep_tokens=frozenset(foreign))
        lost = {settled.sink for settled in recovered.settled if settled.lost}
        if not lost and (left := recovered.left()) is not None:
            raise left
        decision = operator.read().decision
        again = plan.goes_on and decision is not None and decision.epoch == plan.epoch
        promised = Counter(self.world.applied)
        for name in SINKS if again and decision is not None else ():
            if (name, plan.batch) not in self.world.schedule.empty:
                rows = [(name, row) for row in source.planned(plan.batch)]
                promised.subtract(row for row in rows if name not in lost or promised[row])
        self.world.promised, self.world.first_batch = promised, plan.batch

    def _resolve(self) -> None:
        """Look at what of the last decision shows in each sink, and give one's word on it."""
        operator = self._operator()
        decision = operator.read().decision
        for name in decision.sinks if decision is not None else ():
            if self.world.shows(name, decision.epoch) is not None:
                outcome = "committed" if self.world.shows(name, decision.epoch) else "lost"
                with_doubt = ended(lambda n=name, o=outcome: self._word(operator, decision.epoch, n, o))
                if with_doubt not in ("finished", "ConfigError"):
                    raise AssertionError(with_doubt)

    def _word(self, settler: Settler, epoch: int, sink: str, outcome: str) -> None:
        settler.resolve(Word(epoch, sink, outcome, "looked"), take_over=True)
