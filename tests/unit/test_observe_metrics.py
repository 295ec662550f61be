"""The table of metrics, and events turned into measurements of them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tests.unit import observe_runs as runs

from exactsink.contract import Event
from exactsink.observe.metrics import BUCKETS, METRICS, PHASE, Measurement, Measures
from exactsink.observe.reference import events_table, metrics_table, points_table
from exactsink.protocol.events import EVENTS, POINTS
from exactsink.protocol.votes import Vote

Reported = dict[tuple[str, ...], float]
SINKS = ("lake", "table")


class Sum:
    """Sums up what counters are reported, keeps what gauges are set to, and counts what a histogram observes."""

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

    def of(self, metric: str) -> Reported:
        return {key[1:]: value for key, value in self.values.items() if key[0] == metric}

    @property
    def phases(self) -> dict[tuple[str, ...], int]:
        return {phase: len(seconds) for phase, seconds in self.seconds.items()}


# the table


def test_every_metric_has_a_name_of_its_own_as_its_exporter_spells_it() -> None:
    assert len({m.prometheus for m in METRICS}) == len({m.opentelemetry for m in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"exactsink(_[a-z]+)+", metric.prometheus)
        assert re.fullmatch(r"exactsink(\.[a-z_]+)+", metric.opentelemetry)
        assert metric.prometheus.endswith("_total") == (metric.kind == "counter")
        assert metric.help.endswith(".")
        assert metric.unit
    assert list(BUCKETS) == sorted(set(BUCKETS))


def test_every_metric_is_fed_by_an_event_that_has_its_labels_and_value() -> None:
    for metric in METRICS:
        if metric.event in EVENTS:
            needed = {*metric.labels, metric.field} - {"job", ""}
            assert needed <= set(EVENTS[metric.event].fields), metric.prometheus
        else:
            assert metric is PHASE or metric.event in POINTS, metric.prometheus


def test_the_reference_tables_hold_every_name() -> None:
    for table, names in [
        (points_table(), list(POINTS)),
        (events_table(), list(EVENTS)),
        (metrics_table(), [m.prometheus for m in METRICS]),
    ]:
        head, rule, *rows = table.splitlines()
        assert [row.split("`")[1] for row in rows] == names
        assert {row.count(" | ") for row in (head, rule, *rows)} == {head.count(" | ")}


def test_exactsink_and_its_job_load_neither_exporter() -> None:
    code = (
        "import sys, exactsink, exactsink.observe, exactsink.observe.metrics, exactsink.protocol.events\n"
        "from exactsink.job.config.model import ObserveSection\n"
        "assert exactsink.observe.subscribers(ObserveSection()) == []\n"
        "print(sorted(m for m in sys.modules if m.partition('.')[0] in ('prometheus_client', 'opentelemetry')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


# runs of the coordinator


def test_two_epochs_are_counted_with_their_rows_by_sink_and_their_phases() -> None:
    reported = Sum()
    runs.two_epochs(reported)
    assert reported.of("epochs_total") == {("sim",): 2}
    assert reported.of("rows_total") == {("sim", sink): 6 for sink in SINKS}
    assert reported.of("complete_epoch") == {("sim",): 1}
    assert reported.of("generation") == {("sim",): 1}
    once = dict.fromkeys([("claim", ""), ("recommit", ""), ("sweep", "")], 1)
    each = [(p, "") for p in ("open_epoch", "write", "vote", "decide", "complete")] + [("commit", s) for s in SINKS]
    assert reported.phases == once | dict.fromkeys(each, 2)
    zero = ("skipped_total", "replayed_total", "fenced_total", "restarts_total")
    assert {name: reported.of(name) for name in zero} == {name: {("sim",): 0} for name in zero}


def test_an_epoch_that_this_process_decided_and_finished_after_a_restart_is_counted_once() -> None:
    reported = Sum()
    runs.decided_but_not_committed(reported)
    assert reported.of("epochs_total") == {("sim",): 1}
    assert reported.of("rows_total") == {("sim", sink): 3 for sink in SINKS}
    assert reported.of("skipped_total") == {("sim",): 1}
    assert reported.of("generation") == {("sim",): 2}


def test_an_epoch_that_this_process_finished_before_is_not_counted_again_when_its_batch_comes_back() -> None:
    reported = Sum()
    bench = runs.Observed(reported)
    driver = bench.driver()
    assert [driver.run_epoch(bench.batch(0)).skipped for _ in range(3)] == [False, True, True]
    assert reported.of("epochs_total") == {("sim",): 1}
    assert reported.of("rows_total") == {("sim", sink): 3 for sink in SINKS}
    assert reported.of("skipped_total") == {("sim",): 2}


def test_an_epoch_that_another_process_decided_is_skipped_and_its_rows_are_not_counted_again() -> None:
    reported = Sum()
    runs.decided_by_another(reported)
    assert reported.of("skipped_total") == {("sim",): 1}
    assert reported.of("epochs_total") == {("sim",): 1}
    assert reported.of("rows_total") == {("sim", sink): 3 for sink in SINKS}
    assert reported.of("complete_epoch") == {("sim",): 1}


def test_lost_votes_are_counted_once_though_start_and_replay_both_meet_them() -> None:
    reported = Sum()
    bench = runs.lost_votes(reported)
    assert bench.names().count("vote_lost") == 4
    assert reported.of("lost_votes_total") == {("sim", "lake"): 2}
    assert reported.of("replayed_total") == {("sim",): 2}
    assert reported.of("rows_total") == {("sim", sink): 3 for sink in SINKS}
    assert set(bench.world.applied.values()) == {1}


def test_a_fenced_driver_counts_no_epoch_and_no_row() -> None:
    reported = Sum()
    bench = runs.fenced(reported)
    assert [e.edge for e in bench.reported if e.name == "decide"] == ["before", "before", "after"]
    assert reported.of("fenced_total") == {("sim",): 1}
    assert reported.of("epochs_total") == {("sim",): 1}
    assert reported.of("rows_total") == {("sim", sink): 3 for sink in SINKS}
    assert reported.phases["vote", ""] == 2
    assert reported.phases["decide", ""] == 1


def test_the_time_left_to_the_earliest_deadline_and_what_is_in_doubt_are_reported_by_sink() -> None:
    def due(given: Vote) -> Vote:
        assert given.committable is not None
        return replace(given, committable=replace(given.committable, deadline=1900.0 + given.partition))

    reported = Sum()
    bench = runs.Observed(reported)
    bench.driver(now=1000.0).run_epoch(bench.batch(0, spoil=due))
    assert reported.of("seconds_to_deadline") == {("sim", sink): 900.0 for sink in SINKS}
    assert reported.of("in_doubt") == reported.of("in_doubt_oldest_seconds") == {("sim", sink): 0 for sink in SINKS}


@pytest.mark.parametrize("run", [runs.two_epochs, runs.lost_votes, runs.fenced], ids=lambda run: run.__name__)
def test_every_event_of_a_run_has_the_fields_that_the_table_says(run: Callable[..., runs.Observed]) -> None:
    events = [event for event in run().reported if not event.edge]
    assert events
    for event in events:
        assert set(event.fields) == set(EVENTS[event.name].fields)


def test_subscribers_that_fail_change_nothing_of_a_run(caplog: pytest.LogCaptureFixture) -> None:
    def failing(event: Event) -> None:
        raise RuntimeError("no metrics today")

    bench = runs.two_epochs(failing)
    assert set(bench.world.applied.values()) == {1}
    assert len(bench.world.applied) == 12
    assert [str(e).partition(" seconds")[0] for e in bench.reported] == [
        str(e).partition(" seconds")[0] for e in runs.two_epochs().reported
    ]
    assert caplog.text.count("RuntimeError: no metrics today") == len(bench.reported)


# single events


def measured(*events: Event) -> Sequence[Measurement]:
    measures = Measures(lambda: 0.0)
    return [m for event in events for m in measures(event)]


def lost(txn: str, epoch: int = 7) -> Event:
    return Event("vote_lost", "orders", "", epoch, {"sink": "lake", "txn": txn, "evidence": "timed out"})


def test_the_write_is_what_lies_between_the_opened_epoch_and_its_vote() -> None:
    times = iter([100.0, 142.5, 200.0, 207.0])
    reported = Sum(lambda: next(times))
    for epoch in range(2):
        reported(Event("open_epoch", "orders", "before", epoch))
        reported(Event("open_epoch", "orders", "after", epoch, {"seconds": 0.5}))
        reported(Event("vote", "orders", "before", epoch))
        reported(Event("vote", "orders", "after", epoch, {"seconds": 0.25}))
    assert reported.seconds["write", ""] == [42.5, 7.0]
    assert reported.seconds["open_epoch", ""] == [0.5, 0.5]
    assert reported.seconds["vote", ""] == [0.25, 0.25]


def test_a_vote_without_an_opened_epoch_has_no_write() -> None:
    assert measured(Event("vote", "orders", "before", 7)) == []
    opened = Event("open_epoch", "orders", "after", 7, {"seconds": 0.5})
    phases = [m.labels[1] for m in measured(opened, *[Event("vote", "orders", "before", 7)] * 2)]
    assert phases == ["open_epoch", "write"], "a second vote has no write of its own"


def test_a_commit_is_a_phase_of_its_sink() -> None:
    (phase,) = measured(Event("commit:lake", "orders", "after", 7, {"seconds": 0.25}))
    assert phase == Measurement(PHASE, ("orders", "commit", "lake"), 0.25)


def test_no_side_before_a_point_measures_its_duration() -> None:
    sides = [Event(point.replace("<sink>", "lake"), "orders", "before", 7, {"rows": {}}) for point in POINTS]
    assert measured(*sides) == []


def test_a_complete_epoch_forgets_the_lost_votes_that_were_counted() -> None:
    complete = Event("complete", "orders", "after", 7, {"seconds": 0.1})
    reported = Sum()
    for event in (lost("a"), lost("b"), lost("a"), complete, lost("a", epoch=8)):
        reported(event)
    assert reported.of("lost_votes_total") == {("orders", "lake"): 3}


@pytest.mark.parametrize(("participants", "age", "oldest"), [(2, 31.5, 31.5), (0, None, 0), (2, None, -1)])
def test_what_is_in_doubt_is_reported_by_sink(participants: int, age: float | None, oldest: float) -> None:
    fields = {"sink": "lake", "participants": participants, "oldest_age_seconds": age}
    reported = Sum()
    reported(Event("in_doubt", "orders", "", 7, fields))
    assert reported.of("in_doubt") == {("orders", "lake"): participants}
    assert reported.of("in_doubt_oldest_seconds") == pytest.approx({("orders", "lake"): oldest})


@pytest.mark.parametrize(
    ("event", "fields", "metric", "labels", "value"),
    [
        ("deadline", {"sink": "lake", "seconds": 840.5}, "seconds_to_deadline", ("orders", "lake"), 840.5),
        ("swept", {"sink": "lake", "participants": 3}, "swept_total", ("orders", "lake"), 3),
        (
            "commit_retried",
            {"sink": "lake", "attempt": 2, "error": "x"},
            "commit_retries_total",
            ("orders", "lake"),
            1,
        ),
        ("redecided", {"sink": "lake", "participants": 2}, "replayed_total", ("orders",), 2),
        ("fenced", {"generation": 3, "by": 4}, "fenced_total", ("orders",), 1),
        ("query_restarted", {"attempt": 1, "error": "x"}, "restarts_total", ("orders",), 1),
    ],
)
def test_an_event_moves_its_metric_and_no_other(
    event: str, fields: dict[str, object], metric: str, labels: tuple[str, ...], value: float
) -> None:
    assert set(fields) == set(EVENTS[event].fields)
    (only,) = measured(Event(event, "orders", "", 7, fields))
    assert (only.metric.prometheus, only.labels, only.value) == (f"exactsink_{metric}", labels, value)


def test_counters_begin_at_0_with_the_sinks_promise_and_the_claim() -> None:
    promise = {"sink": "lake", "backend": "files", "strategy": "s", "guarantee": "exactly once", "target": "t"}
    reported = Sum()
    reported(Event("sink", "orders", "", None, promise))
    reported(Event("claimed", "orders", "", None, {"generation": 3, "driver": "host:17"}))
    counters = {m.prometheus.removeprefix("exactsink_"): m.labels for m in METRICS if m.kind == "counter"}
    by_label = {("job",): ("orders",), ("job", "sink"): ("orders", "lake")}
    assert {name: reported.of(name) for name in counters} == {
        n: {by_label[labels]: 0} for n, labels in counters.items()
    }


def test_jobs_of_one_process_are_kept_apart() -> None:
    reported = Sum()
    for job in ("orders", "clicks"):
        reported(Event("decide", job, "after", 7, {"seconds": 0.1}))
    reported(Event("return", "orders", "before", 7, {"rows": {"lake": 5}}))
    assert reported.of("rows_total") == {("orders", "lake"): 5}
