"""The `files` backend on a real file system: formats, partitions, votes, and commits that crash and race."""

from __future__ import annotations

import datetime
import errno
import glob
import itertools
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from exactsink.durable import DurableFile
from exactsink.errors import ConfigError, ExactsinkError, Fatal, Retryable
from exactsink.model import (
    AlreadyCommitted,
    Committable,
    Committed,
    Finding,
    InDoubt,
    JobContext,
    Txn,
    Undecided,
    Unknown,
)
from exactsink_files import writer as writer_module
from exactsink_files.backend import FilesBackend, FilesOptions
from exactsink_files.environment import explain

MINE = JobContext(job="job", sink="sink", staging="")
COLUMNS = {"id": pa.int64(), "name": pa.string()}
SCHEMA = pa.schema(COLUMNS)
VALUE = pa.schema({"value": pa.string()})


def a_txn(attempt: int = 0, job: str = "job", sink: str = "sink") -> Txn:
    return Txn(job=job, epoch=7, sink=sink, generation=3, token="ab12", partition=attempt, attempt=attempt)


def a_backend(root: Path, **options: Any) -> FilesBackend:
    return FilesBackend(FilesOptions(path=str(root), **options))


def batches(*rows: Sequence[Any], schema: pa.Schema = SCHEMA, size: int = 2) -> list[pa.RecordBatch]:
    columns = list(zip(*rows, strict=True))
    whole = pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
    return [whole.slice(start, size) for start in range(0, len(rows), size)]


def vote(backend: FilesBackend, parts: list[pa.RecordBatch], txn: Txn | None = None) -> Committable:
    """Open the epoch, write and pre-commit; the committable travels, so it is pickled on the way."""
    ticket = backend.committer(MINE).open_epoch(7, parts[0].schema, None)
    writer = backend.writer(txn or a_txn(), parts[0].schema, ticket)
    for part in parts:
        writer.write(part)
    return pickle.loads(pickle.dumps(writer.pre_commit()))


def commit(backend: FilesBackend, *voted: Committable) -> Sequence[Any]:
    return backend.committer(MINE).commit(7, voted)


def undecided(*txns: Txn) -> Undecided:
    """Build what only the journal builds."""
    made = object.__new__(Undecided)
    object.__setattr__(made, "_participants", tuple(InDoubt.of(txn) for txn in txns))
    return made


def visible(root: Path) -> list[Path]:
    """List what a reader sees."""
    return sorted(p for p in root.rglob("*") if p.is_file() and "_exactsink" not in p.relative_to(root).parts)


def temps(root: Path) -> list[str]:
    return sorted(os.listdir(root / "_exactsink"))


def json_votes(root: Path, count: int = 2) -> tuple[FilesBackend, list[Committable]]:
    """Vote with `count` participants of two files each, in partition folders that do not exist yet."""
    backend = a_backend(root, format="json", partition_by=["day"])
    schema = pa.schema({"value": pa.string(), "day": pa.int32()})
    rows = [[(f'{{"n":{n},"k":{k}}}', k) for k in (1, 2)] for n in range(count)]
    return backend, [vote(backend, batches(*part, schema=schema), a_txn(n)) for n, part in enumerate(rows)]


def assert_all_committed(root: Path, count: int = 2) -> None:
    lines = [(p.parent.name, line) for p in visible(root) for line in p.read_text().splitlines()]
    assert sorted(lines) == sorted((f"day={k}", f'{{"n":{n},"k":{k}}}') for n in range(count) for k in (1, 2))
    assert temps(root) == []


class Killed(BaseException):
    """A process that ends here."""


def kill() -> None:
    raise Killed


STEPS = ("link", "rename", "unlink", "rmdir", "mkdir", "fsync", "stat", "lstat", "pathconf", "scandir")


@contextmanager
def at_step(nth: int, action: Callable[[], object]) -> Iterator[list[int]]:
    """Run `action` before or after a system call, the `nth` such moment; give a list that tells whether it ran.

    Patches of `os` end with their block: what pytest does to report a failure must not run into them.
    """
    moments, ran = itertools.count(1), []

    def moment() -> None:
        if not ran and next(moments) == nth:
            ran.append(nth)
            action()

    def wrapped(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            moment()
            result = real(*args, **kwargs)
            moment()
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, wrapped(getattr(os, name)))
        yield ran


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Patch for the length of a block, so that nothing is patched any more when a failure is reported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, value)
        yield


