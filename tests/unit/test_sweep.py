"""Who is proven undecided, and that the sweep aborts those and nobody else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from tests.unit.fakes import IdleCommitter

from exactsink.contract import Committable, Event, InDoubt, LineageError, Txn, Undecided
from exactsink.protocol.events import Events
from exactsink.protocol.journal.log import Decision, Log, undecided_before, undecided_losers
from exactsink.protocol.journal.records import Claim, DecidedSink, Note
from exactsink.protocol.sweep import sweep_losers, sweep_older

MINE = Claim(3, "cc", "host:3", "query", "aa", seq=8)
CLAIMS = (Claim(1, "aa", "host:1", "query", "aa", seq=0), Claim(2, "bb", "host:2", "query", "aa", seq=4), MINE)


def listed(attempt: int = 7, epoch: int | None = 5, generation: int = 2, token: str = "bb") -> InDoubt:
    """A participant of sink a as its backend lists it, begun by the claim before mine if nothing else is said."""
    txn = Txn("job", 0 if epoch is None else epoch, "a", generation, token, attempt, attempt)
    return replace(InDoubt.of(txn), epoch=epoch)


def mine(attempt: int = 7, epoch: int | None = 5) -> InDoubt:
    return listed(attempt, epoch, MINE.generation, MINE.token)


def decided(*participants: InDoubt, sink: str = "a", store_ref: str | None = None) -> Decision:
    """Epoch 5, decided with these."""
    txns = [Txn.parse(participant.ref) for participant in participants]
    committables = tuple(Committable(txn, 1, b"", store_ref=store_ref) for txn in txns if txn is not None)
    assert len(committables) == len(participants)
    return Decision(5, "input", {sink: DecidedSink("b", "s", "t", committables)}, (7,))


def older(
    *participants: InDoubt, decision: Decision | None = None, sink: str = "a", sweep_tokens: Iterable[str] = ()
) -> list[InDoubt]:
    log = Log(last_seq=8, anchors=(CLAIMS[0], Note("by hand", seq=2), *CLAIMS[1:]), decision=decision)
    return list(undecided_before(log, MINE, sink, participants, frozenset(sweep_tokens)))


def losers(decision: Decision, *participants: InDoubt) -> list[InDoubt]:
    return list(undecided_losers(decision, MINE, "a", participants))


# what older claims left


def test_what_older_claims_began_is_undecided_when_nothing_was_decided() -> None:
    begun = [listed(1, 0, 1, "aa"), listed(2), listed(3, epoch=99), listed(4, epoch=None)]
    proven = undecided_before(Log(last_seq=8, anchors=CLAIMS), MINE, "a", begun)
    assert list(proven) == begun
    assert len(proven) == len(begun)
    assert older() == []


def test_what_is_decided_is_kept_and_its_losing_attempts_are_not() -> None:
    winner, loser = listed(1), listed(2)
    assert older(winner, loser, decision=decided(winner)) == [loser]


def test_another_sinks_decision_keeps_nobody() -> None:
    assert older(listed(), decision=decided(listed(), sink="b")) == [listed()]


def test_a_decided_participant_is_known_by_the_stores_name_for_it() -> None:
    pooled = replace(listed(), ref="pool-3#17")
    assert older(pooled, listed(), decision=decided(listed(), store_ref="pool-3#17")) == [listed()]


FOREIGN = {
    "an unknown token": listed(token="ff"),
    "a known token with another generation": listed(generation=1, token="bb"),
    "a generation that never claimed": listed(generation=0, token="00"),
    "my own claim, which has begun nothing yet": mine(),
    "a later claim": listed(generation=4, token="dd"),
}


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN)
def test_what_no_older_claim_of_this_journal_began_stops_the_start(foreign: InDoubt) -> None:
    for among in ([foreign], [listed(1), foreign], [foreign, listed(1)]):
        with pytest.raises(LineageError) as refused:
            older(*among, decision=decided(listed(1)))
        assert foreign.ref in refused.value.what
        assert f"exactsink recover JOB.toml --sweep-token {foreign.token}" in refused.value.next
        assert "another name" in refused.value.next


def test_a_later_claim_in_the_log_does_not_make_its_work_older_than_mine() -> None:
    later = Claim(4, "dd", "host:4", "query", "aa", seq=9)
    log = Log(last_seq=9, anchors=(*CLAIMS, later))
    with pytest.raises(LineageError):
        undecided_before(log, MINE, "a", [listed(generation=4, token="dd")])


def test_what_is_decided_needs_no_claim_to_be_kept() -> None:
    """A decision proves itself; whoever began it, it is committed and never swept."""
    assert older(mine(), decision=decided(mine())) == []


# what an operator has sweep_tokens


def test_work_of_a_foreign_token_is_undecided_once_the_operator_names_it_and_only_then() -> None:
    foreign, ahead = listed(2, token="ff"), listed(3, generation=9, token="ff")
    for named in ((), ("fe",), ("",), ("f",)):
        with pytest.raises(LineageError):
            older(listed(1), foreign, sweep_tokens=named)
    assert older(listed(1), foreign, ahead, sweep_tokens=("ff",)) == [listed(1), foreign, ahead]


def test_a_foreign_token_that_the_operator_has_not_named_stops_the_start_beside_one_that_he_has() -> None:
    with pytest.raises(LineageError) as refused:
        older(listed(2, token="ff"), listed(3, token="fe"), sweep_tokens=("ff",))
    assert "--sweep-token fe" in refused.value.next


@pytest.mark.parametrize("own", [mine(), listed(generation=4, token="dd")], ids=["my claim", "a later claim"])
def test_a_claim_that_stands_in_this_journal_is_never_sweep_tokens(own: InDoubt) -> None:
    later = Claim(4, "dd", "host:4", "query", "aa", seq=9)
    log = Log(last_seq=9, anchors=(*CLAIMS, later))
    with pytest.raises(LineageError):
        undecided_before(log, MINE, "a", [own], frozenset({own.token}))


def test_disowning_an_older_claim_of_this_journal_changes_nothing() -> None:
    winner, loser = listed(1), listed(2)
    assert older(winner, loser, decision=decided(winner), sweep_tokens=("bb",)) == [loser]


def test_what_is_decided_is_kept_though_its_token_is_sweep_tokens() -> None:
    """A journal that went back in time and on again may name in its decision what it holds no claim of."""
    foreign, other = listed(1, token="ff"), listed(2, token="ff")
    assert older(foreign, other, decision=decided(foreign), sweep_tokens=("ff",)) == [other]


# my own losers


def test_my_losing_attempts_up_to_the_decided_epoch_are_undecided() -> None:
    winner, loser, earlier, untold = mine(1), mine(2), mine(3, epoch=4), mine(4, epoch=None)
    assert losers(decided(winner), winner, loser, earlier, untold) == [loser, earlier, untold]


def test_later_epochs_are_kept() -> None:
    """Their tasks may be at work, or may have voted."""
    assert losers(decided(mine(1)), mine(2, epoch=6), mine(3, epoch=99)) == []


def test_other_generations_and_tokens_are_kept() -> None:
    others = [listed(2), listed(2, generation=4, token="dd"), listed(2, generation=3, token="ff")]
    assert losers(decided(mine(1)), *others) == []


# the sweep


class Fake(IdleCommitter):
    def __init__(self, *participants: InDoubt) -> None:
        self.participants = participants
        self.aborted: list[list[InDoubt]] = []

    def abort(self, undecided: Undecided) -> None:
        self.aborted.append(list(undecided))

    def in_doubt(self) -> Iterable[InDoubt]:
        return iter(self.participants)


def test_a_sweep_of_older_claims_aborts_each_sinks_undecided_at_once_and_reports() -> None:
    reported: list[Event] = []
    a, b, idle = Fake(listed(1), listed(2), listed(3)), Fake(listed(1)), Fake()
    log = Log(last_seq=8, anchors=CLAIMS, decision=decided(listed(2)))
    sweep_older({"a": a, "b": b, "idle": idle}, log, MINE, Events("job", [reported.append]))
    assert (a.aborted, b.aborted, idle.aborted) == ([[listed(1), listed(3)]], [[listed(1)]], [])
    assert [(e.name, e.fields["sink"], e.fields["participants"]) for e in reported] == [
        ("swept", "a", 2),
        ("in_doubt", "a", 1),  # the decided one, which is committed by now or will be
        ("swept", "b", 1),
        ("in_doubt", "b", 0),
        ("in_doubt", "idle", 0),
    ]


@pytest.mark.parametrize("order", [("clean", "foreign"), ("foreign", "clean")], ids=str)
def test_a_sweep_aborts_nobody_while_one_sink_holds_another_journals_work(order: tuple[str, str]) -> None:
    sinks = {"clean": Fake(listed(1)), "foreign": Fake(listed(token="ff"))}
    with pytest.raises(LineageError, match="sink foreign"):
        sweep_older({name: sinks[name] for name in order}, Log(last_seq=8, anchors=CLAIMS), MINE, Events("job"))
    assert sinks["clean"].aborted == sinks["foreign"].aborted == []


def test_a_sweep_aborts_sweep_tokens_work_with_the_older_claims_in_every_sink() -> None:
    a, b = Fake(listed(1), listed(2, token="ff")), Fake(listed(3, token="ff"))
    sweep_older({"a": a, "b": b}, Log(last_seq=8, anchors=CLAIMS), MINE, Events("job"), frozenset({"ff"}))
    assert (a.aborted, b.aborted) == ([[listed(1), listed(2, token="ff")]], [[listed(3, token="ff")]])


def test_a_sweep_of_my_losers_aborts_only_them() -> None:
    a = Fake(mine(1), mine(2), listed(3), mine(4, epoch=6))
    idle = Fake(mine(4, epoch=6))
    sweep_losers({"a": a, "idle": idle}, decided(mine(1)), MINE, Events("job"))
    assert (a.aborted, idle.aborted) == ([[mine(2)]], [])
