"""What the upsert backend finds before the first row; each statement it prints is run here, and fixes."""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError
from tests.unit.upsert_sink import SCHEMA, Sink

from exactsink.contract import Finding, Retryable
from exactsink_idempotent_upsert.backend import UpsertBackend, UpsertOptions
from exactsink_idempotent_upsert.plugin import exactsink_backends

TABLE = "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, o INTEGER);"


def check(sink: Sink, schema: pa.Schema = SCHEMA) -> list[Finding]:
    return list(sink.committer(0).check(schema, None))


def errors(sink: Sink, schema: pa.Schema = SCHEMA) -> list[str]:
    return [finding.message for finding in check(sink, schema) if finding.severity == "error"]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_create_needs_nothing_and_check_makes_nothing(tmp_path: Path) -> None:
    sink = Sink(tmp_path)
    assert check(sink) == []
    assert snapshot(tmp_path) == {}
    sink.open(log=False)
    before = snapshot(tmp_path)
    assert check(sink) == []
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("file_exists", [False, True])
def test_a_missing_table(tmp_path: Path, file_exists: bool) -> None:
    sink = Sink(tmp_path, create=False)
    if file_exists:
        sink.sql("CREATE TABLE other (a)")
    (found,) = check(sink)
    assert found.message == f"table t does not exist in {sink.file}"
    assert sink.file.exists() == file_exists
    prefix, statement = found.fix.split(": ", 1)
    assert prefix == "set create = true, or run"
    sink.sql(statement)
    assert check(sink) == []


MENDED = {
    "no index": ("CREATE TABLE t (id INTEGER, v TEXT, o INTEGER)", "no PRIMARY KEY or UNIQUE index over exactly id"),
    "wider index": ("CREATE TABLE t (id INTEGER, v TEXT, o INTEGER, UNIQUE (id, v))", "over exactly id"),
    "partial index": (
        "CREATE TABLE t (id INTEGER, v TEXT, o INTEGER); CREATE UNIQUE INDEX p ON t (id) WHERE o > 0",
        "over exactly id",
    ),
    "index over an expression": (
        "CREATE TABLE t (id INTEGER, v TEXT, o INTEGER); CREATE UNIQUE INDEX e ON t (id, o + 0)",
        "over exactly id",
    ),
    "other key": ("CREATE TABLE t (id INTEGER, v TEXT PRIMARY KEY, o INTEGER)", "over exactly id"),
    "no column": ("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)", "table t has no column o"),
}


@pytest.mark.parametrize("case", list(MENDED))
def test_a_table_that_a_statement_fixes(tmp_path: Path, case: str) -> None:
    made, said = MENDED[case]
    sink = Sink(tmp_path, create=False)
    sink.sql(made)
    before = snapshot(tmp_path)
    (found,) = check(sink)
    assert found.severity == "error"
    assert said in found.message
    assert snapshot(tmp_path) == before
    sink.sql(found.fix)
    assert check(sink) == []
    assert sink.commit(1, sink.vote(1, [(1, "a")])) == ["Committed"]


def test_keys_of_two_columns_with_odd_names(tmp_path: Path) -> None:
    schema = pa.schema([('or "der', pa.int64()), ("select", pa.string())])
    sink = Sink(tmp_path, create=False, table='my "t', keys=("select", 'or "der'))
    sink.sql('CREATE TABLE "my ""t" ("or ""der", "SELECT" TEXT)')
    (found,) = check(sink, schema)
    sink.sql(found.fix)
    assert check(sink, schema) == []
    batch = pa.RecordBatch.from_pylist([{'or "der': 1, "select": "a"}], schema=schema)
    assert sink.commit(1, sink.vote(1, [batch])) == ["Committed"]


