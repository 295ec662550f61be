"""A job's metrics and traces, fed by its events. Neither Prometheus nor OpenTelemetry is imported until asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from exactsink.contract import Event

__all__ = ["ObserveOptions", "Observer", "subscribers"]


class ObserveOptions(Protocol):
    """What a job's `[observe]` says."""

    @property
    def prometheus(self) -> str | None:
        """`host:port` to serve metrics at."""

    @property
    def certificate(self) -> str | None:
        """A PEM file, for HTTPS."""

    @property
    def key(self) -> str | None:
        """Its private key's."""

    @property
    def opentelemetry(self) -> bool:
        """Whether to send metrics and spans through OpenTelemetry."""


class Observer(Protocol):
    """A subscriber that holds a resource, for example a port, until it is closed."""

    def __call__(self, event: Event) -> None:
        """Take an event."""

    def close(self) -> None:
        """Release what is held, once the job has ended. Idempotent."""


def subscribers(observe: ObserveOptions) -> list[Observer]:
    """Make the subscribers that a job's `[observe]` asks for, and serve its metrics. The caller closes them.

    Raises ConfigError for a package that is not installed, a port that is taken, and OpenTelemetry without an SDK,
    which would send nothing. After an error nothing is left open.
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
