"""Snapshots of a files target: which files an epoch has, at any moment, beside commits and folds."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.servers.s3 import KEY, REGION, S3, SECRET
from tests.unit.files_sink import Files, files, rows, visible
from tests.unit.manual_job import Job
from tests.unit.os_faults import Killed, around, at_step, each_step, kill, refused
from tests.unit.test_cli import Command

from exactsink.contract import ConfigError, Fatal
from exactsink.toolkit.storage import file_names, path_of
from exactsink_files import Snapshot, manifests, snapshot
from exactsink_files.marks import MarkFolder
from exactsink_files.votes import VotedFiles


@pytest.fixture(autouse=True)
def _three_a_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "_FAN", 3)


def table(epoch: int) -> pa.Table:
    return rows((2 * epoch, "a"), (2 * epoch + 1, "b"))


def bound(root: Path, **options: Any) -> Files:
    sink = files(root, **options)
    sink.put_birth()
    return sink


def write(sink: Files, epochs: Iterable[int]) -> None:
    """Commit epochs of two rows each, as a driver does."""
    for epoch in epochs:
        sink.commit_marked(epoch, sink.prepare(epoch, [table(epoch)]))
        sink.trim_marks()


def copied(folder: Path, nth: int) -> tuple[Path, Files]:
    """Copy the target that was begun there."""
    root = folder / str(nth)
    shutil.copytree(folder / "begun", root)
    return root, files(root)


def ids(found: Snapshot) -> list[int]:
    """Read what a snapshot lists."""
    return sorted(n for path in found.paths for n in pq.ParquetFile(path).read()["id"].to_pylist())


def up_to(epoch: int, first: int = 0) -> list[int]:
    return list(range(2 * first, 2 * epoch + 2))


def folds(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "_exactsink/job.sink").glob("m*"))


def test_every_epoch_can_be_asked_for_and_the_listing_stays_flat(tmp_path: Path) -> None:
    sink, folder = bound(tmp_path), tmp_path / "_exactsink/job.sink"
    for epoch in range(26):
        write(sink, [epoch])
        assert len(list(folder.iterdir())) <= 2 * 4 + 2 * 2
    assert folds(tmp_path) == ["m1.18-20.epochs", "m1.21-23.epochs", "m2.0-8.epochs", "m2.9-17.epochs"]
    for epoch in range(26):
        found = snapshot(tmp_path, epoch)
        assert (ids(found), found.rows, found.epoch) == (up_to(epoch), 2 * epoch + 2, epoch)
    assert (ids(snapshot(str(tmp_path))), snapshot(tmp_path).feeds[0].whole) == (up_to(25), True)
    with pytest.raises(ConfigError, match=r"epoch 26 is not known to be complete: the newest with rows .* is 25"):
        snapshot(tmp_path, 26)


def test_epochs_without_rows_in_the_sink_are_no_gap(tmp_path: Path) -> None:
    write(bound(tmp_path), [4, 5, 11, 30])
    assert ids(snapshot(tmp_path, 12)) == [*up_to(5, 4), *up_to(11, 11)]
    assert snapshot(tmp_path, 3).paths == []


def test_what_anyone_deleted_is_said_and_not_passed_over(tmp_path: Path) -> None:
    sink, folder = bound(tmp_path), tmp_path / "_exactsink/job.sink"
    write(sink, range(8))
    (kept,) = folder.glob("e6.*.manifest")
    body = {key: value for key, value in json.loads(kept.read_text()).items() if key != "after"}
    kept.write_text(json.dumps(body))  # nobody knows what was before
    with pytest.raises(ConfigError, match="epochs are known from 6 on only"):
        snapshot(tmp_path)
    assert ids(snapshot(tmp_path, partial=True)) == up_to(7, 6)
    with pytest.raises(ConfigError, match="known from 6 on only"):
        snapshot(tmp_path, 5, partial=True)
    kept.write_text("{")
    write(sink, range(8, 20))
    with pytest.raises(Fatal, match="does not list an epoch's files"):
        snapshot(tmp_path)
    assert (kept.exists(), folds(tmp_path)) == (True, ["m1.0-2.epochs", "m1.3-5.epochs", "m2.9-17.epochs"])


@pytest.mark.parametrize("then", ["dies", "is overtaken"])
def test_a_driver_that_ends_or_stalls_at_any_step_of_a_fold_harms_nothing(
    tmp_path: Path, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step readers find all; what a stalled one does after a newer driver went on harms nothing either."""
    monkeypatch.setattr(manifests, "_FAN", 2)
    sink = bound(tmp_path / "begun")
    write(sink, range(4))
    sink.commit_marked(4, sink.prepare(4, [table(4)]))

    def run(nth: int) -> list[int]:
        root, sink = copied(tmp_path, nth)

        def overtake() -> None:
            assert ids(snapshot(root)) == up_to(4)
            write(sink, [] if then == "dies" else range(5, 7))
            if then == "dies":
                kill()

        with at_step(root / "_exactsink/job.sink", nth, overtake) as ran, suppress(Killed):
            sink.trim_marks()
        for epoch in (4, 2):
            assert ids(snapshot(root, epoch)) == up_to(epoch)
        sink.trim_marks()
        assert list(root.rglob("m1.*.epochs.*")) == []  # what was cut off
        write(sink, range(7 if ran and then != "dies" else 5, 9))
        assert (ids(snapshot(root)), folds(root)) == (up_to(8), ["m3.0-7.epochs"])
        return ran

    each_step(run, least=10)


