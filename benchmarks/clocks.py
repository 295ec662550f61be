"""CPU time of this process and all below it."""

from __future__ import annotations

from exactsink.bench.clocks import cpu_seconds

__all__ = ["cpu_seconds"]
