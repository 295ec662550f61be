"""One module a benchmark, each with its `BENCHMARK`."""

from __future__ import annotations

__all__: list[str] = []
