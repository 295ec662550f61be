"""What a plugin's author gives the conformance kit: a backend on a target, and how often each row was applied there."""

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
"""The rows that the kit writes. An id is used once in a scenario; there are three kinds."""

HOOKS = ("order", "lose_votes", "destroy_evidence", "foreign", "previous", "unfit")
"""What a target may give beside the two methods that it must give."""


class ConformanceTarget(ABC):
    """How the kit reaches one store with one strategy of a backend.

    A value that pickles (its class stands at the top of a module) and holds no connection: its methods are called in
    processes of their own. `folder` is one scenario's, empty at first; a server's target derives a name from it.
    The hooks are for what only the store's owner can do; without one,
    the scenarios that need it are skipped, and say so.
    """

    holds_readers: ClassVar[bool] = False
    """Whether readers wait at undecided rows, as in a Kafka partition: what is committed behind these shows later."""

    @abstractmethod
    def backend(self, folder: Path) -> Backend:
        """Make a fresh target, for example its table, and return a backend that writes there. Called once."""

    @abstractmethod
    def applied(self, folder: Path) -> Counter[int]:
        """Count how often each id was applied to the target, as its readers see it; nothing where there is no target.

        Count applications, never only the last write: triggers may log each change of a table. Called at any
        moment, also while a driver is stopped before a decision or inside a commit.
        """

    def staging(self, folder: Path) -> str:
        """Return where rows are staged, as `[job] staging` names it."""
        return str(folder / "staging")

    def job_prefix(self, folder: Path) -> str:
        """Return what the names of the scenario's jobs begin with, for example `abc123-`; at most 20 characters.

        Scenarios are played side by side. Needed where several of them meet in one store that lists work by its name.
        """
        return ""

    def shaped(self, rows: pa.Table) -> pa.Table:
        """Play the JVM's part where the backend has a `shape`: give the rows as its writer gets them."""
        return rows

    def order(self, folder: Path) -> Iterable[Sequence[int]]:
        """Return the ids in the order in which the target shows them, one sequence per file, table or queue."""
        raise NotImplementedError

    def lose_votes(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Let the store drop these prepared participants, as a timeout would. Asked for where votes can be lost.

        Given beside that, it may remove what a person could: what is then proven lost must be written again.
        """
        raise NotImplementedError

    def destroy_evidence(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Destroy all evidence of these participants: whether they are committed, and what they had prepared.

        With them goes the sink's mark, where it would prove one or the other.
        """
        raise NotImplementedError

    def foreign(self, folder: Path) -> None:
        """Put something foreign, with a name that is no participant's, where the backend lists its own."""
        raise NotImplementedError

    def foreign_stands(self, folder: Path) -> bool:
        """Return whether what `foreign` put there stands untouched. To be given together with it."""
        raise NotImplementedError

    def previous(self, folder: Path) -> Sequence[Committable]:
        """Put into the target what earlier releases of the backend had prepared, and give their committables.

        Their payloads are recorded, each with its version, and never made by today's code. No id comes twice.
        """
        raise NotImplementedError

    def unfit(self, rows: pa.Table) -> pa.Table:
        """Return these rows, as the writer gets them, changed so that the target can hold none of them.

        Each is bad by itself, and no two are equal. Asked for where the traits say `validates_rows`.
        """
        raise NotImplementedError

    def gives(self, hook: str) -> bool:
        """Return whether this target gives one of the HOOKS."""
        return getattr(type(self), hook) is not getattr(ConformanceTarget, hook)
