"""Events: reported around the protocol's points and by name, and changing nothing of the protocol."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import exactsink
from exactsink.contract import Event
from exactsink.protocol.events import EVENTS, POINTS, Events


class Ear:
    """Hears what is reported, as (name, edge, epoch)."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def heard(self) -> list[tuple[str, str, int | None]]:
        return [(event.name, event.edge, event.epoch) for event in self.events]


@pytest.fixture
def ear() -> Ear:
    return Ear()


def test_points_are_reported_before_and_after_their_bodies(ear: Ear) -> None:
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
    assert {event.job for event in ear.events} == {"orders"}
    assert list(ear.events[0].fields) == []
    assert ear.events[-1].fields["seconds"] >= 0


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt()], ids=repr)
def test_a_body_that_fails_has_no_after_and_its_error_goes_on(error: BaseException, ear: Ear) -> None:
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


def test_events_are_logged_by_their_weight_and_carried_whole_for_structured_logs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = Events("orders")
    with caplog.at_level(logging.DEBUG, logger="exactsink"):
        events.edge("return", "before", 7, rows={"lake": 3})
        events.report("swept", sink="lake", participants=2)
        events.report("vote_lost", level=logging.WARNING)
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("DEBUG", "return before job=orders epoch=7 rows={'lake': 3}"),
        ("INFO", "swept job=orders sink=lake participants=2"),
        ("WARNING", "vote_lost job=orders"),
    ]
    assert [record.__dict__["exactsink"] for record in caplog.records[:2]] == [
        {"event": "return", "job": "orders", "epoch": 7, "edge": "before", "rows": {"lake": 3}},
        {"event": "swept", "job": "orders", "epoch": None, "edge": "", "sink": "lake", "participants": 2},
    ]


@pytest.mark.parametrize("listening", [True, False])
def test_a_name_that_is_not_in_the_tables_is_a_mistake_whoever_listens(listening: bool, ear: Ear) -> None:
    events = Events("orders", [ear] if listening else [])
    for name in ("votes_lost", "decide"):
        with pytest.raises(ValueError, match=f"'{name}' is not an event"):
            events.report(name, level=logging.DEBUG)
    for name in ("deciding", "claimed"):
        with pytest.raises(ValueError, match=f"'{name}' is not a protocol point"), events.point(name):
            pytest.fail("the body ran")
    assert ear.heard == []


def test_no_event_is_made_where_nobody_listens(monkeypatch: pytest.MonkeyPatch, ear: Ear) -> None:
    made: list[object] = []
    monkeypatch.setattr("exactsink.protocol.events.Event", lambda *args: made.append(args))
    monkeypatch.setattr("exactsink.protocol.events._LOG.isEnabledFor", lambda level: level >= logging.ERROR)
    events = Events("orders")
    with events.point("decide", 7):
        events.report("claimed", generation=3)
    assert made == []
    Events("orders", [ear]).report("claimed", generation=3)
    assert len(made) == 1


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
    assert set(EVENTS) == {name for _, name, _ in reported}, "a name is missing in the table, or reported by nobody"
    for place, name, fields in reported:
        assert fields <= set(EVENTS[name].fields), f"{place}: {name} has other fields in EVENTS"


def test_the_tables_say_something_of_every_name_and_the_points_stand_in_their_order() -> None:
    """Logs, tests and fault injection of plugins go by these names: they are an interface."""
    names = "claim recommit sweep open_epoch write pre_commit vote decide commit:<sink> complete return"
    assert list(POINTS) == names.split()
    assert not set(EVENTS) & set(POINTS)
    assert all(POINTS.values())
    assert all(kind.reports and len(set(kind.fields)) == len(kind.fields) for kind in EVENTS.values())
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
    ],
    ids=lambda value: value.name if isinstance(value, Event) else "",
)
def test_an_event_as_text(event: Event, text: str) -> None:
    assert str(event) == text
