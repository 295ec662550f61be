"""Small streaming jobs in a folder of their own: their files, their lives, and what their sinks hold."""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pyarrow.dataset as ds

ROWS_A_BATCH = 500
SPARK = """
[spark]
master = "local[2]"
[spark.conf]
"spark.ui.enabled" = false
"spark.log.level" = "ERROR"
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
SINKS = """
[sinks.lake]
backend = "files"
path = "{folder}/lake"
partition_by = ["kind"]

[sinks.table]
backend = "idempotent_upsert"
url = "sqlite:///{folder}/table.db"
table = "rows"
keys = ["id"]
columns = ["id", "kind", "amount"]
create = true
"""


def write_source(folder: Path, batches: int) -> None:
    """Write one JSON file a batch, in the order of their times."""
    (folder / "source").mkdir(parents=True, exist_ok=True)
    for batch in range(batches):
        rows = [
            {"id": batch * ROWS_A_BATCH + n, "kind": f"k{n % 3}", "amount": n / 4, "tags": {"n": n}}
            for n in range(ROWS_A_BATCH)
        ]
        path = folder / "source" / f"{batch}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))


def write_job(folder: Path, sinks: str = SINKS, job: str = "", source: str = SOURCE, spark: str = SPARK) -> Path:
    """Write a job's file; `{folder}` stands for its folder."""
    path = folder / "job.toml"
    head = f'[job]\nname = "e2e"\ncheckpoint = "{folder}/checkpoint"\n{job}'
    path.write_text(head + "".join(part.format(folder=folder) for part in (spark, source, sinks)))
    return path


def in_lake(folder: Path) -> Counter[int]:
    """How often each row is in the Parquet files that any reader sees."""
    if not list((folder / "lake").rglob("*.parquet")):
        return Counter()
    return Counter(ds.dataset(str(folder / "lake"), format="parquet").to_table(columns=["id"])["id"].to_pylist())


def in_table(folder: Path) -> Counter[int]:
    with closing(sqlite3.connect(folder / "table.db")) as connection:
        return Counter(row[0] for row in connection.execute("SELECT id FROM rows"))


def ids(batches: int) -> Counter[int]:
    """Every row of so many batches, once."""
    return Counter(range(batches * ROWS_A_BATCH))
