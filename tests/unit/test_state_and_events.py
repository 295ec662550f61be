"""The advisory state file, and events: reported around the protocol's points, and changing nothing of it."""

from __future__ import annotations

import ast
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import exactsink
from exactsink.contract import Event
from exactsink.observe.state import StateFile
from exactsink.protocol.coordinator import State
from exactsink.protocol.events import EVENTS, POINTS, Events

STATE = State(complete_epoch=7, generation=3, driver="host:17", heartbeat=1_790_000_000.5)


# state


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json")
    file.write(STATE)
    assert file.read() == StateFile(tmp_path / "state.json").read() == STATE


def test_before_the_first_epoch_there_is_none_to_report(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json")
    file.write(State(None, 1, "host:1", 0.0))
    assert file.read() == State(None, 1, "host:1", 0.0)


def test_a_state_replaces_the_one_before_whole_and_leaves_nothing_beside(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json")
    file.write(State(6, 3, "host:17" * 1000, 1.0))
    with open(tmp_path / "state.json") as held:  # a reader that opened it before
        file.write(STATE)
        assert json.load(held)["complete_epoch"] == 6
    assert file.read() == STATE
    assert os.listdir(tmp_path) == ["state.json"]


CORRUPT = {
    "empty": b"",
    "cut short": b'{"complete_epoch": 7, "gener',
    "no JSON": b"complete_epoch: 7",
    "no text": b"\xff\xfe\x00",
    "a list": b"[1, 2, 3, 4]",
    "a number": b"7",
    "a field too few": b'{"complete_epoch": 7, "generation": 3, "driver": "d"}',
    "a field too many": b'{"complete_epoch": 7, "generation": 3, "driver": "d", "heartbeat": 1.0, "more": 1}',
}


@pytest.mark.parametrize("data", CORRUPT.values(), ids=CORRUPT)
def test_a_state_that_makes_no_sense_is_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "state.json").write_bytes(data)
    file = StateFile(tmp_path / "state.json")
    assert file.read() is None
    file.write(STATE)
    assert file.read() == STATE


def test_a_state_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert StateFile(tmp_path / "state.json").read() is None
    assert StateFile(tmp_path / "no folder" / "state.json").read() is None
    assert StateFile(tmp_path).read() is None


# events


class Ear:
    """Hears what is reported, as (name, edge, epoch)."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def heard(self) -> list[tuple[str, str, int | None]]:
        return [(event.name, event.edge, event.epoch) for event in self.events]


def test_a_point_is_reported_before_and_after_its_body() -> None:
    ear = Ear()
    with Events("orders", [ear]).point("decide", 7):
        assert ear.heard == [("decide", "before", 7)]
    assert ear.heard == [("decide", "before", 7), ("decide", "after", 7)]
    assert {event.job for event in ear.events} == {"orders"}
    assert list(ear.events[0].fields) == []
    assert ear.events[1].fields["seconds"] >= 0


def test_points_within_points_are_reported_in_their_order() -> None:
    ear = Ear()
    events = Events("orders", [ear])
    with events.point("recommit"), events.point("commit:lake", 7):
        events.report("vote_lost", epoch=7)
    assert ear.heard == [
        ("recommit", "before", None),
        ("commit:lake", "before", 7),
        ("vote_lost", "", 7),
        ("commit:lake", "after", 7),
        ("recommit", "after", None),
    ]


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt()], ids=repr)
def test_a_body_that_fails_has_no_after_and_its_error_goes_on(error: BaseException) -> None:
    ear = Ear()
    with pytest.raises(type(error)) as raised, Events("orders", [ear]).point("decide", 7):
        raise error
    assert raised.value is error
    assert ear.heard == [("decide", "before", 7)]


def test_a_subscriber_that_fails_changes_nothing_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    before, after, done = Ear(), Ear(), []

    def failing(event: Event) -> None:
        raise RuntimeError("my dashboard is down")

    events = Events("orders", [before, failing, after])
    with caplog.at_level(logging.ERROR, logger="exactsink"):
        with events.point("decide", 7):
            done.append("decided")
        events.report("claimed", generation=3)
    assert done == ["decided"]
    assert before.heard == after.heard == [("decide", "before", 7), ("decide", "after", 7), ("claimed", "", None)]
    assert caplog.text.count("RuntimeError: my dashboard is down") == 3


def test_a_subscriber_may_end_the_process_at_a_point() -> None:
    """Fault injection and Ctrl-C come through: only exceptions are a subscriber's own affair."""

    def killing(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Events("orders", [killing]).point("decide", 7):
        pytest.fail("the body ran")


def test_events_are_logged_by_their_weight(caplog: pytest.LogCaptureFixture) -> None:
    events = Events("orders")
    with caplog.at_level(logging.DEBUG, logger="exactsink"):
        events.edge("return", "after", 7)
        events.report("claimed")
        events.report("vote_lost", level=logging.WARNING)
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("DEBUG", "return after job=orders epoch=7"),
        ("INFO", "claimed job=orders"),
        ("WARNING", "vote_lost job=orders"),
    ]


def test_a_log_record_carries_the_event_for_structured_logs(caplog: pytest.LogCaptureFixture) -> None:
    events = Events("orders")
    with caplog.at_level(logging.DEBUG, logger="exactsink"):
        events.report("swept", sink="lake", participants=2)
        events.edge("return", "before", 7, rows={"lake": 3})
    assert [record.__dict__["exactsink"] for record in caplog.records] == [
        {"event": "swept", "job": "orders", "epoch": None, "edge": "", "sink": "lake", "participants": 2},
        {"event": "return", "job": "orders", "epoch": 7, "edge": "before", "rows": {"lake": 3}},
    ]


@pytest.mark.parametrize("listening", [True, False])
def test_a_name_that_is_not_in_the_tables_is_a_mistake_whoever_listens(listening: bool) -> None:
    ear = Ear()
    events = Events("orders", [ear] if listening else [])
    with pytest.raises(ValueError, match="'votes_lost' is no event"):
        events.report("votes_lost", level=logging.DEBUG)
    with pytest.raises(ValueError, match="'decide' is no event"):
        events.report("decide", level=logging.DEBUG)
    with pytest.raises(ValueError, match="'deciding' is no protocol point"):
        events.edge("deciding", "before", 7)
    with pytest.raises(ValueError, match="'claimed' is no protocol point"), events.point("claimed"):
        pytest.fail("the body ran")
    assert ear.heard == []


def test_no_event_is_made_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*args: object) -> Event:
        raise AssertionError(f"an event was made: {args}")

    log = logging.getLogger("exactsink")
    monkeypatch.setattr(log, "level", logging.ERROR)
    log.manager._clear_cache()  # type: ignore[attr-defined]  # as setLevel does
    monkeypatch.setattr("exactsink.protocol.events.Event", made)
    events, done = Events("orders"), []
    with events.point("decide", 7):
        events.report("claimed", generation=3)
        done.append("decided")
    with pytest.raises(AssertionError, match="an event was made"):
        events.report("vote_lost", level=logging.ERROR)
    with pytest.raises(AssertionError, match="an event was made"):
        Events("orders", [Ear()]).report("claimed", generation=3)
    monkeypatch.undo()
    log.manager._clear_cache()  # type: ignore[attr-defined]
    assert done == ["decided"]


