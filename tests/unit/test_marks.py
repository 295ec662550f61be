"""Marks against what the journal expects: what fits at each look, and what each difference is called."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import pytest
from tests.unit.fakes import IdleBackend, IdleCommitter

from exactsink.contract import (
    AlreadyCommitted,
    BackendOptions,
    Committable,
    ExactsinkError,
    InDoubtError,
    LineageError,
    Lost,
    Mark,
    Traits,
    Txn,
    Unknown,
)
from exactsink.protocol.journal.log import Decision, Log
from exactsink.protocol.journal.records import Claim, DecidedSink, Expected, Resolve
from exactsink.protocol.marks import Marks
from exactsink.protocol.sinks import Sink

MINE = "aa"
CLAIM = Claim(2, "bb", "host", "query", MINE, seq=4)


class Marked(IdleBackend):
    traits, target = Traits(marks=True), "t"


class Unmarked(IdleBackend):
    target = "t"


@dataclass
class Target(IdleCommitter):
    """A target that shows these marks one after the other, the last one for good."""

    shown: list[Mark | None]
    born: list[str] = field(default_factory=list)

    def mark(self) -> Mark | None:
        return self.shown.pop(0) if len(self.shown) > 1 else self.shown[0]

    def put_birth(self) -> Mark:
        self.born.append(MINE)
        return self.shown[-1] or Mark(MINE)


def at(epoch: int, *tokens: str, participants: int | None = None, lineage: str = MINE) -> Mark:
    return Mark(lineage, epoch, frozenset(tokens), participants)


NOW, BEFORE = at(7, "bb", participants=2), at(5, "b1", participants=1)


def decision(epoch: int, votes: int, *expected: Expected) -> Decision:
    committables = tuple(Committable(Txn("job", epoch, "s", 2, "bb", n, n), 1, b"") for n in range(votes))
    sinks = {"s": DecidedSink("b", "idle", "t", committables)}
    return Decision(epoch, "input", sinks, (5,), ("sum",), "", expected)


ROWS = decision(7, 2, Expected("s", "t", NOW, BEFORE))
"""Epoch 7 had rows in the sink, epoch 6 had none, epoch 5 had."""
EMPTY = decision(8, 0, Expected("s", "t", NOW, NOW))
FIRST = decision(0, 2, Expected("s", "t", at(0, "bb", participants=2), Mark(MINE)))


def marks(decided: Decision | None, *shown: Mark | None) -> tuple[Marks, Target, list[int]]:
    target, waits = Target(list(shown)), list[int]()
    log = Log(last_seq=5, anchors=(CLAIM,), decision=decided)
    sink = Sink("s", "b", Marked(BackendOptions()), "")
    return Marks.of({"s": sink}, {"s": target}, lambda: log, waits.append), target, waits


LOOKS = ("check_start", "check_committed", "check_rewrite", "check_commit", "open_epoch")


def look(held: Marks, name: str) -> None:
    arguments: Mapping[str, tuple[object, ...]] = {
        "check_committed": ({},),
        "check_rewrite": ("s", 1),
        "check_commit": ("s",),
    }
    getattr(held, name)(*arguments.get(name, ()))


WHOLE, PART, OLDER, AHEAD = at(7, "bb", participants=2), at(7, "bb", participants=1), BEFORE, at(8, "cc")
FITS: dict[str, tuple[Mark, str]] = {
    "all of the last decision": (WHOLE, "check_start check_committed check_commit open_epoch"),
    "as one": (at(7, "bb"), "check_start check_committed check_rewrite check_commit open_epoch"),
    "without tokens": (at(7), "check_start check_committed check_rewrite check_commit open_epoch"),
    "a part of it": (PART, "check_start check_rewrite check_commit"),
    "more than all of it": (at(7, "bb", participants=3), "check_start check_commit"),
    "the one before": (OLDER, "check_start check_rewrite check_commit"),
    "a part of the one before": (at(5, "b1", participants=0), ""),
    "the empty one between": (at(6, "bb"), ""),
    "a newer one": (AHEAD, ""),
    "a newer one of another journal": (at(8, "cc", lineage="ff"), ""),
    "another history's": (at(7, "bx", participants=2), ""),
    "two histories at once": (at(7, "bb", "bx", participants=2), ""),
    "another history's before": (at(5, "bx", participants=1), ""),
    "another journal's": (at(7, "bb", participants=2, lineage="ff"), ""),
    "a birth": (Mark(MINE), ""),
}


@pytest.mark.parametrize(("shown", "fitting"), FITS.values(), ids=FITS)
def test_a_mark_fits_exactly_where_it_may_stand(shown: Mark, fitting: str) -> None:
    for name in LOOKS:
        held, target, _ = marks(ROWS, shown)
        if name in fitting.split():
            look(held, name)
        else:
            with pytest.raises((LineageError, InDoubtError)):
                look(held, name)
        assert target.born == []


def test_where_all_is_lost_a_mark_that_does_not_count_is_of_rows_that_show() -> None:
    for lost, refused in ((1, False), (2, True)):
        with pytest.raises(InDoubtError, match="--as committed") if refused else nullcontext():
            marks(ROWS, at(7, "bb"))[0].check_rewrite("s", lost)
        found = [*[Lost("gone")] * lost, *[AlreadyCommitted()] * (2 - lost)]
        kept = [type(one) for one in marks(ROWS, at(7, "bb"))[0].possible("s", found)]
        assert kept == [Unknown, Unknown] if refused else [Lost, AlreadyCommitted]


@pytest.mark.parametrize("name", LOOKS)
def test_an_epoch_without_rows_leaves_the_mark_where_it_is(name: str) -> None:
    if name not in ("check_rewrite", "check_commit"):  # which nobody asks of a sink without rows
        look(marks(EMPTY, WHOLE)[0], name)
    with pytest.raises(InDoubtError):
        look(marks(EMPTY, PART)[0], name)
    with pytest.raises(InDoubtError):
        look(marks(EMPTY, OLDER)[0], name)


def test_before_the_first_epoch_with_rows_stands_the_birth() -> None:
    look(marks(FIRST, Mark(MINE))[0], "check_start")
    look(marks(FIRST, Mark(MINE))[0], "check_commit")
    with pytest.raises(InDoubtError):
        look(marks(FIRST, Mark(MINE))[0], "check_committed")
    look(marks(decision(0, 0, Expected("s", "t", Mark(MINE), Mark(MINE))), Mark(MINE))[0], "open_epoch")


DIFFERENCES: dict[str, tuple[Mark | None, type[ExactsinkError], str]] = {
    "none": (None, InDoubtError, "its mark is gone"),
    "another journal's": (at(7, "bb", lineage="ff"), LineageError, "another journal fed this target"),
    "a newer one": (AHEAD, LineageError, "the journal went back in time"),
    "an older one": (OLDER, InDoubtError, "lacks rows of epochs 6 to 7"),
    "a birth": (Mark(MINE), InDoubtError, "lacks rows of epochs 0 to 7"),
    "another history's": (at(7, "bx"), LineageError, "decided twice, in two histories"),
    "a part": (PART, InDoubtError, "lacks participants of epoch 7"),
}


@pytest.mark.parametrize(("shown", "kind", "why"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_a_difference_is_looked_at_again_and_names_both_sides(
    shown: Mark | None, kind: type[ExactsinkError], why: str
) -> None:
    held, _, waits = marks(ROWS, shown)
    with pytest.raises(kind) as refused:
        held.open_epoch()
    assert type(refused.value) is kind
    assert f"sink s: its target holds {shown or 'no mark'}, the journal expects {NOW}" in refused.value.what
    assert why in refused.value.why
    assert "exactsink rebase JOB.toml" in refused.value.next
    assert len(waits) >= 3
    again, _, waits = marks(ROWS, shown, NOW)  # a store whose readers lag a little
    again.open_epoch()
    assert len(waits) == 1


# binding


def test_a_target_without_a_mark_is_bound_before_its_first_epoch_and_only_once() -> None:
    held, target, _ = marks(None, None, Mark(MINE))
    held.check_start()
    assert target.born == []
    held, target, _ = marks(None, None)
    held.open_epoch()
    assert target.born == [MINE]
    assert held.decided(CLAIM, 0, FIRST.sinks) == FIRST.marks
    target.shown = [Mark(MINE)]
    held.open_epoch()
    assert target.born == [MINE]


@pytest.mark.parametrize("shown", [Mark("ff"), at(3, "cc", lineage="ff"), at(3, "bb")], ids=str)
def test_a_target_that_another_journal_feeds_is_not_bound(shown: Mark) -> None:
    """Nor is one that this journal fed, and does not know of any more."""
    for name in ("check_start", "open_epoch"):
        with pytest.raises(LineageError):
            look(marks(None, shown)[0], name)
    held, target, _ = marks(None, None, shown)  # it came between the look and the birth
    target.shown = [None, shown]
    with pytest.raises(LineageError):
        held.open_epoch()


def test_a_target_that_moved_with_its_marks_goes_on_and_a_fresh_one_is_bound() -> None:
    moved = decision(7, 2, Expected("s", "elsewhere", NOW, BEFORE))
    held, target, _ = marks(moved, NOW)
    held.check_start()
    held.open_epoch()
    assert target.born == []
    expected = held.decided(CLAIM, 8, decision(8, 1).sinks)
    assert expected == (Expected("s", "elsewhere", NOW, NOW), Expected("s", "t", at(8, "bb", participants=1), NOW))
    held, target, _ = marks(moved, None)
    held.open_epoch()
    assert target.born == [MINE]
    for shown in (BEFORE, AHEAD, PART):
        with pytest.raises(LineageError):
            marks(moved, shown)[0].check_start()


def test_of_several_targets_the_one_that_was_fed_last_is_the_one_that_may_have_moved() -> None:
    """A sink that came back to a former target: what is expected there is younger than what is expected elsewhere."""
    there, back = Expected("s", "elsewhere", BEFORE, BEFORE), Expected("s", "t", NOW, BEFORE)
    held, _, _ = marks(decision(7, 2, back, there), NOW)
    expected = held.decided(CLAIM, 8, decision(8, 1).sinks)
    assert [mark.target for mark in expected] == ["elsewhere", "t"]
    moved = (replace(mark, target=f"former {mark.target}") for mark in expected)
    held, _, _ = marks(decision(8, 1, *moved), expected[-1].now)
    held.check_start()
    gone = Expected("s", "elsewhere", NOW, BEFORE)
    with pytest.raises(LineageError, match="later epochs went to elsewhere, which has the same mark"):
        marks(decision(7, 2, Expected("s", "t", BEFORE, BEFORE), gone), NOW)[0].check_start()


def test_what_an_operator_resolved_as_committed_stands_as_it_is_found() -> None:
    for outcome, goes_on in (("committed", True), ("lost", False)):
        held, _, _ = marks(ROWS, PART)
        word = Resolve("ada", "", 7, "s", outcome, tuple(ROWS.refs("s")), 2, seq=6)
        log = replace(held.log(), anchors=(CLAIM, word))
        held = replace(held, log=lambda log=log: log)
        if goes_on:
            held.check_committed({})
            held.open_epoch()
            assert held.decided(CLAIM, 8, decision(8, 1).sinks) == (
                Expected("s", "t", at(8, "bb", participants=1), PART),
            )
        else:
            with pytest.raises(InDoubtError):
                held.open_epoch()


def test_a_sink_without_marks_is_not_asked() -> None:
    sink = Sink("s", "b", Unmarked(BackendOptions()), "")
    held = Marks.of({"s": sink}, {"s": IdleCommitter()}, lambda: Log(decision=ROWS), lambda attempt: None)
    for name in LOOKS:
        look(held, name)
    held.trim()
    assert held.decided(CLAIM, 8, decision(8, 1).sinks) == (Expected("s", "t", NOW, NOW),)
