"""A vote that somebody has changed in the journal is refused by name, before anything is committed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from exactsink.contract import Committable, Fatal, Txn
from exactsink_kafka.transactions import PAYLOAD_VERSION, Transaction, Voted, Written
from exactsink_postgres.staging_tables import RowsAt

TXN = Txn("orders", 7, "out", 3, "0123456789abcdef", 2, 41)
SENT = Voted(Transaction("orders.out.g3-ab.s29", 4001, 12), "c", (Written("rows", "t", {0: 17}),), ("marks", 3))
STAGED = RowsAt("exactsink_staging", "rows_1", False, "public", ("id",))
READ: dict[str, tuple[Callable[[Committable], Any], Any, bytes, int, str | None]] = {
    "kafka": (Voted.load, SENT, SENT.dump(), PAYLOAD_VERSION, SENT.transaction.ref),
    "postgres": (RowsAt.of, STAGED, json.dumps(asdict(STAGED)).encode(), RowsAt.VERSION, None),
}


def forged(payload: bytes) -> list[bytes]:
    """Lack each field, give each another type, and be no JSON object."""
    body = json.loads(payload)
    changed = [{name: body[name] for name in body if name not in (lost, "marked")} for lost in body if lost != "marked"]
    changed += [body | {name: {"of": "another type"}} for name in body]
    return [b"", b"\xff", b"[]", payload[:-1], *(json.dumps(each).encode() for each in changed)]


@pytest.mark.parametrize("name", READ)
def test_a_forged_vote_is_refused_by_name(name: str) -> None:
    load, voted, payload, version, ref = READ[name]
    assert load(Committable(TXN, 5, payload, version, store_ref=ref)) == voted
    for edited in forged(payload):
        with pytest.raises(Fatal, match=f"the vote of {TXN.id} can't be read") as refused:
            load(Committable(TXN, 5, edited, version, store_ref=ref))
        assert "restore the journal from a copy" in refused.value.next
        assert "another type" not in str(refused.value), "a changed value may be a secret"
