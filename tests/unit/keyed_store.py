"""The backend that `exactsink init --plugin --from idempotent` writes, on a store that logs each put, for tests."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from exactsink.contract import Backend, Committable, JobContext
from exactsink.starters import plugin
from exactsink.testing import Session

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
_TARGETS = Path(plugin.__file__).parent / "templates/idempotent/targets.py.txt"
_TABLES = _TARGETS.read_text().split('TABLES = """')[1].split('"""')[0]
_WRITTEN = ModuleType("exactsink_keyed")
exec(compile(plugin.backend_text("keyed", "idempotent"), "backend.py", "exec", dont_inherit=True), vars(_WRITTEN))
KeyedBackend = _WRITTEN.KeyedBackend


def make_store(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "store.db")) as store:
        store.executescript(_TABLES)


def backend(folder: Path, kind: type[Backend] = KeyedBackend) -> Backend:
    return kind(_WRITTEN.KeyedOptions(path=str(folder / "store.db"), keys=("id",), lock_seconds=0.2))


def puts(folder: Path) -> Counter[int]:
    """Count by id how often a row was put."""
    with closing(sqlite3.connect(folder / "store.db")) as store:
        return Counter(json.loads(item)["id"] for (item,) in store.execute("SELECT item FROM changes"))


def values(folder: Path) -> list[Any]:
    """Read the rows."""
    with closing(sqlite3.connect(folder / "store.db")) as store:
        return [json.loads(item) for (item,) in store.execute("SELECT item FROM items ORDER BY key")]


class Keyed(Session):
    """A session of sink `keyed` of job `orders`."""

    @property
    def staging(self) -> Path:
        return Path(self.ctx.staging)

    def vote(self, epoch: int, *partitions: Sequence[tuple[int | None, str]]) -> list[Committable]:
        """Write and pre-commit one participant per partition; every row is a batch of its own."""
        parts = [[pa.record_batch([[key], [v]], schema=SCHEMA) for key, v in rows] for rows in partitions]
        return self.prepare(epoch, [pa.Table.from_batches(part) for part in parts])


def keyed(folder: Path, lineage: str = "L1", kind: type[Backend] = KeyedBackend, generation: int = 1) -> Keyed:
    ctx = JobContext("orders", "keyed", str(folder / "staging"), generation, lineage)
    return Keyed(backend(folder, kind), ctx, "aa")
