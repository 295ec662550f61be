"""Staged epochs of the upsert backend: each applied once and whole; what stops one, and what fixes that."""

from __future__ import annotations

import json
import pickle
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
from tests.unit.upsert_sink import SCHEMA, rows_of, upsert

from exactsink.contract import AlreadyCommitted, Committable, Committed, Fatal, Retryable, Txn, Unknown
from exactsink.toolkit.roads.staging import damage_of, voted
from exactsink.toolkit.storage import ObjectPath
from exactsink_idempotent_upsert.sqlite import rows as sqlite_rows
from exactsink_idempotent_upsert.table import Table

MARKERS = "SELECT * FROM exactsink_epochs"


def test_rows_are_inserted_then_updated_and_invisible_before(tmp_path: Path) -> None:
    sink = upsert(tmp_path).logged()
    votes = sink.vote(1, [(1, "a"), (2, "b")], [(3, "c")])
    assert (sink.rows(), sink.rows(MARKERS)) == ([], [])
    assert sink.commit(1, votes) == [Committed()] * 2
    assert sink.rows() == [(1, "a"), (2, "b"), (3, "c")]
    assert sink.at(3).run(2, [(2, "B"), (4, "d")]) == [Committed()]
    assert sink.rows() == [(1, "a"), (2, "B"), (3, "c"), (4, "d")]
    assert sink.log()[3:] == [("update", 2, "B"), ("insert", 4, "d")]
    assert (sink.rows(MARKERS), sink.staged()) == ([("orders", "table", "L1", 2, 3, "aa")], [])


_ARRIVED = "SELECT id FROM t ORDER BY rowid"


@pytest.mark.parametrize("at_once", [1, 2**20])
def test_new_rows_go_in_by_their_keys_and_each_key_s_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(sqlite_rows, "_SORTED_BYTES", at_once)
    sink = upsert(tmp_path)
    sink.run(1, [(3, "c"), (2, "b"), (1, "a"), (2, "B")], [(5, "e"), (4, "d"), (1, "A")])
    assert sink.rows() == [(1, "A"), (2, "B"), (3, "c"), (4, "d"), (5, "e")]
    assert sink.rows(_ARRIVED) == [(1,), (2,), (3,), (4,), (5,)]
    first = upsert(tmp_path, sink="first", mode="insert_if_absent")
    first.run(1, [(7, "c"), (6, "b")], [(6, "B"), (7, "C")])
    assert first.rows()[5:] == [(6, "b"), (7, "c")]


@pytest.mark.parametrize(
    "table",
    [
        "CREATE TABLE t (id BIGINT PRIMARY KEY, v UNIQUE, o)",
        "CREATE TABLE t (n INTEGER PRIMARY KEY, id BIGINT UNIQUE, v, o)",
        "CREATE TABLE t (id BIGINT PRIMARY KEY, v, o REFERENCES t (id))",
        "CREATE TABLE t (id TEXT PRIMARY KEY, v, o)",
        "CREATE TABLE t (id BIGINT PRIMARY KEY, v, o); CREATE TRIGGER i AFTER INSERT ON t BEGIN SELECT 1; END",
    ],
)
def test_rows_of_several_keys_keep_their_order_where_the_table_may_depend_on_it(tmp_path: Path, table: str) -> None:
    sink = upsert(tmp_path, create=False)
    sink.sql(table)
    sink.run(1, [(3, "c"), (1, "a"), (2, "b")])
    assert [int(key) for (key,) in sink.rows(_ARRIVED)] == [3, 1, 2]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"set": {"o": "(SELECT count(*) FROM t)"}}, pa.array([3, 1, 2])),
        ({"delete_when": "o = 1"}, pa.array([3, 1, 2])),
        ({}, pa.array(["3", "1", "2"])),
    ],
)
def test_so_they_do_where_the_options_or_the_keys_may(
    tmp_path: Path, options: dict[str, object], ids: pa.Array
) -> None:
    sink = upsert(tmp_path, create=False, **options)
    sink.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v, o)")
    rows = {"id": ids, "v": pa.array(["c", "a", "b"]), "o": pa.array([7, 7, 7])}
    rows |= {"exactsink_delete": pa.array([False] * 3)} if "delete_when" in options else {}
    sink.run(1, pa.RecordBatch.from_pydict(rows))
    assert sink.rows(_ARRIVED) == [(3,), (1,), (2,)]