def each_step(run: Callable[[int], list[int]], least: int) -> None:
    """Call `run` for every moment there is; fail when there are fewer than a working backend has."""
    for nth in itertools.count(1):
        if not run(nth):
            assert nth > least
            return


def refuse(code: int) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        raise OSError(code, os.strerror(code), str(args[0]) if args else None)

    return call


@contextmanager
def syncs() -> Iterator[list[str]]:
    """Give a list of what is synced in the block, and of each temp name that is dropped."""
    log: list[str] = []
    fsync, unlink = os.fsync, os.unlink

    def logged_fsync(fd: int) -> None:
        log.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    def logged_unlink(path: Any, **kwargs: Any) -> None:
        log.append("unlink")
        unlink(path, **kwargs)

    with patched(os, "fsync", logged_fsync), patched(os, "unlink", logged_unlink):
        yield log


@pytest.fixture(params=["links", "no links"])
def links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run on a file system with hard links, and on one without."""
    if request.param == "no links":
        monkeypatch.setattr(os, "link", refuse(errno.EPERM))
    return str(request.param)


# formats and partitions


@pytest.mark.parametrize("compression", [None, "snappy", "zstd", "gzip", "none"])
def test_parquet_holds_the_rows_in_the_order_they_came(tmp_path: Path, compression: str | None) -> None:
    backend = a_backend(tmp_path / "new" / "out", compression=compression)
    parts = batches((3, "c"), (1, None), (2, ""), (9, "x"), (4, "ü"))
    voted = vote(backend, parts)
    assert voted.rows == 5
    assert commit(backend, voted) == [Committed()]
    (file,) = visible(tmp_path / "new" / "out")
    assert file == tmp_path / "new" / "out" / f"{a_txn().id}.parquet"
    assert pq.read_table(file) == pa.Table.from_batches(parts)
    expected = {None: "SNAPPY", "none": "UNCOMPRESSED"}.get(compression) or str(compression).upper()
    assert pq.read_metadata(file).row_group(0).column(0).compression == expected


def test_partitions_read_back_with_nulls_special_characters_and_dates(tmp_path: Path) -> None:
    backend = a_backend(tmp_path, partition_by=["name", "day", "n", "ok"])
    kinds = {"name": pa.string(), "id": pa.int64(), "day": pa.date32(), "n": pa.int16(), "ok": pa.bool_()}
    schema = pa.schema(kinds)
    day = datetime.date(2026, 11, 20)
    names = ["a/b=c", "ü ?%.:", "..", None, "a/b=c", "x", "ü ?%.:", "a/b=c", "\n}[]"]
    rows = [(name, i, day if i % 2 else None, -1, True) for i, name in enumerate(names)]
    assert commit(backend, vote(backend, batches(*rows, schema=schema, size=4))) == [Committed()]
    hive = ds.partitioning(pa.schema([schema.field(name) for name in ("name", "day", "n", "ok")]), flavor="hive")
    read = ds.dataset(tmp_path, format="parquet", partitioning=hive).to_table().select(schema.names)
    written = pa.Table.from_batches(batches(*rows, schema=schema))
    assert sorted(read.to_pylist(), key=lambda row: row["id"]) == written.to_pylist()
    one = tmp_path / "name=a%2Fb%3Dc" / "day=__HIVE_DEFAULT_PARTITION__" / "n=-1" / "ok=true"
    assert pq.ParquetFile(next(one.iterdir())).schema_arrow.names == ["id"]
    assert (tmp_path / "name=ü %3F%25.%3A" / "day=__HIVE_DEFAULT_PARTITION__").is_dir()
    assert (tmp_path / "name=.." / "day=__HIVE_DEFAULT_PARTITION__").is_dir()
    assert (tmp_path / "name=x" / "day=2026-11-20" / "n=-1" / "ok=true").is_dir()
    assert (tmp_path / "name=%0A}%5B%5D").is_dir()


def test_null_empty_and_the_name_of_null_share_one_file(tmp_path: Path) -> None:
    backend = a_backend(tmp_path, partition_by=["name"])
    rows = [(1, ""), (2, None), (3, "__HIVE_DEFAULT_PARTITION__"), (4, "")]
    commit(backend, vote(backend, batches(*rows, size=4)))
    (file,) = visible(tmp_path)
    assert file.parent.name == "name=__HIVE_DEFAULT_PARTITION__"
    assert pq.ParquetFile(file).read()["id"].to_pylist() == [1, 2, 3, 4]


def test_unsorted_values_over_many_batches_keep_their_order_per_file(tmp_path: Path) -> None:
    backend = a_backend(tmp_path, partition_by=["name", "n"])
    schema = pa.schema({**COLUMNS, "n": pa.int64()})
    rows = [(i, f"v{i * 7 % 5}", i % 3) for i in range(3000)]
    commit(backend, vote(backend, batches(*rows, schema=schema, size=700)))
    files = visible(tmp_path)
    assert len(files) == 15
    for file in files:
        name, n = file.parent.parent.name.removeprefix("name="), int(file.parent.name.removeprefix("n="))
        read = pq.ParquetFile(file).read()["id"].to_pylist()
        assert read == [row[0] for row in rows if row[1:] == (name, n)]


def test_row_groups_are_full_and_memory_bounds_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def groups(root: Path, parts: list[pa.RecordBatch], **options: Any) -> list[list[int]]:
        backend = a_backend(root, **options)
        commit(backend, vote(backend, parts))
        found = [pq.read_metadata(file) for file in visible(root)]
        return [[m.row_group(i).num_rows for i in range(m.num_row_groups)] for m in found]

    monkeypatch.setattr(writer_module, "ROW_GROUP_ROWS", 10)
    rows = [(i, "rare" if i in (0, 24) else "many") for i in range(25)]
    assert groups(tmp_path / "a", batches(*rows, size=3)) == [[12, 12, 1]]
    assert groups(tmp_path / "b", batches(*rows, size=25)) == [[13, 12]]
    one = batches(*rows, size=3)[1].nbytes
    monkeypatch.setattr(writer_module, "BUFFERED_BYTES", 3 * one)
    assert groups(tmp_path / "c", batches(*rows, size=3), partition_by=["name"]) == [[11, 12], [1, 1]]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_json_writes_the_values_as_lines(tmp_path: Path, kind: pa.DataType) -> None:
    backend = a_backend(tmp_path, format="json")
    values = ['{"a":1}', "{}", '{"a":"ü"}', "", '{"b":[1]}']
    voted = vote(backend, batches(*[(v,) for v in values], schema=pa.schema({"value": kind})))
    assert commit(backend, voted) == [Committed()]
    (file,) = visible(tmp_path)
    assert file.name == f"{a_txn().id}.json"
    assert file.read_bytes() == ("\n".join(values) + "\n").encode()


def test_json_partitions_are_folders(tmp_path: Path) -> None:
    _, voted = json_votes(tmp_path)
    assert commit(a_backend(tmp_path), *voted) == [Committed(), Committed()]
    assert_all_committed(tmp_path)


def test_json_refuses_nulls_and_other_columns(tmp_path: Path) -> None:
    backend = a_backend(tmp_path, format="json")
    with pytest.raises(Fatal, match="1 nulls"):
        vote(backend, batches(("{}",), (None,), schema=VALUE))
    with pytest.raises(Fatal, match="one text column, value"):
        vote(backend, batches((1, "x")), a_txn(1))


def test_shape_makes_the_json_in_sql(tmp_path: Path) -> None:
    assert a_backend(tmp_path).shape(SCHEMA) is None
    assert a_backend(tmp_path, format="json").shape(SCHEMA) == ["to_json(struct(*)) AS value"]
    odd = pa.schema({"a`b": pa.int64(), "c.d": pa.int64(), "e": pa.int64()})
    shaped = a_backend(tmp_path, format="json", partition_by=["a`b"]).shape(odd)
    assert shaped == ["to_json(struct(`c.d`, `e`)) AS value", "`a``b`"]
    with_value = pa.schema({**COLUMNS, "value": pa.string()})
    for columns, schema in [(["no"], SCHEMA), (["id", "name"], SCHEMA), (["value"], with_value)]:
        with pytest.raises(ConfigError):
            a_backend(tmp_path, format="json", partition_by=columns).shape(schema)


def test_names_that_no_commit_could_give_are_refused_before_the_vote(tmp_path: Path) -> None:
    backend = a_backend(tmp_path, partition_by=["name"])
    with pytest.raises(Fatal, match="longer than the file system takes"):
        vote(backend, batches((1, "x" * 260)))
    deep = a_backend(tmp_path, partition_by=[f"c{i}" for i in range(20)])
    schema = pa.schema({**{f"c{i}": pa.string() for i in range(20)}, "id": pa.int64()})
    with pytest.raises(Fatal, match="longer than the file system takes"):
        vote(deep, batches((*("y" * 240,) * 20, 1), schema=schema), a_txn(1))
    dated = a_backend(tmp_path, partition_by=["day"])
    days = pa.record_batch({"id": [1], "day": pa.array([20_000_000], pa.int32()).cast(pa.date32())})
    with pytest.raises(Fatal, match="outside the years"):
        vote(dated, [days], a_txn(2))


# options, checks and the environment


def test_options_resolve_the_path_where_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    backend = pickle.loads(pickle.dumps(FilesBackend(FilesOptions(path="out/../x"))))
    monkeypatch.chdir("/")
    assert backend.target == f"file://{tmp_path}/x"
    assert backend.strategy == "rename"
    for path in ("file:///a/b/", "file:/a/b", "file://localhost/a/b", "//a/b", "/a/./b"):
        assert FilesOptions(path=path).path == "/a/b"
    assert FilesOptions.model_validate(backend.options.model_dump()) == backend.options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "s3://bucket/x"}, "object stores come later"),
        ({"path": "hdfs:/x"}, "object stores come later"),
        ({"path": "file://far/x"}, "another machine"),
        ({"path": ""}, "give the folder"),
        ({"path": "file://"}, "give the folder"),
        ({}, "Field required"),
        ({"path": "/x", "format": "csv"}, "parquet"),
        ({"path": "/x", "partition_by": "day"}, "tuple"),
        ({"path": "/x", "partition_by": ["day", "day"]}, "once"),
        ({"path": "/x", "format": "json", "compression": "zstd"}, "JSON lines are written plain"),
        ({"path": "/x", "fromat": "json"}, "Extra inputs"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FilesOptions(**options)


def check(backend: FilesBackend, schema: pa.Schema = SCHEMA) -> list[Finding]:
    return list(backend.committer(MINE).check(schema, None))


@pytest.mark.parametrize(
    ("columns", "kinds", "message"),
    [
        (["no"], COLUMNS, "is not in the rows: they have id, name"),
        (["id", "name"], COLUMNS, "all columns are partition columns"),
        (["x"], {"x": pa.float64(), "y": pa.int8()}, "of type double"),
        (["x"], {"x": pa.timestamp("us"), "y": pa.int8()}, "of type timestamp"),
        ([".x"], {".x": pa.string(), "y": pa.int8()}, "begin with a dot"),
        ([], {"x": pa.struct([])}, "parquet can't hold these rows"),
    ],
)
def test_check_finds_columns_that_cannot_be_written(
    tmp_path: Path, columns: list[str], kinds: dict[str, pa.DataType], message: str
) -> None:
    backend = a_backend(tmp_path, partition_by=columns)
    (found,) = check(backend, pa.schema(kinds))
    assert found.severity == "error"
    assert message in found.message
    assert found.fix
    with pytest.raises(Fatal, match="sink sink: "):
        backend.writer(a_txn(), pa.schema(kinds), str(tmp_path).encode())


def test_check_finds_a_column_twice_and_warns_of_an_underscore(tmp_path: Path) -> None:
    twice = pa.schema([("x", pa.int8()), ("x", pa.int8()), ("y", pa.int8())])
    assert "2 times" in check(a_backend(tmp_path, partition_by=["x"]), twice)[0].message
    odd = pa.schema({"_x": pa.int8(), "y": pa.int8()})
    backend = a_backend(tmp_path, partition_by=["_x"])
    assert [found.severity for found in check(backend, odd)] == ["warning"]
    assert commit(backend, vote(backend, batches((1, 2), schema=odd))) == [Committed()]


def test_check_changes_nothing(tmp_path: Path) -> None:
    assert check(a_backend(tmp_path / "a" / "b")) == []
    assert list(tmp_path.iterdir()) == []
    a_backend(tmp_path).committer(MINE).open_epoch(7, SCHEMA, None)
    assert check(a_backend(tmp_path)) == []
    assert [p.name for p in tmp_path.rglob("*")] == ["_exactsink"]


@pytest.mark.parametrize("below", ["", "x", "x/y"])
def test_a_path_below_a_file_is_found_and_fatal(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    backend = a_backend(tmp_path / "file" / below)
    (found,) = check(backend)
    assert (found.severity, found.message) == ("error", f"{tmp_path / 'file'} is not a folder")
    with pytest.raises(Fatal, match="the target can't be written"):
        backend.committer(MINE).open_epoch(7, SCHEMA, None)
    with pytest.raises(Fatal, match="the target can't be written"):
        backend.writer(a_txn(), SCHEMA, backend.options.path.encode())


def test_a_file_in_the_place_of_the_temp_folder_is_found_and_fatal(tmp_path: Path) -> None:
    (tmp_path / "_exactsink").write_text("")
    (found,) = check(a_backend(tmp_path))
    assert "_exactsink is not a folder" in found.message
    with pytest.raises(Fatal, match="the target can't be written"):
        a_backend(tmp_path).committer(MINE).open_epoch(7, SCHEMA, None)


def test_check_tries_the_folder_for_real(tmp_path: Path) -> None:
    with patched(sys.modules["tempfile"], "TemporaryFile", refuse(errno.EROFS)):
        tried = check(a_backend(tmp_path))
    with patched(os, "access", lambda path, mode: False):
        asked = check(a_backend(tmp_path))
    assert [found.message for found in tried] == [f"{tmp_path} can't be written: {os.strerror(errno.EROFS)}"]
    assert [found.message for found in asked] == [f"{tmp_path} can't be written: {os.strerror(errno.EACCES)}"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        *[(n, Fatal) for n in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT, errno.EMFILE)],
        *[(n, Retryable) for n in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EEXIST)],
    ],
)
def test_a_writer_says_what_to_mend(tmp_path: Path, code: int, kind: type[ExactsinkError]) -> None:
    ticket = a_backend(tmp_path).committer(MINE).open_epoch(7, SCHEMA, None)
    with patched(os, "mkdir", refuse(code)), pytest.raises(ExactsinkError) as caught:
        a_backend(tmp_path).writer(a_txn(), SCHEMA, ticket)
    assert type(caught.value) is kind
    assert "the target can't be written" in str(caught.value)
    assert caught.value.next
    assert "{" not in str(caught.value)


def test_every_explanation_has_a_next_step_and_no_holes() -> None:
    for code in errno.errorcode:
        text = str(explain(OSError(code, os.strerror(code)), "/x"))
        assert "next: " in text
        assert "{" not in text


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_a_full_disk_is_retryable_and_the_attempt_can_be_dropped(tmp_path: Path, form: str) -> None:
    backend = a_backend(tmp_path, format=form)
    ticket = backend.committer(MINE).open_epoch(7, VALUE, None)
    writer, other = (backend.writer(a_txn(n), VALUE, ticket) for n in range(2))
    for one in (writer, other):
        one.write(batches(("{}",), schema=VALUE)[0])
    with patched(DurableFile, "write", refuse(errno.ENOSPC)):
        with pytest.raises(Retryable, match="No space left"):
            writer.write(batches(("{}",), schema=VALUE)[0])
            writer.pre_commit()
        writer.abort()
        other.abort()
    assert temps(tmp_path) == []


# the protocol


def test_nothing_is_visible_before_the_commit(tmp_path: Path) -> None:
    backend = a_backend(tmp_path, partition_by=["name"])
    first = vote(backend, batches((1, "a")))
    commit(backend, first)
    second = vote(backend, batches((2, "b")), a_txn(1))

    def ids() -> list[list[int]]:
        everywhere = glob.glob(f"{tmp_path}/**/*.parquet", recursive=True)
        return [
            ds.dataset(tmp_path, format="parquet").to_table()["id"].to_pylist(),
            pd.read_parquet(tmp_path)["id"].tolist(),
            [i for file in sorted(everywhere) for i in pq.ParquetFile(file).read()["id"].to_pylist()],
        ]

    assert ids() == [[1], [1], [1]]
    assert temps(tmp_path) == [a_txn(1).id]
    commit(backend, second)
    assert ids() == [[1, 2], [1, 2], [1, 2]]


def test_a_vote_is_durable_before_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "_exactsink").mkdir()  # by a process that died before it could sync
    with syncs() as log:
        vote(a_backend(tmp_path), batches((1, "a")))
    folder = f"{tmp_path}/_exactsink/{a_txn().id}"
    assert log[-3:] == [f"{folder}/0.tmp", folder, f"{tmp_path}/_exactsink"]
    assert str(tmp_path) in log[:-3]


def test_final_names_are_durable_before_a_temp_goes(tmp_path: Path) -> None:
    backend, voted = json_votes(tmp_path)
    with syncs() as log:
        commit(backend, *voted)
    assert set(log[: log.index("unlink")]) == {str(tmp_path), f"{tmp_path}/day=1", f"{tmp_path}/day=2"}
    assert log.count("unlink") == 4


def test_a_repeated_commit_finds_it_done(tmp_path: Path, links: str) -> None:
    backend, voted = json_votes(tmp_path)
    assert commit(backend, *voted) == [Committed(), Committed()]
    before = [(p, p.stat().st_ino) for p in visible(tmp_path)]
    assert commit(backend, *voted) == [AlreadyCommitted(), AlreadyCommitted()]
    assert [(p, p.stat().st_ino) for p in visible(tmp_path)] == before
    assert_all_committed(tmp_path)


def test_a_crash_at_any_step_can_be_committed_again(tmp_path: Path, links: str) -> None:
    def run(nth: int) -> list[int]:
        root = tmp_path / str(nth)
        backend, voted = json_votes(root)
        with at_step(nth, kill) as ran:
            try:
                commit(backend, *voted)
            except Killed:
                assert {t.ref for t in backend.committer(MINE).in_doubt()} <= {v.ref for v in voted}
        assert {type(o) for o in commit(backend, *voted)} <= {Committed, AlreadyCommitted}
        assert_all_committed(root)
        return ran

    each_step(run, least=40)


def test_another_commit_between_any_two_steps_agrees(tmp_path: Path, links: str) -> None:
    def run(nth: int) -> list[int]:
        root = tmp_path / str(nth)
        backend, voted = json_votes(root)
        others: list[Any] = []
        with at_step(nth, lambda: others.extend(commit(backend, *voted))) as ran:
            outcomes = commit(backend, *voted)
        assert {type(o) for o in [*outcomes, *others]} <= {Committed, AlreadyCommitted}
        for pair in zip(outcomes, others, strict=False):
            assert Committed() in pair
        assert_all_committed(root)
        return ran

    each_step(run, least=40)


def test_another_commit_that_dies_between_any_two_steps_does_no_harm(tmp_path: Path) -> None:
    def run(nth: int) -> list[int]:
        for other in (5, 11, 17, 23):
            root = tmp_path / f"{nth}-{other}"
            backend, voted = json_votes(root, count=1)

            def half(backend: FilesBackend = backend, voted: Any = voted, other: int = other) -> None:
                with at_step(other, kill), pytest.raises(Killed):
                    commit(backend, *voted)
                    kill()

            with at_step(nth, half) as ran:
                outcomes = commit(backend, *voted)
            assert type(outcomes[0]) in (Committed, AlreadyCommitted)
            assert_all_committed(root, count=1)
        return ran

    each_step(run, least=20)


def test_links_without_unlinks_are_finished(tmp_path: Path) -> None:
    backend, voted = json_votes(tmp_path)
    payload = json.loads(voted[0].payload)
    for file in payload["files"]:
        (tmp_path / file["final"]).parent.mkdir()
        os.link(tmp_path / payload["folder"] / file["temp"], tmp_path / file["final"])
    assert commit(backend, *voted) == [AlreadyCommitted(), Committed()]
    assert_all_committed(tmp_path)


COMMITTER = """
import pickle, sys
from exactsink.model import JobContext
with open(sys.argv[1], "rb") as file:
    backend = pickle.load(file)
