"""What the upsert backend finds before the first row; each statement it prints is run here, and fixes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError
from tests.unit.upsert_sink import SCHEMA, upsert

from exactsink.contract import Committed, Fatal, Retryable
from exactsink_idempotent_upsert.backend import UpsertBackend, UpsertOptions


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_create_needs_nothing_and_check_makes_nothing(tmp_path: Path) -> None:
    sink = upsert(tmp_path)
    assert (sink.check(), snapshot(tmp_path)) == ([], {})
    sink.open(1, SCHEMA)
    before = snapshot(tmp_path)
    assert (sink.check(), snapshot(tmp_path)) == ([], before)


@pytest.mark.parametrize("file_exists", [False, True])
def test_a_missing_table(tmp_path: Path, file_exists: bool) -> None:
    sink = upsert(tmp_path, create=False)
    if file_exists:
        sink.sql("CREATE TABLE other (a)")
    (found,) = sink.check()
    assert found.message == f"table t does not exist in {sink.file}"
    assert sink.file.exists() == file_exists
    prefix, statement = found.fix.split(": ", 1)
    assert prefix == "set create = true, or run"
    sink.sql(statement)
    assert sink.check() == []


_PRICE = pa.schema([("id", pa.decimal128(9, 2)), ("o", pa.decimal128(9, 2))])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"version": "o"}, "`version` names o"),
        ({"set": {"o": "t.o + excluded.o"}}, "`set` computes o of o"),
        ({"set": {"o": "max(t.o, excluded.o)"}}, "`set` computes o of o"),
        ({"set": {"o": "coalesce(excluded.o, t.o)"}}, None),
    ],
)
@pytest.mark.parametrize("stands", [False, True])
def test_decimals_are_neither_compared_nor_summed_as_texts(
    tmp_path: Path, options: dict[str, Any], said: str | None, stands: bool
) -> None:
    """Before the first row, whether the table stands or the sink is to make it: 9.50 is no text above 11.00."""
    if stands:
        upsert(tmp_path).open(1, _PRICE)
    found = [finding.message for finding in upsert(tmp_path, **options).check(_PRICE) if finding.severity == "error"]
    assert [said is not None and said in message for message in found] == ([] if said is None else [True])


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("(id INTEGER, v TEXT, o INTEGER)", "no PRIMARY KEY or UNIQUE index over exactly id"),
        ("(id INTEGER, v TEXT, o INTEGER, UNIQUE (id, v))", "over exactly id"),
        ("(id INTEGER, v TEXT, o INTEGER); CREATE UNIQUE INDEX p ON t (id) WHERE o > 0", "over exactly id"),
        ("(id INTEGER, v TEXT, o INTEGER); CREATE UNIQUE INDEX e ON t (id, o + 0)", "over exactly id"),
        ("(id INTEGER, v TEXT PRIMARY KEY, o INTEGER)", "over exactly id"),
        ("(id INTEGER PRIMARY KEY, v TEXT)", "table t has no column o"),
    ],
)
def test_a_table_that_a_statement_fixes(tmp_path: Path, made: str, said: str) -> None:
    sink = upsert(tmp_path, create=False)
    sink.sql(f"CREATE TABLE t {made}")
    before = snapshot(tmp_path)
    (found,) = [finding for finding in sink.check() if finding.severity == "error"]
    assert snapshot(tmp_path) == before
    assert said in found.message
    sink.sql(found.fix)
    assert [finding for finding in sink.check() if finding.severity == "error"] == []
    assert sink.run(1, [(1, "a")]) == [Committed()]


@pytest.mark.parametrize("strategy", ["staged", "direct"])
def test_create_adds_no_column_to_a_table_and_on_schema_change_does(tmp_path: Path, strategy: str) -> None:
    wider = SCHEMA.append(pa.field("more", pa.int64()))
    sink = upsert(tmp_path, strategy=strategy)
    assert sink.run(1, [(1, "a")]) == [Committed()]
    (found,) = [finding for finding in sink.check(wider) if finding.severity == "error"]
    assert (found.message, found.fix) == ("table t has no column more", 'ALTER TABLE "t" ADD COLUMN "more" BIGINT;')
    with pytest.raises(Fatal, match="table t has no column more"):
        sink.open(2, wider)
    adding = upsert(tmp_path, strategy=strategy, on_schema_change="add_columns")
    assert adding.run(2, pa.table([[2], ["b"], [3], [4]], schema=wider)) == [Committed()]
    assert adding.rows("SELECT id, more FROM t ORDER BY id") == [(1, None), (2, 4)]


@pytest.mark.parametrize(
    "made",
    [
        "t (n INTEGER NOT NULL PRIMARY KEY, id UNIQUE, v TEXT, o INTEGER)",  # a rowid alias, which SQLite fills
        "t (id INTEGER PRIMARY KEY, v TEXT, o, at TEXT NOT NULL DEFAULT 'now')",
        "t (id INTEGER PRIMARY KEY, v TEXT, o, twice NOT NULL AS (id * 2))",
        "t (id, v TEXT, o); CREATE UNIQUE INDEX i ON t (ID)",
        "T (ID TEXT PRIMARY KEY, V TEXT, o) WITHOUT ROWID",
    ],
)
def test_a_table_that_is_well_as_it_is(tmp_path: Path, made: str) -> None:
    sink = upsert(tmp_path, create=False)
    sink.sql(f"CREATE TABLE {made}")
    assert sink.check() == []
    for epoch in (1, 2):
        assert sink.run(epoch, [(1, f"epoch {epoch}")]) == [Committed()]
    assert sink.rows("SELECT v FROM t") == [("epoch 2",)]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("CREATE TABLE t (id INTEGER PRIMARY KEY, v, o, at TEXT NOT NULL)", "column at of table t is NOT NULL"),
        ("CREATE TABLE u (id PRIMARY KEY, v, o); CREATE VIEW t AS SELECT * FROM u", "is a view"),
        ("CREATE TABLE t (id INTEGER PRIMARY KEY, v, o AS (id * 2))", "generated column"),
    ],
)
def test_a_table_that_a_person_must_fix(tmp_path: Path, made: str, said: str) -> None:
    sink = upsert(tmp_path, create=False)
    sink.sql(made)
    (found,) = [finding for finding in sink.check() if finding.severity == "error"]
    assert said in found.message
    assert found.fix


SILENT = [
    ("t (id INTEGER PRIMARY KEY, v UNIQUE ON CONFLICT {}, o)", "t.v"),
    ("t (id TEXT PRIMARY KEY, v, o, UNIQUE (v, o) ON CONFLICT {}) WITHOUT ROWID", "t.v, t.o"),
    ("t (o INTEGER PRIMARY KEY ON CONFLICT {}, id UNIQUE, v)", "t.o"),
    ("t (id TEXT PRIMARY KEY ON CONFLICT {}, v UNIQUE, o)", None),  # the keys' own: an upsert goes before it
]


@pytest.mark.parametrize("clause", ["REPLACE", "ignore", "FAIL", "ROLLBACK"])
@pytest.mark.parametrize(("made", "of"), SILENT)
def test_a_unique_constraint_that_makes_rows_vanish_is_refused(
    tmp_path: Path, made: str, of: str | None, clause: str
) -> None:
    sink = upsert(tmp_path, create=False)
    sink.sql(
        f"CREATE TABLE {made.format(clause)}; CREATE TRIGGER r AFTER INSERT ON t BEGIN DELETE FROM t WHERE v < 0; END"
    )
    errors = [finding.message for finding in sink.check() if finding.severity == "error"]
    silent = of is not None and clause in ("REPLACE", "ignore")
    assert [error.partition(" has ")[0] for error in errors] == [f"UNIQUE ({of})"] * silent


FILLED = "{} NOT NULL ON CONFLICT REPLACE DEFAULT ('n/a')"


@pytest.mark.parametrize("strategy", ["staged", "direct"])
def test_a_column_whose_nulls_the_table_would_turn_into_a_default_is_reported(tmp_path: Path, strategy: str) -> None:
    """But not one that the rows lack, nor one whose NULLs are refused: what tasks try says so of a row."""
    sink = upsert(tmp_path, create=False, strategy=strategy)
    guard = ", exactsink_epoch BIGINT, exactsink_generation BIGINT" if strategy == "direct" else ""
    other = "o NOT NULL ON CONFLICT IGNORE DEFAULT 1, p NOT NULL DEFAULT 1"
    sink.sql(f"CREATE TABLE T (id UNIQUE, {FILLED.format('V')}, {FILLED.format('at')}, {other}{guard})")
    warned = [finding for finding in sink.check() if "REPLACE" in finding.message]
    assert [(f.severity, f.message.partition(":")[0]) for f in warned] == [
        ("warning", "column V of table t is NOT NULL ON CONFLICT REPLACE")
    ]
    assert warned[0].message.endswith("would store 'n/a', unreported")
    assert sink.run(1, [(1, None, 5)]) == [Committed()]
    assert sink.rows("SELECT V FROM t") == [("n/a",)]


LARGE = pa.decimal128(38, 18)
DECLARED: dict[tuple[str, pa.DataType], list[str]] = {("DECIMAL(38, 18)", LARGE): ["error"]}
DECLARED |= {("INTEGER", pa.string()): ["warning"], ("VARCHAR(5)", pa.string()): [], ("INTEGER", pa.int64()): []}
DECLARED |= {("TEXT", LARGE): [], ("", LARGE): [], ("DECIMAL(10, 2)", pa.decimal128(10, 2)): []}
DECLARED |= {("TIMESTAMP", pa.timestamp("us")): []}


@pytest.mark.parametrize(("declared", "type"), DECLARED)
def test_text_that_the_table_would_turn_into_a_number(tmp_path: Path, declared: str, type: pa.DataType) -> None:
    sink = upsert(tmp_path, create=False)
    sink.sql(f"CREATE TABLE t (id INTEGER PRIMARY KEY, v {declared})")
    found = sink.check(pa.schema([("id", pa.int64()), ("v", type)]))
    assert [finding.severity for finding in found] == DECLARED[declared, type]


@pytest.mark.parametrize(
    ("options", "added", "message", "fix"),
    [
        ({"keys": ("id", "no")}, {}, "`keys` names column no, which the rows lack: they", "select no into this sink"),
        ({"order_by": "no"}, {}, "`order_by` names column no, which the rows lack: they", "select no into this sink"),
        ({}, {"a": pa.list_(pa.string())}, "column a is of type list", "to_json(a) AS a"),
        ({}, {"n": pa.uint64()}, "column n is of type uint64", "cast(n AS STRING) AS n"),
        ({}, {"ID": pa.int64()}, "columns id and ID are one column to SQLite", "rename one of them"),
    ],
)
def test_rows_that_no_table_could_take(
    tmp_path: Path, options: dict[str, Any], added: dict[str, pa.DataType], message: str, fix: str
) -> None:
    (found,) = upsert(tmp_path, **options).check(pa.schema([*SCHEMA, *added.items()]))
    assert (found.severity, found.message.startswith(message)) == ("error", True)
    assert fix in found.fix


@pytest.mark.parametrize(
    ("folder", "in_its_place", "fix"),
    [
        ("missing", lambda file: None, "mkdir -p {folder}"),
        (".", lambda file: file.write_text("id,v\n" * 1000), "name another file in `url`"),
        (".", Path.mkdir, "name a file in `url`"),
    ],
)
def test_a_file_that_is_no_database(tmp_path: Path, folder: str, in_its_place: Any, fix: str) -> None:
    sink = upsert(tmp_path / folder)
    in_its_place(sink.file)
    (found,) = sink.check()
    assert str(sink.file.parent) in found.message
    assert found.fix == fix.format(folder=tmp_path / folder)
    assert not (tmp_path / "missing").exists()


def test_a_busy_database_is_no_finding(tmp_path: Path) -> None:
    sink = upsert(tmp_path, create=False, busy_timeout_seconds=0)
    sink.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, o INTEGER)")
    with closing(sqlite3.connect(sink.file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Retryable, match="locked"):
            sink.check()


SENSELESS: dict[str, list[dict[str, Any]]] = {
    "in memory": [{"url": "sqlite://"}, {"url": "sqlite:///:memory:"}],
    "holds a path only": [{"url": "sqlite:///file:x?mode=memory&uri=true"}, {"url": "sqlite://me:hunter2@there/db"}],
    "is not supported": [{"url": f"{url}//me:hunter2@there/db"} for url in ("nosuch:", "sqlite+aiosqlite:")],
    "write postgresql://": [{"url": "postgres://me:hunter2@there/db"}],
    "not a SQLAlchemy URL": [{"url": "hunter2"}],
    "at least 1": [{"keys": ()}, {"table": ""}, {"delete_when": ""}],
    "none may come twice": [{"keys": ("a", "A")}],
    "no name may be empty": [{"keys": ("",)}],
    "are taken": [{"table": "exactsink_epochs"}],
    "staged": [{"strategy": "two_phase"}],
    "direct can't delete": [{"strategy": "direct", "delete_when": "op = 'D'"}],
    "direct can't count": [{"strategy": "direct", "set": {"v": "t.v + 1"}}],
    "insert_if_absent never changes": [
        {"mode": "insert_if_absent", **given}
        for given in ({"update_columns": ("v",)}, {"set": {"v": "1"}}, {"version": "o"}, {"delete_when": "true"})
    ],
    "replace replaces": [{"mode": "replace", **given} for given in ({"update_columns": ("v",)}, {"set": {"v": "1"}})],
    "use mode insert_if_absent": [{"update_columns": ()}],
    "leave out `order_by`": [{"version": "o", "order_by": "v"}],
    "which the keys need": [{"update_columns": ("id", "v")}, {"set": {"id": "1"}}],
    "which is the version": [
        {"version": "id"},
        {"version": "o", "exclude": ("o",)},
        {"version": "o", "set": {"o": "1"}},
    ],
    "which `set` sets": [{"set": {"v": "1"}, "exclude": ("v",)}],
    "by portable SQL": [{"url": "duckdb:///shop.duckdb", "on_schema_change": "add_columns"}],
    "no staging tables": [{"staging_schema": "s"}],
    "has no schemas": [{"table": "sales.orders"}],
    "not a table name": [{"table": "a.b.c"}, {"table": '"a'}],
    "`exclude` names b": [{"keys": ("a", "b"), "exclude": ("c", "b")}],
    "Extra inputs": [{"key": "id"}],
    "greater than or equal to 0": [{"busy_timeout_seconds": -1}],
}


@pytest.mark.parametrize("said", SENSELESS)
def test_options_that_make_no_sense(tmp_path: Path, said: str) -> None:
    for options in SENSELESS[said]:
        with pytest.raises(ValidationError, match=said) as refused:
            upsert(tmp_path, **options)
        assert "hunter2" not in str(refused.value)


def test_the_target_is_absolute_wherever_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"url": "sqlite+pysqlite:///odd ü#name.db", "table": "t", "keys": ("id",), "create": True}
    backend = UpsertBackend(UpsertOptions.model_validate(given))
    monkeypatch.chdir("/")
    assert backend.target == f"sqlite:///{tmp_path}/odd ü#name.db#t"
    backend.applier().open_epoch(SCHEMA)
    assert [path.name for path in tmp_path.glob("*.db")] == ["odd ü#name.db"]