def test_a_value_that_must_be_there_once_goes_from_one_key_to_another(tmp_path: Path) -> None:
    sink = upsert(tmp_path, create=False)
    sink.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT UNIQUE, o)")
    sink.run(1, [(2, "first")])
    assert sink.run(2, [(2, "second"), (1, "first")]) == [Committed()]
    assert sink.rows() == [(1, "first"), (2, "second")]


@pytest.mark.parametrize("order_by", [None, "o"])
def test_neither_a_replayed_nor_an_older_epoch_is_applied(tmp_path: Path, order_by: str | None) -> None:
    sink = upsert(tmp_path, order_by=order_by).logged()
    stalled = sink.vote(4, [(1, "old")])
    votes, again = sink.vote(5, [(1, "new", 1)]), sink.at(2).vote(5, [(1, "new", 1)])
    assert sink.commit(5, votes) == [Committed()]
    for late in (votes, again):
        assert sink.at(2).commit(5, late) == [AlreadyCommitted()]
    assert sink.commit(4, stalled) == [AlreadyCommitted()]
    assert (sink.log(), sink.staged()) == ([("insert", 1, "new")], [])


@pytest.mark.parametrize("damage", ["gone", "other bytes"])
def test_a_staged_file_that_is_not_what_was_voted_leaves_the_epoch_unknown(tmp_path: Path, damage: str) -> None:
    sink = upsert(tmp_path).logged()
    votes = sink.vote(1, [(1, "a")], [(2, "b")])
    staged = sink.staged()[1]
    whole = staged.read_bytes()
    staged.unlink()
    if damage != "gone":
        staged.write_bytes(whole.replace(b"b", b"X"))
    outcomes = sink.commit(1, votes)
    assert all(isinstance(outcome, Unknown) and staged.name in outcome.evidence for outcome in outcomes)
    assert sink.log() == []
    staged.write_bytes(whole)
    assert sink.commit(1, votes) == [Committed()] * 2


@pytest.mark.parametrize("way", ["outside", "dots", "another's", "link", "no name"])
def test_a_vote_that_was_edited_makes_nothing_outside_of_staging_be_read_or_removed(tmp_path: Path, way: str) -> None:
    sink = upsert(tmp_path).logged()
    vote, other = sink.vote(1, [(1, "a")], [(3, "c")])
    inside, said = sink.staged()[0], json.loads(vote.payload)
    outside = tmp_path / inside.name
    outside.write_bytes(inside.read_bytes())
    if way == "link":
        inside.unlink()
        inside.symlink_to(outside)
        assert [type(outcome) for outcome in sink.commit(1, [vote])] == [Unknown]
    else:
        dots = f"{sink.ctx.staging}/../../../{inside.name}"
        named = {"outside": str(outside), "dots": dots, "another's": json.loads(other.payload)["path"], "no name": 7}
        edited = replace(vote, payload=json.dumps(said | {"path": named[way]}).encode())
        with pytest.raises(Fatal, match="its staged file is") as refused:
            sink.commit(1, [edited])
        assert repr(named[way]) in refused.value.what
        assert sink.commit(1, [vote]) == [Committed()]
        assert sink.commit(1, [edited]) == [AlreadyCommitted()]  # nor does the end of what is applied follow it
    assert outside.exists()
    assert Path(json.loads(other.payload)["path"]).exists()


def test_a_vote_that_names_an_object_outside_of_staging_is_refused() -> None:
    folder = ObjectPath.of("memory://bucket/staging/table")
    payload = voted(ObjectPath.of("memory://bucket/other/j.s.g1-aa.e1.p0.a1.arrow"), 1, "ab")
    with pytest.raises(Fatal, match="its staged file is memory://bucket/staging/table/j"):
        damage_of(folder, Committable(Txn("j", 1, "s", 1, "aa", 0, 1), 1, payload))


