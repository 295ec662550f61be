"""Upserts end as a plain dictionary does, in every database: a fixed part, and 2,000 plays of each in `make proof`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from exactsink.contract import Fatal
from tests.differential import plays
from tests.differential.kinds import KINDS
from tests.differential.places import Place, duckdb_place, mariadb_place, postgres_place, sqlite_place
from tests.differential.plays import ENDS, Play, PlayError, drawn, play
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


_KINDS = {"k1": "whole", "v": "text", "n": "whole", "o": "whole"}
_FOUND: dict[str, tuple[dict[str, str], dict[str, Any], dict[str, str]]] = {
    "a uuid, a version, and deletes": ({"k1": "uuid"}, {"version": "o", "delete_when": "v = ''"}, {}),
    "a version that is a price": ({"o": "price"}, {"version": "o"}, {"sqlite": ENDS[1]}),
    "a key that is a price": ({"k1": "price"}, {}, {}),
    "a surrogate key, replaced": ({}, {"mode": "replace"}, {}),
    "a sum of fine decimals": ({"n": "fine"}, {"set": {"n": "t1.n + excluded.n"}}, {"sqlite": ENDS[1]}),
}
"""Plays that ended wrong once: kinds and options, and where they are refused today."""


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("found", _FOUND)
def test_what_ended_wrong_once_is_right_or_refused(place: Place, tmp_path: Path, found: str, create: bool) -> None:
    kinds, options, ends = _FOUND[found]
    kinds = _KINDS | kinds
    declared = None if create else {name: KINDS[kind].declared[place.database][0] for name, kind in kinds.items()}
    given = {"keys": ("k1",), "strategy": "staged", **options}
    played = Play(1, place.database, given, kinds, declared, "surrogate" in found and not create, None)
    assert play(played, place, tmp_path)[0] == ends.get(place.database, ENDS[0])


@pytest.mark.parametrize("by", ["order_by", "version"])
def test_a_nan_has_no_order(place: Place, tmp_path: Path, by: str) -> None:
    options = {"keys": ("k1",), "strategy": "staged", by: "o"}
    session = plays._session(Play(1, place.database, options, {}, None, False, None), place, tmp_path)
    with pytest.raises(Fatal, match="column o is NaN in 1 rows"):
        session.prepare(1, [pa.table({"k1": [1], "o": [float("nan")]})])


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
