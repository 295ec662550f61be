"""Votes and committables as JSON of a fixed shape: nothing that another process wrote is ever unpickled.

What is read back is checked first: which fields, of which types and ranges, and one vote for each sink.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

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

__all__ = ["committable_from", "dump_votes", "load_votes", "plain_committable"]

_VERSION = 2
_NONE = type(None)
_COMMITTABLE: Mapping[str, tuple[type, ...]] = {
    "txn": (str,),
    "rows": (int,),
    "payload": (str,),
    "version": (int,),
    "deadline": (float, int, _NONE),
    "digest": (int,),
    "store_ref": (str, _NONE),
}
_MUST = frozenset({"txn", "rows", "payload"})
"""Records of earlier releases lack the others."""
_VOTE: Mapping[str, tuple[type, ...]] = {
    "sink": (str,),
    "partition": (int,),
    "rows": (int,),
    "bytes": (int,),
    "committable": (dict, _NONE),
    "refusal": (dict, _NONE),
    "quarantined": (int,),
    "reason": (str,),
}
_REFUSAL: Mapping[str, tuple[type, ...]] = {"kind": (str,), "what": (str,), "why": (str,), "next": (str,)}
_REFUSALS: Mapping[str, type[ExactsinkError]] = {
    kind.__name__: kind for kind in (ContractError, Fatal, Refused, LineageError, PreflightError)
}


def plain_committable(value: Committable) -> dict[str, Any]:
    """Return a committable as JSON has it."""
    return {
        "txn": value.txn.id,
        "rows": value.rows,
        "digest": value.digest,
        "deadline": value.deadline,
        "version": value.version,
        "store_ref": value.store_ref,
        "payload": base64.b64encode(value.payload).decode(),
    }


def committable_from(body: Any) -> Committable:
    """Read a committable back. Raises ValueError for what is none."""
    _check_fields(body, _COMMITTABLE, _MUST, "a committable")
    txn = Txn.parse(body["txn"])
    if txn is None:
        raise ValueError(f"{body['txn']!r:.200} is no participant's id")
    made = Committable(**{**body, "txn": txn, "payload": base64.b64decode(body["payload"], validate=True)})
    if made.rows < 0 or not 0 <= made.digest < 1 << 64 or not math.isfinite(made.deadline or 0):
        raise ValueError(f"{txn.id}: its rows, digest or deadline are out of range")
    return made


def dump_votes(votes: list[Vote]) -> bytes:
    """Write one task's votes."""
    return json.dumps({"version": _VERSION, "votes": [_plain_vote(vote) for vote in votes]}).encode()


def load_votes(plan: EpochPlan, data: bytes) -> list[Vote]:
    """Read one task's votes back. Raises Retryable unless they are one of each sink that had rows to write there."""
    try:
        body = json.loads(data)
        _check_fields(body, {"version": (int,), "votes": (list,)}, frozenset({"version", "votes"}), "a task's answer")
        if body["version"] != _VERSION:
            raise ValueError(f"it has version {body['version']}, and this release reads {_VERSION}")
        votes = [_vote(vote) for vote in body["votes"]]
        _check_whole(plan, votes)
    except (ValueError, RecursionError) as error:
        raise Retryable(
            f"epoch {plan.epoch} is refused before its decision: a task's votes can't be read",
            why=str(error),
            next="start the job again: the batch is written anew; if it stays, driver and executors have different "
            "releases of exactsink, or somebody changes what they send each other",
        ) from error
    return votes


def _plain_vote(vote: Vote) -> dict[str, Any]:
    return {
        "sink": vote.sink,
        "partition": vote.partition,
        "rows": vote.rows,
        "bytes": vote.bytes,
        "committable": None if vote.committable is None else plain_committable(vote.committable),
        "refusal": None if vote.refusal is None else _plain_refusal(vote.refusal),
        "quarantined": vote.quarantined,
        "reason": vote.reason,
    }


def _plain_refusal(error: ExactsinkError) -> dict[str, str]:
    """Name the nearest of the contract's own errors: a plugin's own class may not be known to the driver."""
    kind = next((each.__name__ for each in type(error).__mro__ if each.__name__ in _REFUSALS), Fatal.__name__)
    return {"kind": kind, "what": error.what, "why": error.why, "next": error.next}


def _vote(body: Any) -> Vote:
    _check_fields(body, _VOTE, frozenset(_VOTE), "a vote")
    committable, refusal = body["committable"], body["refusal"]
    if min(body["partition"], body["rows"], body["bytes"], body["quarantined"]) < 0:
        raise ValueError(f"a vote for partition {body['partition']} with {body['rows']} rows, {body['bytes']} bytes")
    if refusal is not None:
        _check_fields(refusal, _REFUSAL, frozenset(_REFUSAL), "a refusal")
        if refusal["kind"] not in _REFUSALS:
            raise ValueError(f"{refusal['kind']!r:.80} is no refusal")
    return Vote(
        body["sink"],
        body["partition"],
        body["rows"],
        None if committable is None else committable_from(committable),
        None
        if refusal is None
        else _REFUSALS[refusal["kind"]](refusal["what"], why=refusal["why"], next=refusal["next"]),
        body["bytes"],
        body["quarantined"],
        body["reason"],
    )


def _check_whole(plan: EpochPlan, votes: list[Vote]) -> None:
    """Refuse votes of several partitions, and an answer that lacks the vote of a sink: its rows would be dropped."""
    if any(vote.refusal is not None for vote in votes):
        return
    partitions = {vote.partition for vote in votes}
    wanted = [
        sink for sink, part in plan.sinks.items() if part.only is None or (partitions and partitions <= part.only)
    ]
    if len(partitions) > 1 or sorted(vote.sink for vote in votes) != sorted(wanted):
        found = ", ".join(f"{vote.sink!r:.80}" for vote in votes[:10]) or "none"
        raise ValueError(f"one vote for each of {', '.join(wanted) or 'no sink'} was to come, and these came: {found}")


def _check_fields(body: Any, kinds: Mapping[str, tuple[type, ...]], must: frozenset[str], what: str) -> None:
    """Raise ValueError unless a JSON value is an object with these fields, each of one of its types and no other."""
    if type(body) is not dict or not must <= body.keys() <= kinds.keys():
        names = ", ".join(map(str, sorted(body)))[:200] if type(body) is dict else type(body).__name__
        raise ValueError(f"{what} has not the fields that it must have: {names}")
    for name, value in body.items():
        if type(value) not in kinds[name]:
            raise ValueError(f"{what} has a {type(value).__name__} as its {name}")
