"""Committing a decision in every sink: each gets its turn, and what came of it is never passed over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from tests.unit.fakes import IdleCommitter

from exactsink.contract import (
    AlreadyCommitted,
    Committable,
    Committed,
    Committer,
    Event,
    ExactsinkError,
    Fatal,
    InDoubtError,
    LineageError,
    Lost,
    Outcome,
    Retryable,
    Txn,
    Unknown,
)
from exactsink.protocol.commit import CommitCalls, Retry, all_before, in_threads
from exactsink.protocol.events import Events
from exactsink.protocol.journal.log import Decision
from exactsink.protocol.journal.records import DecidedSink
from exactsink.protocol.reach import OutcomeUnknown

OK, AGAIN = Committed(), AlreadyCommitted()
Answer = Sequence[Outcome] | Exception | Callable[[], Sequence[Outcome]]


class Fake(IdleCommitter):
    """A committer that gives scripted answers and reports what it was asked."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[int, Sequence[Committable]]] = []

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        self.asked.append((epoch, committables))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer


def a_decision(**counts: int) -> Decision:
    """Epoch 5, with so many committables in each sink."""
    sinks = {
        name: DecidedSink(
            "b", "s", "t", tuple(Committable(Txn("job", 5, name, 2, "bb", n, n), 1, b"") for n in range(count))
        )
        for name, count in counts.items()
    }
    return Decision(5, "input", sinks, (9,))


class Run:
    """One commit, with what it waited and reported."""

    def __init__(self, attempts: int = 3, **after: tuple[str, ...]) -> None:
        self.before = all_before(after)
        self.compared: list[str] = []
        self.resolved: dict[str, dict[str, str]] = {}
        self.contradicted = ""
        self.waits: list[int] = []
        self.reported: list[Event] = []
        self.retry = Retry(attempts, self.waits.append)

    def __call__(
        self, decision: Decision, *, source_done: bool = False, **committers: Committer
    ) -> Mapping[str, Sequence[Committable]]:
        events = Events("job", [self.reported.append])
        calls = CommitCalls(events, self.retry, self.compared.append, self.resolved, self.before, self.possible)
        left = calls.commit(decision, committers, in_threads, source_done=source_done)
        self.held_back = left.held_back
        return left.lost

    def possible(self, sink: str, found: Sequence[Outcome]) -> Sequence[Outcome]:
        return [Unknown(self.contradicted) if self.contradicted and isinstance(o, Lost) else o for o in found]

    def fields(self, name: str) -> list[dict[str, Any]]:
        return [dict(event.fields) for event in self.reported if event.name == name]


def test_every_sink_commits_its_whole_set_once() -> None:
    run, decision, a, b = Run(), a_decision(a=2, b=1), Fake([OK, AGAIN]), Fake([OK])
    assert run(decision, a=a, b=b) == {}
    assert a.asked == [(5, decision.committables("a"))]
    assert b.asked == [(5, decision.committables("b"))]
    assert run.waits == []


def test_a_sink_without_committables_is_done_unasked_and_one_that_is_not_decided_is_left_alone() -> None:
    run, empty, foreign = Run(), Fake(), Fake()
    assert run(a_decision(empty=0, b=1), empty=empty, foreign=foreign, b=Fake([OK])) == {}
    assert empty.asked == foreign.asked == []
    assert {(e.name, e.edge, e.epoch) for e in run.reported} == {
        (f"commit:{sink}", edge, 5) for sink in ("empty", "b") for edge in ("before", "after")
    }


def test_sinks_are_committed_side_by_side() -> None:
    meeting = threading.Barrier(3, timeout=30)  # broken, and the commit fails, if one waits for another

    def meet() -> Sequence[Outcome]:
        meeting.wait()
        return [OK]

    assert Run()(a_decision(a=1, b=1, c=1), a=Fake(meet), b=Fake(meet), c=Fake(meet)) == {}


