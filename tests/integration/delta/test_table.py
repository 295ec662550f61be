"""A Delta table at work, in a folder and in S3: races for an entry, marks, what waits, and what others do to it."""

from __future__ import annotations

import os
import shutil
import string
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import datetime, timezone
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from exactsink import contract
from exactsink.testing import SCENARIOS, ConformanceSuite, Runner
from exactsink.testing.target import ROWS
from exactsink_delta import log as log_module
from exactsink_delta.conformance import PartitionedTarget
from tests.integration.delta.tables import before_once, epochs, found, interrupted, read, rows, session, table
from tests.servers.s3 import S3
from tests.servers.s3_proxy import cutting_s3
from tests.servers.s3_rules import Trap

APP = "exactsink:shop:lake"
DONE = contract.Mark("ab", 0, frozenset(["ab"]))
ODD = f"{string.printable}ü"  # a partition's value, so a folder's name


def test_a_second_driver_gets_in_between_a_drivers_look_and_its_entry(tmp_path: Path) -> None:
    sink = session(tmp_path)
    voted = sink.prepare(0, [rows(1, 2), rows(3)])
    assert interrupted(sink, 0, voted, lambda: sink.commit(0, voted)) == {contract.AlreadyCommitted()}
    assert read(tmp_path) == Counter([1, 2, 3])
    assert sink.mark() == DONE
    with closing(sink.backend.committer(sink.ctx)) as committer:
        committer.mark()
        epochs(sink, 5)
        with pytest.raises(contract.Retryable, match="is not the one that was read before"):
            committer.commit(6, sink.prepare(6, [rows(6)]))


def test_who_saw_all_files_and_stalled_adds_none_once_they_are_lost(tmp_path: Path) -> None:
    sink = session(tmp_path)
    sink.put_birth()
    voted = sink.prepare(0, [rows(1), rows(2)])

    def lose() -> None:
        (tmp_path / "table" / f"{voted[1].ref}.0.parquet").unlink()
        assert {type(outcome) for outcome in sink.commit_marked(0, voted)} == {contract.Lost}

    assert {type(outcome) for outcome in interrupted(sink, 0, voted, lose)} == {contract.Lost}
    assert (read(tmp_path), sink.mark()) == (Counter(), contract.Mark("ab"))
    again = [sink.write(0, 0, sink.open(0, ROWS), rows(1, 2), attempt=7)]
    assert sink.commit_marked(0, again) == [contract.Committed()]
    assert sink.commit_marked(0, voted) == [contract.AlreadyCommitted()] * 2
    assert read(tmp_path) == Counter([1, 2])
    for forged in ({"txn": replace(voted[0].txn, sink="other")}, {"store_ref": "../other"}):
        with pytest.raises(contract.Fatal, match="is not of job shop and this sink"):
            sink.commit_marked(1, [replace(voted[0], **forged)])


def test_a_table_that_was_restored_shows_the_epoch_that_it_was_restored_to(tmp_path: Path) -> None:
    sink = session(tmp_path)
    sink.put_birth()
    made = sink.open(0, ROWS) and table(tmp_path).version()
    epochs(sink, 0, 1)
    second = table(tmp_path).version()
    epochs(sink, 2, 3)
    table(tmp_path).restore(second)
    assert table(tmp_path).transaction_version(APP) == 3, "Delta's own number stays"
    assert (sink.mark(), read(tmp_path)) == (contract.Mark("ab", 1, frozenset(["ab"])), Counter([0, 1]))
    table(tmp_path).restore(made)
    assert (sink.mark(), read(tmp_path)) == (contract.Mark("ab"), Counter())
    epochs(sink, 4)  # as after a rebase
    write_deltalake(tmp_path / "table", rows(9), mode="append")
    table(tmp_path).restore(table(tmp_path).version() - 1)  # to what has all of ours
    assert sink.mark() == contract.Mark("ab", 4, frozenset(["ab"]))
    epochs(sink, 5)
    write_deltalake(tmp_path / "table", rows(10), mode="append")
    write_deltalake(tmp_path / "table", rows(11), mode="append")
    for _ in ("a bad append is taken back", "then that restore", "then a version is restored that is one itself"):
        table(tmp_path).restore(table(tmp_path).version() - 1)
        assert sink.mark() == contract.Mark("ab", 5, frozenset(["ab"]))
    before = table(tmp_path).history(2)[1]["timestamp"] / 1000
    table(tmp_path).restore(datetime.fromtimestamp(before, timezone.utc))  # its entry does not name the version
    assert sink.mark() == contract.Mark("ab")


