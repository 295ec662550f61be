"""A staged backend whose applier has a defect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pyarrow as pa

from exactsink.backend import Backend
from exactsink.model import Finding
from exactsink.staged import Applier, Marker
from exactsink_idempotent_upsert.backend import UpsertBackend
from exactsink_idempotent_upsert.conformance import TableTarget

__all__ = ["AppliesBlindly"]


class _Blind(Marker):
    def must_apply(self, stored: Marker | None) -> bool:
        return True


class _BlindApplier(Applier):
    """Applies whatever the marker in the target says."""

    def __init__(self, real: Applier) -> None:
        self._real = real

    def check(self, schema: pa.Schema) -> Iterable[Finding]:
        return self._real.check(schema)

    def open_epoch(self, schema: pa.Schema) -> None:
        self._real.open_epoch(schema)

    def last_applied(self, job: str, sink: str) -> Marker | None:
        return self._real.last_applied(job, sink)

    def close(self) -> None:
        self._real.close()

    def apply(self, marker: Marker, batches: Iterator[pa.RecordBatch]) -> bool:
        return self._real.apply(_Blind(*(getattr(marker, field.name) for field in fields(marker))), batches)


class _BlindBackend(UpsertBackend):
    def applier(self) -> Applier:
        return _BlindApplier(super().applier())


@dataclass(frozen=True)
class AppliesBlindly(TableTarget):
    """Applies an epoch without looking at its marker under the lock."""

    strategy: str = "staged"

    def backend(self, folder: Path) -> Backend:
        return _BlindBackend(super().backend(folder).options)  # type: ignore[arg-type]
