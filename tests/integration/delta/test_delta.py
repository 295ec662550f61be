"""Delta tables: the kit in S3, races for an entry, and what others do to a table."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, TableFeatures, write_deltalake
from deltalake.schema import PrimitiveType

from exactsink.contract import (
    AlreadyCommitted,
    Committable,
    Committed,
    Fatal,
    InDoubtError,
    JobContext,
    LineageError,
    Lost,
    Mark,
    PreflightError,
    Prepared,
    Retryable,
    Unknown,
)
from exactsink.testing import ConformanceSuite, Runner, Session
from exactsink.testing.target import ROWS
from exactsink.toolkit.storage import ObjectPath, path_of
from exactsink_delta import log as log_module
from exactsink_delta import writer as writer_module
from exactsink_delta.backend import DeltaBackend, DeltaOptions
from exactsink_delta.conformance import DeltaTarget
from tests.servers.s3 import S3

APP = "exactsink:shop:lake"
OF_STORES = (
    *("births-at-once", "commit-replayed", "commits-at-once", "foreign-untouched", "killed-inside-sweep"),
    *("loser-swept", "one-vote-lost", "other-process", "second-journal", "undecided-invisible", "unknown-after-commit"),
)
"""What is another in a store than in a folder."""


@pytest.fixture(scope="module")
def bucket(s3: S3) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        yield f"s3://{s3.new_bucket('delta')}"


@pytest.fixture(scope="module")
def s3_runner(bucket: str) -> Iterator[Runner]:
    """The process has the bucket in its environment."""
    with closing(Runner()) as made:
        yield made


def rows(*ids: int) -> pa.Table:
    """Make rows as the kit's are."""
    return pa.table({"id": ids, "kind": ["k" for _ in ids], "amount": [1.0 for _ in ids]}, schema=ROWS)


def session(folder: Path, lineage: str = "ab", **options: Any) -> Session:
    backend = DeltaBackend(DeltaOptions.model_validate({"path": str(folder / "table"), **options}))
    return Session(backend, JobContext("shop", "lake", str(folder / "staging"), 1, lineage), lineage)


def table(folder: Path) -> DeltaTable:
    return DeltaTable(folder / "table")


def read(folder: Path) -> Counter[int]:
    """Read the ids by deltalake and by DuckDB."""
    found = Counter(table(folder).to_pyarrow_table()["id"].to_pylist())
    assert found == Counter(row for (row,) in asked(folder, "SELECT id FROM lake"))
    return found


def asked(folder: Path, query: str) -> list[tuple[Any, ...]]:
    """Ask DuckDB about the table, which is called `lake` there."""
    with duckdb.connect() as reader:
        reader.register("lake", table(folder).to_pyarrow_dataset())
        return reader.execute(query).fetchall()


def epochs(sink: Session, *numbers: int) -> None:
    """Write and commit epochs; each has a row with its own number."""
    for epoch in numbers:
        assert set(sink.commit(epoch, sink.prepare(epoch, [rows(epoch)]))) == {Committed()}


def interrupted(sink: Session, epoch: int, voted: Sequence[Committable], between: Callable[[], object]) -> set[Any]:
    """Commit with a committer that has looked at table and files when `between` happens, once, before its entry."""
    with closing(sink.backend.committer(sink.ctx)) as committer:
        committer.mark()
        before_once(vars(committer)["_log"], "append", between)
        return set(committer.commit(epoch, voted))


def before_once(holder: Any, name: str, between: Callable[[], object]) -> None:
    """Let something happen before the first call of a method."""
    real, pending = getattr(holder, name), [between]

    def call(*args: Any) -> Any:
        while pending:
            pending.pop()()
        return real(*args)

    setattr(holder, name, call)


@pytest.mark.proof
@pytest.mark.parametrize("scenario", OF_STORES)
def test_the_kit_in_s3(s3_runner: Runner, bucket: str, scenario: str, tmp_path: Path) -> None:
    ConformanceSuite().test_conformance(scenario, DeltaTarget(("kind",), bucket), tmp_path, s3_runner)


