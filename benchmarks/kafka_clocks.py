"""Whose CPU time it was: the driver's, Spark's JVM's, the Python workers', or the broker's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from exactsink.bench.clocks import cpu_reading, cpu_spent

__all__ = ["shared_out"]


def shared_out(broker: int, work: Callable[[], Mapping[str, float]]) -> Mapping[str, float]:
    """Do the work, and add to its figures the seconds of CPU time of each; `broker` is a process id."""
    before = cpu_reading()
    reported = work()
    spent = cpu_spent(before, cpu_reading(), {broker: "broker"})
    return {**reported, **{f"{name}_cpu_s": seconds for name, seconds in spent.items()}}
