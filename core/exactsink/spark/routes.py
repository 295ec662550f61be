"""Bring a batch's rows to the sinks: in one pass over one frame, or, with a route, in a pass over each sink's frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote

from exactsink.contract import ConfigError
from exactsink.protocol.journal.records import Columns
from exactsink.protocol.quarantine import quarantine_schema
from exactsink.protocol.sinks import Sink, quarantines
from exactsink.protocol.votes import EpochPlan, Vote
from exactsink.spark.errors import tasks_of
from exactsink.spark.frames import Route, routed
from exactsink.spark.one_pass import OnePass
from exactsink.spark.versions import forget_checkpoint

__all__ = ["BatchWrite", "Passes", "Route"]


class Passes:
    """The passes over frames of one schema. The constructor calls the route, analyzes, and may raise ConfigError."""

    def __init__(
        self,
        frame: DataFrame,
        sinks: Mapping[str, Sink],
        route: Route | None = None,
        fan_out: Literal["persist", "recompute"] = "persist",
    ) -> None:
        self._sinks = sinks
        self._route = route
        self._schema = frame.schema
        self.persists = route is not None and fan_out == "persist"
        self._fed = [name for name in sinks if name not in quarantines(sinks)]
        if route is None:
            self._passes = dict.fromkeys(self._fed, OnePass(frame, sinks))
        else:
            _check_unshared(sinks)
            self._passes = {name: OnePass(cut, self._with_quarantine(name)) for name, cut in self.frames(frame).items()}

    @property
    def routed(self) -> bool:
        """Whether each sink has its own frame."""
        return self._route is not None

    def fits(self, frame: DataFrame) -> bool:
        """Return whether a frame has this schema. All batches of a query do, so they are analyzed only once."""
        return frame.schema == self._schema

    def schemas(self) -> Mapping[str, pa.Schema]:
        """Return each sink's shaped frame as an Arrow schema."""
        shaped = {name: one_pass.schemas[name] for name, one_pass in self._passes.items()}
        return shaped | {name: quarantine_schema(self._sinks[name].backend) for name in quarantines(self._sinks)}

    def columns(self) -> Mapping[str, Columns]:
        """Return the columns of each sink's rows before they are shaped, except a quarantine's, which never change."""
        return {name: one_pass.columns[name] for name, one_pass in self._passes.items()}

    def frames(self, frame: DataFrame) -> Mapping[str, DataFrame]:
        """Return each sink's frame of a batch."""
        if self._route is None:
            return dict.fromkeys(self._fed, frame)
        return routed(self._route, frame, self._fed)

    def write(self, frames: Mapping[str, DataFrame], plan: EpochPlan) -> Sequence[Vote]:
        """Run the passes that the plan's sinks need. Return one winning attempt's votes per sink and partition."""
        if self._route is None:
            name = plan.read[0]
            return self._passes[name].write(frames[name], plan)
        votes: list[Vote] = []
        for name in plan.read:
            own = self._with_quarantine(name)
            part = {sink: sink_plan for sink, sink_plan in plan.sinks.items() if sink in own}
            judged = {sink: judging for sink, judging in plan.judged.items() if sink == name}
            votes += self._passes[name].write(frames[name], replace(plan, sinks=part, judged=judged))
        return votes

    def _with_quarantine(self, name: str) -> Mapping[str, Sink]:
        """Return a sink, and the quarantine of its bad rows."""
        quarantine = self._sinks[name].quarantine
        return {sink: self._sinks[sink] for sink in (name, quarantine) if sink is not None}


def _check_unshared(sinks: Mapping[str, Sink]) -> None:
    """Refuse one quarantine for two sinks with their own frames, because each pass has partitions 0, 1, ..."""
    for name in quarantines(sinks):
        judged = [sink.name for sink in sinks.values() if sink.quarantine == name]
        if len(judged) > 1:
            raise ConfigError(
                f"sinks {', '.join(judged)} share quarantine {name}, and the route gives each a frame of its own",
                why="each frame numbers its partitions from 0, so two votes of the quarantine would have one number",
                next="give each of them a quarantine of its own",
            )


class BatchWrite:
    """Write one batch, as often as its epoch needs it. The caller must close it.

    The input of a route is computed once, or with `recompute` once per sink. The computed rows are cut off from their
    plan (a local checkpoint). If an executor is lost with some of them, the tasks fail, and the batch is replayed. A
    cache would compute them again, and a plan that is not deterministic would then give other rows to the other sinks.

    With `keeps_state`, a write runs the whole frame, even if a route's frames take only a part, because the query's
    state would otherwise miss this batch.
    """

    def __init__(self, passes: Passes, frame: DataFrame, *, keeps_state: bool) -> None:
        self._passes = passes
        self._frame = frame
        self._keeps_state = keeps_state
        self._frames: Mapping[str, DataFrame] = {}
        self._kept: DataFrame | None = None
        self.ran = False
        """Whether the batch's plan has run."""

    def __call__(self, plan: EpochPlan) -> Sequence[Vote]:
        """Write the plan's sinks and return the votes. Raises Retryable if tasks failed."""
        with tasks_of(plan.epoch):
            self.ran = True
            if not self._frames:
                self._hold()
            return self._passes.write(self._frames, plan)

    def close(self) -> None:
        """Release the kept rows of the batch. Idempotent."""
        kept, self._kept = self._kept, None
        if kept is not None and not is_remote():  # Spark Connect releases it with the client's last reference
            forget_checkpoint(kept)

    def _hold(self) -> None:
        frame = self._frame
        if self._passes.persists:
            frame = self._kept = frame.localCheckpoint(eager=False)  # the write below computes it
        if self._passes.persists or (self._passes.routed and self._keeps_state):
            frame.write.format("noop").mode("overwrite").save()
        self._frames = self._passes.frames(frame)
