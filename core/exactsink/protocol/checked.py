"""Check a backend's answers against the contract. A plugin's mistake ends as an error that names the plugin, and
exactsink decides nothing by an answer that the contract does not allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any, get_args

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

__all__ = ["MOST_PAYLOAD_BYTES", "CheckedCommitter", "broken", "calling", "check_committable", "of_sink", "origin"]

MOST_PAYLOAD_BYTES = 16 << 20
"""The largest payload of a committable, because each one goes to the driver and into the journal."""


def origin(backend: object) -> str:
    """Return where a backend, or its class, comes from: the name of the class, and its package."""
    kind = backend if isinstance(backend, type) else type(backend)
    name = f"{kind.__module__}.{kind.__qualname__}"
    top = kind.__module__.partition(".")[0]
    for plugin in entry_points(group=ENTRY_POINT_GROUP):
        if plugin.value.partition(".")[0] == top and plugin.dist is not None:
            return f"{name} of package {plugin.dist.name} {plugin.dist.version}"
    return name


def broken(sink: str, backend: object, what: str, why: str = "") -> ContractError:
    """Return the error for a backend that breaks the contract. `what` continues after the sink's name."""
    return ContractError(
        f"sink {sink}: {what}",
        why="; ".join(filter(None, (why, f"this is a mistake in {origin(backend)}"))),
        next="report it to the plugin's author, then run the same command with a fixed plugin; nothing decided is lost",
    )


def of_sink(sink: str, error: ExactsinkError) -> ExactsinkError:
    """Return an error that names its sink, because an unreachable server, or a plugin, does not name it."""
    if f"sink {sink}" in error.what:
        return error
    named = type(error)(f"sink {sink}: {error.what}", why=error.why, next=error.next)
    named.__cause__ = error
    return named


@contextmanager
def calling(sink: str, backend: object, call: str, *, in_task: bool = False) -> Iterator[None]:
    """Turn an error of a plugin's call into ContractError, unless it is one of the contract's own.

    In a task it becomes Retryable, because some of a store's own errors pass when Spark retries the task.
    """
    try:
        yield
    except (ExactsinkError, OSError):  # an OSError may be a full disk or a lost mount
        raise
    except Exception as error:
        found = broken(sink, backend, f"{call} failed", f"{type(error).__name__}: {error}")
        raise (Retryable(found.what, why=found.why, next=found.next) if in_task else found) from error


def check_committable(sink: str, backend: object, found: Any) -> Committable:
    """Return the committable of a writer's pre_commit. Raises ContractError if it can't be a vote."""
    if not isinstance(found, Committable):
        raise broken(sink, backend, f"pre_commit returned {found!r:.80}, and must return a Committable")
    payload: Any = found.payload
    if type(payload) is not bytes or type(found.rows) is not int:
        kinds = f"{type(payload).__name__} and {type(found.rows).__name__}"
        raise broken(sink, backend, f"a committable's payload and rows are {kinds}, not bytes and int")
    if len(payload) > MOST_PAYLOAD_BYTES:
        raise broken(
            sink,
            backend,
            f"a committable has {len(payload)} bytes of payload, and may have {MOST_PAYLOAD_BYTES}",
            "the journal keeps it; put rows into the store, and only their place into the payload",
        )
    return found


class CheckedCommitter(Committer):
    """A sink's committer that checks each answer's type and number against the contract."""

    def __init__(self, sink: str, backend: Backend, made: Committer) -> None:
        self._sink, self._backend, self._made = sink, backend, made

    def check(self, schema: pa.Schema, participants: int | None) -> Sequence[Finding]:
        return self._all("check", [Finding], schema, participants)

    def check_target(self, participants: int | None) -> Sequence[Finding]:
        return self._all("check_target", [Finding], participants)

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> Any:
        return self._one("open_epoch", [bytes], epoch, schema, participants)

    def row_rules(self, schema: pa.Schema) -> Any:
        return self._one("row_rules", [bytes], schema)

    def check_votes(self, epoch: int, committables: Sequence[Committable]) -> None:
        self._one("check_votes", [object], epoch, committables)

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        return self._all("commit", get_args(Outcome), epoch, committables, count=len(committables))

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        return self._all("assess", get_args(Standing), epoch, committables, count=len(committables))

    def audit(self, epochs: Mapping[int, Sequence[Committable]], *, deep: bool) -> Mapping[int, Audit]:
        with self._calling("audit"):
            audits: Any = self._held("audit", self._made.audit(epochs, deep=deep), [Mapping])
            self._items("audit", audits.keys(), [int])
            self._items("audit", audits.values(), [Audit])
            return dict(audits)

    def blocks(self, participant: InDoubt) -> Sequence[str]:
        return self._all("blocks", [str], participant)

    def abort(self, undecided: Undecided) -> None:
        self._one("abort", [object], undecided)

    def in_doubt(self) -> Sequence[InDoubt]:
        return self._all("in_doubt", [InDoubt])

    def mark(self) -> Any:
        return self._one("mark", [Mark, type(None)])

    def put_birth(self) -> Any:
        return self._one("put_birth", [Mark])

    def trim_marks(self) -> None:
        self._one("trim_marks", [object])

    def source_reached(self, epoch: int, ends: Sequence[str]) -> None:
        self._one("source_reached", [object], epoch, ends)

    def close(self) -> None:
        self._one("close", [object])

    def _calling(self, call: str) -> Any:
        return calling(self._sink, self._backend, call)

    def _one(self, call: str, kinds: Sequence[type], *given: object) -> Any:
        """Make a call, and return its answer, which must be of one of these types."""
        with self._calling(call):
            return self._held(call, getattr(self._made, call)(*given), kinds)

    def _all(self, call: str, kinds: Sequence[type], *given: object, count: int | None = None) -> Sequence[Any]:
        """Make a call, and return the items of its answer, which must be of these types, and `count` in number."""
        with self._calling(call):
            items = self._items(call, getattr(self._made, call)(*given), kinds)
        if count is not None and len(items) != count:
            raise broken(self._sink, self._backend, f"{call} returned {len(items)} answers for {count} committables")
        return items

    def _held(self, call: str, answer: object, kinds: Sequence[type]) -> object:
        if not isinstance(answer, tuple(kinds)):
            raise self._wrong(call, answer, kinds)
        return answer

    def _items(self, call: str, answer: object, kinds: Sequence[type]) -> Sequence[Any]:
        """Return an answer's items. A text has items, but is refused."""
        if isinstance(answer, str | bytes) or not isinstance(answer, Iterable):
            raise self._wrong(call, answer, kinds)
        return [self._held(call, item, kinds) for item in answer]

    def _wrong(self, call: str, answer: object, kinds: Sequence[type]) -> ContractError:
        names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        return broken(self._sink, self._backend, f"{call} returned {answer!r:.80}, and must return {names}")
