"""Each answer of a coordinator to a commit, and what it is taken for: never more than it proves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import pytest

from exactsink.contract import (
    AlreadyCommitted,
    Committable,
    Committed,
    Committer,
    ExactsinkError,
    Fatal,
    InDoubt,
    JobContext,
    Lost,
    Retryable,
    Txn,
    Unknown,
)
from exactsink.testing import Session
from exactsink_kafka.backend import KafkaBackend
from exactsink_kafka.committer import KafkaCommitter
from exactsink_kafka.messages import Described, OpenProducer, Seen, Topic
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.transactions import PAYLOAD_VERSION, Transaction, Voted, Written

ID = "orders.out.g3-ab.s1"
OURS = Transaction(ID, 7, 4)
VOTE = Voted(OURS, "here", (Written("rows", "id-of-rows", {0: 10, 1: 20}),))
OPEN, DONE = ("Ongoing", 7, 4), ("CompleteCommit", 7, 5)
VISIBLE = Seen(0, 0, 100, (7, 4), frozenset())
ABORTED = Seen(0, 0, 100, (7, 4), frozenset({(7, 10)}))
HELD = Seen(0, 0, 5, None, frozenset())
DELETED = Seen(1, 50, 100, None, frozenset())
NO_TOPIC = Seen(100, -1, -1, None, frozenset())


@dataclass
class Scripted:
    """A wire that answers as scripted: states one after the other (the last one stays), one look for all."""

    code: int = 0
    states: list[tuple[str, int, int] | None] = field(default_factory=lambda: [("Ongoing", 7, 4)])
    seen: Mapping[int, Seen] | Seen = VISIBLE
    topic: str | None = "id-of-rows"
    writers: Mapping[tuple[str, int], Sequence[OpenProducer]] = field(default_factory=dict)
    after: Mapping[tuple[str, int], Sequence[OpenProducer]] = field(default_factory=dict)
    silent: list[set[tuple[str, int]]] = field(default_factory=lambda: [set()])
    marking: int = 0
    marked: list[tuple[Transaction, tuple[str, int], int, bool]] = field(default_factory=list)
    ended: list[tuple[Transaction, bool]] = field(default_factory=list)
    looked: list[tuple[str, int, int]] = field(default_factory=list)

    def ask(self, *questions: Callable[[], Any]) -> list[Any]:
        return [question() for question in questions]

    def about_cluster(self) -> Callable[[], Any]:
        return lambda: "here"

    def about_transactions(self, ids: Iterable[str]) -> Callable[[], Any]:
        return partial(self.describe, list(ids))

    def about_topics(self, names: Iterable[str]) -> Callable[[], Any]:
        return partial(self.topics, names)

    def about_writers(self, partitions: Iterable[tuple[str, int]]) -> Callable[[], Any]:
        return partial(self.open_now, partitions)

    def close(self) -> None:
        """Nothing is open."""

    def describe(self, ids: Iterable[str]) -> Mapping[str, Described]:
        if not set(ids):
            return {}
        state = self.states[0]
        if len(self.states) > 1:
            self.states.pop(0)
        return {} if state is None else {ID: Described(Transaction(ID, *state[1:]), state[0], 60.0, None, ())}

    def end(self, transactions: Sequence[Transaction], *, commit: bool) -> Sequence[int]:
        self.ended += [(one, commit) for one in transactions]
        return [self.code for _ in transactions]

    def mark(self, ended: Transaction, place: tuple[str, int], coordinator_epoch: int, *, commit: bool) -> int:
        if self.marking == 0:
            self.marked.append((ended, place, coordinator_epoch, commit))
        return self.marking

    def look(self, topic_id: str, partition: int, offset: int) -> Seen:
        self.looked.append((topic_id, partition, offset))
        return self.seen if isinstance(self.seen, Seen) else self.seen[partition]

    def topics(self, names: Iterable[str]) -> Mapping[str, Topic]:
        return {name: Topic(name, self.topic, (0, 1)) for name in names if self.topic is not None}

    def open_now(self, partitions: Iterable[tuple[str, int]]) -> Mapping[tuple[str, int], Sequence[OpenProducer]]:
        """Before the end, who is not in `writers` does not answer; after it, those in `silent` don't, some times."""
        if not self.ended:
            return {place: self.writers[place] for place in partitions if place in self.writers}
        away = self.silent.pop(0) if len(self.silent) > 1 else self.silent[0]
        return {place: self.after.get(place, ()) for place in partitions if place not in away}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exactsink_kafka.committer._RESOLVE_SECONDS", 0.0)
    monkeypatch.setattr("exactsink_kafka.committer._MARKERS_SECONDS", 0.05)
    monkeypatch.setattr("exactsink_kafka.outcomes.MARKER_SECONDS", 0.05)


