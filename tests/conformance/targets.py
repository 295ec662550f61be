"""Files and SQLite as one job's sinks, and what they hold: every application of a row counts, not its last state."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from exactsink.protocol.sinks import Sink
from exactsink.testing import Script
from exactsink_files.backend import FilesBackend, FilesOptions
from exactsink_idempotent_upsert.backend import UpsertBackend, UpsertOptions

JOB = "matrix"
COLUMNS = ("id", "kind", "amount")
BATCHES, PARTITIONS, ROWS = 3, 2, 120


def make_script(folder: Path) -> Script:
    """One job into Parquet by kind, JSON lines, and an SQLite table whose triggers log every change."""
    database = folder / "table.db"
    with sqlite3.connect(database) as connection:
        connection.executescript(
            """
            CREATE TABLE flights (id INTEGER PRIMARY KEY, kind TEXT, amount REAL);
            CREATE TABLE changes (id INTEGER);
            CREATE TRIGGER inserted AFTER INSERT ON flights BEGIN INSERT INTO changes VALUES (new.id); END;
            CREATE TRIGGER updated AFTER UPDATE ON flights BEGIN INSERT INTO changes VALUES (new.id); END;
            """
        )
    connection.close()
    lake = FilesBackend(FilesOptions(path=str(folder / "lake"), partition_by=("kind",)))
    lines = FilesBackend(FilesOptions(path=str(folder / "lines"), format="json"))
    table = UpsertBackend(UpsertOptions(url=f"sqlite:///{database}", table="flights", keys=("id",)))
    sinks = {
        "lake": Sink("lake", "files", lake, str(folder / "staging"), COLUMNS),
        "lines": Sink("lines", "files", lines, str(folder / "staging"), ("value",)),
        "table": Sink("table", "idempotent_upsert", table, str(folder / "staging"), COLUMNS),
    }
    return Script(JOB, folder / "job", sinks, _batches())


def _batches() -> list[list[pa.Table]]:
    return [[_table(batch, partition) for partition in range(PARTITIONS)] for batch in range(BATCHES)]


def _table(batch: int, partition: int) -> pa.Table:
    first = (batch * PARTITIONS + partition) * ROWS
    rows = [{"id": first + n, "kind": f"k{n % 3}", "amount": n / 4} for n in range(ROWS)]
    return pa.Table.from_pylist([{**row, "value": json.dumps(row)} for row in rows])


def expected() -> Counter[int]:
    """Every row's id, once."""
    return Counter(row for batch in _batches() for table in batch for row in table.column("id").to_pylist())


def found(folder: Path) -> Mapping[str, Counter[int]]:
    """What each sink holds, by how often each row was applied there."""
    lake = ds.dataset(str(folder / "lake"), format="parquet").to_table(columns=["id"])
    lines = [line for path in (folder / "lines").glob("*.json") for line in path.read_text().splitlines()]
    connection = sqlite3.connect(folder / "table.db")
    changes = [row[0] for row in connection.execute("SELECT id FROM changes")]
    connection.close()
    return {
        "lake": Counter(lake.column("id").to_pylist()),
        "lines": Counter(json.loads(line)["id"] for line in lines),
        "table": Counter(changes),
    }
