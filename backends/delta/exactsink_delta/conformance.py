"""Targets for the conformance kit: a Delta table in each scenario's folder, or in S3 below EXACTSINK_KIT_S3."""

from __future__ import annotations

import os
import shutil
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from exactsink.contract import Backend, Committable
from exactsink.testing import ConformanceTarget
from exactsink.toolkit.storage import AnyPath, ObjectPath, create_file, make_folder, path_of
from exactsink_delta.backend import DeltaBackend, DeltaOptions
from exactsink_delta.log import RECORDS, TableLog

__all__ = ["DeltaTarget", "PartitionedTarget", "targets"]


@dataclass(frozen=True)
class DeltaTarget(ConformanceTarget):
    """A table. A row was applied as often as it occurs in the files that the log names."""

    partition_by: tuple[str, ...] = ()
    url: str = ""

    def backend(self, folder: Path) -> Backend:
        return DeltaBackend(DeltaOptions(path=str(self._root(folder)), partition_by=self.partition_by))

    def applied(self, folder: Path) -> Counter[int]:
        return Counter(number for ids in self.order(folder) for number in ids)

    def order(self, folder: Path) -> Iterable[Sequence[int]]:
        root = self._root(folder)
        table = TableLog(root, "", "").table()
        names = pa.table(table.get_add_actions())["path"].to_pylist() if table is not None else []
        files = [pq.ParquetFile(pa.BufferReader((root / unquote(name)).read_bytes())) for name in names]
        return [file.read(columns=["id"]).column("id").to_pylist() for file in files]

    def lose_votes(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Remove files that no entry names, as VACUUM does."""
        root, lost = self._root(folder), tuple(f"{committable.txn.id}." for committable in committables)
        listed = (
            root.listed(deep=True)
            if isinstance(root, ObjectPath)
            else glob("**/*.parquet", root_dir=root, recursive=True)
        )
        for name in listed:
            if name.rpartition("/")[2].startswith(lost):
                (root / name).unlink()

    def destroy_evidence(self, folder: Path, committables: Sequence[Committable]) -> None:
        root = self._root(folder)
        if isinstance(root, ObjectPath):
            root.unlink_below(root.listed(deep=True))
        else:
            shutil.rmtree(root)

    def foreign(self, folder: Path) -> None:
        path = self._root(folder) / RECORDS / "somebody's own"
        make_folder(path.parent)
        create_file(path, b"somebody's")

    def foreign_stands(self, folder: Path) -> bool:
        path = self._root(folder) / RECORDS / "somebody's own"
        return path.exists() and path.read_bytes() == b"somebody's"

    def _root(self, folder: Path) -> AnyPath:
        return path_of(f"{self.url}/{zlib.crc32(str(folder).encode()):08x}" if self.url else str(folder / "table"))


class PartitionedTarget(DeltaTarget):
    """A table that is partitioned by a text column, in which Delta can't store an empty text."""

    def unfit(self, rows: pa.Table) -> pa.Table:
        return rows.set_column(1, rows.field("kind"), pa.array([""] * rows.num_rows))


def targets() -> Mapping[str, ConformanceTarget]:
    """Return a plain table and a partitioned one; also one in S3, if EXACTSINK_KIT_S3 names a URL."""
    local = {"table": DeltaTarget(), "partitioned": PartitionedTarget(("kind",))}
    url = os.environ.get("EXACTSINK_KIT_S3")
    return {**local, "s3": PartitionedTarget(("kind",), url)} if url else local