class Backend(KafkaBackend):
    """The backend, with a scripted wire for each committer."""

    def __init__(self, wire: Scripted) -> None:
        super().__init__(KafkaOptions(bootstrap_servers="b:9092", topic="rows"))
        self.wire = wire

    def committer(self, ctx: JobContext) -> Committer:
        made = KafkaCommitter(self.options, ctx)
        made._wire = self.wire  # type: ignore[assignment]
        return made


def session(wire: Scripted) -> Session:
    return Session(Backend(wire), JobContext("orders", "out", "", generation=3), "ab")


def committed(wire: Scripted, vote: Voted = VOTE) -> Any:
    txn = Txn("orders", 0, "out", 3, "ab", 0, 1)
    [outcome] = session(wire).commit(
        0, [Committable(txn, 4, vote.dump(), PAYLOAD_VERSION, store_ref=vote.transaction.ref)]
    )
    return outcome


def test_an_open_transaction_is_committed_and_waited_for_until_its_markers_are_written() -> None:
    ending = ("PrepareCommit", 7, 5)
    wire = Scripted(states=[("Ongoing", 7, 4), ending, ending, ("CompleteCommit", 7, 5)])
    assert committed(wire) == Committed()
    assert wire.ended == [(OURS, True)]
    assert len(wire.states) == 1


def test_markers_that_do_not_come_are_no_commit_yet() -> None:
    wire = Scripted(states=[("Ongoing", 7, 4), ("PrepareCommit", 7, 5)])
    with pytest.raises(Retryable, match="ended, but not yet for readers") as raised:
        committed(wire)
    assert "the epoch is decided" in raised.value.why


NO_WORD = [("CompleteAbort", 7, 6), ("CompleteAbort", 7, 3), ("CompleteAbort", 8, 5), ("CompleteCommit", 7, 6)]
NO_WORD += [("CompleteCommit", 8, 4), ("Empty", 7, 4), ("Empty", 7, 5), ("Ongoing", 7, 4), ("Dead", 7, 4)]
FORGOTTEN = [("CompleteAbort", 7, 5), DONE, ("Empty", 7, 6), None]
READ = [(VISIBLE, AlreadyCommitted), (ABORTED, Lost), (DELETED, Unknown)]
ANSWERS: dict[str, list[tuple[int, list[Any], Seen, type]]] = {
    "a success for what was not open was an earlier call's": [
        (0, [before, DONE], seen, AlreadyCommitted)
        for before in (DONE, ("PrepareCommit", 7, 5), ("Ongoing", 7, 6), None)
        for seen in (VISIBLE, HELD, DELETED, NO_TOPIC)
    ],
    "a success for rows that are aborted is none": [(0, [DONE], ABORTED, Lost)],
    "an abort of this very use is proof of loss": [
        (48, [(state, 7, epoch)], seen, Lost)
        for state, epoch in product(("CompleteAbort", "PrepareAbort"), (4, 5))
        for seen in (ABORTED, HELD, DELETED, NO_TOPIC)
    ],
    "what readers see is stronger than an abort": [(48, [("CompleteAbort", 7, 5)], VISIBLE, AlreadyCommitted)],
    "a commit by another version was an earlier call's": [
        (48, [(state, 7, epoch)], DELETED, AlreadyCommitted)
        for state, epoch in product(("CompleteCommit", "PrepareCommit"), (4, 5))
    ],
    "an invalid state that is not of this use is settled by reading": [
        (48, [state], *read) for state, read in product([*NO_WORD, None], READ)
    ],
    "a use that the coordinator knows no more is settled by reading alone": [
        (code, [state], *read) for code, state, read in product((47, 49, 90), FORGOTTEN, READ)
    ],
}


