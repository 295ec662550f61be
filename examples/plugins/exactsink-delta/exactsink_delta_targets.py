"""How the conformance kit reaches Delta tables: one in each scenario's folder, partitioned or not."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from exactsink.contract import Backend, Committable
from exactsink.testing import ConformanceTarget

from exactsink_delta import DeltaBackend, DeltaOptions


@dataclass(frozen=True)
class DeltaTarget(ConformanceTarget):
    """A table. A row was applied as often as it stands in the files that the log names."""

    partition_by: tuple[str, ...] = ()

    def backend(self, folder: Path) -> Backend:
        return DeltaBackend(DeltaOptions(path=str(folder / "table"), partition_by=self.partition_by))

    def applied(self, folder: Path) -> Counter[int]:
        return Counter(id for ids in self.order(folder) for id in ids)

    def order(self, folder: Path) -> Iterable[Sequence[int]]:
        try:
            uris = DeltaTable(folder / "table").file_uris()
        except TableNotFoundError:
            return []
        return [pq.ParquetFile(unquote(uri)).read(columns=["id"]).column("id").to_pylist() for uri in uris]

    def lose_votes(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Remove files that no entry names, as VACUUM does."""
        for committable in committables:
            for path in (folder / "table").glob(f"{committable.txn.id}.*.parquet"):
                path.unlink()

    def destroy_evidence(self, folder: Path, committables: Sequence[Committable]) -> None:
        shutil.rmtree(folder / "table")

    def foreign(self, folder: Path) -> None:
        records = folder / "table" / "_exactsink"
        records.mkdir(parents=True, exist_ok=True)
        (records / "somebody's own").write_text("somebody's")

    def foreign_stands(self, folder: Path) -> bool:
        path = folder / "table" / "_exactsink" / "somebody's own"
        return path.exists() and path.read_text() == "somebody's"


def targets() -> Mapping[str, ConformanceTarget]:
    return {"table": DeltaTarget(), "partitioned": DeltaTarget(("kind",))}
