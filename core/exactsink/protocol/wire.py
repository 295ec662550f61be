"""Votes and committables as JSON of a fixed shape. Data that another process wrote is never unpickled.

A value is checked before use: its fields, their types and ranges, and one vote for each sink.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, ValidationError

from exactsink.contract import (
    Committable,
    ContractError,
    ExactsinkError,
    Fatal,
    LineageError,
    PreflightError,
    Refused,
    Retryable,
    Txn,
)
from exactsink.protocol.votes import EpochPlan, Vote

__all__ = ["committable_from", "dump_votes", "load_votes", "plain_committable", "problem"]

_VERSION = 2
_REFUSALS: Mapping[str, type[ExactsinkError]] = {
    kind.__name__: kind for kind in (ContractError, Fatal, Refused, LineageError, PreflightError)
}


class _Strict(BaseModel):
    """A JSON object with exactly these fields, each of exactly its type."""

    model_config = ConfigDict(extra="forbid", strict=True)


class _Committable(_Strict):
    txn: str
    rows: NonNegativeInt
    payload: str
    version: int
    deadline: FiniteFloat | None
    digest: int = Field(ge=0, lt=1 << 64)
    store_ref: str | None

    def made(self) -> Committable:
        txn = Txn.parse(self.txn)
        if txn is None:
            raise ValueError(f"{self.txn!r:.200} is not a participant's id")
        return Committable(**{**vars(self), "txn": txn, "payload": base64.b64decode(self.payload, validate=True)})


class _Refusal(_Strict):
    kind: Literal["ContractError", "Fatal", "Refused", "LineageError", "PreflightError"]
    what: str
    why: str
    next: str

    def made(self) -> ExactsinkError:
        return _REFUSALS[self.kind](self.what, why=self.why, next=self.next)


class _Vote(_Strict):
    sink: str
    partition: NonNegativeInt
    rows: NonNegativeInt
    bytes: NonNegativeInt
    committable: _Committable | None
    refusal: _Refusal | None
    quarantined: NonNegativeInt
    reason: str

    def made(self) -> Vote:
        return Vote(**{**vars(self), "committable": _made(self.committable), "refusal": _made(self.refusal)})


class _Answer(_Strict):
    version: int
    votes: list[_Vote]


_COMMITTABLE, _VOTE = tuple(_Committable.model_fields), tuple(_Vote.model_fields)


def plain_committable(value: Committable) -> dict[str, Any]:
    """Return a committable as plain JSON values."""
    payload = base64.b64encode(value.payload).decode()
    return {name: getattr(value, name) for name in _COMMITTABLE} | {"txn": value.txn.id, "payload": payload}


def committable_from(body: Any) -> Committable:
    """Read a committable back. Raises ValueError if it is not one."""
    return _Committable.model_validate(body).made()


def problem(error: ValueError) -> str:
    """Return the problem with a value that was read, and its place."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}"


def dump_votes(votes: list[Vote]) -> bytes:
    """Write one task's votes."""
    return json.dumps({"version": _VERSION, "votes": [_plain_vote(vote) for vote in votes]}).encode()


def load_votes(plan: EpochPlan, data: bytes) -> list[Vote]:
    """Read one task's votes back. Raises Retryable unless there is one for each sink with rows to write there."""
    try:
        answer = _Answer.model_validate_json(data)
        if answer.version != _VERSION:
            raise ValueError(f"it has version {answer.version}, and this release reads {_VERSION}")
        votes = [vote.made() for vote in answer.votes]
        _check_whole(plan, votes)
    except ValueError as error:
        raise Retryable(
            f"epoch {plan.epoch} is refused before its decision: a task's votes can't be read",
            why=problem(error),
            next="start the job again; if it fails again, driver and executors have different "
            "releases of exactsink, or somebody changes the data between them",
        ) from error
    return votes


def _plain_vote(vote: Vote) -> dict[str, Any]:
    committable = None if vote.committable is None else plain_committable(vote.committable)
    refusal = None if vote.refusal is None else _plain_refusal(vote.refusal)
    return {name: getattr(vote, name) for name in _VOTE} | {"committable": committable, "refusal": refusal}


def _plain_refusal(error: ExactsinkError) -> dict[str, str]:
    """Return the fields of the nearest error class of the contract: the driver may not know a plugin's own class."""
    kind = next((each.__name__ for each in type(error).__mro__ if each.__name__ in _REFUSALS), Fatal.__name__)
    return {"kind": kind, "what": error.what, "why": error.why, "next": error.next}


def _made(read: Any) -> Any:
    return None if read is None else read.made()


def _check_whole(plan: EpochPlan, votes: list[Vote]) -> None:
    """Refuse votes of several partitions, and an answer without a vote for some sink: its rows would be dropped."""
    if any(vote.refusal is not None for vote in votes):
        return
    partitions = {vote.partition for vote in votes}
    wanted = [
        sink for sink, part in plan.sinks.items() if part.only is None or (partitions and partitions <= part.only)
    ]
    if len(partitions) > 1 or sorted(vote.sink for vote in votes) != sorted(wanted):
        found = ", ".join(f"{vote.sink!r:.80}" for vote in votes[:10]) or "none"
        raise ValueError(f"one vote for each of {', '.join(wanted) or 'no sink'} was expected, and these came: {found}")