@pytest.mark.parametrize("rule", ANSWERS)
def test_an_answer_is_taken_for_no_more_than_it_proves(rule: str) -> None:
    for code, states, seen, taken in ANSWERS[rule]:
        outcome = committed(Scripted(code, list(states), seen))
        assert isinstance(outcome, taken), (code, states, seen)
        if isinstance(outcome, Lost | Unknown):
            assert OURS.ref in outcome.evidence
            assert f"({code})" in outcome.evidence or isinstance(outcome, Lost)


SAYS = {14: "COORDINATOR_LOAD_IN_PROGRESS", 15: "COORDINATOR_NOT_AVAILABLE", 16: "NOT_COORDINATOR", -1: "UNKNOWN"}
SAYS |= {51: "CONCURRENT_TRANSACTIONS", 9999: "9999"}
SAYS |= {35: "UNSUPPORTED_VERSION", 53: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"}


@pytest.mark.parametrize("code", SAYS)
def test_any_other_code_ends_the_call_and_says_that_the_epoch_is_decided(code: int) -> None:
    with pytest.raises(ExactsinkError) as raised:
        committed(Scripted(code))
    assert type(raised.value) is (Fatal if code in (35, 53) else Retryable)
    assert raised.value.what.startswith("sink out: commit epoch 0: ")
    assert SAYS[code] in raised.value.why
    assert "the epoch is decided" in raised.value.why
    assert ("kafka-acls.sh --bootstrap-server b:9092 --add" in raised.value.next) == (code == 53)
    assert ("--transactional-id orders.out." in raised.value.next) == (code == 53)


@pytest.mark.parametrize("elsewhere", [DELETED, NO_TOPIC, HELD, Seen(0, 0, 100, None, frozenset())])
def test_one_partition_that_reports_is_enough(elsewhere: Seen) -> None:
    assert committed(Scripted(90, seen={0: elsewhere, 1: VISIBLE})) == AlreadyCommitted()
    lost = replace(ABORTED, aborted=frozenset({(7, 20)}))
    assert isinstance(committed(Scripted(90, seen={0: elsewhere, 1: lost})), Lost)


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (DELETED, "rows-0 from offset 10 was deleted: the partition begins at offset 50 now"),
        (Seen(1, 0, 8, None, frozenset()), "is not there: OFFSET_OUT_OF_RANGE (1), the last stable offset is 8"),
        (NO_TOPIC, "topic rows (id id-of-rows), which holds its rows, was made again, with id another-id"),
        (Seen(0, 0, 100, None, frozenset()), "holds no rows any more: they were compacted away"),
        (Seen(0, 0, 100, (7, 5), frozenset()), "holds rows of producer id 7, epoch 5"),
        (Seen(0, 0, 100, (8, 4), frozenset({(8, 10), (7, 10)})), "holds rows of producer id 8, epoch 4"),
    ],
)
def test_what_proves_nothing_is_reported(seen: Seen, says: str) -> None:
    reported = committed(Scripted(90, [("Empty", 7, 6)], seen, "another-id"))
    assert isinstance(reported, Unknown)
    assert says in reported.evidence
    assert "rows-1 from offset 20" in reported.evidence or seen is NO_TOPIC


STANDS = {("rows", 0): [OpenProducer(7, 4, 10)], ("rows", 1): [OpenProducer(7, 4, 20)]}