def test_all_sinks_are_committed_though_one_fails() -> None:
    a, b, c = Fake([OK]), Fake(Fatal("no such table")), Fake(Retryable("busy"), [OK])
    run = Run()
    with pytest.raises(Fatal, match="no such table"):
        run(a_decision(a=1, b=1, c=1), a=a, b=b, c=c)
    assert [len(fake.asked) for fake in (a, b, c)] == [1, 1, 2]
    assert {e.name for e in run.reported if e.edge == "after"} == {"commit:a", "commit:c"}


def test_a_retryable_error_is_tried_again_after_a_pause_and_raised_when_it_stays() -> None:
    run, a = Run(attempts=3), Fake(Retryable("busy", why="503", next="wait"), Retryable("still busy"), [OK])
    assert run(a_decision(a=1), a=a) == {}
    assert (run.waits, run.compared) == ([0, 1], ["a"] * 3), "each try may be in another session"
    assert run.fields("commit_retried") == [
        {"sink": "a", "attempt": 1, "error": "busy: 503"},
        {"sink": "a", "attempt": 2, "error": "still busy"},
    ]
    stays = Fake(*[Retryable(f"busy {n}") for n in range(3)])
    with pytest.raises(Retryable, match="busy 2"):
        run(a_decision(a=1), a=stays)
    assert (len(stays.asked), run.waits) == (3, [0, 1, 0, 1])


@pytest.mark.parametrize("error", [Fatal("f"), LineageError("l"), InDoubtError("i"), ValueError("v")], ids=repr)
def test_any_other_error_is_not_tried_again(error: Exception) -> None:
    a = Fake(error, [OK])
    with pytest.raises(type(error)):
        Run()(a_decision(a=1), a=a)
    assert len(a.asked) == 1


UNKNOWN = [Unknown("offset 7 is deleted")]
GRAVER = [
    (InDoubtError("i"), ValueError("a bug")),
    (ValueError("a bug"), Fatal("f")),
    (Fatal("f"), Retryable("r")),
    (LineageError("l"), Retryable("r")),
    (UNKNOWN, Retryable("r")),
    (UNKNOWN, ValueError("a bug")),
]


@pytest.mark.parametrize(("graver", "lighter"), GRAVER, ids=str)
def test_of_several_sinks_errors_the_gravest_is_raised(graver: Answer, lighter: Exception) -> None:
    """A retry restarts the job, so it must not stand before what a person has to fix."""
    expected = type(graver) if isinstance(graver, Exception) else InDoubtError
    for first, second in ((graver, lighter), (lighter, graver)):
        with pytest.raises(Exception) as raised:  # noqa: PT011 - which one it is, is what is asked
            Run(attempts=1)(a_decision(a=1, b=1), a=Fake(first), b=Fake(second))
        assert isinstance(raised.value, expected)
        assert isinstance(raised.value, type(graver) if isinstance(graver, Exception) else OutcomeUnknown)


def test_an_unknown_outcome_stops_with_its_evidence_unless_the_source_has_done_the_epoch() -> None:
    run = Run()
    with pytest.raises(InDoubtError, match="1 participants of sink a are in doubt") as stopped:
        run(a_decision(a=2), a=Fake([OK, *UNKNOWN]))
    assert stopped.value.why == "offset 7 is deleted"
    assert stopped.value.next
    assert run.fields("evidence_expired") == []
    assert run(a_decision(a=2), a=Fake([OK, *UNKNOWN]), source_done=True) == {}
    assert run.fields("evidence_expired") == [{"sink": "a", "evidence": "offset 7 is deleted"}]


@pytest.mark.parametrize(("word", "lost"), [("committed", [1]), ("lost", [0, 1]), ("given-up", [0, 1])])
def test_an_operators_word_is_taken_for_what_is_unknown_and_not_for_what_is_proven(word: str, lost: list[int]) -> None:
    run, decision = Run(), a_decision(a=3)
    votes = decision.committables("a")
    run.resolved = {"a": dict.fromkeys((vote.ref for vote in votes), word)}
    found = run(decision, a=Fake([*UNKNOWN, Lost("timed out"), OK])).get("a", [])
    assert found == [votes[number] for number in lost]


