"""Epochs without a streaming query: the real coordinator and a local journal, over frames or over nothing."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from exactsink.observe.state import StateFile
from exactsink.protocol.commit import Retry
from exactsink.protocol.coordinator import Batch, Coordinator
from exactsink.protocol.events import Events
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.stores.local import LocalStore
from exactsink.protocol.sinks import Sink
from exactsink.protocol.votes import EpochPlan, Vote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["EpochDriver", "FrameEpoch", "never"]

Write = Callable[[EpochPlan], Sequence[Vote]]


class EpochDriver:
    """A claimed job that runs epochs one by one. Its journal and state are files below `folder`.

    Its name is unique, because a target keeps the marks of each job, and refuses another journal of the same name.
    """

    def __init__(self, sinks: Mapping[str, Sink], folder: Path) -> None:
        job = f"benchmark-{uuid.uuid4().hex[:12]}"
        state = StateFile(folder / "state.json")
        self.sinks = sinks
        self._coordinator = Coordinator(
            job,
            sinks,
            Journal(LocalStore(folder / "journal"), wait=never),
            Events(job),
            driver="benchmark",
            retry=Retry(1, never),
            save_state=state.write,
        )
        self._coordinator.start("benchmark", lambda epoch: False)
        self._next = 0

    def epoch(self, schemas: Mapping[str, pa.Schema], write: Write) -> Mapping[str, int]:
        """Run one epoch. Return the number of each sink's rows, which are durable and visible."""
        previous = f"input {self._next - 1}" if self._next else ""
        result = self._coordinator.run_epoch(
            Batch(self._next, f"input {self._next}", schemas, write, previous=previous)
        )
        self._next += 1
        return result.rows


class FrameEpoch:
    """One epoch over a batch frame. The constructor analyzes it, like a query's batches. A call writes it."""

    def __init__(self, driver: EpochDriver, frame: DataFrame) -> None:
        from exactsink.spark.one_pass import OnePass  # other epochs need no Spark

        self._driver = driver
        self._frame = frame
        self._pass = OnePass(frame, driver.sinks)

    def __call__(self) -> Mapping[str, int]:
        """Write, decide and commit. Return the number of each sink's rows."""
        return self._driver.epoch(self._pass.schemas, lambda plan: self._pass.write(self._frame, plan))


def never(attempt: int) -> None:
    """Refuse to wait, because nothing here answers late, and a pause would be measured."""
    raise AssertionError(f"attempt {attempt} failed")
