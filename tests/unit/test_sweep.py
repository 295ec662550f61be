"""Who is proven undecided, and that the sweep aborts those and nobody else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from tests.unit.fakes import IdleCommitter

from exactsink.contract import Committable, Event, Fenced, InDoubt, LineageError, Txn, Undecided
from exactsink.operate.refusals import check_old
from exactsink.protocol.events import Events
from exactsink.protocol.journal.log import Decision, Log, undecided_before, undecided_losers
from exactsink.protocol.journal.records import Claim, DecidedSink, Note
from exactsink.protocol.sweep import Sweep

MINE = Claim(3, "cc", "host:3", "query", "aa", seq=8)
CLAIMS = (Claim(1, "aa", "host:1", "query", "aa", seq=0), Claim(2, "bb", "host:2", "query", "aa", seq=4), MINE)


LATER_CLAIM = Claim(4, "ee", "host:4", "query", "aa", seq=9)


def listed(attempt: int = 7, epoch: int | None = 5, generation: int = 2, token: str = "bb") -> InDoubt:
    """A participant of sink a as its backend lists it, begun by the claim before mine if nothing else is said."""
    txn = Txn("job", 0 if epoch is None else epoch, "a", generation, token, attempt, attempt)
    return replace(InDoubt.of(txn), epoch=epoch)


def mine(attempt: int = 7, epoch: int | None = 5) -> InDoubt:
    return listed(attempt, epoch, MINE.generation, MINE.token)


LATER = listed(generation=4, token="ee")


def decided(*participants: InDoubt, sink: str = "a", store_ref: str | None = None) -> Decision:
    """Epoch 5, decided with these."""
    txns = [Txn.parse(participant.ref) for participant in participants]
    committables = tuple(Committable(txn, 1, b"", store_ref=store_ref) for txn in txns if txn is not None)
    assert len(committables) == len(participants)
    return Decision(5, "input", {sink: DecidedSink("b", "s", "t", committables)}, (7,))


def older(*participants: InDoubt, decision: Decision | None = None, sweep_tokens: Iterable[str] = ()) -> list[InDoubt]:
    """Return who is proven undecided in sink a; the log holds a note, and a later claim than mine."""
    log = Log(last_seq=9, anchors=(CLAIMS[0], Note("swept", seq=2), *CLAIMS[1:], LATER_CLAIM), decision=decision)
    return list(undecided_before(log, MINE, "a", participants, frozenset(sweep_tokens)))


# what older claims left


def test_what_older_claims_began_is_undecided_when_nothing_was_decided() -> None:
    begun = [listed(1, 0, 1, "aa"), listed(2), listed(3, epoch=99), listed(4, epoch=None)]
    assert older(*begun) == begun
    assert len(undecided_before(Log(last_seq=8, anchors=CLAIMS), MINE, "a", begun)) == len(begun)
    assert older() == []


def test_what_is_decided_is_kept_and_its_losing_attempts_are_not() -> None:
    winner, loser = listed(1), listed(2)
    assert older(winner, loser, decision=decided(winner)) == [loser]
    assert older(winner, decision=decided(winner, sink="b")) == [winner]  # another sink's decision keeps nobody
    assert older(mine(), decision=decided(mine())) == []  # a decision proves itself, whoever began it
    pooled = replace(listed(), ref="pool-3#17")  # known by the store's name for it
    assert older(pooled, listed(), decision=decided(listed(), store_ref="pool-3#17")) == [listed()]


FOREIGN = {
    "an unknown token": listed(token="ff"),
    "a known token with another generation": listed(generation=1, token="bb"),
    "a generation that never claimed": listed(generation=0, token="00"),
    "my own claim, which has begun nothing yet": mine(),
    "a later claim": listed(generation=4, token="dd"),
    "a later claim that stands in the log": LATER,
}


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN)
def test_what_no_older_claim_of_this_journal_began_stops_the_start(foreign: InDoubt) -> None:
    for among in ([foreign], [listed(1), foreign], [foreign, listed(1)]):
        with pytest.raises(LineageError) as refused:
            older(*among, decision=decided(listed(1)))
        assert foreign.ref in refused.value.what
        assert f"exactsink recover JOB.toml --sweep-token {foreign.token}" in refused.value.next
        assert "another name" in refused.value.next


# tokens that an operator has named


def test_work_of_a_foreign_token_is_undecided_once_the_operator_names_it_and_only_then() -> None:
    foreign, ahead = listed(2, token="ff"), listed(3, generation=9, token="ff")
    for named in ((), ("fe",), ("",), ("f",)):
        with pytest.raises(LineageError, match="begun under a claim"):
            older(listed(1), foreign, sweep_tokens=named)
    with pytest.raises(LineageError) as refused:
        older(foreign, listed(3, token="fe"), sweep_tokens=("ff",))
    assert refused.value.next.endswith("recover JOB.toml --sweep-token fe --sweep-token ff --dry-run"), (
        "it sweeps all, or none"
    )
    assert older(listed(1), foreign, ahead, sweep_tokens=("ff",)) == [listed(1), foreign, ahead]


@pytest.mark.parametrize(("age", "said"), [(59.0, "59 s old"), (-5.0, "-5 s old"), (None, "of unknown age")])
def test_foreign_work_that_may_be_young_is_left_to_its_driver(age: float | None, said: str) -> None:
    old = replace(listed(1), age_seconds=60.0)
    check_old([old])
    with pytest.raises(Fenced, match=f"{said}: its driver may be running"):
        check_old([old, replace(listed(2), age_seconds=age)])


@pytest.mark.parametrize("own", [mine(), LATER], ids=["my claim", "a later claim"])
def test_a_claim_that_stands_in_this_journal_is_not_swept_by_name(own: InDoubt) -> None:
    with pytest.raises(LineageError):
        older(own, sweep_tokens=(own.token,))


@pytest.mark.parametrize("token", ["bb", "ff"], ids=["an older claim's", "a foreign one"])
def test_what_is_decided_is_kept_though_its_token_is_named(token: str) -> None:
    """A journal that went back in time and on again may name in its decision what it holds no claim of."""
    winner, loser = listed(1, token=token), listed(2, token=token)
    assert older(winner, loser, decision=decided(winner), sweep_tokens=(token,)) == [loser]


# my own losers


def test_only_my_losing_attempts_up_to_the_decided_epoch_are_undecided() -> None:
    """Later epochs' tasks may be at work, or may have voted; a fenced driver's tasks may begin at any time."""
    winner, lost = mine(1), [mine(2), mine(3, epoch=4), mine(4, epoch=None), listed(2, epoch=99)]
    others = [listed(2, generation=4, token="dd"), listed(2, generation=3, token="ff"), listed(2, token="ff"), LATER]
    later = [mine(2, epoch=6), mine(3, epoch=99)]
    log = Log(last_seq=9, anchors=(*CLAIMS, LATER_CLAIM), decision=decided(winner))
    assert list(undecided_losers(log, MINE, "a", [winner, *lost, *others, *later])) == lost
    assert list(undecided_losers(replace(log, decision=None), MINE, "a", [*others, *later])) == []


# the sweep


def read_already() -> Log:
    raise AssertionError("a whole log is not read again")


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
    Sweep(Events("job", [reported.append]), read_already).older({"a": a, "b": b, "idle": idle}, log, MINE)
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
    committers, log = {name: sinks[name] for name in order}, Log(last_seq=8, anchors=CLAIMS)
    with pytest.raises(LineageError, match="sink foreign"):
        Sweep(Events("job"), read_already).older(committers, log, MINE)
    assert sinks["clean"].aborted == sinks["foreign"].aborted == []
    Sweep(Events("job"), read_already).older(committers, log, MINE, frozenset({"ff"}))
    assert (sinks["clean"].aborted, sinks["foreign"].aborted) == ([[listed(1)]], [[listed(token="ff")]])


def test_a_sweep_of_my_losers_aborts_only_them() -> None:
    a, idle = Fake(mine(1), mine(2), listed(3), mine(4, epoch=6)), Fake(mine(4, epoch=6))
    log = Log(last_seq=8, anchors=CLAIMS, decision=decided(mine(1)))
    Sweep(Events("job"), read_already).losers({"a": a, "idle": idle}, log, MINE)
    assert (a.aborted, idle.aborted) == ([[mine(2), listed(3)]], [])


def test_what_stays_in_doubt_over_two_epochs_is_a_warning_once() -> None:
    reported: list[Event] = []
    sweep, log = (
        Sweep(Events("job", [reported.append]), read_already),
        Log(last_seq=8, anchors=CLAIMS, decision=decided(mine(1))),
    )
    foreign, gone = listed(token="ff"), listed(8, token="ff")
    for fake in (Fake(foreign, gone), *[Fake(foreign)] * 3, Fake(), Fake(gone)):
        sweep.losers({"a": fake}, log, MINE)
    warned = [event.fields for event in reported if event.name == "in_doubt_long"]
    assert warned == [{"sink": "a", "participant": foreign.ref}]
