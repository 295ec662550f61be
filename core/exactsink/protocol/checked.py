"""What a backend answers, held against the contract: a plugin's mistake ends as an error that names the plugin, and
nothing is decided by an answer that is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any, TypeVar, get_args

import pyarrow as pa

from exactsink.contract import (
    ENTRY_POINT_GROUP,
    Audit,
    Backend,
    Committable,
    Committer,
    ContractError,
    ExactsinkError,
    Finding,
    InDoubt,
    Mark,
    Outcome,
    Retryable,
    Standing,
    Undecided,
)

__all__ = ["MOST_PAYLOAD_BYTES", "CheckedCommitter", "broken", "calling", "check_committable", "origin"]

T = TypeVar("T")

MOST_PAYLOAD_BYTES = 16 << 20
"""The most that a committable's payload may have: each goes to the driver and into the journal."""


def origin(backend: object) -> str:
    """Return where a backend, or its class, comes from: the class's name, and the package that brings it."""
    kind = backend if isinstance(backend, type) else type(backend)
    name = f"{kind.__module__}.{kind.__qualname__}"
    top = kind.__module__.partition(".")[0]
    for plugin in entry_points(group=ENTRY_POINT_GROUP):
        if plugin.value.partition(".")[0] == top and plugin.dist is not None:
            return f"{name} of package {plugin.dist.name} {plugin.dist.version}"
    return name


def broken(sink: str, backend: object, what: str, why: str = "") -> ContractError:
    """Return the error of a backend that breaks the contract; `what` goes on from the sink's name."""
    return ContractError(
        f"sink {sink}: {what}",
        why="; ".join(filter(None, (why, f"this is a mistake in {origin(backend)}"))),
        next="nothing decided is lost: report it to the plugin's author, then the same command with a fixed plugin",
    )


@contextmanager
def calling(sink: str, backend: object, call: str, *, in_task: bool = False) -> Iterator[None]:
    """Raise what a plugin's call raises in the body; ContractError for an error that the contract does not know.

    In a task that is Retryable: of a store's own errors, some pass when Spark tries the task again.
    """
    try:
        yield
    except (ExactsinkError, OSError):  # the latter may be a full disk, or a lost mount
        raise
    except Exception as error:
        found = broken(sink, backend, f"{call} failed", f"{type(error).__name__}: {error}")
        raise (Retryable(found.what, why=found.why, next=found.next) if in_task else found) from error


def check_committable(sink: str, backend: object, found: Any) -> Committable:
    """Return what a writer's pre_commit gave. Raises ContractError unless it can be voted with."""
    if not isinstance(found, Committable):
        raise broken(sink, backend, f"pre_commit gave {found!r:.80}, and is to give a Committable")
    payload: Any = found.payload
    if type(payload) is not bytes or type(found.rows) is not int:
        kinds = f"{type(payload).__name__} and {type(found.rows).__name__}"
        raise broken(sink, backend, f"a committable's payload and rows are {kinds}, not bytes and int")
    if len(payload) > MOST_PAYLOAD_BYTES:
        raise broken(
            sink,
            backend,
            f"a committable has {len(payload)} bytes of payload, and may have {MOST_PAYLOAD_BYTES}",
            "it is kept in the journal; rows belong into the store, and their place into the payload",
        )
    return found


class CheckedCommitter(Committer):
    """A sink's committer, whose answers are checked: of the kind and number that the contract names."""

    def __init__(self, sink: str, backend: Backend, made: Committer) -> None:
        self._sink, self._backend, self._made = sink, backend, made

    def check(self, schema: pa.Schema, participants: int | None) -> Sequence[Finding]:
        with self._calling("check"):
            return self._all("check", self._made.check(schema, participants), Finding)

    def check_target(self, participants: int | None) -> Sequence[Finding]:
        with self._calling("check_target"):
            return self._all("check_target", self._made.check_target(participants), Finding)

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        with self._calling("open_epoch"):
            return self._one("open_epoch", self._made.open_epoch(epoch, schema, participants), bytes)

    def row_rules(self, schema: pa.Schema) -> bytes:
        with self._calling("row_rules"):
            return self._one("row_rules", self._made.row_rules(schema), bytes)

    def check_votes(self, epoch: int, committables: Sequence[Committable]) -> None:
        with self._calling("check_votes"):
            self._made.check_votes(epoch, committables)

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        with self._calling("commit"):
            outcomes = self._made.commit(epoch, committables)
            return self._all("commit", outcomes, *get_args(Outcome), count=len(committables))

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        with self._calling("assess"):
            standings = self._made.assess(epoch, committables)
            return self._all("assess", standings, *get_args(Standing), count=len(committables))

    def audit(self, epochs: Mapping[int, Sequence[Committable]], *, deep: bool) -> Mapping[int, Audit]:
        with self._calling("audit"):
            audits = self._one("audit", self._made.audit(epochs, deep=deep), Mapping)
            self._all("audit", audits.keys(), int)
            self._all("audit", audits.values(), Audit)
            return audits

    def blocks(self, participant: InDoubt) -> Sequence[str]:
        with self._calling("blocks"):
            return self._all("blocks", self._made.blocks(participant), str)

    def abort(self, undecided: Undecided) -> None:
        with self._calling("abort"):
            self._made.abort(undecided)

    def in_doubt(self) -> Sequence[InDoubt]:
        with self._calling("in_doubt"):
            return self._all("in_doubt", self._made.in_doubt(), InDoubt)

    def mark(self) -> Mark | None:
        with self._calling("mark"):
            return self._one("mark", self._made.mark(), Mark, type(None))

    def put_birth(self) -> Mark:
        with self._calling("put_birth"):
            return self._one("put_birth", self._made.put_birth(), Mark)

    def trim_marks(self) -> None:
        with self._calling("trim_marks"):
            self._made.trim_marks()

    def source_reached(self, epoch: int, ends: Sequence[str]) -> None:
        with self._calling("source_reached"):
            self._made.source_reached(epoch, ends)

    def close(self) -> None:
        with self._calling("close"):
            self._made.close()

    def _calling(self, call: str) -> Any:
        return calling(self._sink, self._backend, call)

    def _one(self, call: str, answer: T, *kinds: type) -> T:
        if not isinstance(answer, kinds):
            raise self._wrong(call, answer, kinds)
        return answer

    def _all(self, call: str, answer: Iterable[T], *kinds: type, count: int | None = None) -> Sequence[T]:
        """Return an answer's items. A text is none, though it has items."""
        if isinstance(answer, str | bytes) or not isinstance(answer, Iterable):
            raise self._wrong(call, answer, kinds)
        items = list(answer)
        for item in items:
            self._one(call, item, *kinds)
        if count is not None and len(items) != count:
            raise broken(self._sink, self._backend, f"{call} gave {len(items)} answers for {count} committables")
        return items

    def _wrong(self, call: str, answer: object, kinds: Sequence[type]) -> ContractError:
        names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        return broken(self._sink, self._backend, f"{call} gave {answer!r:.80}, and is to give {names}")