def test_marks_outlive_a_log_that_is_cleaned(tmp_path: Path) -> None:
    sink = session(tmp_path)
    sink.put_birth()
    epochs(sink, 0, 1)
    table(tmp_path).alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    table(tmp_path).alter.set_table_properties({"delta.checkpointInterval": "3"})
    log = tmp_path / "table" / "_delta_log"
    past = time.time() - 2
    for path in log.iterdir():
        os.utime(path, (past, past))
    sink.trim_marks()
    assert {path.suffix for path in log.iterdir()} == {".json", ".parquet", ""}
    assert len(list(log.glob("*.json"))) == 1, "all but the newest entry stand in the checkpoint alone"
    assert len(table(tmp_path).history()) == 1
    assert sink.mark() == contract.Mark("ab", 1, frozenset(["ab"]))
    with pytest.raises(contract.LineageError):
        session(tmp_path, lineage="cd").prepare(0, [rows(5)])
    epochs(sink, 2)
    assert read(tmp_path) == Counter([0, 1, 2])


def test_what_waits_is_lost_to_a_vacuum_and_in_doubt_if_it_was_changed(tmp_path: Path) -> None:
    sink = session(tmp_path)
    sink.put_birth()
    lost, changed = (sink.prepare(0, [rows(1)])[0], sink.write(0, 1, sink.open(0, ROWS), rows(2)))
    file = tmp_path / "table" / f"{lost.ref}.0.parquet"
    assert sink.assess(0, [lost]) == [contract.Prepared()]
    os.utime(file, (1, 1))
    table(tmp_path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert not file.exists()
    standing = sink.assess(0, [lost])
    assert sink.commit_marked(0, [lost]) == standing == [contract.Lost(f"{file} is gone")]
    assert [type(outcome) for outcome in sink.commit(0, [lost])] == [contract.Unknown], "nobody has compared its mark"
    with open(tmp_path / "table" / f"{changed.ref}.0.parquet", "ab") as more:
        more.write(b"!")
    assert [type(outcome) for outcome in sink.commit_marked(0, [changed, lost])] == [contract.Unknown] * 2
    assert read(tmp_path) == Counter()


def test_losers_are_swept_and_do_not_vote_and_what_the_log_names_is_never_swept(tmp_path: Path) -> None:
    sink = session(tmp_path, partition_by=("kind",))
    winner = sink.prepare(0, [rows(1, kind=ODD)])
    loser = sink.writer(0, 1, ROWS, sink.open(0, ROWS))
    for kind in ("k", ODD, None):
        loser.write(rows(1, kind=kind).to_batches()[0])
    with pytest.raises(contract.Fatal, match="partition columns with shorter values"):
        loser.write(rows(1, kind="x" * 300).to_batches()[0])
    sink.commit(0, winner)
    sink.abort(*sink.listed())
    with pytest.raises(contract.Retryable, match="was swept"):
        loser.pre_commit()
    loser.abort()
    table(tmp_path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert [path.name for path in (tmp_path / "table").rglob("*.parquet")] == [f"{winner[0].ref}.0.parquet"]
    assert polars.read_delta(str(tmp_path / "table")).rows() == [(1, ODD, 1.0)]
    record = tmp_path / "table" / "_exactsink" / winner[0].ref
    assert os.listdir(record.parent) == [], "no record stays, of winner or loser"
    record.touch()  # as when a power cut takes its removal back
    with pytest.raises(contract.Fatal, match="the table names files of"):
        sink.abort(*sink.listed())
    assert read(tmp_path) == Counter([1])


def test_the_table_is_opened_once_and_again_after_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time reads the names of all files, entries only their own. The calls are the core's, in its order."""
    opened: list[object] = []

    def counted(*args: Any, **options: Any) -> DeltaTable:
        opened.append(args)
        return DeltaTable(*args, **options)

    sink, times = session(tmp_path), []
    epochs(sink, 0)
    table(tmp_path).alter.set_table_properties({"delta.checkpointInterval": "5"})
    monkeypatch.setattr(log_module, "DeltaTable", counted)
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
            assert committer.commit(epoch, voted) == [contract.Committed()]
            committer.trim_marks()
            times.append(len(opened))
    checkpoints = list((tmp_path / "table" / "_delta_log").glob("*.checkpoint.parquet"))
    assert (times, len(checkpoints)) == ([1, 0, 0, 0, 1, 0, 0, 0], 2), "the last epoch made one"
    assert read(tmp_path) == Counter([*range(9), 70])


def test_another_drivers_entry_and_a_table_that_was_made_again_are_seen(tmp_path: Path) -> None:
    sink = session(tmp_path)
    epochs(sink, 0, 1)
    with closing(sink.backend.committer(sink.ctx)) as committer:
        assert committer.mark() == committer.mark() == contract.Mark("ab", 1, frozenset(["ab"]))
        epochs(session(tmp_path), 2)
        assert committer.mark() == contract.Mark("ab", 2, frozenset(["ab"])), "another driver's epoch is seen"
        shutil.rmtree(tmp_path / "table")
        assert committer.mark() is None
        epochs(session(tmp_path), 0, 1)
        assert committer.mark() == contract.Mark("ab", 1, frozenset(["ab"]))
        shutil.rmtree(tmp_path / "table")
        for number in range(3):
            write_deltalake(tmp_path / "table", rows(number), mode="append")
        assert committer.mark() is None


def test_an_audit_counts_files_that_the_log_names_and_knows_nothing_of_rewritten_ones(tmp_path: Path) -> None:
    sink = session(tmp_path)
    decided = {epoch: sink.prepare(epoch, [rows(epoch), rows(epoch + 10)]) for epoch in range(2)}
    for epoch, voted in decided.items():
        sink.commit(epoch, voted)
    file = tmp_path / "table" / f"{decided[1][1].ref}.0.parquet"
    assert pq.read_metadata(file).metadata[b"org.apache.spark.version"] == b"3.0.0", "old dates are read by Spark 3.5"
    for deep, counted in ((True, [2, 2]), (False, [None, 2]), (True, [None, None])):
        audits = sink.with_committer(lambda committer, deep=deep: committer.audit(decided, deep=deep))
        assert [audits[epoch].rows for epoch in decided] == counted
        table(tmp_path).delete("id = 0")
        file.write_bytes(file.read_bytes().replace(b"PAR1", b"PAR2"))


def vacuumed(folder: Path, *, full: bool = True) -> None:
    """Put one file in the place of all, and delete those; `full` also what no entry ever named."""
    table(folder).optimize.compact()
    table(folder).vacuum(0, dry_run=False, enforce_retention_duration=False, full=full)


def test_what_others_do_to_a_table_at_work_changes_no_row_of_ours(tmp_path: Path) -> None:
    sink = session(tmp_path)
    epochs(sink, 0, 1)
    voted = sink.prepare(2, [rows(2), rows(3)])

    def appended_and_compacted() -> None:
        write_deltalake(tmp_path / "table", rows(9), mode="append")
        table(tmp_path).optimize.compact()

    assert set(interrupted(sink, 2, voted, appended_and_compacted)) == {contract.Committed()}
    assert table(tmp_path).transaction_version(f"{APP}:version") == table(tmp_path).version()
    vacuumed(tmp_path)
    assert len(list((tmp_path / "table").glob("*.parquet"))) == 1
    assert set(sink.assess(2, voted)) == set(sink.commit_marked(2, voted)) == {contract.AlreadyCommitted()}
    table(tmp_path).alter.add_columns([Field("note", PrimitiveType("string"))])
    voted = sink.prepare(4, [rows(4)])
    with closing(sink.backend.committer(sink.ctx)) as committer:
        committer.mark()
        before_once(committer, "_damage", lambda: (sink.commit(4, voted), vacuumed(tmp_path)))
        assert committer.assess(4, voted) == [contract.AlreadyCommitted()]
    assert read(tmp_path) == Counter([*range(5), 9])


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


def test_a_run_replaces_its_partitions_in_one_version_and_its_repeat_changes_nothing(tmp_path: Path) -> None:
    odd, place = ODD, tmp_path / "table"
    for row in (rows(0, kind=None), rows(1, kind=odd), rows(2)):
        write_deltalake(place, row, mode="append", partition_by=["kind"])
    first, second = (session(tmp_path, job=name, mode="overwrite_partitions") for name in ("first", "second"))
    first.put_birth()
    second.put_birth()
    voted = first.prepare(0, [pa.concat_tables([rows(3, kind=None), rows(4, kind=odd)]), rows(5, kind=odd)])
    outcomes = interrupted(first, 0, voted, lambda: write_deltalake(place, rows(6, kind=odd), mode="append"))
    assert outcomes == {contract.Committed()}
    assert (read(tmp_path), table(tmp_path).version()) == (Counter([2, 3, 4, 5]), 4), "all came and went in one version"
    second.commit(0, second.prepare(0, [rows(7, kind=odd)]))
    assert set(first.commit(0, voted)) == {contract.AlreadyCommitted()}
    assert read(tmp_path) == Counter([2, 3, 7])
    table(tmp_path).restore(4)
    assert (first.mark(), second.mark(), read(tmp_path)) == (DONE, contract.Mark("ab"), Counter([2, 3, 4, 5]))


def test_what_rows_cannot_replace_is_refused(tmp_path: Path) -> None:
    replacing: dict[str, Any] = {"mode": "overwrite_partitions"}
    write_deltalake(tmp_path / "other" / "table", rows(1), partition_by=["kind"])
    entry = tmp_path / "other" / "table" / "_delta_log" / f"{0:020}.json"
    entry.write_text(entry.read_text().replace("kind=k/", "kind=ü/"))  # as Spark spells it
    (line,) = found(tmp_path / "other", **replacing)
    assert line.startswith("error: deltalake can't remove file kind=ü/")
    assert found(tmp_path, **replacing) == ["error: the table has no partitions to overwrite"]
    assert found(tmp_path, **replacing, partition_by=("kind",)) == []
    write_deltalake(tmp_path / "table", rows(1), configuration={"delta.appendOnly": "true"})
    assert found(tmp_path, **replacing) == [
        "error: the table has no partitions to overwrite",
        "error: the table forbids removing rows (delta.appendOnly)",
    ]
    with pytest.raises(contract.PreflightError, match="no partitions"):
        session(tmp_path, **replacing).open(0, ROWS)


@pytest.mark.proof
def test_an_appender_and_an_optimizer_beside_a_hundred_epochs_lose_and_double_nothing(tmp_path: Path) -> None:
    over = threading.Event()

    def beside(act: Callable[[int], object]) -> list[int]:
        """Act ten times a second; return the numbers of what was done."""
        return [n for n in takewhile(lambda _: not over.wait(0.1), count(10_000)) if act(n) is None]

    epochs(sink := session(tmp_path), 0)
    with ThreadPoolExecutor() as pool, ExitStack() as stack:
        stack.callback(over.set)
        appended = pool.submit(beside, lambda n: write_deltalake(tmp_path / "table", rows(n), mode="append"))
        optimized = pool.submit(beside, lambda _: vacuumed(tmp_path, full=False))
        epochs(sink, *range(1, 100))
    assert len(appended.result()) > 10 < len(optimized.result())
    assert read(tmp_path) == Counter([*range(100), *appended.result()])


@pytest.mark.proof
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_kit_in_s3(s3_runner: Runner, bucket: str, scenario: str, tmp_path: Path) -> None:
    ConformanceSuite().test_conformance(scenario, PartitionedTarget(("kind",), bucket), tmp_path, s3_runner)


@pytest.mark.parametrize("done", [True, False], ids=["done", "not-done"])
def test_an_entry_whose_answer_is_lost_is_found_or_put_once_more(
    s3: S3, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, done: bool
) -> None:
    """The client repeats the call: another entry is in its way then, which is its own, or none is."""
    path = f"{bucket}/answers-{done}/table"
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")  # which is not obeyed
    assert found(tmp_path, path=path) == []
    sink = session(tmp_path, path=path, partition_by=("kind",))
    sink.put_birth()
    voted = sink.prepare(0, [rows(1), rows(2, kind=ODD)])
    cut = None if done else lambda: (_ for _ in ()).throw(ConnectionError)
    with cutting_s3(s3) as proxy:
        proxy.set(Trap(r"^PUT .*_delta_log/0+1\.json", before=cut))
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        assert set(sink.commit_marked(0, voted)) == {contract.AlreadyCommitted() if done else contract.Committed()}
    monkeypatch.undo()
    assert set(sink.commit_marked(0, voted)) == {contract.AlreadyCommitted()}
    stands = DeltaTable(path, storage_options={"allow_http": "true"})
    read_back = stands.to_pyarrow_table().select(["id", "kind"]).sort_by("id").to_pylist()
    assert (stands.version(), read_back) == (1, [{"id": 1, "kind": "k"}, {"id": 2, "kind": ODD}])
    assert stands.vacuum(0, enforce_retention_duration=False, full=True) == []


def test_a_checkpoint_that_starts_anew_is_refused_where_delta_itself_would_skip_every_write(tmp_path: Path) -> None:
    epochs(session(tmp_path), 0, 1, 2)
    known = table(tmp_path).transaction_version(APP)
    anew = session(tmp_path, lineage="cd")
    for epoch in range(3):
        assert epoch <= (known or 0)  # by which Delta's rule is to skip it, without a word
        with pytest.raises(contract.LineageError, match="was fed by another journal"):
            anew.prepare(epoch, [rows(100 + epoch)])
    assert anew.put_birth() == contract.Mark("ab", 2, frozenset(["ab"]))
    assert read(tmp_path) == Counter([0, 1, 2])
