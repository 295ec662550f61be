"""One module for each benchmark, with its `BENCHMARK`."""

from __future__ import annotations

__all__: list[str] = []
