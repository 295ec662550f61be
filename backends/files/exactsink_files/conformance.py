"""Targets of the `files` backend for the conformance kit: one per format, with one or several files per participant."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset  # here once, not in each process that the kit forks
import pyarrow.parquet as pq

from exactsink.contract import Backend, Committable
from exactsink.testing import ConformanceTarget, recorded
from exactsink_files.backend import FilesBackend, FilesOptions

__all__ = ["FilesTarget", "not_utf8", "targets"]

_RECORDINGS = Path(__file__).with_name("conformance.json")
_FOREIGN = Path("_exactsink", "somebody's own", "0.tmp")


def not_utf8(rows: pa.Table) -> pa.Table:
    """Return the kit's rows with texts that no Parquet file may hold."""
    text = pa.array([b"\xff"] * rows.num_rows, pa.binary()).view(pa.string())
    return rows.set_column(1, rows.field("kind"), text)


def targets() -> Mapping[str, ConformanceTarget]:
    """Return the targets by name."""
    return {
        "parquet": FilesTarget.of("parquet", partition_by=["kind"]),
        "json": FilesTarget.of("json"),
        "csv": FilesTarget.of("csv", target_file_size="100 B"),
    }


@dataclass(frozen=True)
class FilesTarget(ConformanceTarget):
    """A folder. A row was applied as often as it occurs in visible files."""

    format: str
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, format: str, **options: Any) -> FilesTarget:
        return cls(format, tuple(options.items()))

    def backend(self, folder: Path) -> Backend:
        given = {"path": str(folder / "lake"), "format": self.format, **dict(self.options)}
        return FilesBackend(FilesOptions.model_validate(given))

    def applied(self, folder: Path) -> Counter[int]:
        return Counter(row for ids in self.order(folder) for row in ids)

    def shaped(self, rows: pa.Table) -> pa.Table:
        if self.format == "csv":
            lines = [f"{row['id']},{row['kind']},{row['amount']}" for row in rows.to_pylist()]
            return pa.table({",".join(rows.column_names): lines})
        if self.format == "json":  # the JVM writes its floats
            text = rows["amount"].combine_chunks().cast(pa.string())
            return rows.set_column(2, "amount", pa.StructArray.from_arrays([text], ["value"]))
        return rows

    def order(self, folder: Path) -> Iterable[Sequence[int]]:
        lake = folder / "lake"
        paths = [path for path in lake.rglob(f"*.{self.format}") if "_exactsink" not in path.relative_to(lake).parts]
        return [_ids_of(path.name, path.read_bytes()) for path in sorted(paths)]

    def unfit(self, rows: pa.Table) -> pa.Table:
        return not_utf8(rows)

    def lose_votes(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Remove the temp files, as a person may who considers them rubbish."""
        for committable in committables:
            shutil.rmtree(folder / "lake" / "_exactsink" / committable.txn.id)

    def destroy_evidence(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Remove the temp files, the named files and the marks."""
        for committable in committables:
            for path in (folder / "lake").rglob("*"):
                if path.is_file() and committable.txn.id in str(path):
                    path.unlink()
            shutil.rmtree(folder / "lake" / "_exactsink" / f"{committable.txn.job}.{committable.txn.sink}", True)

    def foreign(self, folder: Path) -> None:
        path = folder / "lake" / _FOREIGN
        path.parent.mkdir(parents=True)
        path.write_text("somebody's")

    def foreign_stands(self, folder: Path) -> bool:
        path = folder / "lake" / _FOREIGN
        return path.exists() and path.read_text() == "somebody's"

    def previous(self, folder: Path) -> Sequence[Committable]:
        return recorded(_RECORDINGS, self.format, folder)


def _ids_of(name: str, data: bytes) -> list[int]:
    """Read the ids of a file's rows."""
    if name.endswith(".parquet"):
        ids: list[int] = pq.ParquetFile(pa.BufferReader(data)).read(columns=["id"]).column("id").to_pylist()
        return ids
    if name.endswith(".json"):
        return [json.loads(line)["id"] for line in data.decode().splitlines()]
    return [int(row["id"]) for row in csv.DictReader(io.StringIO(data.decode(), newline=""))]