def test_names_that_differ_from_the_tables_in_case(tmp_path: Path) -> None:
    schema = pa.schema([("ID", pa.int64()), ("V", pa.string())])
    sink = Sink(tmp_path, create=False, keys=("ID",))
    sink.sql(TABLE)
    assert check(sink, schema) == []
    for v in ("a", "b"):
        epoch = ord(v)
        sink.commit(epoch, sink.vote(epoch, [pa.RecordBatch.from_pylist([{"ID": 1, "V": v}], schema=schema)]))
    assert sink.rows() == [(1, "b")]


ACCEPTED = {
    "rowid alias that SQLite fills": "CREATE TABLE t (n INTEGER NOT NULL PRIMARY KEY, id UNIQUE, v TEXT, o INTEGER)",
    "default": "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, o, at TEXT NOT NULL DEFAULT 'now')",
    "generated": "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, o, twice NOT NULL AS (id * 2))",
    "unique index": "CREATE TABLE t (id, v TEXT, o); CREATE UNIQUE INDEX i ON t (ID)",
    "without rowid": "CREATE TABLE T (ID TEXT PRIMARY KEY, V TEXT, o) WITHOUT ROWID",
}


@pytest.mark.parametrize("case", list(ACCEPTED))
def test_a_table_that_is_well_as_it_is(tmp_path: Path, case: str) -> None:
    sink = Sink(tmp_path, create=False)
    sink.sql(ACCEPTED[case])
    assert check(sink) == []
    for epoch in (1, 2):
        assert sink.commit(epoch, sink.vote(epoch, [(1, f"epoch {epoch}")])) == ["Committed"]
    assert sink.rows("SELECT v FROM t") == [("epoch 2",)]