def test_in_s3_too_of_two_drivers_one_adds_an_epoch(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{bucket}/race/table"
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")  # which is not obeyed
    sink = session(tmp_path, path=path)
    assert sink.with_committer(lambda committer: list(committer.check(ROWS, None))) == []
    sink.put_birth()
    voted = sink.prepare(0, [rows(1, 2), rows(3)])
    loser = sink.write(0, 0, sink.open(0, ROWS), rows(1), attempt=9)
    assert interrupted(sink, 0, voted, lambda: sink.commit(0, voted)) == {AlreadyCommitted()}
    assert [participant.ref for participant in sink.listed()] == [loser.ref]
    sink.abort(*sink.listed())
    with pytest.raises(LineageError):
        session(tmp_path, "cd", path=path).prepare(0, [rows(4)])
    stands = DeltaTable(path, storage_options={"allow_http": "true"}).to_pyarrow_table()
    assert sorted(stands["id"].to_pylist()) == [1, 2, 3]


def test_an_upload_that_a_killed_writer_left_in_s3_is_swept(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_BUFFERED_BYTES", 1)
    path = f"{bucket}/large/table"
    sink = session(tmp_path, path=path)
    texts = pa.array([os.urandom(1 << 20).hex() for _ in range(20)])
    writer = sink.writer(0, 0, ROWS, sink.open(0, ROWS))
    for number in range(2):  # a part has 16 MiB
        ids = range(20 * number, 20 * number + 20)
        writer.write(pa.record_batch([pa.array(ids), texts, pa.array([0.0] * 20)], schema=ROWS))
    root = path_of(path)
    assert isinstance(root, ObjectPath)
    assert len(root.uploads()) == 1
    sink.abort(*sink.listed())
    assert (root.uploads(), sink.listed()) == ([], [])


def test_a_second_driver_gets_in_between_a_drivers_look_and_its_entry(tmp_path: Path) -> None:
    sink = session(tmp_path)
    voted = sink.prepare(0, [rows(1, 2), rows(3)])
    assert interrupted(sink, 0, voted, lambda: sink.commit(0, voted)) == {AlreadyCommitted()}
    assert read(tmp_path) == Counter([1, 2, 3])
    assert sink.mark() == Mark("ab", 0, frozenset(["ab"]))
    with closing(sink.backend.committer(sink.ctx)) as committer:
        committer.mark()
        epochs(sink, 5)
        with pytest.raises(Retryable, match="is not the one that was read before"):
            committer.commit(6, sink.prepare(6, [rows(6)]))


def test_another_writer_gets_in_between_and_both_stand(tmp_path: Path) -> None:
    sink = session(tmp_path)
    voted = sink.prepare(0, [rows(1, 2)])
    assert interrupted(sink, 0, voted, lambda: write_deltalake(tmp_path / "table", rows(9), mode="append")) == {
        Committed()
    }
    assert read(tmp_path) == Counter([1, 2, 9])
    assert table(tmp_path).transaction_version(f"{APP}:version") == table(tmp_path).version()


def test_who_saw_all_files_and_stalled_adds_none_once_they_are_lost(tmp_path: Path) -> None:
    sink = session(tmp_path)
    sink.put_birth()
    voted = sink.prepare(0, [rows(1), rows(2)])

    def lose() -> None:
        (tmp_path / "table" / f"{voted[1].ref}.0.parquet").unlink()
        assert {type(outcome) for outcome in sink.commit_marked(0, voted)} == {Lost}

    assert {type(outcome) for outcome in interrupted(sink, 0, voted, lose)} == {Lost}
    assert read(tmp_path) == Counter()
    assert sink.mark() == Mark("ab")
    again = [sink.write(0, 0, sink.open(0, ROWS), rows(1, 2), attempt=7)]
    assert sink.commit_marked(0, again) == [Committed()]
    assert sink.commit_marked(0, voted) == [AlreadyCommitted()] * 2
    assert read(tmp_path) == Counter([1, 2])


def test_a_checkpoint_that_starts_anew_is_refused_where_delta_itself_would_skip_every_write(tmp_path: Path) -> None:
    epochs(session(tmp_path), 0, 1, 2)
    known = table(tmp_path).transaction_version(APP)
    anew = session(tmp_path, lineage="cd")
    for epoch in range(3):
        assert epoch <= (known or 0)  # by which Delta's rule is to skip it, without a word
        with pytest.raises(LineageError, match="was fed by another journal"):
            anew.prepare(epoch, [rows(100 + epoch)])
    assert anew.put_birth() == Mark("ab", 2, frozenset(["ab"]))
    assert read(tmp_path) == Counter([0, 1, 2])


def test_a_table_that_was_restored_shows_the_epoch_that_it_was_restored_to(tmp_path: Path) -> None:
    sink = session(tmp_path)
    sink.put_birth()
    made = sink.open(0, ROWS) and table(tmp_path).version()
    epochs(sink, 0, 1)
    second = table(tmp_path).version()
    epochs(sink, 2, 3)
    table(tmp_path).restore(second)
    assert table(tmp_path).transaction_version(APP) == 3, "Delta's own number stays"
    assert (sink.mark(), read(tmp_path)) == (Mark("ab", 1, frozenset(["ab"])), Counter([0, 1]))
    table(tmp_path).restore(made)
    assert (sink.mark(), read(tmp_path)) == (Mark("ab"), Counter())
    epochs(sink, 4)  # as after a rebase
    write_deltalake(tmp_path / "table", rows(9), mode="append")
    table(tmp_path).restore(table(tmp_path).version() - 1)  # to what has all of ours
    assert sink.mark() == Mark("ab", 4, frozenset(["ab"]))
    before = table(tmp_path).history(2)[1]["timestamp"] / 1000
    table(tmp_path).restore(datetime.fromtimestamp(before, timezone.utc))  # its entry does not name the version
    assert sink.mark() == Mark("ab")


def test_marks_outlive_a_log_that_is_cleaned(tmp_path: Path) -> None:
    sink = session(tmp_path)
    sink.put_birth()
    epochs(sink, 0, 1)
    set_property(tmp_path, "delta.logRetentionDuration", "interval 0 seconds")
    set_property(tmp_path, "delta.checkpointInterval", "3")
    log = tmp_path / "table" / "_delta_log"
    past = time.time() - 2
    for path in log.iterdir():
        os.utime(path, (past, past))
    sink.trim_marks()
    assert {path.suffix for path in log.iterdir()} == {".json", ".parquet", ""}
    assert len(list(log.glob("*.json"))) == 1, "all but the newest entry stand in the checkpoint alone"
    assert len(table(tmp_path).history()) == 1
    assert sink.mark() == Mark("ab", 1, frozenset(["ab"]))
    with pytest.raises(LineageError):
        session(tmp_path, lineage="cd").prepare(0, [rows(5)])
    epochs(sink, 2)
    assert read(tmp_path) == Counter([0, 1, 2])


def set_property(folder: Path, key: str, value: str) -> None:
    table(folder).alter.set_table_properties({key: value})


def test_what_waits_is_lost_to_a_vacuum_and_in_doubt_if_it_was_changed(tmp_path: Path) -> None:
    sink = session(tmp_path)
    sink.put_birth()
    lost, changed = (sink.prepare(0, [rows(1)])[0], sink.write(0, 1, sink.open(0, ROWS), rows(2)))
    file = tmp_path / "table" / f"{lost.ref}.0.parquet"
    assert sink.assess(0, [lost]) == [Prepared()]
    os.utime(file, (1, 1))
    table(tmp_path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert not file.exists()
    standing = sink.assess(0, [lost])
    assert sink.commit_marked(0, [lost]) == standing == [Lost(f"{file} is gone")]
    assert [type(outcome) for outcome in sink.commit(0, [lost])] == [Unknown], "nobody has compared its mark"
    with open(tmp_path / "table" / f"{changed.ref}.0.parquet", "ab") as more:
        more.write(b"!")
    assert [type(outcome) for outcome in sink.commit_marked(0, [changed, lost])] == [Unknown] * 2
    assert read(tmp_path) == Counter()


def test_losers_are_swept_and_what_the_log_names_never_is(tmp_path: Path) -> None:
    sink = session(tmp_path, partition_by=("kind",))
    winner = sink.prepare(0, [rows(1)])
    loser = sink.write(0, 0, sink.open(0, ROWS), rows(1), attempt=9)
    sink.commit(0, winner)
    assert [participant.ref for participant in sink.listed()] == [loser.ref]
    sink.abort(*sink.listed())
    assert [path.name for path in (tmp_path / "table").glob("*.parquet")] == [f"{winner[0].ref}.0.parquet"]
    record = tmp_path / "table" / "_exactsink" / winner[0].ref
    record.touch()  # as when a power cut takes its removal back
    with pytest.raises(Fatal, match="the table's log names files of"):
        sink.abort(*sink.listed())
    assert read(tmp_path) == Counter([1])


def test_a_writer_that_was_swept_does_not_vote(tmp_path: Path) -> None:
    sink = session(tmp_path)
    writer = sink.writer(0, 0, ROWS, sink.open(0, ROWS))
    writer.write(rows(1).to_batches()[0])
    sink.abort(*sink.listed())
    with pytest.raises(Retryable, match="was swept"):
        writer.pre_commit()
    writer.abort()


JOB = """
[job]
name = "shop"
checkpoint = "checkpoint"
[spark]
master = "local[2]"
[source]
format = "csv"
schema = "id BIGINT, country STRING, at TIMESTAMP"
path = "incoming"
options = { header = true, maxFilesPerTrigger = 1 }
[sinks.lake]
backend = "delta"
path = "table"
partition_by = ["country"]
[sinks.second]
backend = "files"
path = "files"
"""


def test_a_job_on_spark_commits_a_table_and_files_together_and_stops_once_the_table_went_back(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "incoming").mkdir()
    for file in range(3):
        lines = "".join(f"{file * 10 + row},{'AB'[row % 2]},2026-01-02T03:04:05.{file}\n" for row in range(10))
        (tmp_path / "incoming" / f"{file}.csv").write_text(f"id,country,at\n{lines}")

    def run(code: int) -> str:
        command = [Path(sys.executable).with_name("exactsink"), "run", "job.toml"]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    run(0)
    assert read(tmp_path) == Counter(pa.dataset.dataset(tmp_path / "files").to_table()["id"].to_pylist())
    assert read(tmp_path) == Counter(range(30))
    assert asked(tmp_path, """SELECT count(*) FROM lake WHERE "at" = '2026-01-02 03:04:05.2+00'""") == [(10,)]
    table(tmp_path).restore(table(tmp_path).version() - 2)
    back = read(tmp_path)
    assert back.total() == 10
    assert "lacks rows of epochs 1 to 2" in run(InDoubtError.exit_code)
    for folder in ("checkpoint", "checkpoint.exactsink"):
        shutil.rmtree(tmp_path / folder)
    assert "another journal fed this target" in run(LineageError.exit_code)
    assert read(tmp_path) == back


def test_rows_of_every_type_come_back_and_readers_pass_over_files(tmp_path: Path) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
    inside = pa.struct([("x", pa.timestamp("us", "Europe/Berlin"))])
    columns = [
        ("id", pa.int64()), ("at", pa.timestamp("us", "Europe/Berlin")), ("plain", pa.timestamp("us")),
        ("price", pa.decimal128(9, 2)), ("many", pa.list_(inside)), ("named", pa.map_(pa.string(), pa.int32())),
        ("raw", pa.binary()), ("small", pa.int8()), ("share", pa.float32()), ("text", pa.large_string()),
        ("day", pa.date32()), ("ok", pa.bool_()),
    ]  # fmt: skip
    row = {
        "id": 1, "at": moment, "plain": moment.replace(tzinfo=None), "price": Decimal("1.50"), "many": [{"x": moment}],
        "named": [("a", 1)], "raw": b"\0", "small": 2, "share": 0.5, "text": "t", "day": date(2026, 1, 2), "ok": True,
    }  # fmt: skip
    empty = {**dict.fromkeys(row), "id": 2, "text": "x" * 99}
    given = pa.Table.from_pylist([row, empty], schema=pa.schema(columns))
    sink = session(tmp_path, partition_by=("day", "ok"))
    assert list(sink.with_committer(lambda committer: committer.check(given.schema, None))) == []
    sink.commit(0, sink.prepare(0, [given]))
    read_back = table(tmp_path).to_pyarrow_table().sort_by("id").to_pylist()
    assert read_back == [row, empty]
    assert asked(tmp_path, """SELECT id FROM lake WHERE "at" = '2026-01-02 03:04:05.678901+00'""") == [(1,)]
    actions = pa.table(table(tmp_path).get_add_actions(flatten=True)).sort_by("min.id").to_pylist()
    assert [(a["num_records"], a["min.id"], a["max.text"], a["null_count.raw"]) for a in actions] == [
        (1, 1, "t", 0),
        (1, 2, None, 1),
    ]
    assert actions[0]["min.at"] == actions[0]["max.at"] == moment
    assert [(a["partition.day"], a["partition.ok"]) for a in actions] == [(date(2026, 1, 2), True), (None, None)]
    with pytest.raises(Fatal, match="empty text is NULL"):
        other = session(tmp_path / "other", partition_by=("kind",))
        other.prepare(0, [rows(1).set_column(1, "kind", pa.array([""]))])


def test_many_row_groups_of_many_partitions_keep_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_BUFFERED_BYTES", 1_000)
    kinds = [f"k{number % 7}" for number in range(500)]
    many = pa.table({"id": range(500), "kind": kinds, "amount": [0.0] * 500}, schema=ROWS)
    sink = session(tmp_path, partition_by=("kind",))
    sink.commit(0, sink.prepare(0, [many]))
    assert read(tmp_path) == Counter(range(500))
    for action in pa.table(table(tmp_path).get_add_actions(flatten=True)).to_pylist():
        ids = pq.ParquetFile(tmp_path / "table" / action["path"]).read(columns=["id"])["id"].to_pylist()
        assert (ids, action["min.id"], action["max.id"]) == (sorted(ids), min(ids), max(ids))
        assert {row % 7 for row in ids} == {int(action["partition.kind"][1:])}


def found(folder: Path, schema: pa.Schema = ROWS, **options: Any) -> list[str]:
    return [
        f"{finding.severity}: {finding.message}"
        for finding in session(folder, **options).with_committer(lambda committer: list(committer.check(schema, None)))
    ]


@pytest.mark.parametrize("feature", ["ColumnMapping", "RowTracking", "IdentityColumns", "DeletionVectors"])
def test_what_a_plain_writer_does_not_give_is_refused_by_name(tmp_path: Path, feature: str) -> None:
    DeltaTable.create(tmp_path / "table", ROWS).alter.add_feature(
        getattr(TableFeatures, feature), allow_protocol_versions_increase=True
    )
    name = feature[0].lower() + feature[1:]
    assert found(tmp_path) == [f"error: the table asks its writers for {name}"]


def test_preflight_names_what_does_not_fit_and_a_start_refuses_it(tmp_path: Path) -> None:
    assert found(tmp_path, create=False) == [f"error: {tmp_path / 'table'} is no Delta table"]
    (tmp_path / "table" / "_exactsink").mkdir(parents=True)
    assert found(tmp_path) == []
    (tmp_path / "table" / "rows.parquet").touch()
    assert [line.partition(", and ")[2] for line in found(tmp_path)] == [
        "VACUUM would delete what is there: rows.parquet"
    ]
    shutil.rmtree(tmp_path / "table")
    (tmp_path / "table").touch()
    assert found(tmp_path) == [f"error: {tmp_path / 'table'} is not a folder"]
    (tmp_path / "table").unlink()
    odd = pa.schema([("a b", pa.int64()), ("gap", pa.duration("s")), ("X", pa.null()), ("x", pa.float64())])
    assert [line.split(",")[0] for line in found(tmp_path, odd, partition_by=("x", "y"))] == [
        "error: Delta has no type for column gap",
        "error: Delta has no type for column X",
        "error: partition column x is double",
        "error: the rows have no column y",
        "error: Delta can't have a column 'a b'",
    ]
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False), ("kind", pa.string()), ("note", pa.string())])
    DeltaTable.create(tmp_path / "table", strict, partition_by=["kind"])
    assert found(tmp_path, pa.schema([("amount", pa.float64()), ("note", pa.int32())]), partition_by=("note",)) == [
        "error: the table is partitioned by ['kind']",
        "error: the table has no column amount",
        "error: column note is int32, the table's is string",
        "error: the rows have no column id",
        "error: the rows have no column kind",
    ]
    fitting = pa.schema([("kind", pa.string()), ("id", pa.int64())])
    assert found(tmp_path, fitting) == []
    with pytest.raises(PreflightError, match="column id is string"):
        session(tmp_path).open(0, pa.schema([("id", pa.string()), ("kind", pa.string())]))
    with pytest.raises(Fatal, match="column id is NOT NULL"):
        session(tmp_path).prepare(0, [pa.table({"id": [None], "kind": ["k"]}, schema=fitting)])
    for key in ("setTransactionRetention", "logRetention", "deletedFileRetention"):
        set_property(tmp_path, f"delta.{key}Duration", "interval 2 days")
    table(tmp_path).alter.add_constraint({"positive": "id > 0"})
    assert [line.split(" is ")[0] for line in found(tmp_path, fitting)] == [
        "error: the table asks its writers for delta.constraints.positive",
        "error: delta.setTransactionRetentionDuration",
        "warning: delta.logRetentionDuration",
        "warning: delta.deletedFileRetentionDuration",
    ]


