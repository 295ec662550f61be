"""Small streaming jobs in a folder of their own: their files, what their source gave, and what their sinks hold."""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

Row = tuple[object, ...]

ROWS_A_BATCH = 500
PARTICIPANTS = 2
ROWS_AN_EPOCH = PARTICIPANTS * ROWS_A_BATCH
SPARK = """
[spark]
master = "local[2]"
[spark.conf]
"spark.ui.enabled" = false
"spark.log.level" = "ERROR"
"spark.python.daemon.module" = "tests.e2e.python_daemon"
"spark.sql.shuffle.partitions" = 2
"spark.sql.session.timeZone" = "UTC"
"""
SOURCE = """
[source]
format = "json"
schema = "id BIGINT, kind STRING, amount DOUBLE, tags MAP<STRING, INT>"
path = "{folder}/source"
options = {{ maxFilesPerTrigger = 1 }}
"""
TWO_FILES = SOURCE.replace("maxFilesPerTrigger = 1", f"maxFilesPerTrigger = {PARTICIPANTS}")
"""A source whose epochs have a task for each of two files, and so two participants a sink."""
TABLE = """
[sinks.table]
backend = "idempotent_upsert"
url = "sqlite:///{folder}/table.db"
table = "rows"
keys = ["id"]
columns = ["id", "kind", "amount"]
"""
SINKS = (
    '\n[sinks.lake]\nbackend = "files"\npath = "{folder}/lake"\npartition_by = ["kind"]\n' + TABLE + "create = true\n"
)
LINES = """
[sinks.lines]
backend = "files"
path = "{folder}/lines"
format = "json"
"""
DELTA = '\n[sinks.delta]\nbackend = "delta"\npath = "{folder}/delta"\npartition_by = ["kind"]\n'
ICEBERG = '\n[sinks.iceberg]\nbackend = "iceberg"\nuri = "sqlite:///iceberg/catalog.db"\n'
ICEBERG += 'warehouse = "{folder}/iceberg"\ntable = "shop.rows"\n'
TABLES = DELTA + ICEBERG + 'partition_by = ["kind"]'
THREE_SINKS = SINKS + LINES
"""Parquet, an SQLite table, and JSON lines: every row goes to all three."""


def write_source(folder: Path, batches: int, kinds: int = 3) -> None:
    """Write one JSON file a batch, in the order of their times."""
    (folder / "source").mkdir(parents=True, exist_ok=True)
    for batch in range(batches):
        path = folder / "source" / f"{batch}.json"
        path.write_text("".join(line + "\n" for line in lines_of(batch, kinds)))
        os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))


def lines_of(batch: int, kinds: int = 3) -> list[str]:
    """Return the rows of one file as JSON."""
    first = batch * ROWS_A_BATCH
    rows = ({"id": first + n, "kind": f"k{n % kinds}", "amount": n / 4, "tags": {"n": n}} for n in range(ROWS_A_BATCH))
    return [json.dumps(row) for row in rows]


def write_job(
    folder: Path, sinks: str = SINKS, job: str = "", source: str = SOURCE, spark: str = SPARK, checkpoint: str = ""
) -> Path:
    """Write a job's file; `{folder}` stands for its folder, where the checkpoint is unless it is given."""
    path = folder / "job.toml"
    head = f'[job]\nname = "e2e"\ncheckpoint = "{checkpoint or folder / "checkpoint"}"\n{job}'
    path.write_text(head + "".join(part.format(folder=folder) for part in (spark, source, sinks)))
    return path


def ids(batches: int) -> Counter[int]:
    """Every row of so many batches, once."""
    return Counter(range(batches * ROWS_A_BATCH))


def in_lake(folder: Path) -> Counter[int]:
    """How often each row is in the Parquet files that any reader sees."""
    if not list((folder / "lake").rglob("*.parquet")):
        return Counter()
    return Counter(ds.dataset(str(folder / "lake"), format="parquet").to_table(columns=["id"])["id"].to_pylist())


def in_table(folder: Path) -> Counter[int]:
    with closing(sqlite3.connect(folder / "table.db")) as connection:
        return Counter(row[0] for row in connection.execute("SELECT id FROM rows"))


def in_iceberg(folder: Path) -> list[dict[str, Any]]:
    catalog = SqlCatalog("default", uri=f"sqlite:///{folder}/iceberg/catalog.db")
    rows: list[dict[str, Any]] = catalog.load_table("shop.rows").scan().to_arrow().to_pylist()
    return rows


def wrong_rows(folder: Path, also: Mapping[str, Counter[Row]]) -> Mapping[str, Mapping[str, list[Row]]]:
    """Compare the rows of THREE_SINKS, and of TABLES if they exist, to the source's: what lacks or too often there.

    `also` is what sinks elsewhere hold. Empty when all is well.
    """
    source = [json.loads(line) for path in (folder / "source").glob("*.json") for line in path.read_text().splitlines()]
    assert source
    whole = Counter(map(row_of, source))
    narrow: Counter[Row] = Counter((row["id"], row["kind"], row["amount"]) for row in source)
    held = {"lake": _lake(folder), "lines": _lines(folder), "table": _table(folder), **also}
    if (folder / "delta").exists():
        held["delta"] = Counter(map(row_of, DeltaTable(folder / "delta").to_pyarrow_table().to_pylist()))
    if (folder / "iceberg").exists():
        held["iceberg"] = Counter(map(row_of, in_iceberg(folder)))
    wanted = {sink: narrow if sink == "table" else whole for sink in held}
    return {
        sink: {"missing": _some(wanted[sink] - found), "too often": _some(found - wanted[sink])}
        for sink, found in held.items()
        if found != wanted[sink]
    }


def leftovers(folder: Path) -> list[str]:
    """List the temp and staged files that no epoch needs any more; marks are no such."""
    hidden = [folder / sink / "_exactsink" for sink in ("lake", "lines")]
    places = [*hidden, folder / "checkpoint.exactsink" / "staging"]
    found = [path for place in places for path in place.rglob("*") if path.is_file() or path.parent in hidden]
    return [str(path) for path in found if not any(name.endswith((".lake", ".lines")) for name in path.parts)]


def row_of(row: Mapping[str, object]) -> Row:
    """Make rows comparable, whichever way a sink keeps a map."""
    tags = row["tags"]
    pairs: Iterable[object] = tags.items() if isinstance(tags, dict) else tags  # type: ignore[assignment]
    return row["id"], row["kind"], row["amount"], tuple(pairs)


def _lake(folder: Path) -> Counter[Row]:
    rows = ds.dataset(str(folder / "lake"), format="parquet", partitioning="hive").to_table()
    return Counter(map(row_of, rows.to_pylist()))


def _lines(folder: Path) -> Counter[Row]:
    files = (folder / "lines").glob("*.json")
    return Counter(row_of(json.loads(line)) for path in files for line in path.read_text().splitlines())


def _table(folder: Path) -> Counter[Row]:
    with closing(sqlite3.connect(folder / "table.db")) as connection:
        return Counter(connection.execute("SELECT id, kind, amount FROM rows"))


def _some(rows: Counter[Row]) -> list[Row]:
    return sorted(rows.elements())[:5]
