"""Transactional ids of a bounded pool: who shares one, who never does, and what is nobody else's."""

from __future__ import annotations

import pytest

from exactsink.contract import Txn
from exactsink_kafka.ids import ROUNDS, UNBOUNDED_SLOTS, PoolId, Ticket, prefix, slots_of

TXN = Txn("orders", 7, "out", 3, "0123456789abcdef", 2, 41)


def test_an_id_is_read_back_as_it_was_written() -> None:
    pooled = Ticket(24, 12, "c").id(TXN)
    assert str(pooled) == "orders.out.g3-0123456789abcdef.s29"
    assert PoolId.parse(str(pooled)) == pooled
    assert str(pooled).startswith(prefix("orders", "out"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders.out.g3-ab",
        "orders.out.g3-ab.s",
        "orders.out.g3-ab.s01",
        "orders.out.g03-ab.s1",
        "orders.out.g3-AB.s1",
        "orders.out.g3-ab.s1.more",
        "orders.out.g3-ab.s1\n",
        "Orders.out.g3-ab.s1",
        "a.orders.out.g3-ab.s1",
        "orders.out.g3-ab.s-1",
        "orders.out.g3-ab.e1.p1.a1",
    ],
)
def test_what_is_no_id_of_ours_is_none(text: str) -> None:
    assert PoolId.parse(text) is None


def test_no_other_sinks_id_begins_with_a_sinks_prefix() -> None:
    names = ["a", "a-b", "b", "ab", "g", "g1"]
    ids = {(job, sink): str(PoolId(job, sink, 1, "ab", 1)) for job in names for sink in names}
    for job, sink in ids:
        begins = [whose for whose, made in ids.items() if made.startswith(prefix(job, sink))]
        assert begins == [(job, sink)]


def test_an_epoch_the_rewriting_of_its_lost_votes_and_the_next_epoch_never_share_an_id() -> None:
    tickets = [Ticket.of_round(number, slots_of(5, 4), "c") for number in range(3 * ROUNDS)]
    for number in range(len(tickets) - ROUNDS + 1):
        ids = [{str(ticket.id(_attempt(n))) for n in range(100)} for ticket in tickets[number : number + ROUNDS]]
        assert [len(of_round) for of_round in ids] == [20] * ROUNDS
        assert len(set().union(*ids)) == 20 * ROUNDS
    assert {str(ticket.id(_attempt(0))) for ticket in tickets} == {str(t.id(_attempt(0))) for t in tickets[:ROUNDS]}


def test_attempts_that_follow_each_other_share_no_id_until_the_pool_is_round() -> None:
    ticket = Ticket.of_round(1, slots_of(3, 4), "c")
    assert len({str(ticket.id(_attempt(n))) for n in range(1000, 1012)}) == 12
    assert str(ticket.id(_attempt(1000))) == str(ticket.id(_attempt(1012)))


@pytest.mark.parametrize(("participants", "slots"), [(None, UNBOUNDED_SLOTS), (0, 4), (1, 4), (16, 64)])
def test_a_round_is_several_times_the_participants(participants: int | None, slots: int) -> None:
    assert slots_of(participants, 4) == slots


def test_a_ticket_is_read_back_as_it_was_written() -> None:
    ticket = Ticket.of_round(5, 12, "a cluster's id")
    assert ticket == Ticket(24, 12, "a cluster's id")
    assert Ticket.load(ticket.dump()) == ticket


def _attempt(number: int) -> Txn:
    return Txn("orders", 7, "out", 3, "0123456789abcdef", 2, number)