def test_a_manifest_that_a_stalled_driver_writes_again_beside_its_fold_says_nothing(tmp_path: Path) -> None:
    sink, folder = bound(tmp_path), tmp_path / "_exactsink/job.sink"
    write(sink, [0, 1])
    stale = {path: path.read_bytes() for path in folder.glob("e1.*.manifest")}
    write(sink, [2, 3])
    for path, data in stale.items():
        path.write_bytes(data.replace(b"e1.p0", b"e1.p9"))
    assert ids(snapshot(tmp_path)) == up_to(3)
    write(sink, [4])
    assert list(folder.glob("e1.*")) == []


def test_duckdb_and_polars_read_an_epoch_exactly_while_the_next_is_half_there(tmp_path: Path) -> None:
    sink = bound(tmp_path, partition_by=["name"])
    write(sink, [0, 1])
    voted = sink.prepare(2, [table(2)])
    finals: list[str] = []

    def second(name: str, path: str) -> None:
        finals.append(path)
        if len(finals) == 2:
            kill()

    with around(tmp_path / "_exactsink" / voted[0].txn.id, ["link"], second), suppress(Killed):
        sink.commit_marked(2, voted)
    found = snapshot(tmp_path)
    assert (found.epoch, found.rows) == (1, 4)
    lists = duckdb.sql(f"SELECT id FROM read_parquet({found.paths!r}) ORDER BY id").fetchall()
    assert [n for (n,) in lists] == polars.scan_parquet(found.paths).sort("id").collect()["id"].to_list() == up_to(1)
    hive = ds.partitioning(pa.schema({"name": pa.string()}), flavor="hive")
    assert ds.dataset(found.paths, format="parquet", partitioning=hive).to_table(columns=["id"]).num_rows == 4
    # plain readers see one file of the epoch already, and see it whole
    plain = duckdb.sql(f"SELECT id FROM read_parquet('{tmp_path}/**/*.parquet')").fetchall()
    assert len(plain) == polars.scan_parquet(f"{tmp_path}/**/*.parquet").collect().height == 5
    sink.commit_marked(2, voted)
    assert ids(snapshot(tmp_path)) == up_to(2)


def test_several_sinks_are_taken_together_or_chosen(tmp_path: Path) -> None:
    for name in ("one", "two"):
        other = files(tmp_path, sink=name)
        other.put_birth()
        write(other, [0])
    assert ids(snapshot(tmp_path)) == sorted(up_to(0) * 2)
    assert ids(snapshot(tmp_path, 0, sink="two")) == up_to(0)
    with pytest.raises(ConfigError, match=r"sinks write to .*: job\.one, job\.two"):
        snapshot(tmp_path, 0)
    with pytest.raises(ConfigError, match="none of the named sinks"):
        snapshot(tmp_path, job="other")


@pytest.mark.parametrize("path", ["../outside", "/outside", "a/../../outside"])
def test_manifests_that_name_files_outside_of_the_target_are_refused(tmp_path: Path, path: str) -> None:
    write(bound(tmp_path), [0])
    manifest = next((tmp_path / "_exactsink/job.sink").glob("*.manifest"))
    body = json.loads(manifest.read_text())
    next(iter(body["participants"].values()))[0]["path"] = path
    manifest.write_text(json.dumps(body))
    with pytest.raises(Fatal, match="outside of the target"):
        snapshot(tmp_path)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_the_commands(job: Job, command: Command) -> None:
    lake = job.folder / "lake"
    sink = replace(files(lake), ctx=replace(files(lake).ctx, job="orders", sink="lake"))
    sink.put_birth()
    write(sink, range(3))
    size = sum(path.stat().st_size for path in visible(lake))
    for asked in (str(lake), job.file):
        assert command("files", "list", asked).out == f"orders.lake: epoch 2: 3 files, 6 rows, {size} bytes\n"
    (listed,) = command("files", "list", job.file, "--json").body
    assert (listed["first_epoch"], listed["last_epoch"], listed["whole"], listed["rows"]) == (0, 2, True, 6)
    assert command("files", "read-list", job.file).out.split() == snapshot(lake).paths
    at = command("files", "read-list", job.file, "--at", "1", "--json").body
    assert (at["epoch"], at["rows"], len(at["files"])) == (1, 4, 2)
    assert (ids(snapshot(lake)), command("files", "no-such").code) == (up_to(2), 2)
    assert "files " in command("--help").out


