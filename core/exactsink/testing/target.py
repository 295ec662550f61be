"""A target for the conformance kit. A plugin's author implements it, so that the kit can use the backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from exactsink.contract import Backend, Committable

__all__ = ["HOOKS", "ROWS", "ConformanceTarget"]

ROWS = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("amount", pa.float64())])
"""The rows that the kit writes. A scenario uses an id once. There are three kinds."""

HOOKS = ("order", "lose_votes", "destroy_evidence", "foreign", "previous", "unfit")
"""The optional methods of a target, beside the two that it must implement."""


class ConformanceTarget(ABC):
    """Connect the kit to one store, with one strategy of a backend.

    The kit pickles your subclass, and calls its methods in separate processes. So define the class at the top level
    of a module, and keep no connection in it. Each scenario gets a `folder` of its own, empty at first. If your store
    is a server, derive the name of the table or topic from the folder's whole path, for example from its hash: the last
    part is the same in every scenario. Six of the optional methods, the `HOOKS`,
    do things that only the store's owner can do. Without one of them, the kit skips the scenarios that need it, and
    says so.
    """

    holds_readers: ClassVar[bool] = False
    """Set it to True if undecided rows make readers of your store wait, as in a Kafka partition. Then the kit accepts
    that a reader does not see decided rows behind undecided ones."""

    one_process: ClassVar[bool] = False
    """Set it to True if only one process can open your store at a time, as for a file of DuckDB."""

    @abstractmethod
    def backend(self, folder: Path) -> Backend:
        """Create a fresh target, for example its table, and return a backend that writes to it. Called once."""

    @abstractmethod
    def applied(self, folder: Path) -> Counter[int]:
        """Count how often each id was applied to the target, as its readers see it. Empty if the target does not exist.

        Count every application, not only the last write; a trigger can log each change of a table. Called at any
        moment, even while a driver is stopped before a decision or inside a commit.
        """

    def staging(self, folder: Path) -> str:
        """Return the folder for staged rows, as `[job] staging` names it. Default: `staging` in `folder`."""
        return str(folder / "staging")

    def job_prefix(self, folder: Path) -> str:
        """Return a prefix for the names of the scenario's jobs, for example `abc123-`, with at most 20 characters.

        Scenarios run in parallel. Implement this if they share one store that lists prepared work by its name.
        """
        return ""

    def shaped(self, rows: pa.Table) -> pa.Table:
        """Return the rows as `Backend.shape` makes them in the JVM. Implement it for a backend with a `shape`."""
        return rows

    def order(self, folder: Path) -> Iterable[Sequence[int]]:
        """Return the ids in the order in which the target shows them, one sequence per file, table or queue."""
        raise NotImplementedError

    def lose_votes(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Make the store drop these prepared participants, as a timeout would. Needed for the trait `can_lose_votes`.

        Without that trait you may implement it as well. Then remove work that a person could remove by hand, for
        example staged files. If that work is proven lost, the job must write it again.
        """
        raise NotImplementedError

    def destroy_evidence(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Destroy all evidence of these participants: whether they are committed, and the work that they prepared.

        Also destroy the sink's mark, if it would prove the outcome.
        """
        raise NotImplementedError

    def foreign(self, folder: Path) -> None:
        """Create another program's work, with a name that no participant has, where the backend lists prepared work."""
        raise NotImplementedError

    def foreign_stands(self, folder: Path) -> bool:
        """Return whether the work that `foreign` created is unchanged. Implement it together with `foreign`."""
        raise NotImplementedError

    def previous(self, folder: Path) -> Sequence[Committable]:
        """Put into the target the work that earlier releases of the backend prepared, and return its committables.

        Record the payloads, with their versions, when you publish a release, and keep the recordings. Today's code must
        not make them. Each committable needs an id of its own.
        """
        raise NotImplementedError

    def unfit(self, rows: pa.Table) -> pa.Table:
        """Return these rows (already as `shaped` returns them), changed so that the target can hold none of them.

        Each row is bad by itself, and no two are equal. Needed if the traits set `validates_rows`.
        """
        raise NotImplementedError

    def gives(self, hook: str) -> bool:
        """Return whether this target implements one of the HOOKS. The kit calls it; do not override it."""
        return getattr(type(self), hook) is not getattr(ConformanceTarget, hook)
