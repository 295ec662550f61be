"""How the conformance kit reaches Iceberg tables: a catalog in SQLite and a warehouse in each scenario's folder."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from pydantic import SecretStr

from exactsink.contract import Backend, Committable
from exactsink.testing import ConformanceTarget
from exactsink.toolkit.storage import create_file, make_folder
from exactsink_iceberg.backend import IcebergBackend, IcebergOptions
from exactsink_iceberg.durable_io import path_at
from exactsink_iceberg.tables import SinkTable
from exactsink_iceberg.votes import votes_of

__all__ = ["IcebergTarget", "targets"]


@dataclass(frozen=True)
class IcebergTarget(ConformanceTarget):
    """A table. A row was applied as often as it stands in the files that the current snapshot names."""

    partition_by: tuple[str, ...] = ()

    def backend(self, folder: Path) -> Backend:
        return IcebergBackend(self._options(folder))

    def applied(self, folder: Path) -> Counter[int]:
        return Counter(number for ids in self.order(folder) for number in ids)

    def order(self, folder: Path) -> Iterable[Sequence[int]]:
        target = SinkTable(self._options(folder), "", "")
        table = target.table()
        paths = [task.file.file_path for task in table.scan().plan_files()] if table is not None else []
        target.close()
        return [pq.read_table(path_at(p), columns=["id"], partitioning=None)["id"].to_pylist() for p in paths]

    def lose_votes(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Remove files that no snapshot names, as a removal of orphan files does."""
        for committable in committables:
            for voted in votes_of(committable):
                path_at(voted.path).unlink(missing_ok=True)

    def destroy_evidence(self, folder: Path, committables: Sequence[Committable]) -> None:
        shutil.rmtree(folder / "lake")

    def foreign(self, folder: Path) -> None:
        path = self._foreign(folder)
        make_folder(path.parent)
        create_file(path, b"somebody's")

    def foreign_stands(self, folder: Path) -> bool:
        path = self._foreign(folder)
        return path.exists() and path.read_bytes() == b"somebody's"

    def _options(self, folder: Path) -> IcebergOptions:
        uri = SecretStr(f"sqlite:///{folder}/lake/catalog.db")
        return IcebergOptions(
            uri=uri, warehouse=str(folder / "lake"), table="shop.orders", partition_by=self.partition_by
        )

    def _foreign(self, folder: Path) -> Path:
        return folder / "lake/_exactsink/default.shop.orders/somebody's own"


def targets() -> Mapping[str, ConformanceTarget]:
    """Return a table without partitions, and one with two transforms."""
    return {"table": IcebergTarget(), "partitioned": IcebergTarget(("kind", "bucket(4, id)"))}
