"""A Delta table in a test's folder: its rows, a session of the kit's for it, and readers of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset
from deltalake import DeltaTable

from exactsink.contract import Committable, Committed, JobContext
from exactsink.testing import Session
from exactsink.testing.target import ROWS
from exactsink_delta.backend import DeltaBackend, DeltaOptions


def rows(*ids: int, kind: str | None = "k") -> pa.Table:
    """Make rows as the kit's are."""
    return pa.table({"id": ids, "kind": [kind for _ in ids], "amount": [1.0 for _ in ids]}, schema=ROWS)


def session(folder: Path, lineage: str = "ab", job: str = "shop", **options: Any) -> Session:
    backend = DeltaBackend(DeltaOptions.model_validate({"path": str(folder / "table"), **options}))
    return Session(backend, JobContext(job, "lake", str(folder / "staging"), 1, lineage), lineage)


def table(folder: Path) -> DeltaTable:
    return DeltaTable(folder / "table")


def read(folder: Path) -> Counter[int]:
    """Read the ids by deltalake, by DuckDB and by Polars."""
    found = Counter(table(folder).to_pyarrow_table()["id"].to_pylist())
    assert found == Counter(row for (row,) in asked(folder, "SELECT id FROM lake"))
    assert found == Counter(polars.read_delta(str(folder / "table"))["id"].to_list())
    return found


def asked(folder: Path, query: str) -> list[tuple[Any, ...]]:
    """Ask DuckDB about the table, which is called `lake` there."""
    with duckdb.connect() as reader:
        reader.register("lake", table(folder).to_pyarrow_dataset())
        return reader.execute(query).fetchall()


def epochs(sink: Session, *numbers: int) -> None:
    """Write and commit epochs; each has a row with its own number."""
    for epoch in numbers:
        assert set(sink.commit(epoch, sink.prepare(epoch, [rows(epoch)]))) == {Committed()}


def interrupted(sink: Session, epoch: int, voted: Sequence[Committable], between: Callable[[], object]) -> set[Any]:
    """Commit with a committer that has looked at table and files when `between` happens, once, before its entry."""
    with closing(sink.backend.committer(sink.ctx)) as committer:
        committer.mark()
        before_once(vars(committer)["_log"], "append", between)
        return set(committer.commit(epoch, voted))


def before_once(holder: Any, name: str, between: Callable[[], object]) -> None:
    """Let something happen before the first call of a method."""
    real, pending = getattr(holder, name), [between]

    def call(*args: Any) -> Any:
        while pending:
            pending.pop()()
        return real(*args)

    setattr(holder, name, call)


def found(folder: Path, schema: pa.Schema = ROWS, **options: Any) -> list[str]:
    return [
        f"{finding.severity}: {finding.message}"
        for finding in session(folder, **options).with_committer(lambda committer: list(committer.check(schema, None)))
    ]
