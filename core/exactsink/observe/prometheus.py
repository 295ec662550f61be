"""A job's metrics for Prometheus, and the HTTP endpoint for a scraper. Needs `exactsink[prometheus]`."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIServer

from exactsink.contract import ConfigError, Event
from exactsink.observe.live import LIVE_METRICS, Live
from exactsink.observe.metrics import BUCKETS, METRICS, Measures, Metric

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["MetricsServer", "PrometheusMetrics"]


class MetricsServer:
    """An HTTP endpoint with the metrics. A thread serves it until it is closed."""

    def __init__(self, server: WSGIServer, thread: threading.Thread) -> None:
        self._server = server
        self._thread = thread

    @property
    def port(self) -> int:
        """Return the port of the endpoint, even if port 0, any free port, was requested."""
        return self._server.server_port

    def close(self) -> None:
        """Stop serving and free the port. Idempotent."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _AtScrape:
    """A collector of the values that are computed when they are read."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def describe(self) -> Iterable[Any]:
        """Return the metrics without values, because their names are taken even while they have no values."""
        return [_family(metric) for metric in LIVE_METRICS]

    def collect(self) -> Iterable[Any]:
        families = {metric.prometheus: _family(metric) for metric in LIVE_METRICS}
        for measured in self._live.read():
            families[measured.metric.prometheus].add_metric(measured.labels, measured.value)
        return families.values()


def _family(metric: Metric) -> Any:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(metric.prometheus, metric.help, labels=metric.labels)


class PrometheusMetrics:
    """Subscribe to the events of any number of jobs, and keep their metrics in a registry of prometheus_client.

    Use one instance for each registry. A second one, or a missing package, raises ConfigError.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            why = "prometheus_client is not installed"
            raise ConfigError(
                "no metrics for Prometheus", why=why, next="pip install 'exactsink[prometheus]'"
            ) from error
        self._client = prometheus_client
        self._registry = prometheus_client.REGISTRY if registry is None else registry
        self._measures = Measures()
        self._live = Live()
        self._servers: list[MetricsServer] = []
        self._collectors: dict[str, Any] = {}
        try:
            for metric in METRICS:
                self._collectors[metric.prometheus] = self._collector(metric)
            at_scrape: Any = _AtScrape(self._live)
            self._registry.register(at_scrape)
            self._collectors["at scrape"] = at_scrape
        except ValueError as error:
            self.close()
            fix = "share one PrometheusMetrics between jobs, or give each a registry of its own"
            raise ConfigError("the registry has exactsink's metrics already", why=str(error), next=fix) from error

    def __call__(self, event: Event) -> None:
        """Measure an event."""
        self._live(event)
        for measured in self._measures(event):
            collector = self._collectors[measured.metric.prometheus].labels(*measured.labels)
            if measured.metric.kind == "counter":
                collector.inc(measured.value)
            elif measured.metric.kind == "gauge":
                collector.set(measured.value)
            else:
                collector.observe(measured.value)

    def serve(self, address: str, certificate: str | None = None, key: str | None = None) -> MetricsServer:
        """Serve the registry at `host:port`. Without a host, it listens on all addresses. Two PEM files make it HTTPS.

        Raises ConfigError if it can't listen there, for example because the port is taken, or if a file can't be used.
        """
        host, _, port = address.rpartition(":")
        if certificate is not None:
            _check_certificate(certificate, key)
        try:
            started = self._client.start_http_server(
                int(port), host.strip("[]") or "0.0.0.0", self._registry, certificate, key
            )
            if certificate is not None:  # each handshake has its own thread, so no silent client blocks another
                started[0].socket.do_handshake_on_connect = False  # type: ignore[attr-defined]
        except (OSError, ValueError, OverflowError) as error:
            fix = 'give `[observe] prometheus` a free "host:port"'
            raise ConfigError(f"can't serve metrics at {address}", why=str(error), next=fix) from error
        server = MetricsServer(*started)
        self._servers.append(server)
        return server

    def close(self) -> None:
        """Stop serving, and take the metrics out of the registry. Idempotent."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        collectors, self._collectors = self._collectors, {}
        for collector in collectors.values():
            self._registry.unregister(collector)

    def _collector(self, metric: Metric) -> Any:
        described = (metric.prometheus, metric.help, metric.labels)
        if metric.kind == "counter":
            return self._client.Counter(*described, registry=self._registry)
        if metric.kind == "gauge":
            return self._client.Gauge(*described, registry=self._registry)
        return self._client.Histogram(*described, registry=self._registry, buckets=BUCKETS)


def _check_certificate(certificate: str, key: str | None) -> None:
    """Raise ConfigError for files that no server can use.

    A key with a passphrase would cause a prompt at the terminal.
    """
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"can't serve metrics with the certificate {certificate} and the key {key}",
            why=str(error),
            next="give `[observe] certificate` and `key` PEM files that belong together, the key without a passphrase",
        ) from error
