"""A job's metrics and spans through real exporters: a Prometheus registry over HTTP, an OpenTelemetry SDK in memory."""

from __future__ import annotations

import socket
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from tests.servers.certificates import make_authority, make_certificate
from tests.servers.ports import Ports
from tests.unit import observe_runs as runs

from exactsink.contract import ConfigError, Event
from exactsink.job.config.model import ObserveSection
from exactsink.observe import subscribers
from exactsink.observe.live import LIVE_METRICS
from exactsink.observe.metrics import BUCKETS, METRICS
from exactsink.observe.opentelemetry import OpenTelemetryMetrics
from exactsink.observe.prometheus import PrometheusMetrics
from exactsink.protocol.events import Events

ALL = (*METRICS, *LIVE_METRICS)


@pytest.fixture
def metrics() -> Iterator[PrometheusMetrics]:
    with closing(PrometheusMetrics(CollectorRegistry())) as made:
        yield made


def scrape(port: int) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(port: int, name: str, **labels: str) -> float:
    return scrape(port)[f"exactsink_{name}", frozenset({"job": "sim", **labels}.items())]


def test_a_scraper_finds_every_kind_of_metric_and_no_commit_in_parallel_is_lost(metrics: PrometheusMetrics) -> None:
    runs.two_epochs(metrics)
    done = [Event("commit:lake", "sim", "after", 7, {"seconds": 0.25})] * 498
    retried = [Event("commit_retried", "sim", "", 7, {"sink": "lake", "attempt": 1, "error": "x"})] * 500
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(metrics, [*done, *retried]))
    port = metrics.serve("127.0.0.1:0").port
    assert value(port, "rows_total", sink="lake") == 6
    assert value(port, "complete_epoch") == 1
    assert value(port, "commit_retries_total", sink="lake") == 500
    assert value(port, "phase_seconds_count", phase="commit", sink="lake") == 500
    assert value(port, "phase_seconds_bucket", phase="commit", sink="lake", le="600.0") == 500
    assert value(port, "phase_seconds_count", phase="write", sink="") == 2


@pytest.mark.parametrize("address", ["127.0.0.1:70000", "127.0.0.1:http", "127.0.0.1", "no-such-host.invalid:9464"])
def test_an_address_that_is_none_is_a_config_error(metrics: PrometheusMetrics, address: str) -> None:
    with pytest.raises(ConfigError, match="can't serve metrics at"):
        metrics.serve(address)


def test_no_host_means_every_address_and_a_closed_server_gives_its_port_back(metrics: PrometheusMetrics) -> None:
    server = metrics.serve(":0")
    port = server.port
    assert ("exactsink_epochs_total", frozenset({("job", "sim")})) not in scrape(port)
    for _ in range(2):
        server.close()
    with pytest.raises(OSError, match="refused"):
        scrape(port)
    assert metrics.serve(f"127.0.0.1:{port}").port == port


def test_with_a_certificate_metrics_are_https_and_a_silent_client_keeps_nobody_waiting(tmp_path: Path) -> None:
    ca, pem = make_authority(tmp_path / "ca"), make_certificate(tmp_path / "ca.crt", tmp_path / "server")
    make_authority(tmp_path / "other")
    [port] = Ports(1).numbers
    said = {"prometheus": f"127.0.0.1:{port}", "certificate": str(pem), "key": str(pem.with_suffix(".key"))}
    (observer,) = subscribers(ObserveSection.model_validate(said))
    url = f"https://127.0.0.1:{port}/metrics"
    with socket.create_connection(("127.0.0.1", port)), closing(observer):
        runs.two_epochs(observer)
        with urllib.request.urlopen(url, timeout=30, context=ssl.create_default_context(cafile=ca)) as answer:
            assert b'exactsink_rows_total{job="sim",sink="lake"} 6.0' in answer.read()
        with pytest.raises(urllib.error.URLError, match="certificate verify failed"):
            urllib.request.urlopen(url, timeout=30, context=ssl.create_default_context())
        with pytest.raises(OSError, match=r"reset|Empty|closed|HTTP"):
            urllib.request.urlopen(url.replace("https", "http"), timeout=30)
    (tmp_path / "server.key").write_bytes((tmp_path / "other.key").read_bytes())
    with pytest.raises(ConfigError, match="can't serve metrics with the certificate"):
        subscribers(ObserveSection.model_validate(said))


@pytest.mark.parametrize("said", [{"certificate": "/a"}, {"certificate": "/a", "key": "/b"}], ids=["no key", "no port"])
def test_a_certificate_wants_its_key_and_an_address(said: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="give certificate and key together, with prometheus"):
        ObserveSection.model_validate(said if "key" in said else {**said, "prometheus": ":9090"})


