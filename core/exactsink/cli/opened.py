"""Open a job for commands that need no Spark: its config, its sinks, and one of its histories."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from exactsink.contract import ConfigError
from exactsink.job.checkpoint import Checkpoint
from exactsink.job.config import JobConfig, bind_sinks, load_config
from exactsink.job.history import JobHistory
from exactsink.job.registry import Registry, installed_plugins
from exactsink.operate.settle import Settler
from exactsink.protocol.events import Events
from exactsink.protocol.sinks import Sink

__all__ = ["Opened"]


@dataclass(frozen=True, slots=True)
class Opened:
    """A job as in its file, and the place of one history."""

    path: str
    config: JobConfig
    sinks: Mapping[str, Sink]
    registry: Registry
    history: JobHistory

    @classmethod
    def of(cls, path: str | os.PathLike[str], run: str | None = None) -> Opened:
        """Read a job's file and bind its sinks; `run` names one of its batch runs. Raises ConfigError."""
        config, document = load_config(path)
        registry = Registry(installed_plugins())
        sinks = bind_sinks(config, document, registry)
        return cls(os.fspath(path), config, sinks, registry, JobHistory.of(config, run))

    def unknown_run(self) -> ConfigError:
        """Return the error for a batch run that nobody ever began."""
        return ConfigError(
            f"job {self.config.job.name} has no batch run {self.history.run!r}",
            why=f"its journal is empty: {self.history.journal_place}",
            next="`exactsink runs JOB.toml` lists them",
        )

    def operator(self) -> Settler:
        """Return the operator of this history. The caller must close it."""
        events = Events(self.history.job, [self.registry.send], self.history.commands.typed)
        return Settler(self.history, self.sinks, Checkpoint(self.config.checkpoint), events)
