"""Benchmarks: ours beside a yardstick, in turns, with the ratio's bound. `python -m benchmarks --list`."""

from __future__ import annotations

__all__: list[str] = []