@pytest.mark.parametrize("word", [None, "lost", "committed"])
def test_what_its_target_contradicts_is_not_lost_whatever_is_found_or_said(word: str | None) -> None:
    run, decision = Run(), a_decision(a=2)
    run.contradicted = "2 of them show"
    run.resolved = {"a": {vote.ref: word for vote in decision.committables("a") if word}}
    with nullcontext() if word == "committed" else pytest.raises(InDoubtError, match="1 participants of sink a"):
        assert run(decision, a=Fake([Lost("timed out"), OK])) == {}


def test_lost_votes_are_collected_by_sink_and_reported_with_their_evidence() -> None:
    run, decision = Run(), a_decision(a=3, b=1, c=1)
    a = Fake([Lost("timed out"), OK, Lost("aborted")])
    lost = run(decision, a=a, b=Fake([OK]), c=Fake([Lost("timed out")]))
    first, _, third = decision.committables("a")
    assert lost == {"a": [first, third], "c": list(decision.committables("c"))}
    assert [(reported["txn"], reported["evidence"]) for reported in run.fields("vote_lost")] == [
        (first.txn.id, "timed out"),
        (third.txn.id, "aborted"),
        (decision.committables("c")[0].txn.id, "timed out"),
    ]


# one sink after another


class Ordered(Run):
    """Lines come after orders, which come after customers; pages come after nobody, notes after a sink that is gone."""

    def __init__(self, attempts: int = 1) -> None:
        super().__init__(attempts, lines=("orders",), orders=("customers",), notes=("gone",), gone=("customers",))

    def commit(self, *, source_done: bool = False, **answers: Answer) -> list[str]:
        """Commit a set of one in each sink; return who was asked, in which order."""
        asked: list[str] = []

        def answering(name: str) -> Callable[[], Sequence[Outcome]]:
            def answer() -> Sequence[Outcome]:
                asked.append(name)
                given = answers.get(name, [OK])
                if isinstance(given, Exception):
                    raise given
                return given() if callable(given) else given

            return answer

        names = ("lines", "orders", "customers")
        try:
            committers = {name: Fake(answering(name)) for name in names}
            self.lost = self(a_decision(**dict.fromkeys(names, 1)), source_done=source_done, **committers)
        except ExactsinkError:
            self.lost = {}
        return asked


def test_a_sink_is_committed_after_those_that_it_comes_after() -> None:
    assert Ordered().commit() == ["customers", "orders", "lines"]


@pytest.mark.parametrize("stays", [Fatal("f"), Retryable("r"), UNKNOWN, [Lost("timed out")]], ids=str)
def test_a_sink_is_not_tried_before_those_that_it_comes_after_are_committed(stays: Answer) -> None:
    run = Ordered()
    assert run.commit(customers=stays) == ["customers"]
    waiting = {fields["sink"]: fields["after"] for fields in run.fields("commit_held_back")}
    assert waiting == {"orders": "customers", "lines": "customers"}
    assert run.commit(orders=stays) == ["customers", "orders"]


def test_what_the_source_has_done_is_no_reason_to_wait_and_what_is_gone_keeps_its_place() -> None:
    assert Ordered().commit(source_done=True, customers=UNKNOWN) == ["customers", "orders", "lines"]
    assert Ordered().commit(source_done=True, customers=[Lost("timed out")]) == ["customers"], "nobody has its rows"
    run = Ordered()
    with pytest.raises(Fatal):
        run(a_decision(notes=1, customers=1), notes=Fake(), customers=Fake(Fatal("f")))
    assert run.fields("commit_held_back") == [{"sink": "notes", "after": "customers"}]
