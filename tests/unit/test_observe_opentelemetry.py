"""A job's metrics and spans through a real OpenTelemetry SDK, exported in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry
from tests.unit import observe_runs as runs

from exactsink.contract import ConfigError, Event
from exactsink.job.config.model import ObserveSection
from exactsink.observe import subscribers
from exactsink.observe.metrics import BUCKETS, METRICS
from exactsink.observe.opentelemetry import OpenTelemetryMetrics
from exactsink.observe.prometheus import PrometheusMetrics
from exactsink.protocol.events import Events

Key = tuple[str, frozenset[tuple[str, Any]]]


class Sdk:
    """An SDK of its own, and exactsink on it."""

    def __init__(self) -> None:
        self.reader, self.exporter = InMemoryMetricReader(), InMemorySpanExporter()
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.observer = OpenTelemetryMetrics(MeterProvider([self.reader], shutdown_on_exit=False), tracers)

    def points(self) -> dict[Key, Any]:
        data = self.reader.get_metrics_data()
        found = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data else []
        return {(m.name, frozenset((p.attributes or {}).items())): p for m in found for p in m.data.data_points}

    def value(self, name: str, **labels: str) -> float:
        key = frozenset({f"exactsink.{k}": v for k, v in {"job": "sim", **labels}.items()}.items())
        return float(self.points()[f"exactsink.{name}", key].value)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == f"exactsink.{name}"]

    def children(self, parent: ReadableSpan) -> list[str]:
        names = []
        for span in self.exporter.get_finished_spans():
            if span.parent is not None and span.parent == parent.context:
                sink = (span.attributes or {}).get("exactsink.sink")
                names.append(f"{span.name}:{sink}" if sink else span.name)
        return names


# metrics


def test_a_run_is_measured() -> None:
    sdk = Sdk()
    bench = runs.two_epochs(sdk.observer)
    assert sdk.value("epochs") == 2
    assert {sink: sdk.value("rows", sink=sink) for sink in ("lake", "table")} == {"lake": 6, "table": 6}
    assert sdk.value("complete_epoch") == 1
    labels = {"exactsink.job": "sim", "exactsink.phase": "commit", "exactsink.sink": "lake"}
    commits = sdk.points()["exactsink.phase.duration", frozenset(labels.items())]
    reported = [e.fields["seconds"] for e in bench.reported if (e.name, e.edge) == ("commit:lake", "after")]
    assert (commits.count, commits.sum) == (2, pytest.approx(sum(reported)))
    assert commits.explicit_bounds == BUCKETS


def test_every_metric_has_its_name_unit_and_description() -> None:
    sdk = Sdk()
    runs.lost_votes(sdk.observer)
    events = Events("sim", [sdk.observer])
    events.report("in_doubt", sink="lake", participants=2, oldest_age_seconds=31.5)
    events.report("deadline", sink="lake", seconds=840.5)
    events.report("swept", sink="lake", participants=1)
    events.report("commit_retried", sink="lake", attempt=1, error="x")
    data = sdk.reader.get_metrics_data()
    assert data is not None
    found = {m.name: (m.unit, m.description) for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
    assert found == {m.opentelemetry: (m.unit, m.help) for m in METRICS}


RUNS = [runs.two_epochs, runs.decided_but_not_committed, runs.decided_by_another, runs.lost_votes, runs.fenced]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_both_exporters_report_the_same(run: Callable[..., runs.Observed]) -> None:
    sdk, registry = Sdk(), CollectorRegistry()
    run(sdk.observer, PrometheusMetrics(registry))
    samples = {(s.name, frozenset(s.labels.items())): s.value for f in registry.collect() for s in f.samples}
    by_name = {m.opentelemetry: m for m in METRICS}
    compared = 0
    for (name, attributes), point in sdk.points().items():
        metric = by_name[name]
        given = {key.removeprefix("exactsink."): value for key, value in attributes}
        labels = frozenset({label: given.get(label, "") for label in metric.labels}.items())
        suffix, value = ("_count", point.count) if metric.kind == "histogram" else ("", point.value)
        assert samples[metric.prometheus + suffix, labels] == value, (name, given)
        compared += 1
    kept = [key for key in samples if not key[0].endswith(("_bucket", "_sum", "_created"))]
    assert compared == len(kept) > 15


# spans


def test_an_epoch_is_a_span_with_its_phases_and_commits_below_it() -> None:
    sdk = Sdk()
    runs.two_epochs(sdk.observer)
    epochs = sdk.spans("epoch")
    assert [dict(s.attributes or {}) for s in epochs] == [
        {"exactsink.job": "sim", "exactsink.epoch": n} for n in (0, 1)
    ]
    assert all(span.parent is None and span.status.is_ok for span in epochs)
    phases = [
        f"exactsink.{p}" for p in ("open_epoch", "write", "vote", "decide", "commit:lake", "commit:table", "complete")
    ]
    assert [sdk.children(epoch) for epoch in epochs] == [phases, phases]
    for start in ("claim", "recommit", "sweep"):
        (span,) = sdk.spans(start)
        assert span.parent is None
    for epoch in epochs:
        inside = [s for s in sdk.exporter.get_finished_spans() if s.parent and s.parent == epoch.context]
        for span in inside:
            assert (epoch.start_time or 0) <= (span.start_time or 0) <= (span.end_time or 0) <= (epoch.end_time or 0)


def test_an_epoch_that_is_stopped_ends_as_an_error_and_its_recovery_is_a_span_too() -> None:
    sdk = Sdk()
    runs.lost_votes(sdk.observer)
    decided, recommitted, replayed = sdk.spans("epoch")
    assert (decided.status.is_ok, decided.status.description) == (False, "not finished: a new claim began")
    assert sdk.children(decided)[-1] == "exactsink.decide"
    assert recommitted.status.is_ok
    assert sdk.children(recommitted) == ["exactsink.commit:lake", "exactsink.commit:table"]
    assert [e.name for e in recommitted.events] == ["vote_lost", "vote_lost"]
    assert replayed.status.is_ok
    reported = [e.name for e in replayed.events if e.name in {"vote_lost", "redecided", "epoch_skipped"}]
    assert reported == ["vote_lost", "vote_lost", "redecided", "epoch_skipped"]
    (redecided,) = [e for e in replayed.events if e.name == "redecided"]
    assert redecided.attributes == {"exactsink.sink": "lake", "exactsink.participants": 2}


def test_a_fenced_epochs_span_ends_at_once_with_the_reason() -> None:
    sdk = Sdk()
    runs.fenced(sdk.observer)
    old, newer = sdk.spans("epoch")
    assert old.status.description == "not finished: fenced"
    assert [(e.name, (e.attributes or {})["exactsink.generation"]) for e in old.events] == [("fenced", 1)]
    assert newer.status.is_ok
    assert sdk.value("fenced") == 1


def test_closing_sends_what_an_error_left_open() -> None:
    sdk = Sdk()
    Events("sim", [sdk.observer]).edge("open_epoch", "before", 7)
    Events("other", [sdk.observer]).edge("open_epoch", "before", 3)
    assert sdk.spans("epoch") == []
    sdk.observer.close()
    sdk.observer.close()
    ended = [(s.attributes or {})["exactsink.job"] for s in sdk.spans("epoch") if not s.status.is_ok]
    assert ended == ["sim", "other"]


def test_the_next_epoch_ends_one_that_never_returned() -> None:
    sdk = Sdk()
    events = Events("sim", [sdk.observer])
    for epoch in (7, 8):
        events.edge("open_epoch", "before", epoch)
        events.edge("open_epoch", "after", epoch, seconds=0.1)
    events.edge("return", "before", 8, rows={})
    events.edge("return", "after", 8)
    first, second = sdk.spans("epoch")
    assert (first.status.description, second.status.is_ok) == ("not finished: another epoch began", True)


def test_fields_that_are_no_plain_values_are_reported_as_text() -> None:
    sdk = Sdk()
    events = Events("sim", [sdk.observer])
    events.edge("open_epoch", "before", 7)
    events.report("noted", epoch=7, text=["lake", "table"])
    events.edge("return", "before", 7, rows={})
    (epoch,) = sdk.spans("epoch")
    assert epoch.events[0].attributes == {"exactsink.text": "['lake', 'table']"}


# the package and the SDK


@pytest.mark.parametrize("module", ["opentelemetry.metrics", "opentelemetry.trace"])
def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"pip install 'exactsink\[opentelemetry\]'"):
        OpenTelemetryMetrics()


def test_an_observe_section_without_an_sdk_is_refused_and_not_silent() -> None:
    with pytest.raises(ConfigError, match="no OpenTelemetry SDK is set up"):
        subscribers(ObserveSection(opentelemetry=True))


IN_A_PROCESS_OF_ITS_OWN = """
import json
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from exactsink.job.config.model import ObserveSection
from exactsink.protocol.events import Events
from exactsink.observe import subscribers
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
{tracer}
(observer,) = subscribers(ObserveSection(opentelemetry=True))
Events("sim", [observer]).report("fenced", generation=1, by=2)
observer.close()
data = reader.get_metrics_data()
print(json.dumps([m.name for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]))
"""


@pytest.mark.parametrize("tracer", ["", "trace.set_tracer_provider(TracerProvider())"], ids=["metrics only", "both"])
def test_an_observe_section_uses_the_sdk_that_the_process_has_set_up(tracer: str) -> None:
    code = IN_A_PROCESS_OF_ITS_OWN.format(tracer=tracer)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == ["exactsink.fenced"]


def test_providers_that_are_set_up_later_get_the_metrics() -> None:
    """Only `[observe]` asks for an SDK at once: a program's own set-up may come after."""
    OpenTelemetryMetrics()(Event("fenced", "sim", "", 7, {"generation": 1, "by": 2}))
