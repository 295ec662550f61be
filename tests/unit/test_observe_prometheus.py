"""A job's metrics in a real registry, scraped over HTTP."""

from __future__ import annotations

import socket
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from tests.unit import observe_runs as runs

from exactsink.contract import ConfigError, Event
from exactsink.job.config.model import ObserveSection
from exactsink.observe import subscribers
from exactsink.observe.metrics import METRICS
from exactsink.observe.prometheus import PrometheusMetrics
from exactsink.protocol.events import Events

SINKS = ("lake", "table")
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def metrics() -> Iterator[PrometheusMetrics]:
    made = PrometheusMetrics(CollectorRegistry())
    yield made
    made.close()


def scrape(port: int) -> Samples:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"exactsink_{name}", frozenset({"job": "sim", **labels}.items())]


def test_a_scraper_finds_the_figures_of_a_run(metrics: PrometheusMetrics) -> None:
    server = metrics.serve("127.0.0.1:0")
    bench = runs.two_epochs(metrics)
    samples = scrape(server.port)
    assert value(samples, "epochs_total") == 2
    assert {sink: value(samples, "rows_total", sink=sink) for sink in SINKS} == dict.fromkeys(SINKS, 6)
    assert value(samples, "complete_epoch") == 1
    assert value(samples, "generation") == 1
    for sink in SINKS:
        labels = {"phase": "commit", "sink": sink}
        reported = [e.fields["seconds"] for e in bench.reported if (e.name, e.edge) == (f"commit:{sink}", "after")]
        assert value(samples, "phase_seconds_count", **labels) == len(reported) == 2
        assert value(samples, "phase_seconds_sum", **labels) == pytest.approx(sum(reported))
        assert value(samples, "phase_seconds_bucket", le="600.0", **labels) == 2
    assert value(samples, "phase_seconds_count", phase="write", sink="") == 2


def test_a_skipped_epoch_lost_votes_and_a_fenced_driver_are_seen(metrics: PrometheusMetrics) -> None:
    server = metrics.serve("127.0.0.1:0")
    runs.decided_by_another(metrics)
    runs.lost_votes(metrics)
    before = scrape(server.port)
    runs.fenced(metrics)
    after = scrape(server.port)
    assert value(before, "skipped_total") == 2
    assert value(before, "lost_votes_total", sink="lake") == 2
    assert value(before, "replayed_total") == 2
    assert value(before, "epochs_total") == 2
    assert value(after, "epochs_total") == 3
    assert {sink: value(after, "rows_total", sink=sink) for sink in SINKS} == dict.fromkeys(SINKS, 9)
    assert (value(before, "fenced_total"), value(after, "fenced_total")) == (0, 1)


def test_all_of_the_table_is_registered_under_its_names(metrics: PrometheusMetrics) -> None:
    Events("sim", [metrics]).report("in_doubt", sink="lake", participants=2, oldest_age_seconds=31.5)
    Events("sim", [metrics]).report("deadline", sink="lake", seconds=840.5)
    samples = scrape(metrics.serve("127.0.0.1:0").port)
    assert value(samples, "in_doubt", sink="lake") == 2
    assert value(samples, "in_doubt_oldest_seconds", sink="lake") == 31.5
    assert value(samples, "seconds_to_deadline", sink="lake") == 840.5
    registry = CollectorRegistry()
    PrometheusMetrics(registry)
    families = {f"{f.name}_total" if f.type == "counter" else f.name: f.type for f in registry.collect()}
    assert families == {m.prometheus: m.kind for m in METRICS}


def test_commits_in_parallel_lose_no_count(metrics: PrometheusMetrics) -> None:
    done = [Event(f"commit:{sink}", "sim", "after", 7, {"seconds": 0.25}) for sink in SINKS for _ in range(500)]
    retried = [Event("commit_retried", "sim", "", 7, {"sink": "lake", "attempt": 1, "error": "x"})] * 500
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(metrics, [*done, *retried]))
    samples = scrape(metrics.serve("127.0.0.1:0").port)
    assert [value(samples, "phase_seconds_count", phase="commit", sink=sink) for sink in SINKS] == [500, 500]
    assert value(samples, "commit_retries_total", sink="lake") == 500


# serving


def test_a_taken_port_is_a_config_error_that_names_it(metrics: PrometheusMetrics) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"can't serve metrics at 127.0.0.1:{port}: .*in use"):
            metrics.serve(f"127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["127.0.0.1:70000", "127.0.0.1:http", "127.0.0.1", "no-such-host.invalid:9464"])
def test_an_address_that_is_none_is_a_config_error(metrics: PrometheusMetrics, address: str) -> None:
    with pytest.raises(ConfigError, match="can't serve metrics at"):
        metrics.serve(address)


def test_no_host_means_every_address(metrics: PrometheusMetrics) -> None:
    assert ("exactsink_epochs_total", frozenset({("job", "sim")})) not in scrape(metrics.serve(":0").port)


def test_a_closed_server_gives_its_port_back(metrics: PrometheusMetrics) -> None:
    server = metrics.serve("127.0.0.1:0")
    port = server.port
    server.close()
    server.close()
    with pytest.raises(OSError, match="refused"):
        scrape(port)
    again = metrics.serve(f"127.0.0.1:{port}")
    assert again.port == port


# the registry and the package


def test_a_second_instance_on_a_registry_is_refused_until_the_first_is_closed() -> None:
    registry = CollectorRegistry()
    first = PrometheusMetrics(registry)
    with pytest.raises(ConfigError, match="has exactsink's metrics already"):
        PrometheusMetrics(registry)
    assert len(list(registry.collect())) == len(METRICS), "the refused one took nothing of the first away"
    first.close()
    first.close()
    assert list(registry.collect()) == []
    PrometheusMetrics(registry)


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"pip install 'exactsink\[prometheus\]'"):
        PrometheusMetrics()


# [observe]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_jobs_observe_section_serves_its_metrics_until_it_is_closed() -> None:
    port = free_port()
    observe = ObserveSection(prometheus=f"127.0.0.1:{port}")
    for _ in range(2):  # the second finds neither the port nor the registry taken
        (observer,) = subscribers(observe)
        runs.two_epochs(observer)
        assert value(scrape(port), "epochs_total") == 2
        observer.close()


def test_an_observe_section_that_can_not_be_served_leaves_nothing_open() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="in use"):
            subscribers(ObserveSection(prometheus=f"127.0.0.1:{taken.getsockname()[1]}"))
    (observer,) = subscribers(ObserveSection(prometheus=f"127.0.0.1:{free_port()}"))
    observer.close()


def test_without_an_observe_section_nobody_listens() -> None:
    assert subscribers(ObserveSection()) == []
