"""A journal's records as fields of JSON: sets of votes as counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args

from exactsink.cli.plain import plain
from exactsink.contract import Committable
from exactsink.operate.explain import when
from exactsink.protocol.journal.entries import Entry
from exactsink.protocol.journal.records import Action, Complete, DecidedSink, Record, Resolve

__all__ = ["kind_fields", "main_fields"]

_LONG = {"marks", *(field.name for field in fields(Complete))} - {"epoch", "seq", "at"}
"""What `exactsink journal export` alone has: a record's place in the chain, and its marks."""


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
    record = entry.record
    if record is None:
        return {"seq": entry.seq, "at": None, "kind": "damaged", "problem": entry.problem}
    body: dict[str, Any] = {"seq": record.seq, "at": when(record.at), "kind": type(record).__name__.lower()}
    for name in (field.name for field in fields(record) if field.name not in {"seq", "at", *_LONG}):
        value = getattr(record, name)
        if name == "committables":
            body |= _counts(value)
        else:
            body[name] = {sink: _sink(part) for sink, part in value.items()} if name == "sinks" else plain(value)
    if isinstance(record, Action | Resolve):
        body["user"], _, body["host"] = record.who.rpartition(" on ")
    return body


def _sink(part: DecidedSink) -> dict[str, Any]:
    place = {"backend": part.backend, "strategy": part.strategy, "target": part.target}
    return place | _counts(part.committables)


def _counts(committables: Iterable[Committable]) -> dict[str, Any]:
    rows = [committable.rows for committable in committables]
    return {"participants": len(rows), "rows": sum(rows)}