@pytest.mark.parametrize(
    ("writers", "topic", "says"),
    [
        ({**STANDS, ("rows", 1): []}, "id-of-rows", "its rows in rows-1 from offset 20 are no longer part of it"),
        ({**STANDS, ("rows", 0): [OpenProducer(7, 4, 11)]}, "id-of-rows", "its rows in rows-0 from offset 10 are no"),
        ({**STANDS, ("rows", 0): [OpenProducer(7, 6, 10)]}, "id-of-rows", "its rows in rows-0 from offset 10 are no"),
        (STANDS, "another-id", "was made again, with id another-id"),
        (STANDS, None, "which holds its rows, was deleted"),
    ],
)
def test_an_open_transaction_that_lacks_rows_is_not_committed(writers: Any, topic: str | None, says: str) -> None:
    wire = Scripted(topic=topic, writers=writers)
    reported = committed(wire)
    assert isinstance(reported, Unknown)
    assert says in reported.evidence
    assert wire.ended == []


@pytest.mark.parametrize("writers", [STANDS, {("rows", 0): STANDS["rows", 0]}, {}])
def test_a_partition_that_can_not_be_asked_holds_no_commit_up(writers: Any) -> None:
    assert committed(Scripted(states=[OPEN, DONE], writers=writers)) == Committed()
    ended_by_another = {**STANDS, ("rows", 1): []}  # its rows are not missing
    for done in (DONE, ("CompleteCommit", 7, 4)):  # an end by an older version does not raise the epoch
        assert committed(Scripted(states=[OPEN, done], writers=ended_by_another)) == Committed()


@pytest.mark.parametrize("lost", [False, True])
def test_a_partition_without_a_leader_after_the_end_may_lack_it(lost: bool) -> None:
    """The coordinator that was killed with its broker may have owed it; nobody looks at this epoch again."""
    states, code = ([("CompleteAbort", 7, 5)], 48) if lost else ([OPEN, DONE], 0)
    away, owed = {("rows", 1)}, {("rows", 1): [OpenProducer(7, 4, 20)]}
    with pytest.raises(Retryable, match=r"(?s)rows-1 may lack the end of a .*--topic rows --unavailable-partitions"):
        committed(Scripted(code, [*states], HELD, after=owed, silent=[away]))
    wire = Scripted(code, [*states], HELD, after=owed, silent=[away, away, set()])
    assert isinstance(committed(wire), Lost if lost else Committed)
    assert [(place, commit) for _, place, _, commit in wire.marked] == [(("rows", 1), not lost)]
    gone = Scripted(48, [("CompleteAbort", 7, 5)], NO_TOPIC, topic=None, silent=[away])
    assert isinstance(committed(gone), Lost), "a topic that was deleted owes nothing"


MISSING = [(OPEN, 0, "CompleteCommit"), (("CompleteAbort", 7, 5), 48, "CompleteAbort")]


@pytest.mark.parametrize(("before", "code", "word"), MISSING)
def test_an_end_that_is_missing_in_a_partition_is_written_there_as_the_coordinator_decided_it(
    before: Any, code: int, word: str
) -> None:
    """Rows that are committed would never be seen; those written again would stand behind the lost ones."""
    open_there = {("rows", 0): [OpenProducer(99, 0, 3)], ("rows", 1): [OpenProducer(7, 4, 20, 5, 3)]}
    wire = Scripted(code, [before, (word, 7, 5)], HELD, writers=STANDS, after=open_there)
    assert isinstance(committed(wire), Lost if code else Committed)
    assert wire.marked == [(Transaction(ID, 7, 5), ("rows", 1), 3, code == 0)]


@pytest.mark.parametrize(("before", "code", "word"), MISSING)
@pytest.mark.parametrize("refused", [31, 1])
def test_a_missing_end_that_may_not_be_written_is_reported_with_what_to_do(
    before: Any, code: int, word: str, refused: int
) -> None:
    open_there = {("rows", 1): [OpenProducer(7, 4, 20)]}
    wire = Scripted(code, [before, (word, 7, 5)], HELD, writers=STANDS, after=open_there, marking=refused)
    with pytest.raises(Retryable, match="in rows-1 from offset 20 is ended, and still open there") as raised:
        committed(wire)
    assert "the epoch is decided" in raised.value.why
    assert ("--operation Alter --cluster" in raised.value.next) == (refused == 31)
    assert ("never abort it manually" in raised.value.next) == (code == 0)
    assert ("abort --topic rows --partition 1 --start-offset 20" in raised.value.next) == (code == 48)


