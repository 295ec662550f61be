"""Frames and names of runs, as a program gives them: a wrong one is refused by its type."""

from __future__ import annotations

from datetime import date
from typing import Any

from exactsink.contract import ConfigError

__all__ = ["check_frame", "run_name"]

_INSTEAD = {
    "NoneType": "the frame that load() returns: df.show() and df.write.save() return None",
    "DataStreamWriter": "the frame itself, without .writeStream",
    "DataFrameWriter": "the frame itself, without .write",
    "DataStreamReader": "the frame that its .load() returns",
    "DataFrameReader": "the frame that its .load() returns",
    "str": 'spark.table("NAME"), or a frame that spark.read loads',
}


def check_frame(frame: Any, call: str, *, streaming: bool) -> None:
    """Refuse all but a frame of the right kind. Raises ConfigError."""
    wanted = "a streaming frame" if streaming else "a batch frame"
    if not hasattr(frame, "isStreaming"):
        kind, package = type(frame).__name__, type(frame).__module__.partition(".")[0]
        given = kind if package == "builtins" else f"{package}'s {kind}"
        instead = _INSTEAD.get(kind, "spark.createDataFrame(...) makes a frame of other data, for Job.write")
        if kind == "str" and streaming:
            instead = 'spark.readStream.table("NAME"), or a frame that spark.readStream loads'
        raise ConfigError(f"{call} takes {wanted} of Spark, and got {given}", next=f"give it {instead}")
    if frame.isStreaming and not streaming:
        raise ConfigError("write takes a batch frame", next="read it with spark.read, or use start")
    if streaming and not frame.isStreaming:
        raise ConfigError("start takes a streaming frame", next="read it with spark.readStream, or use write")


def run_name(run: Any) -> str:
    """Return a run's name; of a date its ISO 8601 form. Raises ConfigError."""
    if isinstance(run, date):
        return run.isoformat()
    if not isinstance(run, str):
        raise ConfigError(
            f"a run's name is {type(run).__name__} {run!r:.40}",
            why="the run is known by its name for good, so it has to be the same text in each call",
            next='give it as a text or a date: run="2026-11-20"',
        )
    if not run.strip():
        raise ConfigError("a batch run needs a name", next='give it as a text or a date: run="2026-11-20"')
    return run
