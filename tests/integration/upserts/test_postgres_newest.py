"""Upserts into PostgreSQL 18: temporal keys, virtual columns, and constraints that are NOT ENFORCED."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

from exactsink.contract import Committed, Fatal
from tests.integration.upserts.other_columns import TABLE
from tests.integration.upserts.test_postgres import Sink
from tests.integration.upserts.test_postgres_questions import _GUARD, _check, _rows
from tests.servers.postgres import Postgres

_PLAIN = f"CREATE TABLE {TABLE} (k bigint PRIMARY KEY, v text, n bigint)"
_TEMPORAL = f"""CREATE TABLE {TABLE} (k bigint PRIMARY KEY, v daterange, n bigint, room int4range GENERATED ALWAYS AS
    (int4range(1, 2)) STORED, CONSTRAINT free UNIQUE (room, v WITHOUT OVERLAPS))"""
_VIRTUAL = f"{_PLAIN[:-1]}, twice bigint GENERATED ALWAYS AS (n * 2) VIRTUAL, at text DEFAULT 'new')"
_CHECK = f"{_PLAIN[:-1]}, CHECK (n > 0 OR v = 'x')"
_CHILD = f"{_PLAIN[:-1]}, UNIQUE (n)); CREATE TABLE c (n bigint REFERENCES {TABLE} (n)"
_PARENT = f"CREATE TABLE p (n bigint PRIMARY KEY); {_PLAIN[:-1]}, FOREIGN KEY (n) REFERENCES p"
_KEEP, _DELETE = {"update_columns": ("n",)}, {"delete_when": "v = ''"}
_FINDINGS: list[tuple[str, dict[str, Any], str, bool]] = [
    (_TEMPORAL, {}, "warning: .* unique index free WITHOUT OVERLAPS is checked only when", True),
    (_TEMPORAL, {"strategy": "direct"}, ".* free", False),
    (_TEMPORAL, {"keys": ("room", "v")}, "error: .* has no unique index over exactly the keys room, v", True),
    (f"{_CHECK})", _KEEP, "warning: .* CHECK t_check reads", True),
    (f"{_CHECK} NOT ENFORCED)", _KEEP, ".* CHECK ", False),
    (f"{_CHILD})", {}, "warning: .* has foreign key", True),
    (f"{_CHILD} NOT ENFORCED)", _DELETE, "warning: .* has foreign key", False),
    (f"{_PARENT})", {}, "warning: .* foreign key", True),
    (f"{_PARENT} NOT ENFORCED)", {}, "warning: .* foreign key", False),
    (_PLAIN.replace("n bigint", "n bigint GENERATED ALWAYS AS (k)"), {}, "error: .* column n", True),
    (_VIRTUAL, {"mode": "replace"}, "error", False),
]


@pytest.fixture(scope="module")
def newest(newest_postgres: Postgres) -> str:
    return newest_postgres.create_database(f"upserts_{os.getpid()}")


@pytest.fixture
def sink(newest: str) -> Iterator[Sink]:
    made = Sink(newest)
    yield made
    made.close()


@pytest.mark.parametrize(("make", "given", "message", "there"), _FINDINGS)
def test_check_knows_what_is_new(sink: Sink, make: str, given: dict[str, Any], message: str, there: bool) -> None:
    sink.run(f"{make}; {_GUARD}")
    found = list(_check(sink, **given))
    assert any(re.match(message, one) for one in found) is there, found


@pytest.mark.parametrize("given", [{}, {"mode": "replace"}, {"set": {"n": f"{TABLE}.twice + excluded.n"}}], ids=str)
def test_a_virtual_column_is_computed_and_can_be_read_by_set(sink: Sink, given: dict[str, Any]) -> None:
    sink.run(f"{_VIRTUAL}; INSERT INTO {TABLE} VALUES (1, 'a', 5, DEFAULT, 'old')")
    mine = sink.session(given)
    assert mine.commit_marked(1, mine.prepare(1, [_rows((1, "b", 6), (2, "c", 7))])) == [Committed()]
    n, at = (16 if "set" in given else 6), "new" if "mode" in given else "old"
    assert sink.run(f"SELECT * FROM {TABLE} ORDER BY k") == [(1, "b", n, 2 * n, at), (2, "c", 7, 14, "new")]


def test_rows_that_overlap_stop_staged_with_nothing_lost_and_are_no_vote_of_direct(sink: Sink) -> None:
    sink.run(f"{_TEMPORAL}; INSERT INTO {TABLE} VALUES (9, '[2026-05-01,2026-06-01)', 1)")
    mine = sink.session({})
    votes = mine.prepare(1, [_rows((1, "[2026-05-15,2026-06-15)", 1))])
    with pytest.raises(Fatal, match=r"(?s)constraint free.*SQLSTATE 23P01.*epoch is decided"):
        mine.commit_marked(1, votes)
    sink.run(f"DELETE FROM {TABLE}")
    assert mine.commit_marked(1, votes) == [Committed()]
    sink.run(_GUARD)
    with pytest.raises(Fatal, match=r"(?s)constraint free.*SQLSTATE 23P01.*not decided yet"):
        sink.session({"strategy": "direct"}).prepare(2, [_rows((2, "[2026-06-01,2026-07-01)", 1))])
    assert sink.run(f"SELECT k FROM {TABLE}") == [(1,)]
