"""Targets for the conformance kit: Iceberg tables, with a SQLite catalog and a warehouse in each scenario's folder."""

from __future__ import annotations

import shutil
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import SecretStr

from exactsink.contract import Backend, Committable
from exactsink.testing import ROWS, ConformanceTarget
from exactsink.toolkit.storage import AnyPath, ObjectPath, create_file, make_folder
from exactsink_iceberg.backend import IcebergBackend, IcebergOptions
from exactsink_iceberg.durable_io import path_at
from exactsink_iceberg.tables import SinkTable
from exactsink_iceberg.votes import votes_of

__all__ = ["IcebergTarget", "StrictTarget", "targets"]


@dataclass(frozen=True)
class IcebergTarget(ConformanceTarget):
    """A table. A row was applied as often as it occurs in the files that the branch's head names."""

    partition_by: tuple[str, ...] = ()
    uri: str = ""
    url: str = ""

    def backend(self, folder: Path) -> Backend:
        return IcebergBackend(self.options(folder))

    def applied(self, folder: Path) -> Counter[int]:
        return Counter(number for ids in self.order(folder) for number in ids)

    def order(self, folder: Path) -> Iterable[Sequence[int]]:
        with closing(SinkTable(self.options(folder), "", "")) as target:
            paths = [path_at(file.file_path) for file in target.files(target.table())]
        files = [pq.ParquetFile(pa.BufferReader(path.read_bytes())) for path in paths]
        return [file.read(columns=["id"]).column("id").to_pylist() for file in files]

    def lose_votes(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Remove files that no snapshot names, as a removal of orphan files does."""
        for committable in committables:
            for voted in votes_of(committable):
                path_at(voted.path).unlink(missing_ok=True)

    def destroy_evidence(self, folder: Path, committables: Sequence[Committable]) -> None:
        with closing(SinkTable(self.options(folder), "", "")) as target:
            if target.table() is not None:
                target.catalog.drop_table(self.options(folder).table)
        if isinstance(target.root, ObjectPath):
            target.root.unlink_below(target.root.listed(deep=True))
        else:
            shutil.rmtree(target.root)

    def foreign(self, folder: Path) -> None:
        path = self._foreign(folder)
        make_folder(path.parent)
        create_file(path, b"somebody's")

    def foreign_stands(self, folder: Path) -> bool:
        path = self._foreign(folder)
        return path.exists() and path.read_bytes() == b"somebody's"

    def options(self, folder: Path) -> IcebergOptions:
        """Return the options of a scenario's table."""
        name = f"c{zlib.crc32(str(folder).encode()):08x}"
        return IcebergOptions(
            uri=SecretStr(self.uri or f"sqlite:///{folder}/lake/catalog.db"),
            catalog=name,
            warehouse=f"{self.url}/{name}" if self.url else str(folder / "lake"),
            table=f"{name}.orders",
            partition_by=self.partition_by,
        )

    def _foreign(self, folder: Path) -> AnyPath:
        return SinkTable(self.options(folder), "", "").records / "somebody's own"


class StrictTarget(IcebergTarget):
    """A table that exactsink did not make, with a column that must not be NULL."""

    def backend(self, folder: Path) -> Backend:
        columns = [field.with_nullable(field.name != "amount") for field in ROWS]
        with closing(SinkTable(self.options(folder), "", "")) as target:
            target.create(pa.schema(columns))
        return super().backend(folder)

    def unfit(self, rows: pa.Table) -> pa.Table:
        return rows.set_column(2, rows.field("amount"), pa.nulls(rows.num_rows, pa.float64()))


def targets() -> Mapping[str, ConformanceTarget]:
    """Return a table without partitions, and one with two transforms."""
    return {"table": IcebergTarget(), "partitioned": StrictTarget(("kind", "bucket(4, id)"))}