def test_a_second_instance_on_a_registry_is_refused_until_the_first_is_closed() -> None:
    registry = CollectorRegistry()
    first = PrometheusMetrics(registry)
    with pytest.raises(ConfigError, match="has exactsink's metrics already"):
        PrometheusMetrics(registry)
    assert len(list(registry.collect())) == len(ALL), "the refused one took nothing of the first away"
    for _ in range(2):
        first.close()
    assert list(registry.collect()) == []
    PrometheusMetrics(registry)


def test_a_jobs_observe_section_serves_its_metrics_until_it_is_closed() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        with pytest.raises(ConfigError, match=f"can't serve metrics at 127.0.0.1:{port}: .*in use"):
            subscribers(ObserveSection(prometheus=f"127.0.0.1:{port}"))
    for _ in range(2):  # neither the refused one nor the first leaves the port or the registry taken
        (observer,) = subscribers(ObserveSection(prometheus=f"127.0.0.1:{port}"))
        runs.two_epochs(observer)
        assert value(port, "epochs_total") == 2
        observer.close()


FENCED = Event("fenced", "sim", "", 7, {"generation": 1, "by": 2})


def exported(reader: InMemoryMetricReader) -> list[Any]:
    data = reader.get_metrics_data()
    return [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data else []


class Sdk:
    """An SDK of its own, and exactsink on it."""

    def __init__(self) -> None:
        self.reader, self.exporter = InMemoryMetricReader(), InMemorySpanExporter()
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.observer = OpenTelemetryMetrics(MeterProvider([self.reader], shutdown_on_exit=False), tracers)
        self.events = Events("sim", [self.observer])

    def metrics(self) -> list[Any]:
        return exported(self.reader)

    def spans(self, name: str = "epoch") -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == f"exactsink.{name}"]

    def children(self, parent: ReadableSpan) -> list[ReadableSpan]:
        return [s for s in self.exporter.get_finished_spans() if s.parent is not None and s.parent == parent.context]


def phases(spans: list[ReadableSpan]) -> list[str]:
    """Name spans by their phase, and a commit's sink."""
    sinks = [(span.attributes or {}).get("exactsink.sink") for span in spans]
    names = [span.name.removeprefix("exactsink.") for span in spans]
    return [f"{name}:{sink}" if sink else name for name, sink in zip(names, sinks, strict=True)]


def test_every_metric_has_its_name_unit_and_description() -> None:
    sdk = Sdk()
    runs.lost_votes(sdk.observer)
    sdk.events.report("decided", epoch=1, at=1.0, sinks=("lake",), entries=3, bytes=200)
    sdk.events.report("swept", sink="lake", participants=1)
    sdk.events.report("quarantined", sink="lake", quarantine="bad", rows=2, reason="x")
    sdk.events.report("commit_retried", sink="lake", attempt=1, error="x")
    sdk.events.report("in_doubt", sink="lake", participants=2, oldest_age_seconds=31.5)
    sdk.events.report("deadline", sink="lake", seconds=840.5)
    sdk.events.report("source_behind", source="files", of="bytes", behind=3.0)
    sdk.events.report("beat", last={"fenced": 1.0, "vote_lost:lake": 1.0})
    found = {m.name: m for m in sdk.metrics()}
    described = {m.opentelemetry: (m.unit, m.help) for m in ALL}
    assert {n: (m.unit, m.description) for n, m in found.items()} == described
    assert found["exactsink.phase.duration"].data.data_points[0].explicit_bounds == BUCKETS


@pytest.mark.parametrize("run", runs.RUNS, ids=lambda run: run.__name__)
def test_both_exporters_report_the_same(run: Callable[..., runs.Observed]) -> None:
    sdk, registry = Sdk(), CollectorRegistry()
    run(sdk.observer, PrometheusMetrics(registry))
    samples = {(s.name, frozenset(s.labels.items())): s.value for f in registry.collect() for s in f.samples}
    by_name, compared = {m.opentelemetry: m for m in ALL}, 0
    for found in sdk.metrics():
        metric = by_name[found.name]
        for point in found.data.data_points:
            labels = frozenset((label, point.attributes.get(f"exactsink.{label}", "")) for label in metric.labels)
            suffix, given = ("_count", point.count) if metric.kind == "histogram" else ("", point.value)
            given = pytest.approx(given, abs=60) if found.unit == "s" and metric in LIVE_METRICS else given  # ages
            assert samples[metric.prometheus + suffix, labels] == given, (found.name, labels)
            if metric.kind == "histogram" and ("phase", "write") not in labels:  # each of them times the write
                assert samples[f"{metric.prometheus}_sum", labels] == pytest.approx(point.sum)
            compared += 1
    kept = [key for key in samples if not key[0].endswith(("_bucket", "_sum", "_created"))]
    assert compared == len(kept) > 15


