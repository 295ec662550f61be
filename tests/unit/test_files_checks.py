"""What the `files` backend refuses before the first row, and what it says when the file system refuses."""

from __future__ import annotations

import errno
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError
from tests.unit.files_target import (
    COLUMNS,
    MINE,
    SCHEMA,
    VALUE,
    a_backend,
    a_txn,
    batches,
    commit,
    open_epoch,
    refused,
    temps,
    vote,
)

from exactsink.contract import Committed, DurableFile, ExactsinkError, Fatal, Finding, Retryable
from exactsink_files.backend import FilesBackend, FilesOptions
from exactsink_files.committer import explained


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
        ({"path": "/x", "format": "orc"}, "parquet"),
        ({"path": "/x", "partition_by": "day"}, "tuple"),
        ({"path": "/x", "partition_by": ["day", "day"]}, "once"),
        ({"path": "/x", "format": "json", "compression": "zstd"}, "JSON lines and CSV are written plain"),
        ({"path": "/x", "format": "csv", "compression": "gzip"}, "JSON lines and CSV are written plain"),
        ({"path": "/x", "format": "json", "header": False}, "header and delimiter are for format = 'csv'"),
        ({"path": "/x", "delimiter": ";"}, "header and delimiter are for format = 'csv'"),
        *[
            ({"path": "/x", "format": "csv", "delimiter": mark}, "one ASCII mark")
            for mark in ("", '"', "\\", "||", "x", "é")
        ],
        *[
            ({"path": "/x", "target_file_size": size}, "a unit")
            for size in ("128", "0 MB", "1.5 MB", "-1 B", "1 mb", "")
        ],
        ({"path": "/x", "target_file_size": 1024}, "string"),
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
    open_epoch(a_backend(tmp_path))
    assert check(a_backend(tmp_path)) == []
    assert [p.name for p in tmp_path.rglob("*")] == ["_exactsink"]


@pytest.mark.parametrize("below", ["", "x", "x/y"])
def test_a_path_below_a_file_is_found_and_fatal(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    backend = a_backend(tmp_path / "file" / below)
    (found,) = check(backend)
    assert (found.severity, found.message) == ("error", f"{tmp_path / 'file'} is not a folder")
    with pytest.raises(Fatal, match="the target can't be written"):
        open_epoch(backend)
    with pytest.raises(Fatal, match="the target can't be written"):
        backend.writer(a_txn(), SCHEMA, backend.options.path.encode())


def test_a_file_in_the_place_of_the_temp_folder_is_found_and_fatal(tmp_path: Path) -> None:
    (tmp_path / "_exactsink").write_text("")
    (found,) = check(a_backend(tmp_path))
    assert "_exactsink is not a folder" in found.message
    with pytest.raises(Fatal, match="the target can't be written"):
        open_epoch(a_backend(tmp_path))


def test_check_tries_the_folder_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tempfile.TemporaryFile

    def read_only(**kwargs: Any) -> Any:
        if kwargs.get("dir") == str(tmp_path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(**kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "TemporaryFile", read_only)
        found = check(a_backend(tmp_path))
    assert [finding.message for finding in found] == [f"{tmp_path} can't be written: {os.strerror(errno.EROFS)}"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        *[(n, Fatal) for n in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT, errno.EMFILE)],
        *[(n, Retryable) for n in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EEXIST)],
    ],
)
def test_a_writer_says_what_to_fix(tmp_path: Path, code: int, kind: type[ExactsinkError]) -> None:
    ticket = open_epoch(a_backend(tmp_path))
    with refused(tmp_path, "mkdir", code), pytest.raises(ExactsinkError) as caught:
        a_backend(tmp_path).writer(a_txn(), SCHEMA, ticket)
    assert type(caught.value) is kind
    assert "the target can't be written" in str(caught.value)
    assert caught.value.next
    assert "{" not in str(caught.value)


def test_every_explanation_has_a_next_step_and_no_holes() -> None:
    for code in errno.errorcode:
        with pytest.raises((Fatal, Retryable)) as caught, explained("/x"):
            raise OSError(code, os.strerror(code))
        assert "next: " in str(caught.value)
        assert "{" not in str(caught.value)


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_a_full_disk_is_retryable_and_the_attempt_can_be_dropped(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    backend = a_backend(tmp_path, format=form)
    ticket = open_epoch(backend, VALUE)
    writer, other = (backend.writer(a_txn(n), VALUE, ticket) for n in range(2))
    for one in (writer, other):
        one.write(batches(("{}",), schema=VALUE)[0])
    with monkeypatch.context() as patch:
        patch.setattr(DurableFile, "write", full)
        with pytest.raises(Retryable, match="No space left"):
            writer.write(batches(("{}",), schema=VALUE)[0])
            writer.pre_commit()
        writer.abort()
        other.abort()
    assert temps(tmp_path) == []
