"""A journal's records as fields of JSON: payloads of votes as sizes, and sets of votes as counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args

from exactsink.cli.plain import plain
from exactsink.contract import Committable
from exactsink.operate.explain import when
from exactsink.protocol.journal.entries import Entry
from exactsink.protocol.journal.records import Action, Complete, DecidedSink, Record, Resolve

__all__ = ["all_fields", "kind_fields", "main_fields"]

_PLACE = frozenset(field.name for field in fields(Complete)) - {"epoch", "seq", "at"}
"""Where a record stands, for the journal itself."""
_LONG = frozenset({"marks", *_PLACE})


def kind_fields() -> Mapping[str, Sequence[str]]:
    """Return the fields of each kind of record, as `main_fields` has them."""
    found = {
        kind.__name__.lower(): [field.name for field in fields(kind) if field.name not in {"seq", "at", *_LONG}]
        for kind in get_args(Record)
    }
    found["redecide"] = [*(name for name in found["redecide"] if name != "committables"), "participants", "rows"]
    for kind in ("action", "resolve"):
        found[kind] += ["user", "host"]
    return found | {"damaged": ["problem"]}


def main_fields(entry: Entry) -> dict[str, Any]:
    """Return what people and scripts ask of an entry: see docs/reference/json.md."""
    if entry.record is None:
        return {"seq": entry.seq, "at": None, "kind": "damaged", "problem": entry.problem}
    return _head(entry.record) | _body(entry.record, _LONG, _counts)


def all_fields(record: Record) -> dict[str, Any]:
    """Return all that a record holds, each vote with the size of its payload."""
    return _head(record) | _body(record, frozenset(), lambda votes: [_vote(vote) for vote in votes])


def _head(record: Record) -> dict[str, Any]:
    return {"seq": record.seq, "at": when(record.at), "kind": type(record).__name__.lower()}


def _body(record: Record, without: frozenset[str], votes: Any) -> dict[str, Any]:
    names = [field.name for field in fields(record) if field.name not in {"seq", "at", *without}]
    body: dict[str, Any] = {}
    for name in names:
        value = getattr(record, name)
        if name == "committables":
            counted = votes(value)
            body |= counted if isinstance(counted, dict) else {name: counted}
        elif name == "sinks":
            body[name] = {sink: _sink(decided, votes) for sink, decided in value.items()}
        else:
            body[name] = plain(value)
    if isinstance(record, Action | Resolve):
        body["user"], _, body["host"] = record.who.rpartition(" on ")
    return body


def _sink(decided: DecidedSink, votes: Any) -> dict[str, Any]:
    place = {"backend": decided.backend, "strategy": decided.strategy, "target": decided.target}
    counted = votes(decided.committables)
    return place | (counted if isinstance(counted, dict) else {"committables": counted})


def _counts(committables: Iterable[Committable]) -> dict[str, Any]:
    rows = [committable.rows for committable in committables]
    return {"participants": len(rows), "rows": sum(rows)}


def _vote(committable: Committable) -> dict[str, Any]:
    return {
        "ref": committable.ref,
        "id": committable.txn.id,
        "rows": committable.rows,
        "digest": committable.digest,
        "deadline": committable.deadline,
        "version": committable.version,
        "payload_bytes": len(committable.payload),
    }
