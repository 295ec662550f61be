"""What the source gave and what each sink holds, row by row."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

import pyarrow.dataset as ds

from tests.e2e.jobs import SINKS

Row = tuple[object, ...]

LINES = """
[sinks.lines]
backend = "files"
path = "{folder}/lines"
format = "json"
"""
THREE_SINKS = SINKS + LINES
"""Parquet, an SQLite table, and JSON lines: every row goes to all three."""


def wrong_rows(
    folder: Path,
    target: Path | None = None,
    *,
    sinks: Iterable[str] = ("lake", "lines", "table"),
    also: Mapping[str, Counter[Row]] | None = None,
) -> Mapping[str, Mapping[str, list[Row]]]:
    """Hold each sink's rows against the source's, every column: what is missing, and what is there too often.

    `target` holds the sinks when it is another folder than the source's; `also` is what sinks elsewhere hold. Empty
    when all is well.
    """
    source = [json.loads(line) for path in (folder / "source").glob("*.json") for line in path.read_text().splitlines()]
    assert source
    whole = Counter(map(row_of, source))
    narrow: Counter[Row] = Counter((row["id"], row["kind"], row["amount"]) for row in source)
    target = target or folder
    look = {"lake": _lake, "lines": _lines, "table": _table}
    held = {**{sink: look[sink](target) for sink in sinks}, **(also or {})}
    wanted = {sink: narrow if sink == "table" else whole for sink in held}
    return {
        sink: {"missing": _some(wanted[sink] - found), "too often": _some(found - wanted[sink])}
        for sink, found in held.items()
        if found != wanted[sink]
    }


def leftovers(folder: Path, target: Path | None = None) -> list[str]:
    """List the temp and staged files that no epoch needs any more."""
    hidden = [(target or folder) / sink / "_exactsink" for sink in ("lake", "lines")]
    places = [*hidden, folder / "checkpoint.exactsink" / "staging" / "table"]
    return [str(path) for place in places for path in place.rglob("*") if path.is_file() or path.parent in hidden]


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