print("ready", flush=True)
for line in sys.stdin:
    with open(line.strip(), "rb") as file:
        voted = pickle.load(file)
    outcomes = backend.committer(JobContext(job="job", sink="sink", staging="")).commit(7, voted)
    print(" ".join(type(outcome).__name__ for outcome in outcomes), flush=True)
"""


@contextmanager
def committers(root: Path, count: int) -> Iterator[Callable[[list[Committable]], list[list[str]]]]:
    """Start processes that know another target's backend; give a function that lets them commit at the same moment."""
    (root / "backend").write_bytes(pickle.dumps(a_backend(root / "elsewhere")))
    command = [sys.executable, "-c", COMMITTER, str(root / "backend")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": env}
    running = [subprocess.Popen(command, **pipes) for _ in range(count)]

    def commit_at_once(voted: list[Committable]) -> list[list[str]]:
        (root / "voted").write_bytes(pickle.dumps(voted))
        for process in running:
            process.stdin.write(f"{root / 'voted'}\n")
            process.stdin.flush()
        return [process.stdout.readline().split() for process in running]

    try:
        assert [process.stdout.readline() for process in running] == ["ready\n"] * count
        yield commit_at_once
    finally:
        for process in running:
            process.communicate()
    assert [process.returncode for process in running] == [0] * count


def test_another_process_commits_from_the_committable_alone(tmp_path: Path) -> None:
    _, voted = json_votes(tmp_path / "out")
    with committers(tmp_path, 1) as commit_at_once:
        assert commit_at_once(voted) == [["Committed", "Committed"]]
        assert commit_at_once(voted) == [["AlreadyCommitted", "AlreadyCommitted"]]
    assert_all_committed(tmp_path / "out")


def test_two_processes_commit_at_the_same_moment(tmp_path: Path) -> None:
    with committers(tmp_path, 2) as commit_at_once:
        for n in range(25):
            root = tmp_path / f"out{n}"
            _, voted = json_votes(root, count=6)
            for pair in zip(*commit_at_once(voted), strict=True):
                assert set(pair) in ({"Committed", "AlreadyCommitted"}, {"Committed"})
            assert_all_committed(root, count=6)


@pytest.mark.parametrize("temp_is_there", [True, False])
def test_a_foreign_file_is_fatal_and_left_alone(tmp_path: Path, links: str, temp_is_there: bool) -> None:
    backend = a_backend(tmp_path, format="json")
    voted = vote(backend, batches(("{}",), schema=VALUE))
    final = tmp_path / f"{a_txn().id}.json"
    final.write_text("[]\n")  # of the very size that was voted for
    if not temp_is_there:
        (tmp_path / "_exactsink" / a_txn().id / "0.tmp").unlink()
    with pytest.raises(Fatal, match="is not overwritten"):
        commit(backend, voted)
    assert final.read_text() == "[]\n"
    assert temps(tmp_path) == [a_txn().id]
    final.write_text("{}\n")
    assert commit(backend, voted) == [AlreadyCommitted()]
    assert (visible(tmp_path), temps(tmp_path)) == ([final], [])


def test_a_foreign_file_that_goes_away_meanwhile_is_no_obstacle(tmp_path: Path) -> None:
    backend = a_backend(tmp_path)
    voted = vote(backend, batches((1, "a")))
    final = tmp_path / f"{a_txn().id}.parquet"
    final.write_text("foreign")
    link = os.link

    def link_then_gone(temp: Any, name: Any) -> None:
        try:
            link(temp, name)
        except FileExistsError:
            final.unlink()  # this one file, and no other
            raise

    with patched(os, "link", link_then_gone):
        try:
            outcomes: Any = commit(backend, voted)
        except Fatal as error:
            outcomes = error
    assert outcomes == [Committed()]


def test_what_is_gone_is_unknown_and_the_rest_is_committed(tmp_path: Path) -> None:
    backend, voted = json_votes(tmp_path, count=3)
    folder = tmp_path / "_exactsink" / a_txn(1).id
    (folder / "1.tmp").unlink()
    cut = tmp_path / "_exactsink" / a_txn(2).id / "0.tmp"
    cut.write_bytes(cut.read_bytes()[:-1])
    first, second, third = commit(backend, *voted)
    assert first == Committed()
    assert isinstance(second, Unknown)
    assert f"{folder / '1.tmp'} and its final name" in second.evidence
    assert isinstance(third, Unknown)
    assert "were voted for" in third.evidence
    assert temps(tmp_path) == [a_txn(1).id, a_txn(2).id]


def test_a_missing_target_is_unknown_and_not_made_anew(tmp_path: Path) -> None:
    backend, voted = json_votes(tmp_path / "disk")
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    outcomes = commit(backend, *voted)
    assert all("is its file system mounted?" in outcome.evidence for outcome in outcomes)
    assert not (tmp_path / "disk").exists()
    (tmp_path / "unmounted").rename(tmp_path / "disk")
    assert commit(backend, *voted) == [Committed(), Committed()]


@pytest.mark.parametrize(("code", "kind"), [(errno.EXDEV, Fatal), (errno.EACCES, Fatal), (errno.ENOSPC, Retryable)])
def test_a_link_that_fails_is_an_error_and_can_be_tried_again(
    tmp_path: Path, code: int, kind: type[ExactsinkError]
) -> None:
    backend, voted = json_votes(tmp_path)
    with patched(os, "link", refuse(code)), pytest.raises(kind):
        commit(backend, *voted)
    assert visible(tmp_path) == []
    assert commit(backend, *voted) == [Committed(), Committed()]


def test_a_file_in_the_place_of_a_partition_folder_is_fatal(tmp_path: Path) -> None:
    backend, voted = json_votes(tmp_path)
    (tmp_path / "day=2").write_text("")
    with pytest.raises(Fatal, match="day=2"):
        commit(backend, *voted)
    (tmp_path / "day=2").unlink()
    commit(backend, *voted)
    assert_all_committed(tmp_path)


def test_a_vote_of_another_version_is_refused(tmp_path: Path) -> None:
    backend, voted = json_votes(tmp_path)
    newer = Committable(voted[0].txn, 2, voted[0].payload, version=2)
    with pytest.raises(Fatal, match="version 2"):
        commit(backend, newer)


def test_in_doubt_lists_own_participants_only(tmp_path: Path) -> None:
    backend = a_backend(tmp_path)
    assert list(backend.committer(MINE).in_doubt()) == []
    for txn in (a_txn(), a_txn(1), a_txn(job="other"), a_txn(sink="other")):
        vote(backend, batches((1, "a")), txn)
    temp = tmp_path / "_exactsink"
    for name in ("readme", a_txn(2).id.replace(".p2", ".p02"), a_txn(3).id + "x"):
        (temp / name).mkdir()
    (temp / a_txn(4).id).write_text("no folder")
    found = sorted(backend.committer(MINE).in_doubt(), key=lambda f: f.ref)
    assert [f.ref for f in found] == [a_txn().id, a_txn(1).id]
    assert all(f.age_seconds is not None and f.deadline is None for f in found)


def test_abort_removes_own_participants_only_and_repeats(tmp_path: Path) -> None:
    backend = a_backend(tmp_path)
    kept = [a_txn(1), a_txn(job="other"), a_txn(sink="other")]
    stay = [vote(backend, batches((1, "a")), txn) for txn in kept]
    gone = vote(backend, batches((1, "a")))
    for _ in range(2):
        backend.committer(MINE).abort(undecided(gone.txn, *kept[1:], a_txn(9)))
        assert temps(tmp_path) == sorted(txn.id for txn in kept)
    (outcome,) = commit(backend, gone)
    assert isinstance(outcome, Unknown)
    assert commit(backend, *stay) == [Committed()] * 3


def test_a_writer_that_is_swept_at_any_step_does_not_vote_for_what_is_gone(tmp_path: Path) -> None:
    def run(nth: int) -> list[int]:
        root = tmp_path / str(nth)
        backend = a_backend(root, partition_by=["name"])
        ticket = backend.committer(MINE).open_epoch(7, SCHEMA, None)
        swept: list[bool] = []

        def sweep() -> None:
            swept.append((root / "_exactsink" / a_txn().id).exists())
            backend.committer(MINE).abort(undecided(a_txn()))

        voted = None
        with at_step(nth, sweep) as ran:
            try:
                writer = backend.writer(a_txn(), SCHEMA, ticket)
                for part in batches((1, "a"), (2, "b"), (3, "a"), size=1):
                    writer.write(part)
                voted = writer.pre_commit()
            except Retryable:
                assert swept == [True]
        if voted is None:
            assert temps(root) == []
        else:  # a sweep after the last look at the folder is the journal's to keep from being decided
            assert temps(root) == [a_txn().id] or isinstance(commit(backend, voted)[0], Unknown)
        assert visible(root) == []
        return ran

    each_step(run, least=12)


def test_a_sweep_wins_against_a_writer_that_adds_files(tmp_path: Path) -> None:
    backend = a_backend(tmp_path)
    vote(backend, batches((1, "a")))
    late = iter([tmp_path / "_exactsink" / a_txn().id / f"late{n}.tmp" for n in range(3)])
    real = os.rmdir

    def rmdir(path: Any, **kwargs: Any) -> None:
        if (file := next(late, None)) is not None:
            file.write_text("")
        real(path, **kwargs)

    with patched(os, "rmdir", rmdir):
        backend.committer(MINE).abort(undecided(a_txn()))
    assert temps(tmp_path) == []


def test_a_writer_drops_its_files_also_when_a_sweep_was_first(tmp_path: Path) -> None:
    backend = a_backend(tmp_path)
    ticket = backend.committer(MINE).open_epoch(7, SCHEMA, None)
    for sweep in (False, True):
        writer = backend.writer(a_txn(), SCHEMA, ticket)
        writer.write(batches((1, "a"))[0])
        assert temps(tmp_path) == [a_txn().id]
        if sweep:
            backend.committer(MINE).abort(undecided(a_txn()))
        writer.abort()
        assert temps(tmp_path) == []


def test_attempts_that_race_for_one_id_do_not_mix(tmp_path: Path) -> None:
    backend = a_backend(tmp_path)
    ticket = backend.committer(MINE).open_epoch(7, SCHEMA, None)
    first = backend.writer(a_txn(), SCHEMA, ticket)
    with pytest.raises(Retryable, match="another attempt uses this"):
        backend.writer(a_txn(), SCHEMA, ticket)
    first.write(batches((1, "a"))[0])
    assert commit(backend, first.pre_commit()) == [Committed()]
