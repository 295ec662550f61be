"""A job's metrics and spans through OpenTelemetry's API. Needs `exactsink[opentelemetry]`, and an SDK to send them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from exactsink.contract import ConfigError, Event
from exactsink.observe.live import LIVE_METRICS, Live
from exactsink.observe.metrics import BUCKETS, METRICS, Measurement, Measures, Metric

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = ["OpenTelemetryMetrics", "require_sdk"]


class OpenTelemetryMetrics:
    """Subscribe to the events of any number of jobs: the metrics of `METRICS`, and a span per epoch.

    Without providers, it uses the process's own, even if those are set up later. Raises ConfigError if the API's
    package is missing.
    """

    def __init__(
        self, meter_provider: MeterProvider | None = None, tracer_provider: TracerProvider | None = None
    ) -> None:
        _require_api()
        from opentelemetry import metrics, trace

        from exactsink.observe.spans import EpochSpans

        meter = metrics.get_meter("exactsink", meter_provider=meter_provider)
        self._instruments = {metric.opentelemetry: _instrument(meter, metric) for metric in METRICS}
        self._spans = EpochSpans(trace.get_tracer("exactsink", tracer_provider=tracer_provider))
        self._measures = Measures()
        self._live = Live()
        for metric in LIVE_METRICS:
            self._observed(meter, metric)

    def __call__(self, event: Event) -> None:
        """Measure an event, and add it to its epoch's span."""
        self._live(event)
        measurements = self._measures(event)
        for measured in measurements:
            attributes = _attributes(measured)
            instrument = self._instruments[measured.metric.opentelemetry]
            if measured.metric.kind == "counter":
                instrument.add(measured.value, attributes)
            elif measured.metric.kind == "gauge":
                instrument.set(measured.value, attributes)
            else:
                instrument.record(measured.value, attributes)
        self._spans.add(event, measurements)

    def _observed(self, meter: Meter, metric: Metric) -> None:
        from opentelemetry.metrics import CallbackOptions, Observation

        def observe(options: CallbackOptions) -> Iterable[Observation]:
            found = (measured for measured in self._live.read() if measured.metric is metric)
            return [Observation(measured.value, _attributes(measured)) for measured in found]

        meter.create_observable_gauge(metric.opentelemetry, [observe], metric.unit, metric.help)

    def close(self) -> None:
        """End the spans of unfinished epochs, so that they are sent. Idempotent."""
        self._spans.close()


def _attributes(measured: Measurement) -> Mapping[str, str]:
    return {f"exactsink.{k}": v for k, v in zip(measured.metric.labels, measured.labels, strict=True) if v}


def require_sdk() -> None:
    """Raise ConfigError if the API has no SDK behind it, because every metric and span would be dropped silently."""
    _require_api()
    from opentelemetry import metrics, trace

    providers = (metrics.get_meter_provider(), trace.get_tracer_provider())
    if all(
        type(provider).__module__.startswith(("opentelemetry.metrics", "opentelemetry.trace")) for provider in providers
    ):
        raise ConfigError(
            "[observe] opentelemetry = true, and no OpenTelemetry SDK is set up in this process",
            why="every metric and span would be dropped",
            next="pip install opentelemetry-distro opentelemetry-exporter-otlp, "
            "then `opentelemetry-instrument exactsink run ...`",
        )


def _require_api() -> None:
    try:
        import opentelemetry.metrics
        import opentelemetry.trace  # noqa: F401
    except ImportError as error:
        why = "opentelemetry-api is not installed"
        raise ConfigError("no OpenTelemetry", why=why, next="pip install 'exactsink[opentelemetry]'") from error


def _instrument(meter: Meter, metric: Metric) -> Any:
    described = (metric.opentelemetry, metric.unit, metric.help)
    if metric.kind == "counter":
        return meter.create_counter(*described)
    if metric.kind == "gauge":
        return meter.create_gauge(*described)
    return meter.create_histogram(*described, explicit_bucket_boundaries_advisory=BUCKETS)
