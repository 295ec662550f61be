"""What check finds out about a file of SQLite: its place, what triggers do, spellings of keys, what types lose."""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.upsert_sink import SCHEMA, upsert

from exactsink.contract import Committed, Fatal, Finding
from exactsink_idempotent_upsert.sqlite import questions

GUARDED = ", exactsink_epoch BIGINT, exactsink_generation BIGINT"


def found(folder: Path, made: str, schema: pa.Schema = SCHEMA, **options: Any) -> list[Finding]:
    sink = upsert(folder, create=False, **options)
    sink.sql(made.replace(")", f"{GUARDED})", 1) if options.get("strategy") == "direct" else made)
    return list(sink.backend.applier().check(schema))


def refused(findings: list[Finding], why: str) -> list[bool]:
    return [why in one.message for one in findings if one.severity == "error"]


def of(place: int, kind: pa.DataType) -> pa.Schema:
    """Return SCHEMA with another type."""
    return SCHEMA.set(place, pa.field(SCHEMA.names[place], kind))


CLAUSES = {f"{clause} INTO log VALUES (1)": True for clause in ("INSERT OR IGNORE", "insert  or replace", "REPLACE")}
CLAUSES |= {"UPDATE OR IGNORE log SET id = 1": True, "INSERT INTO log VALUES (1) ON CONFLICT DO NOTHING": False}


@pytest.mark.parametrize("strategy", ["staged", "direct"])
@pytest.mark.parametrize("clause", CLAUSES)
def test_an_update_trigger_whose_or_ignore_an_upsert_takes_for_or_abort(
    tmp_path: Path, clause: str, strategy: str
) -> None:
    """Seen: after the decision the second epoch fails by the log's UNIQUE, for ever. In an INSERT trigger it holds."""
    made = "CREATE TABLE t (id PRIMARY KEY, v, o); CREATE TABLE log (id UNIQUE); INSERT INTO log VALUES (1), (2)"
    sink = upsert(tmp_path, create=False, strategy=strategy)
    for when in ("INSERT", "UPDATE"):
        trigger = f"CREATE TRIGGER g AFTER {when} ON t BEGIN {clause}; END"
        wrong = CLAUSES[clause] and when == "UPDATE"
        assert (
            refused(found(tmp_path, f"{made}; {trigger}", strategy=strategy), "trigger g of table t") == [True] * wrong
        )
        if wrong:
            with pytest.raises(Fatal, match=r"trigger g(?s:.*)ON CONFLICT DO NOTHING"):
                sink.vote(1, [(1, "a")])
        else:
            assert [sink.run(epoch, [(1, "a")]) for epoch in (1, 2)] == [[Committed()]] * 2
        sink.sql("DROP TABLE t; DROP TABLE log; DROP TABLE IF EXISTS exactsink_epochs")


TRIGGERS = """
    CREATE TABLE t (id PRIMARY KEY, v, o, d); CREATE TABLE u (id); CREATE TABLE w (id);
    CREATE TRIGGER ins BEFORE INSERT ON t BEGIN SELECT 1; END;
    CREATE TRIGGER upd AFTER UPDATE ON t BEGIN SELECT 1; END;
    CREATE TRIGGER upd_v AFTER UPDATE OF v ON t BEGIN INSERT INTO u VALUES (NEW.id); END;
    CREATE TRIGGER upd_d AFTER UPDATE OF d ON t BEGIN SELECT 1; END;
    CREATE TRIGGER del AFTER DELETE ON t BEGIN SELECT 1; END;
    CREATE TRIGGER chain AFTER INSERT ON u BEGIN SELECT 1; END;
    CREATE TRIGGER other AFTER INSERT ON w BEGIN SELECT 1; END;
"""


@pytest.mark.parametrize(
    ("options", "fired"),
    [
        ({}, "chain ins upd upd_v"),
        ({"delete_when": "v = ''"}, "chain del ins upd upd_v"),
        ({"mode": "insert_if_absent"}, "ins"),
        ({"mode": "replace"}, "chain ins upd upd_d upd_v"),
        ({"update_columns": ("o",)}, "ins upd"),
        ({"set": {"d": "1"}, "update_columns": ()}, "ins upd upd_d"),
    ],
)
def test_triggers_are_those_that_an_epoch_fires(tmp_path: Path, options: dict[str, Any], fired: str) -> None:
    names = [one.message.split()[1] for one in found(tmp_path, TRIGGERS, **options) if "trigger" in one.message]
    assert sorted(names) == fired.split()


