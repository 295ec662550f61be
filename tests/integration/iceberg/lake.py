"""One table for tests: a sink of ours, and others who write and read beside it with pyiceberg alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import polars
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from exactsink.contract import Committable, Committer, JobContext
from exactsink.testing import Session
from exactsink_iceberg.backend import IcebergBackend, IcebergOptions
from tests.integration.delta.tables import epochs as epochs
from tests.integration.delta.tables import rows as rows

KEY = "exactsink.shop.lake"
TABLE = "shop.orders"
os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"  # else it warns that it is slower so


@dataclass
class Lake:
    """A catalog and a warehouse; `theirs` is what pyiceberg needs beside the address to come to its files."""

    folder: Path
    uri: str = ""
    warehouse: str = ""
    theirs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.uri = self.uri or f"sqlite:///{self.folder}/catalog.db"
        self.warehouse = self.warehouse or str(self.folder / "lake")

    def session(self, lineage: str = "ab", sink: str = "lake", **options: Any) -> Session:
        given = {"uri": self.uri, "warehouse": self.warehouse, "table": TABLE, **options}
        ctx = JobContext("shop", sink, str(self.folder / "staging"), 1, lineage)
        return Session(IcebergBackend(IcebergOptions.model_validate(given)), ctx, lineage)

    def catalog(self) -> Catalog:
        """Open the catalog as another writer does."""
        kind = "rest" if self.uri.startswith("http") else "sql"
        return load_catalog("default", type=kind, uri=self.uri, warehouse=self.warehouse, **self.theirs)

    def table(self) -> Table:
        return self.catalog().load_table(TABLE)

    def ids(self, branch: str = "main") -> Counter[int]:
        """Read the ids by pyiceberg, by DuckDB and by Polars."""
        table = self.table()
        scan = table.scan().use_ref(branch) if table.metadata.refs else table.scan()
        found = Counter(scan.to_arrow()["id"].to_pylist())
        with closing(scan.to_duckdb("lake")) as reader:
            assert found == Counter(row for (row,) in reader.execute("SELECT id FROM lake").fetchall())
        if branch == "main":
            assert found == Counter(polars.scan_iceberg(table).collect()["id"].to_list())
        return found


def interrupted(sink: Session, epoch: int, voted: Sequence[Committable], between: Callable[[], object]) -> set[Any]:
    """Commit, or trim if nothing is voted, with a committer that has read the table when `between` happens, once."""
    done = list[object]()

    def commit_table(real: Callable[..., Any], *asked: Any) -> Any:
        if not done:
            try:
                done.append(between())
            except Exception as error:  # it would be taken for the catalog's answer
                done.append(error)
        return real(*asked)

    outcomes = committed_by(sink, epoch, voted, commit_table)
    assert not isinstance(done[0], Exception), done
    return outcomes


def committed_by(sink: Session, epoch: int, voted: Sequence[Committable], commit_table: Callable[..., Any]) -> set[Any]:
    """Commit by this function in place of the catalog's. It gets that one first."""

    def call(committer: Committer) -> set[Any]:
        committer.mark()
        catalog = vars(getattr(committer, "_real", committer))["_target"].catalog
        catalog.commit_table = partial(commit_table, catalog.commit_table)
        return set(committer.commit(epoch, voted) if voted else committer.trim_marks() or [])

    return sink.with_committer(call)