def test_an_epoch_is_a_span_with_its_phases_and_commits_below_it() -> None:
    sdk = Sdk()
    runs.two_epochs(sdk.observer)
    epochs = sdk.spans()
    named = [{"exactsink.job": "sim", "exactsink.epoch": n} for n in (0, 1)]
    assert [dict(s.attributes or {}) for s in epochs] == named
    for epoch in epochs:
        assert epoch.parent is None
        assert epoch.status.is_ok
        inside = sdk.children(epoch)
        assert phases(inside) == ["open_epoch", "write", "vote", "decide", "commit:lake", "commit:table", "complete"]
        for span in inside:
            assert (epoch.start_time or 0) <= (span.start_time or 0) <= (span.end_time or 0) <= (epoch.end_time or 0)
    for start in ("claim", "recommit", "sweep"):
        (span,) = sdk.spans(start)
        assert span.parent is None


def test_an_epoch_that_is_stopped_ends_as_an_error_and_its_recovery_is_a_span_too() -> None:
    sdk = Sdk()
    runs.lost_votes(sdk.observer)
    decided, recommitted, replayed = sdk.spans()
    assert (decided.status.is_ok, decided.status.description) == (False, "not finished: a new claim began")
    assert phases(sdk.children(decided))[-1] == "decide"
    assert recommitted.status.is_ok
    assert phases(sdk.children(recommitted)) == ["commit:lake", "commit:table"]
    assert [e.name for e in recommitted.events] == ["vote_lost", "vote_lost"]
    assert replayed.status.is_ok
    reported = [e for e in replayed.events if e.name in {"vote_lost", "redecided", "epoch_skipped"}]
    assert [e.name for e in reported] == ["vote_lost", "vote_lost", "redecided", "epoch_skipped"]
    assert reported[2].attributes == {"exactsink.sink": "lake", "exactsink.participants": 2}


def test_a_fenced_epochs_span_ends_at_once_with_the_reason() -> None:
    sdk = Sdk()
    runs.fenced(sdk.observer)
    old, newer = sdk.spans()
    assert old.status.description == "not finished: fenced"
    *written, last = old.events
    assert [(e.name, (e.attributes or {})["exactsink.rows"]) for e in written] == [("written", 3)] * 2
    assert (last.name, (last.attributes or {})["exactsink.generation"]) == ("fenced", 1)
    assert newer.status.is_ok


def test_the_next_epoch_and_closing_end_what_never_returned() -> None:
    sdk = Sdk()
    for epoch in (7, 8):
        sdk.events.edge("open_epoch", "before", epoch)
        sdk.events.report("noted", epoch=epoch, text=["lake", "table"])
    Events("other", [sdk.observer]).edge("open_epoch", "before", 3)
    (ended,) = sdk.spans()
    assert ended.status.description == "not finished: another epoch began"
    assert ended.events[0].attributes == {"exactsink.text": "['lake', 'table']"}  # no plain value
    for _ in range(2):
        sdk.observer.close()
    assert [span.status.description for span in sdk.spans()[1:]] == ["not finished: the job ended"] * 2


@pytest.mark.parametrize("module", ["opentelemetry.metrics", "opentelemetry.trace", "prometheus_client"])
def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    extra = module.split(".")[0].removesuffix("_client")
    with pytest.raises(ConfigError, match=rf"pip install 'exactsink\[{extra}\]'"):
        PrometheusMetrics() if extra == "prometheus" else OpenTelemetryMetrics()


def test_an_observe_section_uses_the_processes_sdk_and_is_refused_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no OpenTelemetry SDK is set up"):
        subscribers(ObserveSection(opentelemetry=True))
    OpenTelemetryMetrics()(FENCED)  # a program's may come later
    provider = MeterProvider([reader := InMemoryMetricReader()], shutdown_on_exit=False)  # and none for traces
    monkeypatch.setattr("opentelemetry.metrics.get_meter_provider", lambda: provider)
    monkeypatch.setattr("opentelemetry.metrics._internal.get_meter_provider", lambda: provider)
    (observer,) = subscribers(ObserveSection(opentelemetry=True))
    observer(FENCED)
    assert "exactsink.fenced" in [metric.name for metric in exported(reader)]
