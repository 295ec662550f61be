"""Transactional ids of a bounded pool, who shares one and who never does; and votes, read back by those that may."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import pytest

from exactsink.contract import Committable, Fatal, Txn
from exactsink_kafka.transactions import (
    PAYLOAD_VERSION,
    ROUNDS,
    Marking,
    PoolId,
    Ticket,
    Transaction,
    Voted,
    Written,
    prefix,
)

TXN = Txn("orders", 7, "out", 3, "0123456789abcdef", 2, 41)
VOTE = Voted(
    Transaction("orders.out.g3-ab.s29", 4001, 12),
    "MkU3OEVBNTcwNTJENDM2Qk",
    (Written("rows", "9782d7e7-1eea-46a0-b132-167e5fb75394", {0: 17, 11: 0}), Written("more", "abc", {3: 5})),
)


def test_an_id_and_a_ticket_are_read_back_as_they_were_written() -> None:
    ticket = Ticket.of_round(5, 4, "a cluster's id", Marking("a journal's", True, 3, ("__consumer_offsets", 7)))
    assert (ticket.round, ticket.ids, ticket.cluster) == (2, 4, "a cluster's id")
    assert Ticket.load(ticket.dump()) == ticket
    pooled = ticket.id(TXN)
    assert str(pooled) == "orders.out.g3-0123456789abcdef.s29"
    assert PoolId.parse(str(pooled)) == pooled
    assert str(pooled).startswith(prefix("orders", "out"))


NOT_OURS = """
orders.out.g3-ab orders.out.g3-ab.s orders.out.g3-ab.s01 orders.out.g03-ab.s1 orders.out.g3-AB.s1 orders.out.g3-ab.s-1
orders.out.g3-ab.s1.more Orders.out.g3-ab.s1 a.orders.out.g3-ab.s1 orders.out.g3-ab.e1.p1.a1
"""


@pytest.mark.parametrize("text", ["", "orders.out.g3-ab.s1\n", *NOT_OURS.split()])
def test_what_is_no_id_of_ours_is_none(text: str) -> None:
    assert PoolId.parse(text) is None


def test_no_other_sinks_id_begins_with_a_sinks_prefix() -> None:
    names = ["a", "a-b", "b", "ab", "g", "g1"]
    ids = {(job, sink): str(PoolId(job, sink, 1, "ab", 1)) for job in names for sink in names}
    for job, sink in ids:
        begins = [whose for whose, made in ids.items() if made.startswith(prefix(job, sink))]
        assert begins == [(job, sink)]


def test_an_epoch_the_rewriting_of_its_lost_votes_and_the_next_epoch_never_share_an_id() -> None:
    tickets = [Ticket.of_round(number, 4, "c") for number in range(3 * ROUNDS)]
    for number in range(len(tickets) - ROUNDS + 1):
        ids = [_ids(ticket, range(5), range(100)) for ticket in tickets[number : number + ROUNDS]]
        assert [len(of_round) for of_round in ids] == [20] * ROUNDS
        assert len(set().union(*ids)) == 20 * ROUNDS
    assert _ids(tickets[ROUNDS], [0], [0]) == _ids(tickets[0], [0], [0])


@pytest.mark.parametrize("ids", [2, 4, 64])
@pytest.mark.parametrize("between", [1, 3, 4, 16, 1024, 12_345])
def test_no_two_partitions_of_an_epoch_share_an_id_whatever_runs_beside_them(ids: int, between: int) -> None:
    """taskAttemptIds are the session's: between two tasks of an epoch any number of others may begin."""
    ticket = Ticket.of_round(1, ids, "c")
    attempts = {partition: 7 + partition * between for partition in range(200)}
    taken = [str(ticket.id(replace(TXN, partition=one, attempt=attempt))) for one, attempt in attempts.items()]
    assert len(set(taken)) == 200


def test_attempts_of_a_partition_that_follow_each_other_share_no_id_until_the_round_is_used_up() -> None:
    ticket = Ticket.of_round(1, 4, "c")
    assert len(_ids(ticket, [7], range(1000, 1004))) == 4
    assert _ids(ticket, [7], [1000]) == _ids(ticket, [7], [1004])


def _ids(ticket: Ticket, partitions: Iterable[int], attempts: Iterable[int]) -> set[str]:
    every = product(partitions, attempts)
    return {str(ticket.id(replace(TXN, partition=partition, attempt=number))) for partition, number in every}


def test_a_vote_is_read_back_as_it_was_written_by_the_releases_that_may() -> None:
    committable = Committable(TXN, 5, VOTE.dump(), PAYLOAD_VERSION, store_ref=VOTE.transaction.ref)
    assert Voted.load(committable) == VOTE
    marked = replace(VOTE, marked=("__consumer_offsets", 3))
    assert Voted.load(replace(committable, payload=marked.dump())) == marked
    assert committable.ref == "orders.out.g3-ab.s29/4001/12"
    for version in (0, PAYLOAD_VERSION + 1):
        with pytest.raises(Fatal, match=f"vote of version {version}") as raised:
            Voted.load(replace(committable, version=version))
        assert "release" in raised.value.next


@pytest.mark.parametrize("name", ["orders.else.g3-ab.s29", "other.out.g3-ab.s29", "foreign", "orders.out.g3-ab.s30"])
def test_a_vote_that_was_edited_ends_no_other_transaction(name: str) -> None:
    edited = replace(VOTE, transaction=replace(VOTE.transaction, id=name))
    ref = VOTE.transaction.ref if name.endswith("s30") else edited.transaction.ref
    with pytest.raises(Fatal, match="names transaction"):
        Voted.load(Committable(TXN, 5, edited.dump(), PAYLOAD_VERSION, store_ref=ref))


def test_a_ref_is_read_back_as_it_was_written_and_nothing_else_is() -> None:
    for name in ("orders.out.g3-ab.s29", "with/a/slash", ""):
        assert Transaction.of_ref(Transaction(name, 4001, 12).ref) == Transaction(name, 4001, 12)
    for ref in ("", "id", "id/1", "id/1/x", "id/x/1", "id/01/1", "id/1/+1", "id/1 /1", "id/1_0/1"):
        with pytest.raises(ValueError, match="is not a transaction's ref"):
            Transaction.of_ref(ref)
