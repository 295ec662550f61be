"""The interface of a plugin for a bench: private copies of a target, which are made, read and dropped again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["BenchReader", "BenchTarget", "Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one copy.

    `job` and `sink` name the job and the sink that write to it; `folder` is the bench's own.
    """

    job: str
    sink: str
    folder: Path

    @property
    def name(self) -> str:
        """A unique name of the copy that shows its owner: letters, digits, hyphens and a dot."""
        return f"{self.job}.{self.sink}"

    @property
    def identifier(self) -> str:
        """The name for SQL: letters, digits and underscores, less than 60 characters."""
        return self.name.replace(".", "_").replace("-", "_")


class BenchReader(ABC):
    """A reader of one copy, which reads like the users of the target."""

    @abstractmethod
    def rows(self) -> int:
        """Return how many rows it sees now; 0 if the copy does not exist yet."""

    @abstractmethod
    def close(self) -> None:
        """Close its connections and files."""


class BenchTarget(ABC):
    """One way to write to a target: a strategy, a format, a writer. It pickles.

    A plugin's `BackendSpec.bench` names a function `(options) -> Mapping[str, BenchTarget]`, by the names of the ways.
    `options` are those of a user's sink, whose target is copied (without its rows); None requests the ways that need no
    server. The function raises ConfigError, with the reason, if it has none.
    """

    @property
    def holds(self) -> str:
        """Name the objects besides the rows that are held until the commit, and since when; empty if none are."""
        return ""

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns by which rows replace each other; empty if every row stays."""
        return ()

    @abstractmethod
    def make(self, place: Place) -> Mapping[str, Any]:
        """Make an empty copy. Return the options, beside the user's own, of a sink that writes to it."""

    @abstractmethod
    def reader(self, place: Place) -> BenchReader:
        """Open a reader."""

    def size(self, place: Place) -> int | None:
        """Return the bytes that the copy and the objects beside its rows take in its store; None if unknown."""
        return None

    @abstractmethod
    def drop(self, place: Place) -> None:
        """Remove the copy, and everything that a job has left beside it. Idempotent, even if it was never made."""
