"""Upserts into SQLite: the options mean what they do on a dictionary, and names may be any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.integration.upserts.meaning import COLUMNS, TABLE, Case, Row, Target, check, every_case
from tests.unit.upsert_sink import upsert


def target_of(folder: Path) -> Target:
    file = upsert(folder)

    def make(columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        file.sql(f"CREATE TABLE {TABLE} ({', '.join(f'{name} {kind}' for name, kind in columns.items())})")
        for row in rows:
            values = ", ".join("NULL" if value is None else repr(value) for value in row.values())
            file.sql(f"INSERT INTO {TABLE} ({', '.join(row)}) VALUES ({values})")

    def read() -> list[tuple[Any, ...]]:
        return file.rows(f"SELECT {', '.join(COLUMNS)} FROM {TABLE}")

    return Target(lambda given: upsert(folder, **{**given, "create": False}), make, read)


@every_case
def test_options_mean_what_they_do_on_a_dictionary(tmp_path: Path, case: Case) -> None:
    check(case, target_of(tmp_path))
