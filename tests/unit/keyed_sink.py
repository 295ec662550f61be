"""A store of one JSON file per key with conditional puts, its backend, and a session into it."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from exactsink.contract import BackendOptions, Committable, IdempotentBackend, JobContext, Version
from exactsink.testing import Session

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


class KeyedOptions(BackendOptions):
    folder: str
    keys: tuple[str, ...] = ("id",)


class KeyedFiles(IdempotentBackend):
    """Put each row into the file of its key, under a lock, and count there how often one was let through."""

    Options = KeyedOptions
    options: KeyedOptions
    strategy = "keyed"

    @property
    def target(self) -> str:
        return self.options.folder

    @property
    def keys(self) -> Sequence[str]:
        return self.options.keys

    def prepare(self, schema: pa.Schema) -> None:
        Path(self.options.folder).mkdir(exist_ok=True)

    def apply(self, version: Version, batches: Iterator[pa.RecordBatch]) -> None:
        for own, row in version.rows(batches):
            self.put("-".join(str(row[key]) for key in self.keys), own, row)

    def put(self, key: str, version: Version, row: dict[str, Any]) -> None:
        path = Path(self.options.folder, f"{key}.json")
        with open(path.with_name("lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            held = json.loads(path.read_bytes()) if path.exists() else {"puts": 0}
            if version.replaces(Version.parse(held["version"]) if held["puts"] else None):
                new = path.with_suffix(".new")
                new.write_text(json.dumps({"version": version.text, "row": row, "puts": held["puts"] + 1}))
                new.replace(path)


def held(folder: Path) -> dict[str, Any]:
    """Read the store: what stands at each key."""
    return {path.stem: json.loads(path.read_bytes()) for path in sorted(folder.glob("*.json"))}


class Keyed(Session):
    """A session of sink `keyed` of job `orders` into such a store."""

    @property
    def staging(self) -> Path:
        return Path(self.ctx.staging)

    def vote(self, epoch: int, *partitions: Sequence[tuple[Any, str]]) -> list[Committable]:
        """Write and pre-commit one participant per partition; every row is a batch of its own."""
        parts = [[pa.record_batch([[key], [v]], schema=SCHEMA) for key, v in rows] for rows in partitions]
        return self.prepare(epoch, [pa.Table.from_batches(part) for part in parts])

    def rows(self) -> dict[str, str]:
        return {key: found["row"]["v"] for key, found in held(Path(self.backend.target)).items()}

    def puts(self) -> dict[str, int]:
        """Count the puts that were let through, by key."""
        return {key: found["puts"] for key, found in held(Path(self.backend.target)).items()}

    def left(self, suffix: str = "") -> list[str]:
        """Name what in the staging folder ends so."""
        return sorted(path.name for path in self.staging.iterdir() if path.name.endswith(suffix))


def keyed(folder: Path, lineage: str = "L1", generation: int = 1, backend: type[KeyedFiles] = KeyedFiles) -> Keyed:
    ctx = JobContext("orders", "keyed", str(folder / "staging"), generation, lineage)
    return Keyed(backend(KeyedOptions(folder=str(folder / "store"))), ctx, "aa")