def test_a_column_that_the_table_lacks_is_refused_or_added_when_an_epoch_is_opened(tmp_path: Path) -> None:
    epochs(session(tmp_path), 0)
    wider = rows(1).append_column("note", pa.array(["n"]))
    with pytest.raises(PreflightError, match="the table has no column note") as refused:
        session(tmp_path).prepare(1, [wider])
    assert 'on_schema_change = "add_columns"' in refused.value.next
    sink = session(tmp_path, on_schema_change="add_columns")
    assert found(tmp_path, wider.schema, on_schema_change="add_columns") == [
        "warning: the table has no column note: the first epoch adds it"
    ]
    with pytest.raises(LineageError):
        session(tmp_path, "cd", on_schema_change="add_columns").prepare(1, [wider])
    assert "note" not in table(tmp_path).schema().to_json(), "another journal's start changes nothing"
    voted = sink.prepare(1, [wider])
    sink.open(1, wider.schema)  # as after a crash: it is there by now
    assert sink.commit(1, voted) == [Committed()]
    assert sorted(asked(tmp_path, "SELECT id, note FROM lake")) == [(0, None), (1, "n")]
    assert [finding[:5] for finding in found(tmp_path, pa.schema([*wider.schema, ("ID", pa.int64())]))] == ["error"]