def test_a_sum_that_leaves_64_bits_stops_by_name_and_goes_on_with_another_set(tmp_path: Path) -> None:
    """SQLite would make a float of it, and go on with that."""
    sums = {declared: f"t{number}" for number, declared in enumerate(("BIGINT", "TEXT", "", "NUMERIC"))}
    for declared, table in sums.items():
        sink = upsert(tmp_path, sink=table, table=table, create=False, set={"o": f"{table}.o + excluded.o"})
        sink.sql(f"CREATE TABLE {table} (id PRIMARY KEY, v, o {declared})")
        sink.run(1, [(1, "a", 2**62), (1, "b", 2**62 - 1), (1, "c", 0)])
        votes = sink.vote(2, [(1, "d", 1)])
        with pytest.raises(Fatal, match=r"integer overflow(?s:.*)nothing is lost(?s:.*)change `set` of o"):
            sink.commit(2, votes)
        assert [int(o) for (o,) in sink.rows(f"SELECT o FROM {table}")] == [2**63 - 1]
        changed = upsert(tmp_path, sink=table, table=table, create=False, set={"o": "excluded.o"})
        assert changed.commit(2, votes) == [Committed()]


def test_a_sum_of_floats_may_be_any(tmp_path: Path) -> None:
    sink = upsert(tmp_path, set={"o": "t.o + excluded.o"})
    for epoch in (1, 2):
        assert sink.run(epoch, pa.table([[1], ["a"], [1e300]], schema=of(2, pa.float64()))) == [Committed()]
    assert sink.rows("SELECT o FROM t") == [(2e300,)]


MICROS, PRICE, SPACE = pa.timestamp("us"), pa.decimal128(9, 2), "'2026-01-02 03:04:05.000006"
HELD: dict[str, tuple[str, pa.DataType, str, str]] = {
    "a space for T": ("TEXT", MICROS, f"{SPACE}'", f"{SPACE}'".replace(" ", "T")),
    "an offset for Z": (
        "TEXT",
        pa.timestamp("us", "UTC"),
        f"{SPACE}+00:00'".replace(" ", "T"),
        f"{SPACE}Z'".replace(" ", "T"),
    ),
    "no seconds": ("DATETIME", MICROS, "'2026-01-02T03:04'", "'2026-01-02T03:04:00.000000'"),
    "a short day": ("DATE", pa.date32(), "'2026-1-2'", "'2026-01-02'"),
    "a time for a day": ("TEXT", pa.date32(), "'2026-01-02T00:00:00.000000'", "'2026-01-02'"),
    "whole for decimal": ("TEXT", PRICE, "12", "'12.00'"),
    "a plus": ("TEXT", PRICE, "'+1.00'", "'1.00'"),
    "leading zeros": ("TEXT", PRICE, "'01.00'", "'1.00'"),
    "minus zero": ("TEXT", PRICE, "'-0.00'", "'0.00'"),
    "a point for none": ("TEXT", pa.decimal128(9, 0), "'1.0'", "'1'"),
    "an exponent": ("TEXT", PRICE, "'1e2.00'", "'-100.00'"),
    "a number for text": ("", PRICE, "1.5", "'1.50'"),
    "a text for a number": ("", pa.int64(), "'1'", "1"),
    "bytes for text": ("TEXT", pa.string(), "x'61'", "'a'"),
    "text for bytes": ("BLOB", pa.binary(), "'a'", "x'61'"),
}


@pytest.mark.parametrize("kind", HELD)
def test_a_key_of_another_program_s_spelling_is_refused_and_ours_is_not(tmp_path: Path, kind: str) -> None:
    declared, arrow, theirs, ours = HELD[kind]
    for held, wrong in ((theirs, True), (ours, False)):
        made = f"DROP TABLE IF EXISTS t; CREATE TABLE t (id {declared} PRIMARY KEY, v, o)"
        made += f"; INSERT INTO t VALUES ({held}, 1, 1)"
        assert refused(found(tmp_path, made, of(0, arrow)), "one value would be two rows") == [True] * wrong


@pytest.mark.parametrize("declared", ["NUMERIC", "DECIMAL(9, 2)"])
def test_a_number_has_one_spelling_in_a_column_of_numbers(tmp_path: Path, declared: str) -> None:
    made = f"CREATE TABLE t (id {declared} PRIMARY KEY, v, o); INSERT INTO t VALUES ('1.50', 1, 1), (2, 1, 1)"
    assert found(tmp_path, made, of(0, PRICE)) == []


def test_a_strict_tables_any_keeps_values_as_they_are(tmp_path: Path) -> None:
    """So the text '1' and the number 1 are two keys there, where another table's ANY makes both the number."""
    texts = pa.schema([("id", pa.int64()), ("v", pa.string()), ("o", pa.decimal128(17, 3))])
    made = "CREATE TABLE t (id ANY PRIMARY KEY, v ANY, o ANY) STRICT; INSERT INTO t VALUES ('1', '007', '12345.678')"
    assert [one.message for one in found(tmp_path, made, texts)] == [
        "key id of table t holds '1', and rows of int64 spell it otherwise: one value would be two rows"
    ]
    (sink := upsert(tmp_path, create=False)).sql("DELETE FROM t")
    rows = pa.table({"id": [1], "v": ["007"], "o": [Decimal("12345678901234.567")]})
    assert (list(sink.check(texts)), sink.run(1, rows)) == ([], [Committed()])
    assert sink.rows("SELECT * FROM t") == [(1, "007", "12345678901234.567")]