def _reported_in_the_code() -> Iterator[tuple[str, str, set[str]]]:
    """Find every `.report("name", field=...)`: where, the name, and the fields that are spelled out."""
    for file in sorted(Path(exactsink.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "report"):
                continue
            for name in node.args[:1]:  # a file's report has none
                assert isinstance(name, ast.Constant), f"{file.name}:{node.lineno} reports a name that no search finds"
                fields = {k.arg for k in node.keywords if k.arg is not None} - {"epoch", "level"}
                yield f"{file.name}:{node.lineno}", str(name.value), fields


def test_all_that_the_code_reports_is_in_the_table_with_its_fields() -> None:
    reported = list(_reported_in_the_code())
    assert {"claimed", "vote_lost", "swept", "sink"} <= {name for _, name, _ in reported}
    assert set(EVENTS) == {name for _, name, _ in reported}, "the table has an event that nobody reports"
    for place, name, fields in reported:
        assert name in EVENTS, f"{place} reports {name}"
        assert fields <= set(EVENTS[name].fields), f"{place}: {name} has other fields in EVENTS"


def test_the_tables_say_something_of_every_name() -> None:
    assert not set(EVENTS) & set(POINTS)
    assert all(kind.reports and len(set(kind.fields)) == len(kind.fields) for kind in EVENTS.values())
    assert all(POINTS.values())
    assert not {"event", "job", "epoch", "edge", "name", "level"} & {f for k in EVENTS.values() for f in k.fields}


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Event("claimed", "orders"), "claimed job=orders"),
        (Event("decide", "orders", "before", 0), "decide before job=orders epoch=0"),
        (
            Event("swept", "orders", "", 7, {"sink": "lake", "participants": 0, "blocker": None, "first": False}),
            "swept job=orders epoch=7 sink=lake participants=0 first=False",
        ),
        (
            Event("commit:lake", "orders", "after", 7, {"seconds": 0.25}),
            "commit:lake after job=orders epoch=7 seconds=0.25",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Event) else "",
)
def test_an_event_as_text(event: Event, text: str) -> None:
    assert str(event) == text


def test_the_points_of_the_protocol_are_named_in_their_order() -> None:
    """Logs, tests and fault injection of plugins go by these names: they are an interface."""
    names = "claim recommit sweep open_epoch write pre_commit vote decide commit:<sink> complete return"
    assert list(POINTS) == names.split()