def test_an_epoch_opens_the_table_once_and_again_when_others_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time reads the names of all files. The calls are the core's, in its order."""
    opened: list[object] = []

    class Counted(DeltaTable):
        def __init__(self, *args: Any, **options: Any) -> None:
            opened.append(args)
            super().__init__(*args, **options)

    sink, times = session(tmp_path), []
    epochs(sink, 0)
    set_property(tmp_path, "delta.checkpointInterval", "5")
    monkeypatch.setattr(log_module, "DeltaTable", Counted)
    with closing(sink.backend.committer(sink.ctx)) as committer:
        for epoch in range(1, 9):
            opened.clear()
            committer.mark()
            ticket = committer.open_epoch(epoch, ROWS, 1)
            assert committer.row_rules(ROWS) == ticket
            voted = [sink.write(epoch, 0, ticket, rows(epoch))]
            if epoch == 7:
                write_deltalake(tmp_path / "table", rows(70), mode="append")
            committer.mark()
            assert committer.commit(epoch, voted) == [Committed()]
            committer.trim_marks()
            times.append(len(opened))
    checkpoints = list((tmp_path / "table" / "_delta_log").glob("*.checkpoint.parquet"))
    assert (max(times), sum(times), len(checkpoints)) == (2, 10, 2), f"{times}: 2 for a checkpoint, or after others"
    assert read(tmp_path) == Counter([*range(9), 70])


