"""Targets in an object store, apart from the tests: a fresh process that reads one back imports this file alone."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq  # these here once, not in each process that the kit forks
import s3fs  # noqa: F401

from exactsink.contract import Backend, Committable
from exactsink.testing import ConformanceTarget
from exactsink.toolkit.storage import ObjectPath
from exactsink_files.backend import FilesBackend, FilesOptions, store_of
from exactsink_files.conformance import not_utf8
from exactsink_files.places import root_of
from exactsink_files.stores import Store
from exactsink_files.votes import VotedFiles
from exactsink_idempotent_upsert.conformance import StagedTarget


@dataclass(frozen=True)
class StoreTarget(ConformanceTarget):
    """A prefix of its own a scenario, below a URL in a store, with Parquet in partition folders."""

    url: str

    def backend(self, folder: Path) -> Backend:
        return FilesBackend(FilesOptions.model_validate({"path": self._lake(folder), "partition_by": ["kind"]}))

    def applied(self, folder: Path) -> Counter[int]:
        return Counter(row for ids in self.order(folder) for row in ids)

    def order(self, folder: Path) -> Iterable[Sequence[int]]:
        lake = self._root(folder)
        names = sorted(name for name in lake.listed(deep=True) if not name.startswith("_exactsink/"))
        files = [pq.ParquetFile(pa.BufferReader((lake / name).read_bytes())) for name in names]
        return [file.read(columns=["id"]).column("id").to_pylist() for file in files]

    def unfit(self, rows: pa.Table) -> pa.Table:
        return not_utf8(rows)

    def lose_votes(self, folder: Path, committables: Sequence[Committable]) -> None:
        """Abort the uploads, as a lifecycle rule does."""
        s3 = self._s3(folder)
        for file in (file for committable in committables for file in VotedFiles.load(committable).files):
            s3.abort(s3.key(file.final), file.temp)

    def destroy_evidence(self, folder: Path, committables: Sequence[Committable]) -> None:
        self.lose_votes(folder, committables)
        s3 = self._s3(folder)
        finals = [s3.key(file.final) for committable in committables for file in VotedFiles.load(committable).files]
        marks = [s3.key(f"_exactsink/{c.txn.job}.{c.txn.sink}/") for c in committables]
        s3.delete(sorted({*finals, *(key for prefix in marks for key, _ in s3.objects(prefix))}))

    def foreign(self, folder: Path) -> None:
        s3 = self._s3(folder)
        key = s3.key("somebody's own.parquet")
        upload = s3.create(key, {})
        s3.put_part(key, upload, 1, b"x")
        (folder / "upload").write_text(upload)
        s3.put(s3.key("_exactsink/somebody's own.uploads"), b"[]")

    def foreign_stands(self, folder: Path) -> bool:
        s3 = self._s3(folder)
        stands = s3.get(s3.key("_exactsink/somebody's own.uploads")) == b"[]"
        upload = (folder / "upload").read_text()
        return stands and s3.parts(s3.key("somebody's own.parquet"), upload) is not None

    def _lake(self, folder: Path) -> str:
        return f"{self.url}/{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}/lake"

    def _s3(self, folder: Path) -> Store:
        return store_of(ObjectPath.of(self._lake(folder)))

    def _root(self, folder: Path) -> ObjectPath:
        root = root_of(self._lake(folder))
        assert isinstance(root, ObjectPath)
        return root


class RenameTarget(StoreTarget):
    """A folder of its own a scenario, on a server whose files are renamed."""

    def lose_votes(self, folder: Path, committables: Sequence[Committable]) -> None:
        for waiting in (self._root(folder) / "_exactsink" / committable.txn.id for committable in committables):
            waiting.unlink_below(waiting.names())

    def destroy_evidence(self, folder: Path, committables: Sequence[Committable]) -> None:
        lake = self._root(folder)
        for txn in (committable.txn for committable in committables):
            own = (txn.id, f"_exactsink/{txn.job}.{txn.sink}/")
            lake.unlink_below([name for name in lake.listed(deep=True) if any(each in name for each in own)])

    def foreign(self, folder: Path) -> None:
        self._foreign(folder).create(b"somebody's")

    def foreign_stands(self, folder: Path) -> bool:
        return self._foreign(folder).exists()

    def _foreign(self, folder: Path) -> ObjectPath:
        return self._root(folder) / "_exactsink/somebody's own/0.tmp"


@dataclass(frozen=True)
class StagingOnS3(StagedTarget):
    """SQLite's table, with a staging folder of its own a scenario, below a URL in S3."""

    url: str

    previous = ConformanceTarget.previous  # not given: the recordings are of local files

    def staging(self, folder: Path) -> str:
        return f"{self.url}/{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}/staging"

    def foreign(self, folder: Path) -> None:
        ObjectPath.of(f"{self.staging(folder)}/somebody's own.arrow").create(b"somebody's")
