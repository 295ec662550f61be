"""Upserts into SQL tables, exactly once: staged rows and the epoch's marker go in with one transaction."""

from __future__ import annotations

__all__: list[str] = []
