"""Folders for `exactsink bench`: one per format, or a sink's own options on another folder."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.dataset  # noqa: F401 - here once, not in each process that a bench forks
import pyarrow.parquet as pq

from exactsink.bench.target import BenchReader, BenchTarget, Place
from exactsink.contract import BackendOptions
from exactsink_files.backend import FilesOptions

__all__ = ["FolderTarget", "targets"]


def targets(options: BackendOptions | None) -> Mapping[str, BenchTarget]:
    """Return a target for each format, or for the sink's own options."""
    if options is None:
        return {name: FolderTarget(name) for name in ("parquet", "json")}
    assert isinstance(options, FilesOptions)
    return {options.format: FolderTarget(options.format, options)}


@dataclass(frozen=True)
class FolderTarget(BenchTarget):
    """A folder beside the user's, if there is one, so that it is on the same file system."""

    format: str
    given: FilesOptions | None = None

    def make(self, place: Place) -> Mapping[str, Any]:
        return {"path": str(self._folder(place)), "format": self.format}

    def reader(self, place: Place) -> BenchReader:
        header = self.format == "csv" and (self.given is None or self.given.header)
        return _FilesReader(self._folder(place), self.format, header)

    def size(self, place: Place) -> int | None:
        return sum(path.stat().st_size for path in self._folder(place).rglob("*") if path.is_file())

    def drop(self, place: Place) -> None:
        shutil.rmtree(self._folder(place), ignore_errors=True)

    def _folder(self, place: Place) -> Path:
        parent = place.folder if self.given is None else Path(self.given.path).parent
        return parent / place.name


@dataclass
class _FilesReader(BenchReader):
    """Counts the rows of visible files; each file once, because files never change."""

    folder: Path
    format: str
    header: bool
    counted: dict[Path, int] = field(default_factory=dict)

    def rows(self) -> int:
        for where, folders, names in os.walk(self.folder):
            folders[:] = [name for name in folders if name != "_exactsink"]  # its entries may go while it is listed
            for path in (Path(where, name) for name in names if name.endswith(f".{self.format}")):
                if path not in self.counted:
                    self.counted[path] = self._rows_of(path)
        return sum(self.counted.values())

    def close(self) -> None:
        pass

    def _rows_of(self, path: Path) -> int:
        if self.format == "parquet":
            rows: int = pq.read_metadata(path).num_rows
            return rows
        if self.format == "json":
            return path.read_bytes().count(b"\n")
        with path.open(newline="") as lines:
            return sum(1 for _ in csv.reader(lines)) - self.header
