"""The kit's own quarantine: a JSON file that is replaced, together with its marker, in one step."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from exactsink.contract import BackendOptions, Finding, Traits
from exactsink.toolkit.roads import Applier, Marker, StagedBackend
from exactsink.toolkit.storage import replace_file

__all__ = ["KeptRows", "KeptRowsOptions"]


class KeptRowsOptions(BackendOptions):
    path: str


class KeptRows(StagedBackend):
    """Rows that any process can read back. It pickles."""

    Options = KeptRowsOptions
    options: KeptRowsOptions
    strategy, traits = "staged", Traits(atomic_visibility=True, needs_shared_staging=True, marks=True)

    @property
    def target(self) -> str:
        return f"file://{self.options.path}"

    def applier(self) -> Applier:
        return _KeptApplier(Path(self.options.path))

    def rows(self) -> list[dict[str, Any]]:
        """Read the rows of the epochs that are committed."""
        rows: list[dict[str, Any]] = _read(Path(self.options.path))["rows"]
        return rows


class _KeptApplier(Applier):
    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self, schema: pa.Schema) -> Iterable[Finding]:
        return ()

    def open_epoch(self, schema: pa.Schema) -> None:
        """Do nothing: the file needs no preparation."""

    def last_applied(self, job: str, sink: str) -> Marker | None:
        stored = _read(self._path)["marker"]
        return None if stored is None else Marker(**stored)

    def put_birth(self, birth: Marker) -> Marker:
        with self._alone():
            stands = self.last_applied(birth.job, birth.sink)
            if stands is None:
                self._replace(birth, [])
        return stands or birth

    def apply(self, marker: Marker, batches: Iterator[pa.RecordBatch]) -> bool:
        with self._alone():
            if not marker.must_apply(self.last_applied(marker.job, marker.sink)):
                return False
            self._replace(marker, [row for batch in batches for row in batch.to_pylist()])
        return True

    def close(self) -> None:
        """Do nothing: no resource is open."""

    def _replace(self, marker: Marker, more: list[dict[str, Any]]) -> None:
        stored = asdict(replace(marker, expected="any"))
        replace_file(self._path, json.dumps({"marker": stored, "rows": _read(self._path)["rows"] + more}).encode())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with open(f"{self._path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _read(path: Path) -> dict[str, Any]:
    empty: dict[str, Any] = {"marker": None, "rows": []}
    return {**empty, **json.loads(path.read_text())} if path.exists() else empty