@pytest.mark.parametrize(("strategy", "severity"), [("staged", "warning"), ("direct", "error")])
@pytest.mark.parametrize("made", ["id TEXT COLLATE NOCASE PRIMARY KEY, v, o", "v, o, id TEXT COLLATE RTRIM UNIQUE"])
def test_keys_that_are_equal_and_differ_may_come_from_two_tasks(
    tmp_path: Path, made: str, strategy: str, severity: str
) -> None:
    (one,) = found(tmp_path, f"CREATE TABLE t ({made})", of(0, pa.string()), strategy=strategy)
    assert (one.severity, "may come from two tasks" in one.message) == (severity, True)


def test_whole_numbers_that_a_float_has_not_are_refused_by_the_tasks(tmp_path: Path) -> None:
    """In keys two of them would be one row."""
    sink = upsert(tmp_path, create=False)
    sink.sql("CREATE TABLE t (id REAL PRIMARY KEY, v, o DOUBLE)")
    assert sink.run(1, [(2**53, "a", -(2**53))]) == [Committed()]
    for rows in ([(2**53 + 1, "b", 1)], [(1, "b", 2**53 + 1)]):
        with pytest.raises(Fatal, match="takes -9007199254740992 to 9007199254740992"):
            sink.vote(2, rows)


def test_floats_in_a_column_of_text_are_refused(tmp_path: Path) -> None:
    findings = found(tmp_path, "CREATE TABLE t (id PRIMARY KEY, v, o TEXT)", of(2, pa.float64()))
    assert refused(findings, "column o of table t is declared TEXT") == [True]


def test_a_null_is_refused_beside_a_column_whose_nulls_are_filled(tmp_path: Path) -> None:
    sink = upsert(tmp_path, create=False)
    sink.sql("CREATE TABLE t (id PRIMARY KEY, v NOT NULL ON CONFLICT REPLACE DEFAULT 'd', o NOT NULL DEFAULT 1)")
    assert sink.run(1, [(1, None, 1)]) == [Committed()]
    with pytest.raises(Fatal, match="column o is NOT NULL"):
        sink.vote(2, [(1, None, None)])


@pytest.mark.parametrize(
    ("options", "moved"),
    [({}, ["v"]), ({"update_columns": ("o",)}, []), ({"mode": "insert_if_absent"}, []), ({"set": {"v": "1"}}, ["v"])],
)
def test_a_change_that_a_child_would_miss_is_a_warning(
    tmp_path: Path, options: dict[str, Any], moved: list[str]
) -> None:
    made = "CREATE TABLE t (id PRIMARY KEY, v UNIQUE, o); CREATE TABLE c (a REFERENCES t (id), b REFERENCES t (V))"
    messages = [one.message for one in found(tmp_path, made, **options) if "FOREIGN KEY" in one.message]
    assert [" change of V neither stops nor cascades" in message for message in messages] == [True] * len(moved)


@pytest.mark.parametrize("place", ["folder", "", "-wal"])
def test_a_place_that_is_closed_names_both_users(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = upsert(tmp_path / "odd name")
    sink.file.parent.mkdir()
    sink.open(1, SCHEMA)
    closed = sink.file.parent if place == "folder" else Path(f"{sink.file}{place}")
    closed.touch()
    access, owner = os.access, closed.stat().st_uid
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != closed and access(path, mode))
    (own,) = sink.check()
    assert own.message.startswith(f"{closed} is not writable by user {owner}")
    assert own.fix == f"chmod u+rwX '{closed}'"
    monkeypatch.setattr(os, "geteuid", lambda: 2**30)
    (other,) = sink.check()
    assert f"not writable by user {2**30}, and user {owner} owns it" in other.message
    assert other.fix == f"run the driver as user {owner}, or: chown {2**30} '{closed}'"
    if place == "-wal":  # removed by another connection, just before the look at it
        monkeypatch.setattr(os, "access", lambda path, mode: access(path, mode) if path != closed else closed.unlink())
        assert [*sink.check()] == []


@pytest.mark.parametrize(("kind", "remote"), [("nfs4", True), ("fuse.sshfs", True), ("ext4", False), ("tmpfs", False)])
def test_a_file_on_a_network_is_a_warning(
    tmp_path: Path, kind: str, remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"root / nfs rw 0 0\nover / overlay rw 0 0\nthere:/a {tmp_path} {kind} rw 0 0\n")
    monkeypatch.setattr(questions, "_MOUNTS", mounts)
    messages = [one.message for one in upsert(tmp_path).check() if one.severity == "warning"]
    assert [f"shop.db is on a network file system ({kind})" in message for message in messages] == [True] * remote
    monkeypatch.setattr(questions, "_MOUNTS", tmp_path / "none, as on macOS")
    assert upsert(tmp_path).check() == []
