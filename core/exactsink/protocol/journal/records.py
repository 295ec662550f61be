"""The journal's records and their JSON: versioned, without secrets, never pickled.

Every record has its `seq`, a random `nonce` to know it by, `names` (the seqs of the last decision's records, as this
record leaves it) and `before` (the seq of the newest claim or note before it, -1 when there is none): whoever has the
newest record finds from it all that must be known, however long the journal is. `at` is when it was written (Unix
seconds), for people: no rule reads it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exactsink.contract import Committable, Fatal, Txn

__all__ = [
    "FORMAT_VERSION",
    "Action",
    "Claim",
    "Complete",
    "Decide",
    "DecidedSink",
    "Kept",
    "Note",
    "Record",
    "Redecide",
    "decode",
    "encode",
]

FORMAT_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """What every record has, as the module says; the journal fills it in when it appends one."""

    seq: int = -1
    nonce: str = ""
    names: tuple[int, ...] = ()
    before: int = -1
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Claim(_Placed):
    """A driver's fencing token: whoever appends it owns the job until the next claim.

    `lineage` is the journal's own name, the token of its first claim. An empty `query_id` binds the journal to the next
    query that claims. Batch n of the bound query is epoch `base + n`; its first one here is `first_epoch`. Both are 0
    until an operator adopts another checkpoint, and stay as they are from claim to claim.
    """

    generation: int
    token: str
    driver: str
    query_id: str
    lineage: str
    base: int = 0
    first_epoch: int = 0


@dataclass(frozen=True, slots=True)
class DecidedSink:
    """One sink's part of a decision."""

    backend: str
    strategy: str
    target: str
    committables: tuple[Committable, ...]

    @property
    def rows(self) -> int:
        return sum(committable.rows for committable in self.committables)


@dataclass(frozen=True, slots=True)
class Decide(_Placed):
    """The commit point of an epoch, for all sinks at once."""

    epoch: int
    generation: int
    fingerprint: str
    sinks: Mapping[str, DecidedSink]


@dataclass(frozen=True, slots=True)
class Redecide(_Placed):
    """Replace one sink's whole set of committables, after some were lost and written again."""

    epoch: int
    sink: str
    generation: int
    committables: tuple[Committable, ...]


@dataclass(frozen=True, slots=True)
class Note(_Placed):
    """A text, kept for good: earlier releases noted so what `Complete` and `Action` say now."""

    text: str


@dataclass(frozen=True, slots=True)
class Complete(_Placed):
    """Every sink has committed this epoch, and no other will follow: a batch run is done."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Action(_Placed):
    """What an operator did: `who` (user and host), by which `command`, for which `reason`, and what came of it."""

    who: str
    command: str
    reason: str
    outcome: str


Kept = Note | Complete | Action
"""Records beside claims that are never deleted, and that fence nobody."""

Record = Claim | Decide | Redecide | Note | Complete | Action
_KINDS: Mapping[str, type[Any]] = {
    kind.__name__.lower(): kind for kind in (Claim, Decide, Redecide, Note, Complete, Action)
}


def encode(record: Record) -> bytes:
    """Write a record as JSON."""
    body: dict[str, Any] = {"version": FORMAT_VERSION, "kind": type(record).__name__.lower()}
    for field in type(record).__dataclass_fields__:
        body[field] = _plain(getattr(record, field))
    return json.dumps(body, sort_keys=True).encode()


def decode(data: bytes, seq: int | None = None) -> Record:
    """Read a record back; `seq` is where it was found. What this release can't read is Fatal: guessing loses rows."""
    try:
        body = json.loads(data)
        version, kind = body.pop("version"), body.pop("kind")
    except (ValueError, KeyError, AttributeError) as error:
        raise Fatal(
            f"journal entry {seq} is no record",
            why=f"{error!r} in {data[:60]!r}",
            next="bring that entry back from a copy of the journal; without it a decision may be forgotten",
        ) from error
    if version != FORMAT_VERSION or kind not in _KINDS:
        raise Fatal(
            f"journal record {body.get('seq')} has format {version} ({kind})",
            why=f"this release reads format {FORMAT_VERSION}",
            next="start the job with the release of exactsink that wrote it (newer ones read older formats)"
            if version == 1
            else "pip install --upgrade exactsink",
        )
    if set(body) != set(_KINDS[kind].__dataclass_fields__) or seq not in (None, body["seq"]):
        raise Fatal(
            f"journal entry {seq} is not the {kind} that it says it is",
            why=f"it has the fields {', '.join(sorted(body))}, and calls itself entry {body.get('seq')}",
            next="bring that entry back from a copy; without it a decision may be forgotten",
        )
    body["names"] = tuple(body["names"])
    if "committables" in body:
        body["committables"] = _committables(body["committables"])
    if "sinks" in body:
        body["sinks"] = {name: _decided_sink(sink) for name, sink in body["sinks"].items()}
    record: Record = _KINDS[kind](**body)
    return record


def _plain(value: Any) -> Any:
    if isinstance(value, Committable):
        return {
            "txn": value.txn.id,
            "rows": value.rows,
            "digest": value.digest,
            "deadline": value.deadline,
            "version": value.version,
            "store_ref": value.store_ref,
            "payload": base64.b64encode(value.payload).decode(),
        }
    if isinstance(value, DecidedSink):
        return {field: _plain(getattr(value, field)) for field in DecidedSink.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _decided_sink(body: Mapping[str, Any]) -> DecidedSink:
    return DecidedSink(body["backend"], body["strategy"], body["target"], _committables(body["committables"]))


def _committables(bodies: list[Mapping[str, Any]]) -> tuple[Committable, ...]:
    return tuple(_committable(body) for body in bodies)


def _committable(body: Mapping[str, Any]) -> Committable:
    txn = Txn.parse(body["txn"])
    if txn is None:
        raise Fatal(f"journal holds a committable with the id {body['txn']!r}", why="it is no participant's id")
    return Committable(
        txn=txn,
        rows=body["rows"],
        payload=base64.b64decode(body["payload"]),
        version=body["version"],
        deadline=body["deadline"],
        digest=body["digest"],
        store_ref=body["store_ref"],
    )
