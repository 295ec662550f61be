"""What the commands that need no Spark open: a job's config, its sinks, and one of its histories."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from exactsink.checkpoint import Checkpoint
from exactsink.config import JobConfig, bind_sinks, load_config
from exactsink.events import Events
from exactsink.home import Home
from exactsink.operate import Operator
from exactsink.registry import Registry, installed_plugins
from exactsink.sinks import Sink

__all__ = ["Opened"]


@dataclass(frozen=True, slots=True)
class Opened:
    """A job as its file says it, and the place of the history asked for."""

    path: str
    config: JobConfig
    sinks: Mapping[str, Sink]
    registry: Registry
    home: Home

    @classmethod
    def of(cls, path: str | os.PathLike[str], run: str | None = None) -> Opened:
        """Read a job's file and bind its sinks; `run` names one of its batch runs. Raises ConfigError."""
        config, document = load_config(path)
        registry = Registry(installed_plugins())
        sinks = bind_sinks(config, document, registry)
        return cls(os.fspath(path), config, sinks, registry, Home.of(config, run))

    def operator(self) -> Operator:
        """Give the operator's hand on this history."""
        events = Events(self.home.job, [self.registry.send])
        return Operator(self.home, self.sinks, Checkpoint(self.config.checkpoint), events)
