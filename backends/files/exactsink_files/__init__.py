"""The `files` backend: Parquet, JSON lines or CSV in a folder, each epoch's files appearing when it is decided."""

from __future__ import annotations

__all__: list[str] = []
