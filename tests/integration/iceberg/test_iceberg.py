"""Iceberg tables: what other writers, operators and answers that are lost do to a sink's epochs."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.peer_faults.spark_tables import ICEBERG, rows_in_spark
from pyiceberg.exceptions import CommitFailedException, ForbiddenError
from pyiceberg.table import Table

from exactsink.contract import AlreadyCommitted, Committed, Fatal, Lost, Mark, Retryable, Unknown
from exactsink.testing.target import ROWS
from exactsink.toolkit.tabular import table_writer
from exactsink_iceberg.durable_io import path_at
from exactsink_iceberg.votes import votes_of
from tests.integration.iceberg.lake import KEY, Lake, committed_by, epochs, interrupted, rows

HEAD, FIRST, BIRTH = Mark("ab", 1, frozenset(["ab"])), Mark("ab", 0, frozenset(["ab"])), Mark("ab")


def expire(table: Table) -> None:
    table.maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()


def appended(lake: Lake, *ids: int) -> None:
    lake.table().append(rows(*ids))


def rolled_back(lake: Lake, steps: int) -> None:
    line = sorted(lake.table().snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)
    lake.table().manage_snapshots().rollback_to_snapshot(line[-1 - steps].snapshot_id).commit()


def two_expired(lake: Lake) -> None:
    lake.table().maintenance.expire_snapshots().by_ids([e.snapshot_id for e in lake.table().snapshots()[:2]]).commit()


def tag(lake: Lake) -> None:
    lake.table().manage_snapshots().create_tag(lake.table().snapshots()[-1].snapshot_id, "kept").commit()


def replaced(lake: Lake) -> None:
    """Do as `CREATE OR REPLACE TABLE` of Spark does, and append: only the branch goes, the snapshots stay."""
    lake.table().manage_snapshots().remove_branch("main").commit()
    appended(lake, 9)


def other_sink(lake: Lake) -> None:
    """Let another sink cut the line of snapshots above ours, twice."""
    other = lake.session(sink="other", keep_snapshots=1)
    for epoch in range(4):
        epochs(other, epoch)
        other.trim_marks()


OPERATIONS: dict[str, tuple[Callable[[Lake], object], Mark]] = {
    "another appends": (lambda lake: appended(lake, 9), HEAD),
    "expiry": (lambda lake: (appended(lake, 9), expire(lake.table())), HEAD),
    "a tag, and expiry": (lambda lake: (tag(lake), appended(lake, 9, 10), expire(lake.table())), HEAD),
    "rollback by one": (lambda lake: rolled_back(lake, 1), FIRST),
    "rollback, then an append": (lambda lake: (rolled_back(lake, 1), appended(lake, 9)), FIRST),
    "rollback, append, expiry": (lambda lake: (rolled_back(lake, 1), appended(lake, 9), two_expired(lake)), BIRTH),
    "replaced": (replaced, BIRTH),
    "a tag, and replaced": (lambda lake: (tag(lake), replaced(lake)), BIRTH),
    "another sink expires its own": (other_sink, HEAD),
    "another sink expires its own, and replaced": (lambda lake: (other_sink(lake), replaced(lake)), BIRTH),
    "rollback of all": (lambda lake: rolled_back(lake, 2), BIRTH),
    "rollback to another's, then expiry": (lambda lake: (rolled_back(lake, 2), expire(lake.table())), BIRTH),
    "dropped and made again": (
        lambda lake: (lake.catalog().drop_table("shop.orders"), lake.catalog().create_table("shop.orders", ROWS)), BIRTH
    ),
    "no property": (lambda lake: lake.table().transaction().remove_properties(KEY).commit_transaction(), HEAD),
}  # fmt: skip


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_mark_is_that_of_the_rows_that_the_table_shows(lake: Lake, operation: str) -> None:
    sink = lake.session()
    sink.put_birth()
    sink.open(0, ROWS)
    appended(lake, 8)
    epochs(sink, 0, 1)
    done, shown = OPERATIONS[operation]
    done(lake)
    assert sink.mark() == shown


def test_a_catalog_that_is_put_back_shows_the_epoch_of_its_day(lake: Lake) -> None:
    sink = lake.session()
    sink.put_birth()
    epochs(sink, 0, 1)
    shutil.copy(lake.folder / "catalog.db", lake.folder / "backup.db")
    epochs(sink, 2)
    shutil.copy(lake.folder / "backup.db", lake.folder / "catalog.db")
    assert sink.mark() == HEAD
    assert lake.ids() == Counter([0, 1])


def test_a_mark_that_was_edited_stops_the_job(lake: Lake) -> None:
    sink = lake.session()
    epochs(sink, 0)
    appended(lake, 9)
    expire(lake.table())
    lake.table().transaction().set_properties({KEY: '{"epoch": "a"}'}).commit_transaction()
    with pytest.raises(Fatal, match="can't be read as a mark"):
        sink.mark()


LOST = {"409": CommitFailedException("409"), "gone": ConnectionError("gone"), "cut": ValueError("no JSON")}


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "not landed"])
@pytest.mark.parametrize("error", LOST)
def test_a_lost_answer_puts_an_epoch_once(lake: Lake, error: str, landed: bool) -> None:
    sink = lake.session()
    voted, pending = sink.prepare(0, [rows(1, 2), rows(3)]), [LOST[error]]

    def lost(real: Callable[..., Any], *asked: Any) -> Any:
        answer = real(*asked) if landed or not pending else None
        if pending:
            raise pending.pop()
        return answer

    assert committed_by(sink, 0, voted, lost) == {AlreadyCommitted() if landed else Committed()}
    assert lake.ids() == Counter([1, 2, 3])
    assert sink.commit(0, voted) == [AlreadyCommitted()] * 2
    lists = list((lake.folder / "lake/shop/orders/metadata").glob("snap-*.avro"))
    assert len(lists) == 1 + (not landed), "a try that may still land keeps its files until another has followed"


def test_a_commit_that_is_forbidden_is_named_and_a_try_that_landed_keeps_its_files_after_a_rollback(lake: Lake) -> None:
    sink, done = lake.session(), list[object]()
    epochs(sink, 0)

    def lost(real: Callable[..., Any], *asked: Any) -> Any:
        if done:
            return real(*asked)
        done.append((real(*asked), rolled_back(lake, 1), appended(lake, 9)))
        raise ConnectionError("gone")

    voted = sink.prepare(1, [rows(1)])
    with pytest.raises(Fatal, match="refuses this account"):
        committed_by(sink, 1, voted, lambda *_: (_ for _ in ()).throw(ForbiddenError("403")))
    assert committed_by(sink, 1, voted, lost) == {Committed()}
    table = lake.table()
    assert [table.scan(snapshot_id=each.snapshot_id).count() for each in table.snapshots()] == [1, 2, 2, 3]


def test_another_writer_gets_in_between_both_stand_and_the_refused_manifests_go(lake: Lake) -> None:
    sink = lake.session()
    voted = sink.prepare(0, [rows(1, 2)])
    assert interrupted(sink, 0, voted, lambda: appended(lake, 9)) == {Committed()}
    assert lake.ids() == Counter([1, 2, 9])
    folder = lake.folder / "lake/shop/orders/metadata"
    assert (len(list(folder.glob("snap-*.avro"))), len(list(folder.glob("*-m0.avro")))) == (2, 2)
    second = sink.prepare(1, [rows(3)])
    assert interrupted(sink, 1, second, lambda: (appended(lake, 8), expire(lake.table()))) == {Committed()}
    assert lake.ids() == Counter([1, 2, 3, 8, 9])
    assert len(list(folder.glob("snap-*.avro"))) == 5, "where expiry cut the line, nothing is removed"


def test_who_saw_all_files_and_stalled_adds_none_once_they_are_lost(lake: Lake) -> None:
    sink = lake.session()
    sink.put_birth()
    voted = sink.prepare(0, [rows(1), rows(2)])

    def lose() -> None:
        path_at(votes_of(voted[1])[0].path).unlink()
        assert {type(outcome) for outcome in sink.commit_marked(0, voted)} == {Lost}

    assert {type(outcome) for outcome in interrupted(sink, 0, voted, lose)} == {Lost}
    assert (lake.ids(), sink.mark()) == (Counter(), Mark("ab"))
    again = [sink.write(0, 0, sink.open(0, ROWS), rows(1, 2), attempt=7)]
    assert sink.commit_marked(0, again) == [Committed()]
    assert sink.commit_marked(0, voted) == [AlreadyCommitted()] * 2
    assert lake.ids() == Counter([1, 2])
    changed = sink.prepare(1, [rows(4)])
    with pytest.raises(Fatal, match="is not a file of its own"):
        sink.commit_marked(1, [replace(changed[0], payload=voted[0].payload)])
    path = Path(str(path_at(votes_of(changed[0])[0].path)))
    path.write_bytes(path.read_bytes() + b"!")
    assert [type(outcome) for outcome in sink.commit_marked(1, changed)] == [Unknown]


def test_losers_are_swept_and_what_the_table_names_never_is(lake: Lake) -> None:
    sink = lake.session(partition_by=("kind", "bucket(3, id)"))
    winner = sink.prepare(0, [rows(*range(9))])
    loser = sink.write(0, 0, sink.open(0, ROWS), rows(1, 2, 3), attempt=9)
    sink.commit(0, winner)
    assert [participant.ref for participant in sink.listed()] == [loser.ref]
    sink.abort(*sink.listed())
    files = {path.name for path in (lake.folder / "lake").rglob("*.parquet")}
    assert files == {path_at(voted.path).name for voted in votes_of(winner[0])}
    record = lake.folder / "lake/_exactsink/default.shop.orders" / winner[0].ref
    record.touch()  # as when a power cut takes its removal back
    with pytest.raises(Fatal, match="the table names files of"):
        sink.abort(*sink.listed())
    writer = sink.writer(1, 0, ROWS, sink.open(1, ROWS))
    writer.write(rows(1).to_batches()[0])
    record.unlink()
    sink.abort(*sink.listed())
    with pytest.raises(Retryable, match="was swept"):
        writer.pre_commit()
    writer.abort()
    assert lake.ids() == Counter(range(9))


MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
COLUMNS = [
    ("id", pa.int64()), ("at", pa.timestamp("us", "Europe/Berlin")), ("plain", pa.timestamp("us")),
    ("price", pa.decimal128(9, 2)), ("many", pa.list_(pa.struct([("x", pa.timestamp("us", "UTC"))]))),
    ("named", pa.map_(pa.string(), pa.int32())), ("raw", pa.binary_view()), ("share", pa.float32()),
    ("text", pa.string_view()), ("day", pa.date32()), ("ok", pa.bool_()),
]  # fmt: skip
ROW = {
    "id": 1, "at": MOMENT, "plain": MOMENT.replace(tzinfo=None), "price": Decimal("1.50"), "many": [{"x": MOMENT}],
    "named": [("a", 1)], "raw": b"\0", "share": 0.5, "text": "a/b?c#d=%2F é", "day": date(1969, 12, 31), "ok": True,
}  # fmt: skip
EMPTY = {**dict.fromkeys(ROW), "id": 2}
GIVEN = pa.Table.from_pylist([ROW, EMPTY], schema=pa.schema(COLUMNS))
DIVIDED = {
    ("text", "month(day)", "hour(at)", "year(plain)", "ok", "truncate(10, id)", "bucket(7, raw)"):
        ["a/b?c#d=%2F é", -1, 490_923, 56, True, 0],
    ("bucket(7, text)", "day", "day(at)", "month(plain)", "id"): [-1, 20_455, 672, 1],
    ("truncate(3, text)", "bucket(3, id)", "year(day)", "bucket(5, at)"): ["a/b", -1],
}  # fmt: skip


@pytest.mark.parametrize(("by", "values"), DIVIDED.items(), ids=["text", "day", "truncate"])
def test_rows_of_every_type_and_partition_come_back(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, by: tuple[str, ...], values: list[Any]
) -> None:
    monkeypatch.setattr(table_writer, "_BUFFERED_BYTES", 1)
    sink = lake.session(partition_by=by)
    assert sink.with_committer(lambda committer: list(committer.check(GIVEN.schema, None))) == []
    sink.commit(0, sink.prepare(0, [GIVEN, GIVEN.slice(0, 1)]))
    table = lake.table()
    files = [pq.ParquetFile(path_at(task.file.file_path)).read() for task in table.scan().plan_files()]
    found = sorted(pa.concat_tables(files).to_pylist(), key=lambda each: int(each["id"]))
    assert found == [ROW, ROW, EMPTY]  # pyiceberg reads a NULL list of structs as []
    made = [task.file.partition for task in table.scan("id = 1").plan_files()]
    assert [[record[place] for place, name in enumerate(by) if "bucket" not in name] for record in made] == [values] * 2
    assert table.scan(f"text = '{ROW['text']}' and id = 1").count() == 2
    assert table.scan("day > '2000-01-01'").count() == 0


@pytest.mark.proof
def test_spark_with_icebergs_jar_finds_the_rows_of_every_type_by_every_partition(lake: Lake) -> None:
    asked = list[tuple[str, str]]()
    one = f"""text = '{ROW["text"]}' AND id = 1 AND day = date'1969-12-31' AND raw = x'00' AND ok AND price = 1.5
        AND at = timestamp'{MOMENT}' AND plain = timestamp_ntz'{ROW["plain"]}'"""
    for number, by in enumerate(DIVIDED):
        sink = lake.session(table=f"shop.t{number}", sink=f"s{number}", partition_by=by)
        sink.commit(0, sink.prepare(0, [GIVEN, GIVEN.slice(0, 1)]))
        asked += [(lake.catalog().load_table(f"shop.t{number}").metadata_location, where) for where in ("true", one)]
    found = [sorted(read, key=lambda row: int(row["id"])) for read in rows_in_spark(ICEBERG, *asked)]
    assert found == [[ROW, ROW, EMPTY], [ROW, ROW]] * len(DIVIDED)
