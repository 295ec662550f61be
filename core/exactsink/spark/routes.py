"""Several frames from one batch: a route function cuts the input into a frame per sink, one Spark job each in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Literal, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame

from exactsink.contract import ConfigError
from exactsink.protocol.sinks import Sink
from exactsink.protocol.votes import EpochPlan, Vote
from exactsink.spark.one_pass import OnePass, Write

__all__ = ["Passes", "Route", "Routed"]

Route = Callable[[DataFrame], Mapping[str, DataFrame]]
"""Takes a batch, gives each sink its frame. Called once more at the start, with the stream's frame, to look at it."""


class Passes(Protocol):
    """How a batch's rows reach the sinks: in one pass over one frame, or in one pass each."""

    def fits(self, frame: DataFrame) -> bool:
        """Return whether this was made for frames of that schema."""
        ...

    def schemas(self) -> Mapping[str, pa.Schema]:
        """Return each sink's shaped frame as an Arrow schema."""
        ...

    def batch(self, frame: DataFrame, *, keeps_state: bool) -> AbstractContextManager[Write]:
        """Hold a batch while its epoch runs; what it gives writes the batch, and can be called again.

        With `keeps_state` a write runs the whole frame, though the sinks take a part: else the query's state would
        miss this batch.
        """
        ...


class Routed:
    """One pass per sink, over the frames of a route. Making one calls the route, and may raise ConfigError."""

    def __init__(
        self, frame: DataFrame, sinks: Mapping[str, Sink], route: Route, fan_out: Literal["persist", "recompute"]
    ) -> None:
        self._sinks = sinks
        self._route = route
        self._fan_out = fan_out
        self._schema = frame.schema
        self._passes = {name: OnePass(cut, {name: sinks[name]}) for name, cut in self._frames(frame).items()}

    def fits(self, frame: DataFrame) -> bool:
        return frame.schema == self._schema

    def schemas(self) -> Mapping[str, pa.Schema]:
        return {name: one_pass.schemas()[name] for name, one_pass in self._passes.items()}

    @contextmanager
    def batch(self, frame: DataFrame, *, keeps_state: bool) -> Iterator[Write]:
        """Compute the input once, or with `recompute` once per sink."""
        frames: dict[str, DataFrame] = {}
        persists = self._fan_out == "persist"

        def write(plan: EpochPlan) -> Sequence[Vote]:
            if not frames:
                if persists:
                    frame.persist()
                if persists or keeps_state:  # a route's frames may prune what the state needs
                    frame.write.format("noop").mode("overwrite").save()
                frames.update(self._frames(frame))
            votes: list[Vote] = []
            for name, sink_plan in plan.sinks.items():
                votes += self._passes[name].write(frames[name], replace(plan, sinks={name: sink_plan}))
            return votes

        try:
            yield write
        finally:
            if persists:
                frame.unpersist()  # does nothing where nothing was written

    def _frames(self, frame: DataFrame) -> Mapping[str, DataFrame]:
        frames = self._route(frame)
        if set(frames) != set(self._sinks):
            raise ConfigError(
                f"the route gives frames for {', '.join(sorted(frames)) or 'no sink'}",
                why=f"the job's sinks are {', '.join(sorted(self._sinks))}",
                next="give every sink of the job exactly one frame, under its name",
            )
        return {name: frames[name] for name in self._sinks}