def test_another_drivers_entry_and_a_table_that_was_made_again_are_seen(tmp_path: Path) -> None:
    sink = session(tmp_path)
    epochs(sink, 0, 1)
    with closing(sink.backend.committer(sink.ctx)) as committer:
        assert committer.mark() == committer.mark() == Mark("ab", 1, frozenset(["ab"]))
        epochs(session(tmp_path), 2)
        assert committer.mark() == Mark("ab", 2, frozenset(["ab"])), "another driver's epoch is seen"
        shutil.rmtree(tmp_path / "table")
        assert committer.mark() is None
        epochs(session(tmp_path), 0, 1)
        assert committer.mark() == Mark("ab", 1, frozenset(["ab"]))
        shutil.rmtree(tmp_path / "table")
        for number in range(3):
            write_deltalake(tmp_path / "table", rows(number), mode="append")
        assert committer.mark() is None


def test_an_audit_counts_files_that_the_log_names_and_knows_nothing_of_rewritten_ones(tmp_path: Path) -> None:
    sink = session(tmp_path)
    decided = {epoch: sink.prepare(epoch, [rows(epoch), rows(epoch + 10)]) for epoch in range(2)}
    for epoch, voted in decided.items():
        sink.commit(epoch, voted)
    counted = sink.with_committer(lambda committer: committer.audit(decided, deep=False))
    assert {epoch: audit.rows for epoch, audit in counted.items()} == {0: 2, 1: 2}
    table(tmp_path).delete("id = 0")
    counted = sink.with_committer(lambda committer: committer.audit(decided, deep=False))
    assert {epoch: audit.rows for epoch, audit in counted.items()} == {0: None, 1: 2}