def test_a_folder_by_another_way_is_the_same_folder(tmp_path: Path) -> None:
    sink = upsert(tmp_path).logged()
    votes = sink.vote(1, [(1, "a")])
    (tmp_path / "way").symlink_to(tmp_path / "staging")
    by_link = replace(sink, ctx=replace(sink.ctx, staging=str(tmp_path / "way" / "orders" / "table")))
    assert by_link.commit(1, votes) == [Committed()]


def test_a_file_that_vanished_is_not_made_anew_and_only_create_makes_one(tmp_path: Path) -> None:
    sink = upsert(tmp_path)
    votes = sink.vote(1, [(1, "a")])
    aside = sink.file.rename(tmp_path / "aside.db")
    with pytest.raises(Retryable, match="unable to open"):
        sink.commit(1, votes)
    with pytest.raises(Retryable, match="unable to open"):
        upsert(tmp_path, create=False).open(1, SCHEMA)
    assert not sink.file.exists()
    aside.rename(sink.file)
    assert sink.commit(1, votes) == [Committed()]


def test_two_drivers_may_open_the_first_epoch_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One makes the file and the tables while the other is about to."""
    connect, other = sqlite3.connect, [upsert(tmp_path)]

    def overtaken(*args: object, **kwargs: object) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)  # type: ignore[call-overload]
        if other:
            other.pop().open(1, SCHEMA)
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", overtaken)
        assert upsert(tmp_path).open(1, SCHEMA) == str(tmp_path / "staging" / "orders" / "table").encode()
    assert upsert(tmp_path).run(1, [(1, "a")]) == [Committed()]


REMADE = "DROP TABLE t; CREATE TABLE t (id INTEGER PRIMARY KEY, v {}, o)"
NO_MARKER = "CREATE TRIGGER no BEFORE INSERT ON exactsink_epochs BEGIN SELECT RAISE(ABORT, 'no marker'); END"
REFUSING = {
    "not null": (REMADE.format("TEXT NOT NULL"), "failed: t.v"),
    "check": (REMADE.format("CONSTRAINT has_v CHECK (v IS NOT NULL)"), "has_v"),
    "silent": (REMADE.format("NOT NULL ON CONFLICT IGNORE"), "dropped 1 rows"),
    "the marker": (NO_MARKER, "no marker"),
}


@pytest.mark.parametrize("order_by", [None, "o"])
@pytest.mark.parametrize("kind", list(REFUSING))
def test_what_the_database_refuses_stops_with_nothing_applied_and_nothing_lost(
    tmp_path: Path, kind: str, order_by: str | None
) -> None:
    made, said = REFUSING[kind]
    sink = upsert(tmp_path, order_by=order_by)
    votes = sink.vote(1, [(1, "a", 1)], [(2, None, 2)])
    sink.sql(made)
    with pytest.raises(Fatal) as refused:
        sink.commit(1, votes)
    for part in (said, "table t", "decided", "staged", "nothing is lost", "start the job again"):
        assert part in str(refused.value)
    assert (sink.rows(), sink.rows(MARKERS), len(sink.staged())) == ([], [], 2)
    sink.sql(f"DROP TRIGGER IF EXISTS no; {REMADE.format('TEXT')}")
    assert sink.commit(1, votes) == [Committed()] * 2
    assert sink.rows() == [(1, "a"), (2, None)]


@pytest.mark.parametrize("url", ["sqlite:///{}/shop.db", "duckdb:///{}/shop.duckdb"])
def test_an_error_that_nobody_foresaw_leaves_a_decided_epoch_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    sink = upsert(tmp_path, url=url.format(tmp_path))
    votes = sink.vote(1, [(1, "a")])
    bug = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "planted")
    with monkeypatch.context() as patch:
        patch.setattr(Table, "stored", Mock(side_effect=bug))
        with pytest.raises(Fatal, match=r"epoch 1 .* planted.* decided .* staged.*\n.* start the job") as seen:
            sink.commit(1, votes)
    assert seen.value.__cause__ is bug
    assert sink.commit(1, votes) == [Committed()]


@pytest.mark.parametrize("gone", ["main.t", "exactsink_epochs"])
def test_a_table_that_vanished_is_named_and_not_made_in_the_commit(tmp_path: Path, gone: str) -> None:
    sink = upsert(tmp_path)
    votes = sink.vote(1, [(1, "a")])
    sink.sql(f"DROP TABLE {gone}")
    with pytest.raises(Fatal, match=f"no such table: {gone}"):
        sink.commit(1, votes)
    sink.open(1, SCHEMA)
    assert sink.commit(1, votes) == [Committed()]


def test_nothing_shows_the_url_and_the_backend_travels_whole(tmp_path: Path) -> None:
    backend = upsert(tmp_path / "secret-place").backend
    twin = pickle.loads(pickle.dumps(backend))
    assert (twin.options, twin.target, twin.strategy) == (backend.options, backend.target, "staged")
    for shown in (repr(backend), repr(backend.options), str(backend.options), backend.options.model_dump_json()):
        assert "secret-place" not in shown
    assert backend.target == f"sqlite:///{tmp_path}/secret-place/shop.db#t"


EXECUTOR = """
import pickle, sys
opened, rows = pickle.loads(sys.stdin.buffer.read())
for session, ticket in opened:
    session.write(1, 0, ticket, rows)
