"""The table of metrics, and events turned into measurements of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit import observe_runs as runs

from exactsink.contract import Event
from exactsink.observe.metrics import METRICS, PHASE, Measures
from exactsink.protocol.events import EVENTS, POINTS
from exactsink.protocol.votes import Vote


class Sum:
    """Sums up what counters grow by, keeps what gauges are set to, and lists what a histogram observes."""

    def __init__(self, *events: Event, clock: Callable[[], float] = lambda: 0.0) -> None:
        self._measures = Measures(clock)
        self.values: dict[tuple[str, ...], float] = defaultdict(float)
        self.seconds: dict[tuple[str, ...], list[float]] = {}
        for event in events:
            self(event)

    def __call__(self, event: Event) -> None:
        for measured in self._measures(event):
            key = (measured.metric.prometheus.removeprefix("exactsink_"), *measured.labels)
            assert len(measured.labels) == len(measured.metric.labels)
            if measured.metric.kind == "gauge":
                self.values[key] = measured.value
            elif measured.metric.kind == "counter":
                self.values[key] += measured.value
            else:
                self.seconds.setdefault(measured.labels[1:], []).append(measured.value)

    def of(self, metric: str) -> dict[tuple[str, ...], float]:
        return {key[1:]: value for key, value in self.values.items() if key[0] == metric}


def test_every_metric_is_fed_by_an_event_that_has_its_labels_and_value() -> None:
    for metric in METRICS:
        if metric.event in EVENTS:
            needed = {*metric.labels, metric.field} - {"job", ""}
            assert needed <= set(EVENTS[metric.event].fields), metric.prometheus
        else:
            assert metric is PHASE or metric.event in POINTS, metric.prometheus


ZERO = dict.fromkeys(("skipped_total", "replayed_total", "fenced_total", "restarts_total"), 0)
FIGURES: list[dict[str, float]] = [
    {**ZERO, "epochs_total": 2, "rows_total": 6, "bytes_total": 42, "complete_epoch": 1, "generation": 1},
    {"epochs_total": 1, "rows_total": 3, "bytes_total": 21, "skipped_total": 1, "generation": 2},
    {"epochs_total": 1, "rows_total": 3, "bytes_total": 21, "skipped_total": 2},
    {"epochs_total": 1, "rows_total": 3, "bytes_total": 21, "skipped_total": 1, "complete_epoch": 1},
    {"epochs_total": 1, "rows_total": 3, "bytes_total": 21, "replayed_total": 2, "lost_votes_total": 2},
    {"epochs_total": 1, "rows_total": 3, "bytes_total": 21, "fenced_total": 1},
]


@pytest.mark.parametrize(
    ("run", "figures"), list(zip(runs.RUNS, FIGURES, strict=True)), ids=lambda v: getattr(v, "__name__", "")
)
def test_an_epoch_and_its_rows_count_once_where_they_were_decided(run: Any, figures: dict[str, float]) -> None:
    reported = Sum()
    events = [event for event in run(reported).reported if not event.edge]
    assert {name: set(reported.of(name).values()) for name in figures} == {n: {v} for n, v in figures.items()}
    assert list(reported.of("rows_total")) == [("sim", "lake"), ("sim", "table")]
    for event in events:
        assert set(event.fields) == set(EVENTS[event.name].fields)


def test_the_time_left_to_the_earliest_deadline_is_reported_by_sink() -> None:
    def due(given: Vote) -> Vote:
        assert given.committable is not None
        return replace(given, committable=replace(given.committable, deadline=1900.0 + given.partition))

    reported = Sum()
    bench = runs.Observed(reported)
    bench.driver(now=1000.0).run_epoch(bench.batch(0, change=due))
    assert reported.of("seconds_to_deadline") == {("sim", sink): 900.0 for sink in ("lake", "table")}


def test_the_write_is_what_lies_between_the_opened_epoch_and_its_vote() -> None:
    times = iter([100.0, 142.5, 200.0, 207.0])
    reported = Sum(clock=lambda: next(times))
    for epoch in range(2):
        reported(Event("open_epoch", "orders", "before", epoch))
        reported(Event("open_epoch", "orders", "after", epoch, {"seconds": 0.5}))
        reported(Event("vote", "orders", "before", epoch))
        reported(Event("vote", "orders", "after", epoch, {"seconds": 0.25}))
        reported(Event("vote", "orders", "before", epoch))  # a second vote has no write of its own
    assert reported.seconds == {("write", ""): [42.5, 7.0], ("open_epoch", ""): [0.5] * 2, ("vote", ""): [0.25] * 2}


def test_a_complete_epoch_forgets_the_lost_votes_that_were_counted() -> None:
    def lost(txn: str, epoch: int) -> Event:
        return Event("vote_lost", "orders", "", epoch, {"sink": "lake", "txn": txn, "evidence": "timed out"})

    complete = Event("complete", "orders", "after", 7, {"seconds": 0.1})
    found = Sum(lost("a", 7), lost("b", 7), lost("a", 7), complete, lost("a", 8))
    assert found.of("lost_votes_total") == {("orders", "lake"): 3}


@pytest.mark.parametrize(("participants", "age", "oldest"), [(2, 31.5, 31.5), (0, None, 0), (2, None, -1)])
def test_what_is_in_doubt_is_reported_by_sink(participants: int, age: float | None, oldest: float) -> None:
    fields = {"sink": "lake", "participants": participants, "oldest_age_seconds": age}
    found = Sum(Event("in_doubt", "orders", "", 7, fields))
    assert found.of("in_doubt") == {("orders", "lake"): participants}
    assert found.of("in_doubt_oldest_seconds") == {("orders", "lake"): oldest}


@pytest.mark.parametrize(
    ("event", "fields", "metric", "value"),
    [
        ("deadline", {"sink": "lake", "seconds": 840.5}, "seconds_to_deadline", 840.5),
        ("swept", {"sink": "lake", "participants": 3}, "swept_total", 3),
        ("commit_retried", {"sink": "lake", "attempt": 2, "error": "x"}, "commit_retries_total", 1),
        ("redecided", {"sink": "lake", "participants": 2}, "replayed_total", 2),
        ("fenced", {"generation": 3, "by": 4}, "fenced_total", 1),
        ("query_restarted", {"attempt": 1, "error": "x"}, "restarts_total", 1),
    ],
)
def test_an_event_moves_its_metric_and_no_other(
    event: str, fields: dict[str, object], metric: str, value: float
) -> None:
    assert set(fields) == set(EVENTS[event].fields)
    (only,) = Measures()(Event(event, "orders", "", 7, fields))
    labels = ("orders", "lake")[: len(only.metric.labels)]
    assert (only.metric.prometheus, only.labels, only.value) == (f"exactsink_{metric}", labels, value)


def test_counters_begin_at_0_with_the_sinks_promise_and_the_claim() -> None:
    promise = {"sink": "lake", "backend": "files", "strategy": "s", "guarantee": "exactly once", "target": "t"}
    found = Sum(
        Event("sink", "orders", "", None, promise),
        Event("claimed", "orders", "", None, {"generation": 3, "driver": "host:17"}),
    )
    for metric in METRICS:
        if metric.kind == "counter":
            labels = ("orders", "lake")[: len(metric.labels)]
            assert found.of(metric.prometheus.removeprefix("exactsink_")) == {labels: 0}


def test_jobs_of_one_process_are_kept_apart() -> None:
    found = Sum(
        *(Event("decide", job, "after", 7, {"seconds": 0.1}) for job in ("orders", "clicks")),
        Event("return", "orders", "before", 7, {"rows": {"lake": 5}}),
    )
    assert found.of("rows_total") == {("orders", "lake"): 5}
