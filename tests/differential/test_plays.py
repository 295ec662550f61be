"""Upserts end as a plain dictionary does, in every database: a fixed part, and 2,000 plays of each in `make proof`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.differential import plays
from tests.differential.places import Place, duckdb_place, mariadb_place, postgres_place, sqlite_place
from tests.differential.plays import PlayError, drawn, play
from tests.servers.mariadb import MariaDB
from tests.servers.postgres import Postgres

pytest_plugins = ["tests.servers.fixtures"]


@pytest.fixture(params=["sqlite", "postgres", "mariadb", "duckdb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        opened = postgres_place(server)
    elif request.param == "mariadb":
        other: MariaDB = request.getfixturevalue("mariadb")
        opened = mariadb_place(other)
    else:
        opened = {"sqlite": sqlite_place, "duckdb": duckdb_place}[request.param](tmp_path)
    with opened as here:
        yield here


@pytest.mark.parametrize("count", [40, pytest.param(2000, marks=pytest.mark.proof)])
def test_tables_hold_what_a_dictionary_does(place: Place, tmp_path: Path, count: int) -> None:
    """Or exactsink has refused the rows before the decision: of most plays it must not."""
    first = 0 if count < 2000 else 10_000
    ended = Counter(play(drawn(seed, place.database), place, tmp_path)[0] for seed in range(first, first + count))
    assert ended["equal"] > count / 2


def test_a_float_of_mariadb_is_read_with_all_its_digits(mariadb: MariaDB, tmp_path: Path) -> None:
    """The server shows a FLOAT of 1.0000000272564224e16 as 1e16. The play's second epoch, of doubles, is refused."""
    with mariadb_place(mariadb) as here:
        assert play(drawn(10_160, "mariadb"), here, tmp_path)[0] == "refused by check"


def test_a_table_that_differs_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dictionary takes rows that tables don't: an older version, and a row that deletes."""
    monkeypatch.setattr(plays, "_is_older", lambda version, held: False)
    with sqlite_place(tmp_path) as here, pytest.raises(PlayError, match="the dictionary"):
        for seed in range(100):
            play(drawn(seed, "sqlite"), here, tmp_path)
