"""A staged backend whose applier has a defect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pyarrow as pa

from exactsink.contract import Applier, Backend, Marker
from exactsink.testing.wrapped import WrappedApplier
from exactsink_idempotent_upsert.backend import UpsertBackend
from exactsink_idempotent_upsert.conformance import TableTarget

__all__ = ["AppliesBlindly"]


class _Blind(Marker):
    def must_apply(self, stored: Marker | None) -> bool:
        return True


class _BlindApplier(WrappedApplier):
    """Applies whatever the marker in the target says."""

    def apply(self, marker: Marker, batches: Iterator[pa.RecordBatch]) -> bool:
        return super().apply(_Blind(*(getattr(marker, field.name) for field in fields(marker))), batches)


class _BlindBackend(UpsertBackend):
    def applier(self) -> Applier:
        return _BlindApplier(super().applier())


@dataclass(frozen=True)
class AppliesBlindly(TableTarget):
    """Applies an epoch without looking at its marker under the lock."""

    strategy: str = "staged"

    def backend(self, folder: Path) -> Backend:
        return _BlindBackend(super().backend(folder).options)  # type: ignore[arg-type]
