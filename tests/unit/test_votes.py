"""Which votes may be decided: counts, names and deadlines must agree."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from exactsink.contract import Committable, ExactsinkError, Fatal, LineageError, Retryable
from exactsink.protocol.votes import EpochPlan, SinkPlan, Vote, check_deadlines, check_votes, same_rows, sum_digests
from exactsink.protocol.wire import dump_votes, load_votes

ALL = 1 << 64
PLAN = EpochPlan("job", 7, 3, "ab", {"lake": SinkPlan(b"ticket"), "table": SinkPlan(b"other")})
EMPTY = Vote("lake", 0, 0, None)


def a_vote(sink: str = "lake", partition: int = 0) -> Vote:
    txn = PLAN.txn(sink, partition, 40 + partition)
    return Vote(sink, partition, 5, Committable(txn, 5, b"payload", digest=99))


def moved(**changes: Any) -> Vote:
    """A vote whose committable belongs to another transaction."""
    txn = replace(PLAN.txn("lake", 0, 40), **changes)
    return Vote("lake", 0, 5, Committable(txn, 5, b"payload", digest=99))


def named_alike(partition: int, sink: str = "lake") -> Vote:
    """A vote whose store knows the participant by a name that does not say which it is."""
    vote = a_vote(sink, partition)
    assert vote.committable is not None
    return replace(vote, committable=replace(vote.committable, store_ref="pooled"))


def test_two_participants_that_their_store_knows_by_one_name_refuse_the_epoch() -> None:
    with pytest.raises(Retryable, match="sink lake, partition 1") as refused:
        check_votes(PLAN, [named_alike(0), named_alike(1)])
    assert "another participant by the same name, pooled" in refused.value.why


def test_two_sinks_may_have_the_same_names_in_their_stores() -> None:
    assert len(check_votes(PLAN, [named_alike(0), named_alike(0, "table")])) == 2


def test_votes_that_agree_give_each_sinks_committables_by_partition() -> None:
    votes = [a_vote(partition=2), a_vote("table"), a_vote(partition=0), Vote("lake", 1, 0, None)]
    assert check_votes(PLAN, votes) == {
        "lake": (votes[2].committable, votes[0].committable),
        "table": (votes[1].committable,),
    }
    nothing = {"lake": (), "table": ()}
    assert check_votes(PLAN, []) == check_votes(PLAN, [EMPTY, replace(EMPTY, sink="table")]) == nothing


OTHERS: dict[str, Any] = {"job": "other", "sink": "table", "epoch": 6, "generation": 2, "token": "cd", "partition": 1}
DISAGREEING = {
    "two votes": [a_vote(), a_vote()],
    "an empty vote, then one with rows": [EMPTY, a_vote()],
    "a vote with rows, then an empty one": [a_vote(), EMPTY],
    "two empty votes": [EMPTY, EMPTY],
    "a sink that is not in the plan": [Vote("stream", 0, 0, None)],
    "rows without a committable": [Vote("lake", 0, 3, None)],
    "fewer rows than handed over": [replace(a_vote(), rows=6)],
    "more rows than handed over": [replace(a_vote(), rows=4)],
    **{f"of another {name}": [moved(**{name: value})] for name, value in OTHERS.items()},
}


@pytest.mark.parametrize("votes", DISAGREEING.values(), ids=DISAGREEING)
def test_votes_that_disagree_refuse_the_epoch(votes: list[Vote]) -> None:
    with pytest.raises(Retryable, match="epoch 7 is refused before its decision") as refused:
        check_votes(PLAN, [a_vote("table"), *votes])
    assert f"sink {votes[0].sink}, partition 0" in refused.value.what
    assert refused.value.why


class PluginsOwn(Fatal):
    """An error class of a plugin."""


@pytest.mark.parametrize("kind", [Fatal, LineageError, PluginsOwn])
def test_a_tasks_refusal_is_raised_as_the_contracts_class_that_it_is(kind: type[ExactsinkError]) -> None:
    refusal = kind("no such column", why="renamed", next="rename it back")
    votes = [moved(epoch=6), Vote("table", 1, 0, None, refusal)]  # before any disagreement
    with pytest.raises(Fatal if kind is PluginsOwn else kind) as raised:
        check_votes(PLAN, load_votes(PLAN, dump_votes(votes)))
    assert str(raised.value) == str(refusal)


FULL = [a_vote(), a_vote("table")]
TAMPERED: dict[str, tuple[tuple[str | int, ...], Any]] = {
    "another version": (("version",), 3),
    "a version that is no number": (("version",), True),
    "one more field": (("run",), "rm"),
    "votes that are no list": (("votes",), {}),
    "a sink's vote is missing": (("votes",), []),
    "a vote twice": (("votes", 1, "sink"), "lake"),
    "another sink": (("votes", 0, "sink"), "other"),
    "another partition": (("votes", 0, "partition"), 1),
    "a partition that is no number": (("votes", 0, "partition"), "0"),
    "a negative count": (("votes", 0, "rows"), -5),
    "negative bytes": (("votes", 0, "bytes"), -5),
    "no id": (("votes", 0, "committable", "txn"), "../../etc"),
    "no base64": (("votes", 0, "committable", "payload"), "cGF5\u0000"),
    "a count of 5.0": (("votes", 0, "committable", "rows"), 5.0),
    "a digest of 65 bits": (("votes", 0, "committable", "digest"), ALL),
    "no deadline, and no number": (("votes", 0, "committable", "deadline"), float("nan")),
    "a name that is a list": (("votes", 0, "committable", "store_ref"), ["a"]),
    "a committable of other fields": (("votes", 0, "committable"), {"txn": "a", "run": "rm"}),
    "a refusal of an unknown kind": (("votes", 0, "refusal"), {"kind": "exit", "what": "", "why": "", "next": ""}),
}


def test_votes_come_back_as_they_were_sent() -> None:
    full = [replace(vote, bytes=40) for vote in FULL]
    assert load_votes(PLAN, dump_votes(full)) == full
    replayed = replace(PLAN, sinks={**PLAN.sinks, "table": SinkPlan(b"other", frozenset({3}))})
    assert load_votes(replayed, dump_votes(FULL[:1])) == FULL[:1]


@pytest.mark.parametrize(("path", "value"), TAMPERED.values(), ids=TAMPERED)
def test_votes_that_were_tampered_with_are_refused(path: tuple[str | int, ...], value: Any) -> None:
    body = place = json.loads(dump_votes(FULL))
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(Retryable, match="epoch 7 is refused before its decision: a task's votes can't be read"):
        load_votes(PLAN, json.dumps(body).encode())


def test_a_pickle_among_votes_is_not_loaded() -> None:
    with pytest.raises(Retryable, match="can't be read"):
        load_votes(PLAN, b"cos\nsystem\n(S'exit 3'\ntR.")


def test_a_replay_is_held_against_each_lost_partition_where_others_of_the_sink_stay() -> None:
    lost = [Committable(PLAN.txn("lake", p, p), p, b"", digest=p) for p in (1, 2)]
    again = [replace(c, txn=replace(c.txn, partition=3 - c.txn.partition)) for c in lost]
    assert same_rows(lost, again, by_partition=False)
    assert same_rows(lost, lost[::-1], by_partition=True)
    assert not same_rows(lost, again, by_partition=True)
    assert not same_rows(lost, lost[1:], by_partition=False)
    assert not same_rows(lost[1:], lost, by_partition=True), "a partition that was not lost would come twice"


def test_digests_are_summed_modulo_two_to_the_64_in_any_order() -> None:
    assert sum_digests([]) == 0
    assert sum_digests([ALL - 1, 2]) == sum_digests([2, ALL - 1]) == 1
    assert sum_digests([1 << 63] * 3) == 1 << 63


def due(*deadlines: float | None) -> tuple[Committable, ...]:
    return tuple(Committable(PLAN.txn("lake", n, n), 1, b"", deadline=d) for n, d in enumerate(deadlines))


ENOUGH: list[tuple[float | None, ...]] = [(), (None,), (160.0,), (None, 160.0, 999.0)]
TOO_LITTLE: list[tuple[float | None, ...]] = [(159.9,), (999.0, None, 159.9), (0.0,)]


@pytest.mark.parametrize("deadlines", [*ENOUGH, *TOO_LITTLE])
def test_an_epoch_is_refused_when_the_earliest_deadline_leaves_less_than_its_sinks_margin(
    deadlines: tuple[float | None, ...],
) -> None:
    voted = {"table": due(110.0), "lake": due(*deadlines)}
    refused = pytest.raises(Retryable, match=r"sink lake(?s:.*)timeout")
    with nullcontext() if deadlines in ENOUGH else refused:
        check_deadlines(voted, {"lake": 60.0, "table": 10.0}, now=100.0)
    with pytest.raises(Retryable, match="sink table"):
        check_deadlines(voted, {"lake": -999.0, "table": 11.0}, now=100.0)