@pytest.mark.parametrize("now", [("CompleteAbort", 7, 5), ("CompleteCommit", 7, 6), ("CompleteCommit", 8, 5), None])
def test_no_end_is_written_that_is_neither_just_answered_nor_the_coordinators_word_now(now: Any) -> None:
    """After the answer it may forget the producer, and ends it no more. Later uses and foreign ones lack no marker."""
    lacking = {("rows", 1): [OpenProducer(7, 4, 20)]}
    wire = Scripted(states=[DONE, DONE, now], seen=HELD, after=lacking)
    if forgotten := now is None or now[1] != 7:
        assert committed(wire) == AlreadyCommitted()
    else:
        with pytest.raises(Retryable, match="still open there"):
            committed(wire)
    assert wire.marked == [(Transaction(ID, 7, 5), ("rows", 1), -1, True)] * forgotten
    wire = Scripted(states=[OPEN, DONE, now], writers=STANDS, after=lacking)
    assert committed(wire) == Committed()
    assert [place for _, place, _, commit in wire.marked if commit] == [("rows", 1)]
    others = {("rows", 0): [OpenProducer(7, 6, 40), OpenProducer(8, 4, 10)]}
    assert committed(Scripted(90, [("Ongoing", 7, 6)], VISIBLE, after=others)) == AlreadyCommitted()


@pytest.mark.parametrize("other", [DELETED, NO_TOPIC, HELD])
def test_rows_behind_an_open_transaction_are_neither_lost_nor_unknown(other: Seen) -> None:
    open_there = {("rows", 0): [OpenProducer(99, 1, 30), OpenProducer(88, 2, 5)]}
    with pytest.raises(Retryable) as raised:
        committed(Scripted(90, seen={0: HELD, 1: other}, after=open_there))
    assert "producer id 88 (epoch 2) holds the last stable offset of rows-0 from offset 10 at 5" in raised.value.why


@pytest.mark.parametrize(
    ("aborted", "lost"),
    [({(7, 10)}, True), ({(7, 9)}, True), ({(7, 11)}, False), ({(8, 10)}, False), ({(8, 10), (7, 12)}, False)],
)
def test_an_aborted_transaction_of_this_producer_that_began_later_is_not_this_one(aborted: Any, lost: bool) -> None:
    reported = committed(Scripted(90, seen={0: Seen(0, 0, 100, (7, 4), frozenset(aborted)), 1: DELETED}))
    assert isinstance(reported, Lost) == lost


def test_the_last_stable_offset_itself_is_not_settled() -> None:
    at = Seen(0, 0, 10, (7, 4), frozenset())
    with pytest.raises(Retryable):
        committed(Scripted(90, seen={0: at, 1: DELETED}))
    assert committed(Scripted(90, seen={0: replace(at, stable=11), 1: DELETED})) == AlreadyCommitted()


def test_a_vote_for_another_cluster_is_not_ended() -> None:
    wire = Scripted()
    reported = committed(wire, replace(VOTE, cluster="elsewhere"))
    assert isinstance(reported, Unknown)
    assert "elsewhere" in reported.evidence
    assert wire.ended == []


UNDECIDED = InDoubt(OURS.ref, 3, "ab")


@pytest.mark.parametrize("code", [0, 47, 48, 49, 90])
def test_an_abort_is_done_when_the_transaction_is_open_no_more(code: int) -> None:
    wire = Scripted(code, [("PrepareAbort", 7, 5), ("CompleteAbort", 7, 5)])
    session(wire).abort(UNDECIDED)
    assert (wire.ended, len(wire.states)) == ([(OURS, False)], 1)


@pytest.mark.parametrize("code", [14, 51, 53, -1])
def test_an_abort_that_is_not_done_is_reported(code: int) -> None:
    with pytest.raises(ExactsinkError, match="sink out: abort 1 undecided") as raised:
        session(Scripted(code)).abort(UNDECIDED)
    assert type(raised.value) is (Fatal if code == 53 else Retryable)
