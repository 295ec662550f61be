"""A job's metrics and traces, fed by its events. Imports Prometheus and OpenTelemetry only if they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from exactsink.contract import Event

__all__ = ["ObserveOptions", "Observer", "subscribers"]


class ObserveOptions(Protocol):
    """The options of a job's `[observe]`."""

    @property
    def prometheus(self) -> str | None:
        """The `host:port` of the metrics endpoint."""

    @property
    def certificate(self) -> str | None:
        """A PEM file, for HTTPS."""

    @property
    def key(self) -> str | None:
        """The PEM file of its private key."""

    @property
    def opentelemetry(self) -> bool:
        """Whether to send metrics and spans through OpenTelemetry."""


class Observer(Protocol):
    """A subscriber that holds a resource, for example a port, until it is closed."""

    def __call__(self, event: Event) -> None:
        """Receive an event."""

    def close(self) -> None:
        """Release the resource once the job has ended. Idempotent."""


def subscribers(observe: ObserveOptions) -> list[Observer]:
    """Make the subscribers for a job's `[observe]`, and serve its metrics. The caller closes them.

    Raises ConfigError for a package that is not installed, a port that is taken, and OpenTelemetry without an SDK,
    which would send nothing. After an error, every resource is closed.
    """
    made: list[Observer] = []
    if observe.opentelemetry:
        from exactsink.observe.opentelemetry import OpenTelemetryMetrics, require_sdk

        require_sdk()
        made.append(OpenTelemetryMetrics())
    if observe.prometheus is not None:
        from exactsink.observe.prometheus import PrometheusMetrics

        metrics = PrometheusMetrics()
        try:
            metrics.serve(observe.prometheus, observe.certificate, observe.key)
        except BaseException:
            metrics.close()
            raise
        made.append(metrics)
    return made
