"""Rows that the table would refuse after the decision: tasks refuse them before; check says what they can't know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.upsert_sink import SCHEMA, rows_of, upsert

from exactsink.contract import Committed, Fatal
from exactsink_idempotent_upsert.sqlite.trial import Trial
from exactsink_idempotent_upsert.table import DELETED

GOOD = [(1, "a", 1), (2, "b", 2), (1, "c", 3)]
TEXT_KEYS = pa.schema([("id", pa.string()), ("v", pa.string()), ("o", pa.int64())])
REFUSED: dict[str, tuple[str, list[Any], str]] = {
    "not null": ("(id PRIMARY KEY, v NOT NULL, o)", [(3, None, 1)], "column v is NOT NULL, and 1 rows"),
    "check": ("(id PRIMARY KEY, v, o CHECK (o > 0))", [(3, "x", 1), (4, "y", -1)], "row with id = 4: CHECK constraint"),
    "check of a default": ("(id PRIMARY KEY, v, o, d DEFAULT 1 CHECK (o <> d + 8))", [(3, "x", 9)], "id = 3: CHECK"),
    "unique": ("(id PRIMARY KEY, v UNIQUE, o)", [(3, "x", 1), (4, "x", 1)], "row with id = 4: UNIQUE .* t.v"),
    "index": ("(id PRIMARY KEY, v, o); CREATE UNIQUE INDEX u ON t (lower(v))", [(3, "X", 1), (4, "x", 1)], "4: UNIQUE"),
    "strict": ("(id INTEGER PRIMARY KEY, v INTEGER, o INTEGER) STRICT", [(3, "x", 1)], "id = 3: cannot store TEXT"),
    "ignored": ("(id PRIMARY KEY, v NOT NULL ON CONFLICT IGNORE, o)", [(3, None, 1)], "NOT NULL|dropped 1 rows"),
    "failed": ("(id PRIMARY KEY, v NOT NULL ON CONFLICT FAIL DEFAULT 'd', o)", [(3, None, 1)], "column v is NOT NULL"),
    "an index's expression": ("(id PRIMARY KEY, v, o); CREATE INDEX j ON t (json(v))", [(3, "{", 1)], "3: malformed"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_a_row_that_the_table_would_refuse_is_no_vote(tmp_path: Path, kind: str) -> None:
    form, bad, said = REFUSED[kind]
    sink = upsert(tmp_path, create=False)
    sink.sql(f"CREATE TABLE t {form}")
    good = [(key, v if kind not in ("strict", "an index's expression") else str(key), o) for key, v, o in GOOD]
    assert sink.run(1, good, good) == [Committed()] * 2
    for rows in ([*good, *bad], [good[0], *bad]):
        with pytest.raises(Fatal, match=said) as refused:
            sink.run(2, rows)
        assert "after the decision" in str(refused.value)
    assert sink.run(2, good) == [Committed()]


def test_the_row_is_named_that_breaks_what_rows_before_it_left(tmp_path: Path) -> None:
    sink = upsert(tmp_path, create=False)
    sink.sql("CREATE TABLE t (id PRIMARY KEY, v UNIQUE, o)")
    rows = [(1, "a", 1), (1, "b", 1), (2, "a", 1), *((key, str(key), 1) for key in range(9, 400)), (3, "b", 1)]
    with pytest.raises(Fatal, match="row with id = 3"):
        sink.backend._database().trial(("CREATE TABLE t (id PRIMARY KEY, v UNIQUE, o)",), SCHEMA.names).check(
            rows_of(rows).to_batches()[0]
        )


def test_text_that_is_no_number_is_no_rows_number(tmp_path: Path) -> None:
    sink = upsert(tmp_path, create=False)
    sink.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, v, o)")
    rows = [pa.table([[key], ["a"], [1]], schema=TEXT_KEYS) for key in ("007", "x")]
    assert sink.run(1, rows[0]) == [Committed()]
    with pytest.raises(Fatal, match="row with id = 'x': datatype mismatch"):
        sink.run(2, rows[1])


FORM = "CREATE TABLE t (id PRIMARY KEY, v TEXT UNIQUE NOT NULL, o CHECK (o > 0))"
ALLOWED: dict[str, tuple[dict[str, Any], list[list[Any]]]] = {
    "a key's own value again": ({}, [[(1, "a", 1), (1, "a", 2)]]),
    "a value that its key gave up": ({}, [[(1, "a", 1), (1, "b", 1), (2, "a", 1)]]),
    "what an order makes good": ({"order_by": "o"}, [[(1, "a", 1), (2, "a", 3)], [(1, "b", 2)]]),
    "what stays as it is": ({"mode": "insert_if_absent"}, [[(9, "b", 1), (3, "b", 1)]]),
    "what is not set": ({"update_columns": ("o",)}, [[(9, "b", 1), (3, "b", 2)]]),
}


@pytest.mark.parametrize("kind", ALLOWED)
def test_what_the_table_takes_in_the_end_is_not_refused(tmp_path: Path, kind: str) -> None:
    options, partitions = ALLOWED[kind]
    sink = upsert(tmp_path, create=False, **options)
    sink.sql(f"{FORM}; INSERT INTO t VALUES (9, 'nine', 9), (3, 'three', 3)")
    assert sink.run(1, *partitions) == [Committed()] * len(partitions)


def test_of_a_row_that_deletes_only_the_keys_count(tmp_path: Path) -> None:
    schema = SCHEMA.append(pa.field(DELETED, pa.bool_()))
    sink = upsert(tmp_path, create=False, delete_when="v IS NULL")
    sink.sql(FORM)
    rows = [(1, "a", 1, False), (1, None, None, True), (2, "a", 1, False)]
    for epoch, form in enumerate((FORM, FORM.replace("UNIQUE", "")), start=1):
        sink.sql(f"DROP TABLE t; {form}")
        given = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)
        assert sink.run(epoch, given) == [Committed()]
        assert sink.rows() == [(2, "a")]


@pytest.mark.parametrize(("unique", "kept"), [("", 0), ("UNIQUE", 2)])
def test_a_copy_keeps_no_row_but_for_what_only_rows_together_break(tmp_path: Path, unique: str, kept: int) -> None:
    """A task of a billion rows would have them all in its copy."""
    form = f"CREATE TABLE t (id PRIMARY KEY, v {unique}, o CHECK (o > 0))"
    trial = upsert(tmp_path, create=False).backend._database().trial((form,), SCHEMA.names)
    for rows in ([(1, "a", 1)], [(2, "b", 1)]):
        trial.check(rows_of(rows).to_batches()[0])
    assert isinstance(trial, Trial)
    assert trial._copy.execute("SELECT count(*) FROM t").fetchall() == [(kept,)]
    trial.close()


def test_a_table_without_such_constraints_gives_tasks_nothing_to_try(tmp_path: Path) -> None:
    assert b"\0" not in upsert(tmp_path).open(1, SCHEMA)
    strict = upsert(tmp_path, table="s", create=False)
    strict.sql("CREATE TABLE s (id INTEGER PRIMARY KEY, v TEXT, o INT) STRICT")
    assert b"\0" not in strict.open(1, SCHEMA)


LATE: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "nothing": ({}, "(id PRIMARY KEY, v NOT NULL CHECK (v <> ''), o, UNIQUE (id, v))", []),
    "unique": ({}, "(id PRIMARY KEY, v UNIQUE, o)", ["UNIQUE (v) of table t"]),
    "a trigger": ({}, "(id PRIMARY KEY, v, o); CREATE TRIGGER g AFTER INSERT ON t BEGIN SELECT 1; END", ["trigger g"]),
    "a check of what stays": ({}, "(id PRIMARY KEY, v, o, d CHECK (d <> o))", ["has CHECK"]),
    "replaced": ({"mode": "replace"}, "(id PRIMARY KEY, v, o, d CHECK (d <> o))", []),
    "counted": ({"set": {"o": "t.o + 1"}}, "(id PRIMARY KEY, v, o CHECK (o < 9))", ["has CHECK"]),
    "parent": ({}, "(id PRIMARY KEY, v REFERENCES p, o)", ["FOREIGN KEY to p", 'set after = "..."']),
    "child": ({"delete_when": "o = 1"}, "(id PRIMARY KEY, v, o); CREATE TABLE c (x REFERENCES T)", ["table c has a"]),
    "version": ({"version": "o", "delete_when": "v = ''"}, "(id PRIMARY KEY, v, o)", ["with its version"]),
    "written directly": (
        {"strategy": "direct", "distribution": 1},
        "(id PRIMARY KEY, v UNIQUE, o, exactsink_epoch, exactsink_generation)",
        ["rows of one key may come from two tasks"],
    ),
}
VERSIONS = [("TEXT", pa.int64()), ("INTEGER", pa.string()), ("DECIMAL", pa.decimal128(9, 2))]


@pytest.mark.parametrize("kind", LATE)
def test_what_tasks_can_not_know_is_a_warning(tmp_path: Path, kind: str) -> None:
    options, form, said = LATE[kind]
    sink = upsert(tmp_path, create=False, **{k: v for k, v in options.items() if k != "distribution"})
    sink.sql(f"CREATE TABLE p (id PRIMARY KEY); CREATE TABLE t {form}")
    found = sink.check()
    assert [finding.severity for finding in found] == ["warning"] * bool(said)
    assert all(part in f"{found[0].message} {found[0].fix}" for part in said)


@pytest.mark.parametrize(("declared", "type"), [*VERSIONS, ("TEXT", pa.timestamp("us")), ("", pa.int64())], ids=str)
def test_a_version_is_kept_in_its_own_order(tmp_path: Path, declared: str, type: pa.DataType) -> None:
    sink = upsert(tmp_path, create=False, version="o")
    sink.sql(f"CREATE TABLE t (id PRIMARY KEY, v, o {declared})")
    errors = [f for f in sink.check(SCHEMA.set(2, pa.field("o", type))) if "`version` names o" in f.message]
    assert bool(errors) == ((declared, type) in VERSIONS)
