"""Upserts end as a plain dictionary does, in every database: chosen plays, and 2,000 random ones in `make proof`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from exactsink.contract import Fatal
from exactsink.toolkit.roads import Marker
from exactsink_idempotent_upsert.sqlite import questions, rows
from exactsink_idempotent_upsert.sqlite.statements import Statements, stored_values
from exactsink_idempotent_upsert.table import Table
from tests.differential import plays
from tests.differential.kinds import KINDS
from tests.differential.places import Place, duckdb_place, mariadb_place, postgres_place, sqlite_place
from tests.differential.plays import ENDS, Play, PlayError, drawn, play
from tests.servers.mariadb import MariaDB
from tests.servers.postgres import Postgres


@pytest.fixture(params=["sqlite", "postgres", "mariadb", "duckdb"], scope="module")
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        opened = postgres_place(server)
    elif request.param == "mariadb":
        other: MariaDB = request.getfixturevalue("mariadb")
        opened = mariadb_place(other)
    else:
        opened = {"sqlite": sqlite_place, "duckdb": duckdb_place}[request.param](tmp_path_factory.mktemp("place"))
    with opened as here:
        yield here


@pytest.mark.parametrize("count", [3, pytest.param(2000, marks=pytest.mark.proof)])
def test_tables_hold_what_a_dictionary_does(place: Place, tmp_path: Path, count: int) -> None:
    """Or exactsink has refused the rows before the decision: of most plays it must not."""
    first = 0 if count < 2000 else 10_000
    ended = Counter(play(drawn(seed, place.database), place, tmp_path)[0] for seed in range(first, first + count))
    assert ended["equal"] > count / 2


class Chosen(NamedTuple):
    """A play that is made on purpose; `ends` says where it is refused today."""

    kinds: Mapping[str, str]
    options: Mapping[str, Any]
    create: bool = False
    odd: str = ""
    narrow: str | None = None
    surrogate: bool = False
    ends: Mapping[str, str] = {}


_CHECKED = dict.fromkeys(("sqlite", "postgres", "mariadb", "duckdb"), ENDS[1])
_DELETES, _NEWER = {"delete_when": "v = ''"}, {"version": "o"}
_FIRST = {"mode": "insert_if_absent", "order_by": "o"}
_CHOSEN = {
    "a uuid and bytes, a version, and deletes": Chosen({"k1": "uuid", "k2": "bytes"}, _NEWER | _DELETES),
    "texts and instants": Chosen(
        {"k1": "text", "k2": "instant", "o": "local"}, _NEWER | _DELETES, create=True, narrow="k1"
    ),
    "texts in the order of texts": Chosen({"k1": "text", "o": "text"}, {"order_by": "o"}, narrow="o"),
    "floats, counted": Chosen({"k1": "float"}, {"set": {"n": "{}.n + excluded.n"}}),
    "a version that is a price": Chosen({"o": "price"}, _NEWER, ends={"sqlite": ENDS[1]}),
    "a key that is a price": Chosen({"k1": "price"}, {}, create=True),
    "a price that widens": Chosen(
        {"k1": "price"}, {}, create=True, narrow="k1", ends={**_CHECKED, "postgres": ENDS[2], "mariadb": ENDS[2]}
    ),
    "a surrogate key, replaced": Chosen({}, {"mode": "replace"}, surrogate=True),
    "a sum of fine decimals": Chosen({"n": "fine"}, {"set": {"n": "{}.n + excluded.n"}}, ends={"sqlite": ENDS[1]}),
    "written by tasks": Chosen({"k1": "instant"}, {"strategy": "direct", **_NEWER}),
    "a version of another type than its column": Chosen(
        {"o": "float"}, _NEWER, odd="o", ends=_CHECKED | {"sqlite": ENDS[0]}
    ),
    "the first one stays": Chosen({}, _FIRST),
    "the first one stays, written by tasks": Chosen({}, {"strategy": "direct", **_FIRST}),
    "some columns of what is newer": Chosen({}, {"update_columns": ("n",), **_NEWER}),
    "some columns, written by tasks": Chosen({}, {"strategy": "direct", "update_columns": ("n",), **_NEWER}),
}
"""What issue 32 found wrong in one database at least; then the options that none of those has."""


def _chosen(name: str, database: str) -> Play:
    some, number = _CHOSEN[name], 900_120 + list(_CHOSEN).index(name)  # whose keys show what is planted
    kinds = {"k1": "whole", "v": "text", "n": "whole", "o": "whole", **some.kinds}
    columns = {column: KINDS[kind].declared[database] for column, kind in kinds.items()}
    declared = {column: types[-1 if column == some.odd else 0] for column, types in columns.items()}
    keys = tuple(sorted(column for column in kinds if column.startswith("k")))
    options: dict[str, Any] = {"keys": keys, "strategy": "staged", **some.options}
    if "set" in options:
        options["set"] = {column: sql.format(f"t{number}") for column, sql in options["set"].items()}
    if database == "duckdb":
        options["strategy"] = "staged"
    return Play(number, database, options, kinds, None if some.create else declared, some.surrogate, some.narrow)


@pytest.mark.parametrize("name", _CHOSEN)
def test_what_ended_wrong_once_is_right_or_refused(place: Place, tmp_path: Path, name: str) -> None:
    assert play(_chosen(name, place.database), place, tmp_path)[0] == _CHOSEN[name].ends.get(place.database, ENDS[0])


def _stored(change: Callable[[Any], Any]) -> Callable[[pa.Array], list[Any]]:
    """Return a defect: values go into SQLite otherwise than they came."""
    return lambda column: [None if value is None else change(value) for value in _as_they_are(column)]


_as_they_are, _of = stored_values, Statements.of
_BERLIN = pa.timestamp("us", "Europe/Berlin")


def _of_text(change: Callable[[pa.Array], pa.Array]) -> Callable[[pa.Array], list[Any]]:
    return lambda column: _as_they_are(change(column) if pa.types.is_string(column.type) else column)


_PLANTED: Mapping[str, tuple[object, str, Any, str]] = {
    "-0.0 is a key of its own": (
        *(rows, "stored_values"),
        _stored(lambda v: -5e-324 if v == 0 and isinstance(v, float) and math.copysign(1, v) < 0 else v),
        "floats, counted",
    ),
    "NFC": (rows, "stored_values", _of_text(lambda c: pc.utf8_normalize(c, "NFC")), "texts and instants"),
    "case": (rows, "stored_values", _of_text(pc.utf8_lower), "texts and instants"),
    "the hour that comes twice is one": (
        *(rows, "stored_values"),
        lambda c: _as_they_are(pc.local_timestamp(c) if c.type == _BERLIN else c),
        "texts and instants",
    ),
    "bytes are text": (
        *(rows, "stored_values"),
        _stored(lambda v: v.decode("ascii", "ignore").encode() if isinstance(v, bytes) else v),
        "a uuid and bytes, a version, and deletes",
    ),
    "a wider price is another key": (questions, "other_spelling", lambda *_: "false", "a price that widens"),
    "an older version goes over": (Table, "not_above", lambda *_: "true", "a uuid and bytes, a version, and deletes"),
    "an epoch is applied twice": (Marker, "must_apply", lambda *_: True, "floats, counted"),
    "a row that deletes is kept": (
        *(rows.Changes, "_delete", lambda *_: None, "a uuid and bytes, a version, and deletes"),
    ),
    "a replaced row keeps what it had": (
        Statements,
        "of",
        lambda *given: replace(_of(*given), rest=()),
        "a surrogate key, replaced",
    ),
}


@pytest.mark.parametrize("defect", _PLANTED)
def test_a_chosen_play_shows_a_planted_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    of, attribute, planted, name = _PLANTED[defect]
    monkeypatch.setattr(of, attribute, planted)
    with sqlite_place(tmp_path) as here, pytest.raises(PlayError):
        play(_chosen(name, "sqlite"), here, tmp_path)


@pytest.mark.parametrize("by", ["order_by", "version"])
def test_a_nan_has_no_order(place: Place, tmp_path: Path, by: str) -> None:
    options = {"keys": ("k1",), "strategy": "staged", by: "o"}
    session = plays._session(Play(len(by), place.database, options, {}, None, False, None), place, tmp_path)
    with pytest.raises(Fatal, match="column o is NaN in 1 rows"):
        session.prepare(1, [pa.table({"k1": [1], "o": [float("nan")]})])


def test_a_float_of_mariadb_is_read_with_all_its_digits(mariadb: MariaDB, tmp_path: Path) -> None:
    """The server shows a FLOAT of 1.0000000272564224e16 as 1e16. The play's second epoch, of doubles, is refused."""
    with mariadb_place(mariadb) as here:
        assert play(drawn(10_160, "mariadb"), here, tmp_path)[0] == "refused by check"
