"""Check the frames, routes and names of runs that a program gives, and refuse a wrong one by its type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from exactsink.contract import ConfigError
from exactsink.spark.errors import first_line
from exactsink.spark.versions import has_stopped

__all__ = ["Route", "check_frame", "routed", "run_name"]

Route = Callable[[DataFrame], Mapping[str, DataFrame]]
"""Takes a batch, and returns each sink's frame. Also called at the start, with the stream's frame, to analyze it."""

_INSTEAD = {
    "NoneType": "the frame that load() returns: df.show() and df.write.save() return None",
    "DataStreamWriter": "the frame itself, without .writeStream",
    "DataFrameWriter": "the frame itself, without .write",
    "DataStreamReader": "the frame that its .load() returns",
    "DataFrameReader": "the frame that its .load() returns",
    "str": 'spark.table("NAME"), or a frame that spark.read loads',
}


def check_frame(frame: Any, call: str, *, streaming: bool) -> None:
    """Refuse anything but a frame of the right kind. Raises ConfigError."""
    wanted = "a streaming frame" if streaming else "a batch frame"
    if not hasattr(frame, "isStreaming"):
        kind, package = type(frame).__name__, type(frame).__module__.partition(".")[0]
        given = kind if package == "builtins" else f"{package}'s {kind}"
        instead = _INSTEAD.get(kind, "a frame, which spark.createDataFrame(...) makes of other data, for Job.write")
        if kind == "str" and streaming:
            instead = 'spark.readStream.table("NAME"), or a frame that spark.readStream loads'
        raise ConfigError(f"{call} takes {wanted} of Spark, and got {given}", next=f"give it {instead}")
    if has_stopped(frame.sparkSession):
        raise ConfigError("the frame's Spark session is stopped", next="make a session, and read the frame in it")
    if frame.isStreaming and not streaming:
        raise ConfigError("write takes a batch frame", next="read it with spark.read, or use start")
    if streaming and not frame.isStreaming:
        raise ConfigError("start takes a streaming frame", next="read it with spark.readStream, or use write")


def routed(route: Any, frame: DataFrame, sinks: Sequence[str]) -> Mapping[str, DataFrame]:
    """Call a route, and return its frame for each of these sinks. Raises ConfigError for any other result."""
    example = f'{{"{sinks[0]}": batch}}'
    if not callable(route):
        what, why = f"the route is {type(route).__name__}", "a route is a function that takes a batch's frame"
        raise ConfigError(what, why=why, next=f"give it as route=lambda batch: {example}")
    try:
        frames: Any = route(frame)
    except AnalysisException as error:
        if not frame.isStreaming:
            raise
        fix = "return frames only: at the start the route gets the stream's frame, which can't be counted or written"
        raise ConfigError("Spark refuses the route", why=first_line(error), next=fix) from error
    given = [*frames.values()] if isinstance(frames, Mapping) else [frames]
    if wrong := [each for each in given if not isinstance(frames, Mapping) or not hasattr(each, "isStreaming")]:
        what, why = f"the route returns {type(wrong[0]).__name__}", "a route gives each sink its frame, by its name"
        raise ConfigError(what, why=why, next=f"return a dict of frames: {example}")
    if set(frames) != set(sinks):
        raise ConfigError(
            f"the route gives frames for {', '.join(sorted(frames)) or 'no sink'}",
            why=f"the job's sinks are {', '.join(sorted(sinks))}",
            next="give every sink of the job exactly one frame, under its name",
        )
    return {name: frames[name] for name in sinks}


def run_name(run: Any) -> str:
    """Return a run's name; for a date, its ISO 8601 form. Raises ConfigError."""
    if isinstance(run, date):
        return run.isoformat()
    if not isinstance(run, str):
        raise ConfigError(
            f"a run's name is {type(run).__name__} {run!r:.40}",
            why="its name identifies the run permanently, so it has to be the same text in each call",
            next='give it as a text or a date: run="2026-11-20"',
        )
    if not run.strip():
        raise ConfigError("a batch run needs a name", next='give it as a text or a date: run="2026-11-20"')
    return run