def test_rows_that_a_column_cannot_hold_are_found_one_by_one(tmp_path: Path) -> None:
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False), ("kind", pa.string()), ("small", pa.int8())])
    DeltaTable.create(tmp_path / "table", strict, partition_by=["kind"])
    loose = pa.schema([field.with_nullable(True) for field in strict])
    given = pa.table({"id": [1, None, 3, 4], "kind": ["a", "b", "", "c"], "small": [1, 2, 3, 4]}, schema=loose)
    sink = session(tmp_path)
    sink.open(0, loose)
    rules = sink.with_committer(lambda committer: committer.row_rules(loose))
    [batch] = given.to_batches()
    bad = dict(sink.backend.validator(loose, rules).bad_rows(batch))
    assert {row: why.split()[0] for row, why in bad.items()} == {1: "column", 2: "an"}
    with pytest.raises(Fatal, match="NOT NULL"):
        sink.prepare(0, [given])


def rewritten(folder: Path) -> None:
    """Put one file in the place of all."""
    table(folder).optimize.compact()
    table(folder).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


def test_what_others_do_to_a_table_at_work_changes_no_row_of_ours(tmp_path: Path) -> None:
    sink = session(tmp_path)
    epochs(sink, 0, 1)
    voted = sink.prepare(2, [rows(2), rows(3)])
    assert set(interrupted(sink, 2, voted, lambda: table(tmp_path).optimize.compact())) == {Committed()}
    rewritten(tmp_path)
    assert len(list((tmp_path / "table").glob("*.parquet"))) == 1
    assert set(sink.assess(2, voted)) == set(sink.commit_marked(2, voted)) == {AlreadyCommitted()}
    table(tmp_path).alter.add_columns([Field("note", PrimitiveType("string"))])
    voted = sink.prepare(4, [rows(4)])
    with closing(sink.backend.committer(sink.ctx)) as committer:
        committer.mark()
        before_once(committer, "_damage", lambda: (sink.commit(4, voted), rewritten(tmp_path)))
        assert committer.assess(4, voted) == [AlreadyCommitted()]
    assert read(tmp_path) == Counter(range(5))


