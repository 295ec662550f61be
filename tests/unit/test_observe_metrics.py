"""The table of metrics, and events turned into measurements of them."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.unit import observe_runs as runs

from exactsink.contract import Event
from exactsink.observe.metrics import METRICS, PHASE, Measurement, Measures
from exactsink.protocol.events import EVENTS, POINTS
from exactsink.protocol.votes import Vote


class Sum:
    """Sums up what counters grow by, keeps what gauges are set to, and lists what a histogram observes."""

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self._measures = Measures(clock)
        self.values: dict[tuple[str, ...], float] = defaultdict(float)
        self.seconds: dict[tuple[str, ...], list[float]] = {}

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


def summed(*events: Event) -> Sum:
    found = Sum()
    for event in events:
        found(event)
    return found


def test_every_metric_is_fed_by_an_event_that_has_its_labels_and_value() -> None:
    for metric in METRICS:
        if metric.event in EVENTS:
            needed = {*metric.labels, metric.field} - {"job", ""}
            assert needed <= set(EVENTS[metric.event].fields), metric.prometheus
        else:
            assert metric is PHASE or metric.event in POINTS, metric.prometheus


def test_exactsink_and_its_job_load_neither_exporter() -> None:
    code = (
        "import sys, exactsink, exactsink.observe, exactsink.observe.metrics, exactsink.protocol.events\n"
        "from exactsink.job.config.model import ObserveSection\n"
        "assert exactsink.observe.subscribers(ObserveSection()) == []\n"
        "print(sorted(m for m in sys.modules if m.partition('.')[0] in ('prometheus_client', 'opentelemetry')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


ZERO = dict.fromkeys(("skipped_total", "replayed_total", "fenced_total", "restarts_total"), 0)
FIGURES: list[dict[str, float]] = [
    {**ZERO, "epochs_total": 2, "rows_total": 6, "complete_epoch": 1, "generation": 1},
    {"epochs_total": 1, "rows_total": 3, "skipped_total": 1, "generation": 2},
    {"epochs_total": 1, "rows_total": 3, "skipped_total": 2},
    {"epochs_total": 1, "rows_total": 3, "skipped_total": 1, "complete_epoch": 1},
    {"epochs_total": 1, "rows_total": 3, "replayed_total": 2},
    {"epochs_total": 1, "rows_total": 3, "fenced_total": 1},
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


def test_two_epochs_have_their_phases() -> None:
    reported = Sum()
    runs.two_epochs(reported)
    once = dict.fromkeys([("claim", ""), ("recommit", ""), ("sweep", "")], 1)
    each = [(p, "") for p in ("open_epoch", "write", "vote", "decide", "complete")]
    commits = [("commit", sink) for sink in ("lake", "table")]
    assert {phase: len(n) for phase, n in reported.seconds.items()} == once | dict.fromkeys([*each, *commits], 2)


def test_lost_votes_are_counted_once_though_start_and_replay_both_meet_them() -> None:
    reported = Sum()
    bench = runs.lost_votes(reported)
    assert bench.names().count("vote_lost") == 4
    assert reported.of("lost_votes_total") == {("sim", "lake"): 2}
    assert set(bench.world.applied.values()) == {1}


def test_the_time_left_to_the_earliest_deadline_is_reported_by_sink() -> None:
    def due(given: Vote) -> Vote:
        assert given.committable is not None
        return replace(given, committable=replace(given.committable, deadline=1900.0 + given.partition))

    reported = Sum()
    bench = runs.Observed(reported)
    bench.driver(now=1000.0).run_epoch(bench.batch(0, change=due))
    assert reported.of("seconds_to_deadline") == {("sim", sink): 900.0 for sink in ("lake", "table")}


def test_subscribers_that_fail_change_nothing_of_a_run(caplog: pytest.LogCaptureFixture) -> None:
    def failing(event: Event) -> None:
        raise RuntimeError("no metrics today")

    bench = runs.two_epochs(failing)
    assert (set(bench.world.applied.values()), len(bench.world.applied)) == ({1}, 12)
    assert caplog.text.count("RuntimeError: no metrics today") == len(bench.reported)


def measured(*events: Event) -> Sequence[Measurement]:
    measures = Measures(lambda: 0.0)
    return [m for event in events for m in measures(event)]


def test_the_write_is_what_lies_between_the_opened_epoch_and_its_vote() -> None:
    times = iter([100.0, 142.5, 200.0, 207.0])
    reported = Sum(lambda: next(times))
    for epoch in range(2):
        reported(Event("open_epoch", "orders", "before", epoch))
        reported(Event("open_epoch", "orders", "after", epoch, {"seconds": 0.5}))
        reported(Event("vote", "orders", "before", epoch))
        reported(Event("vote", "orders", "after", epoch, {"seconds": 0.25}))
        reported(Event("vote", "orders", "before", epoch))  # a second vote has no write of its own
    phases = {("write", ""): [42.5, 7.0], ("open_epoch", ""): [0.5] * 2, ("vote", ""): [0.25] * 2}
    assert reported.seconds == phases


def test_a_commit_is_a_phase_of_its_sink_and_no_side_before_a_point_measures_it() -> None:
    (phase,) = measured(Event("commit:lake", "orders", "after", 7, {"seconds": 0.25}))
    assert phase == Measurement(PHASE, ("orders", "commit", "lake"), 0.25)
    sides = [Event(point.replace("<sink>", "lake"), "orders", "before", 7, {"rows": {}}) for point in POINTS]
    assert measured(*sides) == []


def test_a_complete_epoch_forgets_the_lost_votes_that_were_counted() -> None:
    def lost(txn: str, epoch: int) -> Event:
        return Event("vote_lost", "orders", "", epoch, {"sink": "lake", "txn": txn, "evidence": "timed out"})

    complete = Event("complete", "orders", "after", 7, {"seconds": 0.1})
    found = summed(lost("a", 7), lost("b", 7), lost("a", 7), complete, lost("a", 8))
    assert found.of("lost_votes_total") == {("orders", "lake"): 3}


@pytest.mark.parametrize(("participants", "age", "oldest"), [(2, 31.5, 31.5), (0, None, 0), (2, None, -1)])
def test_what_is_in_doubt_is_reported_by_sink(participants: int, age: float | None, oldest: float) -> None:
    fields = {"sink": "lake", "participants": participants, "oldest_age_seconds": age}
    found = summed(Event("in_doubt", "orders", "", 7, fields))
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
    (only,) = measured(Event(event, "orders", "", 7, fields))
    labels = ("orders", "lake")[: len(only.metric.labels)]
    assert (only.metric.prometheus, only.labels, only.value) == (f"exactsink_{metric}", labels, value)


def test_counters_begin_at_0_with_the_sinks_promise_and_the_claim() -> None:
    promise = {"sink": "lake", "backend": "files", "strategy": "s", "guarantee": "exactly once", "target": "t"}
    found = summed(
        Event("sink", "orders", "", None, promise),
        Event("claimed", "orders", "", None, {"generation": 3, "driver": "host:17"}),
    )
    for metric in METRICS:
        if metric.kind == "counter":
            labels = ("orders", "lake")[: len(metric.labels)]
            assert found.of(metric.prometheus.removeprefix("exactsink_")) == {labels: 0}


def test_jobs_of_one_process_are_kept_apart() -> None:
    found = summed(
        *(Event("decide", job, "after", 7, {"seconds": 0.1}) for job in ("orders", "clicks")),
        Event("return", "orders", "before", 7, {"rows": {"lake": 5}}),
    )
    assert found.of("rows_total") == {("orders", "lake"): 5}
