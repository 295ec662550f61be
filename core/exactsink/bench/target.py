"""What a backend's plugin gives for a bench: private copies of a target, made, read and dropped again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["BenchReader", "BenchTarget", "Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one copy is. `job` and `sink` are names of the job that writes to it; `folder` is the bench's own."""

    job: str
    sink: str
    folder: Path

    @property
    def name(self) -> str:
        """A name that no other copy has, and that shows whose it is: letters, digits, hyphens and a dot."""
        return f"{self.job}.{self.sink}"

    @property
    def identifier(self) -> str:
        """The same for SQL: letters, digits and underscores, below 60."""
        return self.name.replace(".", "_").replace("-", "_")


class BenchReader(ABC):
    """A reader of one copy, as the target's users read it."""

    @abstractmethod
    def rows(self) -> int:
        """Return how many rows it sees now. A copy that is not made yet has none."""

    @abstractmethod
    def close(self) -> None:
        """Close its connections and files."""


class BenchTarget(ABC):
    """One way to write to a target that a sink could choose: a strategy, a format, a writer. A value that pickles.

    A plugin's `BackendSpec.bench` names a function `(options) -> Mapping[str, BenchTarget]`, by the ways' names.
    `options` are those of a sink of the user's, whose target is copied (empty: its form, not its rows); None asks for
    ways that need no server. It raises ConfigError where it has none, and says why.
    """

    @property
    def holds(self) -> str:
        """What is held besides the rows, and from when on until the commit; empty where nothing is."""
        return ""

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns by which rows replace each other; none where each row stays."""
        return ()

    @abstractmethod
    def make(self, place: Place) -> Mapping[str, Any]:
        """Make an empty copy, and return the options of a sink that writes to it, beside the user's own."""

    @abstractmethod
    def reader(self, place: Place) -> BenchReader:
        """Open a reader."""

    def size(self, place: Place) -> int | None:
        """Return the bytes that the copy takes in its store, with all that stands beside its rows; None: unknown."""
        return None

    @abstractmethod
    def drop(self, place: Place) -> None:
        """Remove the copy, and all that a job has left beside it. Idempotent, also for one that was never made."""
