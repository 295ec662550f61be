"""A job's metrics in a real registry, scraped over HTTP."""

from __future__ import annotations

import socket
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


@pytest.fixture
def metrics() -> Iterator[PrometheusMetrics]:
    made = PrometheusMetrics(CollectorRegistry())
    yield made
    made.close()


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


def test_a_second_instance_on_a_registry_is_refused_until_the_first_is_closed() -> None:
    registry = CollectorRegistry()
    first = PrometheusMetrics(registry)
    with pytest.raises(ConfigError, match="has exactsink's metrics already"):
        PrometheusMetrics(registry)
    assert len(list(registry.collect())) == len(METRICS), "the refused one took nothing of the first away"
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
