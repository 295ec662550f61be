"""A target of upserts by portable SQL: a DuckDB file, which one process may open at a time."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import duckdb_engine  # noqa: F401 - here once, not in each process that the kit forks
import pandas  # noqa: F401 - the same: DuckDB imports it to bind values

from exactsink.contract import Backend
from exactsink.testing import ConformanceTarget
from exactsink_idempotent_upsert.backend import UpsertBackend, UpsertOptions
from exactsink_idempotent_upsert.generic import database as generic  # noqa: F401 - the same


class DuckDBTarget(ConformanceTarget):
    """A table whose rows count how often each was applied."""

    one_process = True

    def backend(self, folder: Path) -> Backend:
        self._run(folder, "CREATE TABLE flights (id BIGINT PRIMARY KEY, kind TEXT, amount DOUBLE, times INT DEFAULT 1)")
        given = {"url": f"duckdb:///{folder / 'table.db'}", "table": "flights", "keys": ["id"]}
        return UpsertBackend(UpsertOptions.model_validate({**given, "set": {"times": "flights.times + 1"}}))

    def applied(self, folder: Path) -> Counter[int]:
        """Where a stopped driver has the file, which DuckDB locks, read a copy: it holds what is committed."""
        query = "SELECT id, times FROM flights"
        with TemporaryDirectory() as copy:
            try:
                return Counter(dict(self._run(folder, query)))
            except duckdb.IOException:
                for file in folder.glob("table.db*"):
                    shutil.copy(file, copy)
                return Counter(dict(self._run(Path(copy), query)))

    def _run(self, folder: Path, statement: str) -> Sequence[tuple[Any, ...]]:
        with closing(duckdb.connect(str(folder / "table.db"))) as connection:
            return connection.execute(statement).fetchall()