print(sorted({"sqlalchemy", "exactsink_files"} & set(sys.modules)))
"""


def test_tasks_write_while_the_database_is_away(tmp_path: Path) -> None:
    sink = upsert(tmp_path)
    ticket, away = sink.open(1, SCHEMA), sink.file.rename(tmp_path / "away")
    vote = sink.write(1, 0, ticket, rows_of([(1, "a")]))
    assert (sink.file.exists(), vote.deadline) == (False, None)
    away.rename(sink.file)
    assert sink.commit(1, [vote]) == [Committed()]


def test_a_decided_epoch_is_applied_by_the_keys_that_the_config_has_now(tmp_path: Path) -> None:
    sink = upsert(tmp_path, create=False)
    sink.sql("CREATE TABLE t (id INTEGER UNIQUE, v TEXT UNIQUE, o)")
    sink.run(1, [(1, "a")])
    votes = sink.vote(2, [(2, "a")])
    assert upsert(tmp_path, keys=("v",), create=False).commit(2, votes) == [Committed()]
    assert sink.rows() == [(2, "a")]


def test_a_task_needs_no_sqlalchemy(tmp_path: Path) -> None:
    sinks = [upsert(tmp_path, job="other", strategy="direct"), upsert(tmp_path)]
    given = pickle.dumps(([(sink, sink.open(1, SCHEMA)) for sink in sinks], rows_of([(1, "a")])))
    done = subprocess.run([sys.executable, "-c", EXECUTOR], input=given, capture_output=True, check=True)
    assert done.stdout == b"[]\n"


def test_options_import_what_reaches_mariadb() -> None:
    """Threads that are the first to import a package, each another part of it, break each other's import."""
    read = "UpsertOptions(url='mysql+pymysql:///shop', table='t', keys=('id',))"
    found = "{'pymysql.connections', 'sqlalchemy.dialects.mysql.pymysql'} & set(sys.modules)"
    script = f"import sys; from exactsink_idempotent_upsert.options import UpsertOptions; {read}; print(len({found}))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"2\n"


def test_a_machine_that_does_not_see_the_staging_folder_takes_no_row_for_lost(tmp_path: Path) -> None:
    sink = upsert(tmp_path).logged()
    votes = sink.vote(1, [(1, "a")])
    aside = (tmp_path / "staging").rename(tmp_path / "aside")
    for judge in (sink.assess, sink.commit):
        with pytest.raises(Retryable, match="does not exist here"):
            judge(1, votes)
    (tmp_path / "staging" / "orders" / "table").mkdir(parents=True)  # as the message says, if it was deleted
    assert "is gone" in str(sink.commit(1, votes))
    aside.rename(Path(shutil.move(tmp_path / "staging", tmp_path / "empty")).parent / "staging")
    assert sink.commit(1, votes) == [Committed()]
