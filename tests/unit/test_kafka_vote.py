"""A vote names a transaction for good, and is read back by the releases that may."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exactsink.contract import Committable, Fatal, Txn
from exactsink_kafka.vote import PAYLOAD_VERSION, Transaction, Vote, Written

VOTE = Vote(
    Transaction("orders.out.g3-ab.s29", 4001, 12),
    "MkU3OEVBNTcwNTJENDM2Qk",
    (Written("rows", "9782d7e7-1eea-46a0-b132-167e5fb75394", {0: 17, 11: 0}), Written("more", "abc", {3: 5})),
)
COMMITTABLE = Committable(
    Txn("orders", 7, "out", 3, "ab", 2, 41), 5, VOTE.dump(), PAYLOAD_VERSION, store_ref=VOTE.transaction.ref
)


def test_a_vote_is_read_back_as_it_was_written() -> None:
    assert Vote.load(COMMITTABLE) == VOTE
    assert COMMITTABLE.ref == "orders.out.g3-ab.s29/4001/12"


@pytest.mark.parametrize("version", [0, PAYLOAD_VERSION + 1])
def test_a_vote_of_another_release_is_refused(version: int) -> None:
    with pytest.raises(Fatal, match=f"vote of version {version}") as raised:
        Vote.load(replace(COMMITTABLE, version=version))
    assert "release" in raised.value.next


@pytest.mark.parametrize("id", ["orders.out.g3-ab.s29", "with/a/slash", ""])
def test_a_ref_is_read_back_as_it_was_written(id: str) -> None:
    one = Transaction(id, 4001, 12)
    assert Transaction.of_ref(one.ref) == one


@pytest.mark.parametrize("ref", ["", "id", "id/1", "id/1/x", "id/x/1", "id/01/1", "id/1/+1", "id/1 /1", "id/1_0/1"])
def test_what_is_no_ref_is_refused(ref: str) -> None:
    with pytest.raises(ValueError, match="is no transaction's ref"):
        Transaction.of_ref(ref)


def test_two_uses_of_an_id_never_have_one_ref() -> None:
    uses = [Transaction(name, producer, epoch) for name in ("a", "b") for producer in (1, 11) for epoch in (1, 11)]
    assert len({use.ref for use in uses}) == len(uses)
