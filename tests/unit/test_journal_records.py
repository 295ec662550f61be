"""The journal's records as JSON: every field comes back, and what this release can't know for sure is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
from typing import Any

import pytest

from exactsink.contract import Committable, Fatal, Mark, Txn
from exactsink.protocol.journal.records import (
    FORMAT_VERSION,
    Action,
    BoundSink,
    Claim,
    Clean,
    Complete,
    Decide,
    DecidedSink,
    Expected,
    Identity,
    Note,
    Record,
    Redecide,
    Resolve,
    Settled,
    decode,
    sealed,
)

COMMITTABLES = (
    Committable(
        Txn("orders", 12, "lake", 3, "0a1b2c", 4, 5),
        rows=2**40,
        payload=bytes(range(256)),
        version=9,
        deadline=1_790_000_000.25,
        digest=2**64 - 1,
        store_ref="pool-3 #17",
    ),
    Committable(Txn("orders", 12, "lake", 3, "0a1b2c", 5, 6), rows=0, payload=b""),
)
PLACE: dict[str, Any] = {
    "seq": 41,
    "nonce": "f" * 32,
    "names": (38, 40, 41),
    "name_sums": ("1a" * 32, "2b" * 32),
    "before": 37,
    "before_sum": "3c" * 32,
    "prior_sum": "4d" * 32,
    "at": 1_790_000_000.125,
}
IDENTITY = Identity("orders", "2026-11-20", "/checkpoint", "1.0", "host", "ada", (BoundSink("lake", "f", "r", "/l"),))
MARKS = (
    Expected("lake", "/l", Mark("99ff", 12, frozenset({"0a1b2c", "dd"}), 2), Mark("99ff")),
    Expected("table", "t", None, None),
)
RECORDS: list[Record] = [
    Claim(3, "0a1b2c", "host:17", "8f6a-query", "99ff", 5, 11, IDENTITY, MARKS, ("lake",), ("77aa",), **PLACE),
    Decide(
        12,
        3,
        "sha256:aa",
        {
            "lake": DecidedSink("files", "rename", "file:///data/lake", COMMITTABLES),
            "table": DecidedSink("upsert", "staged", 'sqlite:///größe "x".db#t\n', ()),
        },
        "sha256:bb",
        MARKS,
        **PLACE,
    ),
    Redecide(12, "lake", 4, COMMITTABLES, **PLACE),
    Note("swept generation 2 manually", **PLACE),
    Complete(12, **PLACE),
    Action("ada on host", "recover", "", "recovered", (Settled("lake", 1, 2, 3, 4, "away"),), **PLACE),
    Clean(**PLACE),
    Resolve("ada on host", "seen in the log", 12, "lake", "committed", ("t1", "t2"), 7, **PLACE),
]


def kind_of(record: Record) -> str:
    return type(record).__name__


def body_of(record: Record) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(sealed(record)[1])
    return body


def resealed(body: dict[str, Any]) -> bytes:
    """Write a body as a release would that means what it says."""
    text = json.dumps({name: value for name, value in body.items() if name != "sha256"}, sort_keys=True).encode()
    return text[:-1] + f', "sha256": "{hashlib.sha256(text).hexdigest()}"}}'.encode()


@pytest.mark.parametrize("record", RECORDS, ids=kind_of)
def test_a_record_comes_back_with_every_field_from_plain_json(record: Record) -> None:
    record, data = sealed(record)
    defaults = {f.name: f.default for f in dataclasses.fields(record) if f.default is not dataclasses.MISSING}
    assert all(getattr(record, name) != default for name, default in defaults.items())  # else it proves nothing
    back, body = decode(data), json.loads(data)
    assert back == record
    assert (body["version"], body["kind"]) == (FORMAT_VERSION, kind_of(record).lower())
    assert (body["seq"], body["nonce"], body["names"], body["before"]) == (41, "f" * 32, [38, 40, 41], 37)
    if isinstance(back, Decide) and isinstance(record, Decide):
        assert list(back.sinks) == list(record.sinks)


@pytest.mark.parametrize("version", [0, FORMAT_VERSION - 1, FORMAT_VERSION + 1, str(FORMAT_VERSION), None])
def test_a_record_of_another_format_is_fatal(version: Any) -> None:
    body = {**body_of(RECORDS[1]), "version": version}
    with pytest.raises(Fatal, match="record 41 has format") as refused:
        decode(json.dumps(body).encode())
    assert "the release of exactsink that wrote it" in refused.value.next


@pytest.mark.parametrize("kind", ["abort", "", "Claim", None])
def test_a_record_of_an_unknown_kind_is_fatal(kind: Any) -> None:
    with pytest.raises(Fatal):
        decode(json.dumps({**body_of(RECORDS[0]), "kind": kind}).encode())


def test_a_committable_of_nobody_of_ours_is_fatal() -> None:
    """Taken for a participant, it could be committed, or held back from a sweep, in somebody else's name."""
    body = body_of(RECORDS[2])
    body["committables"][1]["txn"] = "backup_2026"
    with pytest.raises(Fatal, match="backup_2026"):
        decode(resealed(body))


@pytest.mark.parametrize("record", RECORDS, ids=kind_of)
def test_a_record_that_is_cut_short_is_never_read(record: Record) -> None:
    data = sealed(record)[1]
    for end in range(0, len(data), 7):
        with pytest.raises((ValueError, Fatal)):
            decode(data[:end])


def explode() -> None:
    raise AssertionError("unpickled")


class Bomb:
    def __reduce__(self) -> Any:
        return explode, ()


def test_a_pickle_is_never_loaded() -> None:
    bomb = pickle.dumps(Bomb())
    with pytest.raises(AssertionError, match="unpickled"):  # it does go off where pickles are loaded
        pickle.loads(bomb)
    payload = dataclasses.replace(COMMITTABLES[0], payload=bomb)
    assert decode(sealed(Redecide(12, "lake", 4, (payload,), **PLACE))[1])
    with pytest.raises(Fatal, match="journal entry 7 is not a record"):
        decode(bomb, 7)


@pytest.mark.parametrize("change", [{"before": None}, {"more": 1}, {"seq": 8}], ids=str)
def test_a_record_that_is_not_what_it_says_is_fatal(change: dict[str, int | None]) -> None:
    """A field that is read as if it were empty could end the chain of claims, and with it the proof of a sweep."""
    body = {**body_of(Note("x", seq=7, nonce="n", before=3)), **change}
    changed = {name: value for name, value in body.items() if value is not None}
    with pytest.raises(Fatal, match="entry 7 is not the valid note"):
        decode(resealed(changed), 7)
