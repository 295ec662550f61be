"""Upserts into MariaDB: what the options mean, what a row can break, and names that may be any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.integration.upserts.meaning import COLUMNS, TABLE, Case, Row, Target, check, every_case
from tests.servers.mariadb import MariaDB
from tests.unit.upsert_sink import upsert

pytest_plugins = ["tests.servers.fixtures"]


def target_of(server: MariaDB, folder: Path) -> Target:
    name = server.new_database("upserts")

    def make(columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        made = f"CREATE TABLE {TABLE} ({', '.join(f'{name} {kind}' for name, kind in columns.items())})"
        server.execute(made, database=name)
        for row in rows:
            values = ", ".join("NULL" if value is None else repr(value) for value in row.values())
            server.execute(f"INSERT INTO {TABLE} ({', '.join(row)}) VALUES ({values})", database=name)

    def read() -> list[tuple[Any, ...]]:
        return server.execute(f"SELECT {', '.join(COLUMNS)} FROM {TABLE}", database=name)

    return Target(lambda given: upsert(folder, **{**given, "create": False, "url": server.url(name)}), make, read)


@every_case
def test_options_mean_what_they_do_on_a_dictionary(mariadb: MariaDB, tmp_path: Path, case: Case) -> None:
    check(case, target_of(mariadb, tmp_path))