def test_columns_that_changed_under_a_decided_epoch_stop_it(tmp_path: Path) -> None:
    sink = session(tmp_path)
    voted = sink.prepare(0, [rows(1)])
    other = rows(7).set_column(0, "id", pa.array(["seven"]))
    for changed, by in ((other, []), (rows(7), ["kind"])):
        write_deltalake(tmp_path / "table", changed, mode="overwrite", schema_mode="overwrite", partition_by=by)
        with pytest.raises(Fatal, match="can't take decided rows"):
            sink.commit(0, voted)
    table(tmp_path).restore(0)
    assert sink.commit(0, voted) == [Committed()]
    assert read(tmp_path) == Counter([1])


def test_an_entry_is_on_disk_before_the_records_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the sync makes it so: deltalake leaves its entries to the system."""
    sink = session(tmp_path)
    write_deltalake(tmp_path / "table", rows(9))
    voted = sink.prepare(0, [rows(1)])
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        if synced[-1] == str(log / f"{1:020}.json"):
            assert record.exists()
        real(handle)

    log, record = tmp_path / "table" / "_delta_log", tmp_path / "table" / "_exactsink" / voted[0].ref
    monkeypatch.setattr(os, "fsync", fsync)
    sink.commit(0, voted)
    assert [str(log / f"{version:020}.json") in synced for version in (0, 1)] == [True, True]
    assert synced.index(str(log)) > synced.index(str(log / f"{1:020}.json"))
    assert (synced[-1], record.exists()) == (str(record.parent), False)