REFUSED = {
    "required": ("CREATE TABLE t (id INTEGER PRIMARY KEY, v, o, at TEXT NOT NULL)", "column at of table t is NOT NULL"),
    "a view": (f"{TABLE} ALTER TABLE t RENAME TO u; CREATE VIEW t AS SELECT * FROM u", "is a view"),
    "generated": ("CREATE TABLE t (id INTEGER PRIMARY KEY, v, o AS (id * 2))", "generated column"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_a_table_that_a_person_must_fix(tmp_path: Path, case: str) -> None:
    made, said = REFUSED[case]
    sink = Sink(tmp_path, create=False)
    sink.sql(made)
    (found,) = [finding for finding in check(sink) if finding.severity == "error"]
    assert said in found.message
    assert found.fix


@pytest.mark.parametrize(
    ("declared", "type", "severity"),
    [
        ("DECIMAL(38, 18)", pa.decimal128(38, 18), "error"),
        ("DECIMAL(10, 2)", pa.decimal128(10, 2), None),
        ("TEXT", pa.decimal128(38, 18), None),
        ("", pa.decimal128(38, 18), None),
        ("INTEGER", pa.string(), "warning"),
        ("VARCHAR(5)", pa.string(), None),
        ("TIMESTAMP", pa.timestamp("us"), None),
        ("INTEGER", pa.int64(), None),
    ],
)
def test_text_that_the_table_would_turn_into_a_number(
    tmp_path: Path, declared: str, type: pa.DataType, severity: str | None
) -> None:
    sink = Sink(tmp_path, create=False)
    sink.sql(f"CREATE TABLE t (id INTEGER PRIMARY KEY, v {declared})")
    found = check(sink, pa.schema([("id", pa.int64()), ("v", type)]))
    assert [finding.severity for finding in found] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("options", "said"),
    [({"keys": ("id", "nope")}, "`keys` names column nope"), ({"order_by": "nope"}, "`order_by` names column nope")],
)
def test_columns_that_the_rows_lack(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    (message,) = errors(Sink(tmp_path, **options))
    assert said in message


def test_a_nested_column_is_turned_into_text(tmp_path: Path) -> None:
    (found,) = check(Sink(tmp_path), SCHEMA.append(pa.field("tags", pa.list_(pa.string()))))
    assert "column tags is of type list" in found.message
    assert found.fix.endswith("to_json(tags) AS tags")


def test_an_unsigned_column_is_cast(tmp_path: Path) -> None:
    (found,) = check(Sink(tmp_path), SCHEMA.append(pa.field("n", pa.uint64())))
    assert found.fix.endswith("cast(n AS STRING) AS n")


def test_columns_that_differ_in_case_only(tmp_path: Path) -> None:
    (message,) = errors(Sink(tmp_path), SCHEMA.append(pa.field("ID", pa.int64())))
    assert message == "columns id and ID are one column to SQLite"


def test_a_missing_folder(tmp_path: Path) -> None:
    sink = Sink(tmp_path / "missing")
    sink.staging = tmp_path / "staging"
    (found,) = check(sink)
    assert found.fix == f"mkdir -p {tmp_path / 'missing'}"
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("closed", ["folder", "file"])
def test_a_place_that_is_not_writable(tmp_path: Path, closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink(tmp_path).open(log=False)
    place = tmp_path if closed == "folder" else sink.file
    access = os.access  # asked here, for root may write anywhere
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: Path(path) != place and access(path, mode))
        (message,) = errors(sink)
    assert re.search(f"{place} is not writable", message)


@pytest.mark.parametrize("what", ["text", "folder"])
def test_a_file_that_is_no_database(tmp_path: Path, what: str) -> None:
    sink = Sink(tmp_path)
    if what == "text":
        sink.file.write_text("id,v\n" * 1000)
    else:
        sink.file.mkdir()
    (found,) = check(sink)
    assert found.message.startswith(str(sink.file))
    assert "name a" in found.fix


def test_a_busy_database_is_no_finding(tmp_path: Path) -> None:
    sink = Sink(tmp_path, create=False, busy_timeout_seconds=0)
    sink.sql(TABLE)
    with closing(sqlite3.connect(sink.file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Retryable, match="locked"):
            check(sink)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "sqlite://"}, "in memory"),
        ({"url": "sqlite:///:memory:"}, "in memory"),
        ({"url": "sqlite:///file:x?mode=memory&uri=true"}, "holds a path only"),
        ({"url": "postgresql://me:hunter2@there/db"}, "SQLite is, so far"),
        ({"url": "sqlite://me:hunter2@there/db"}, "holds a path only"),
        ({"url": "sqlite+aiosqlite:///hunter2"}, "SQLite is, so far"),
        ({"url": "hunter2"}, "not a SQLAlchemy URL"),
        ({"keys": ()}, "at least 1"),
        ({"keys": ("a", "A")}, "none of them twice"),
        ({"keys": ("",)}, "names a column"),
        ({"table": ""}, "at least 1"),
        ({"table": "exactsink_epochs"}, "are taken"),
        ({"strategy": "two_phase"}, "staged"),
        ({"strategy": "direct", "delete_when": "op = 'D'"}, "direct can't delete"),
        ({"delete_when": ""}, "at least 1"),
        ({"keys": ("a", "b"), "exclude": ("c", "b")}, "`exclude` names b"),
        ({"key": "id"}, "Extra inputs"),
        ({"busy_timeout_seconds": -1}, "greater than or equal to 0"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said) as refused:
        Sink(tmp_path, **options)
    assert "hunter2" not in str(refused.value)


def test_the_target_is_absolute_wherever_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"url": "sqlite+pysqlite:///odd ü#name.db", "table": "t", "keys": ("id",)}
    backend = UpsertBackend(UpsertOptions.model_validate({**given, "create": True}))
    monkeypatch.chdir("/")
    assert backend.target == f"sqlite:///{tmp_path}/odd ü#name.db#t"
    backend.applier().open_epoch(SCHEMA)
    assert [path.name for path in tmp_path.glob("*.db")] == ["odd ü#name.db"]


def test_the_plugin_names_this_backend() -> None:
    (spec,) = exactsink_backends()
    assert spec.load == f"{UpsertBackend.__module__}:{UpsertBackend.__name__}"
    assert list(spec.strategies) == ["staged", "direct"]