UNREADABLE = {
    "no such folder": (lambda lake: f"{lake}/none", 2),
    "nobody wrote there": (lambda lake: str(lake.parent), 2),
    "a file": (lambda lake: f"{lake.parent}/job.toml.bak", 1),
    "no such job": (lambda lake: f"{lake.parent}/none.toml", 2),
    "another format's job": (lambda lake: f"{lake.parent}/broken.toml", 2),
    "an unknown store": (lambda lake: "hdfs://host/lake", 2),
    "no bucket": (lambda lake: "s3://no-such-bucket/lake", 1),
    "no bucket's name": (lambda lake: "s3://", 2),
    "a server that is down": (lambda lake: "s3://down/lake", 75),
    "a wrong key": (lambda lake: "s3://bucket/lake", 1),
    "an SFTP server that is down": (lambda lake: "sftp://me@127.0.0.1:1/lake", 75),
    "no SFTP server's name": (lambda lake: "sftp:///lake", 2),
    "no right": (str, 1),
    "a disk that fails": (str, 75),
}


@pytest.mark.parametrize("trouble", UNREADABLE)
def test_what_keeps_a_target_from_being_read_is_no_bug(
    job: Job, command: Command, s3: S3, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = job.folder / "lake"
    write(bound(lake), [0])
    for name in ("job.toml.bak", "broken.toml"):
        (job.folder / name).write_text("{}")
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    if trouble == "a wrong key":
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    if trouble == "a server that is down":
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    named, code = UNREADABLE[trouble]
    disk = {"no right": errno.EACCES, "a disk that fails": errno.EIO}.get(trouble)
    with refused(lake, "listdir", disk) if disk else nullcontext():
        found = command("files", "list", named(lake))
    assert (found.code, "next: " in found.err, "bug" in found.err) == (code, True, False), found.err


def test_in_an_object_store_manifests_and_folds_are_the_same(
    tmp_path: Path, s3: S3, job: Job, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the writer of a store will leave: files by their names, and marks; here of files made on a disk."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    sink, root = files(tmp_path, partition_by=["name"]), path_of(f"s3://{s3.new_bucket('lake')}/orders")
    marks = MarkFolder(sink.ctx, root)
    marks.put_birth()
    for epoch in range(8):
        voted = sink.prepare(epoch, [table(epoch)])
        votes = {each.txn.id: VotedFiles.load(each) for each in voted}
        manifest = marks.begin(epoch, votes, ["ab12"], marks.read())
        for vote in votes.values():
            for file in vote.files:
                (root / file.final).replace(Path(vote.root, vote.folder, file.temp).read_bytes())
        assert snapshot(root, partial=True).rows == 2 * epoch
        marks.finish(manifest)
        marks.trim()
    listed = [name for name in file_names(root / "_exactsink/job.sink") if name.startswith("m")]
    assert sorted(listed) == ["m1.0-2.epochs", "m1.3-5.epochs"]

    def read(found: Snapshot) -> list[int]:
        urls = [path.removeprefix("s3://") for path in found.paths]
        frames = [pq.read_table(url, filesystem=root.fs, partitioning=None) for url in urls]  # type: ignore[union-attr]
        return sorted(pa.concat_tables(frames)["id"].to_pylist())

    assert (read(snapshot(str(root))), read(snapshot(root, 4))) == (up_to(7), up_to(4))
    options = {"endpoint_url": s3.endpoint, "aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
    scanned = polars.scan_parquet(snapshot(root).paths, storage_options=options | {"aws_region": REGION})
    assert scanned.sort("id").collect()["id"].to_list() == up_to(7)
    Path(job.file).write_text(
        f'[job]\nname = "job"\ncheckpoint = "{tmp_path}/chk"\n'
        f'[sinks.sink]\nbackend = "files"\npath = "{root}"\nendpoint_url = "{s3.endpoint}"\n'
    )
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")  # a job's own way to its store is taken
    type(root.fs).clear_instance_cache()  # type: ignore[union-attr]
    assert command("files", "list", job.file).out.startswith("job.sink: epoch 7: 16 files, 16 rows")
