"""What the `files` backend refuses before the first row, and what it says when the file system refuses."""

from __future__ import annotations

import errno
import os
import pickle
import unicodedata
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError
from tests.unit.files_sink import SCHEMA, files, lines, rows, temps
from tests.unit.os_faults import refused

from exactsink.contract import Committed, ExactsinkError, Fatal, Retryable
from exactsink.toolkit.storage import DurableFile
from exactsink_files.backend import FilesBackend, FilesOptions


def test_options_resolve_the_path_where_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = FilesOptions(path="out/../x", format="csv", header=False, delimiter="\t", target_file_size="3KB")
    backend = pickle.loads(pickle.dumps(FilesBackend(options)))
    monkeypatch.chdir("/")
    assert (backend.target, backend.strategy) == (f"file://{tmp_path}/x", "rename")
    for path in ("file:///a/b/", "file:/a/b", "file://localhost/a/b", "//a/b", "/a/./b"):
        assert FilesOptions(path=path).path == "/a/b"
    for scheme in ("s3", "s3a", "S3N"):
        assert FilesOptions(path=f"{scheme}://bucket/x/").path == "s3://bucket/x"
    assert FilesOptions.model_validate(backend.options.model_dump()) == backend.options
    for size, count in {None: None, "1 B": 1, "3KB": 3 << 10, "128 MB": 128 << 20, "2 GB": 2 << 30}.items():
        assert FilesOptions(path="/x", target_file_size=size).target_bytes == count


BAD: dict[str, list[dict[str, Any]]] = {
    "is not supported": [{"path": "hdfs:/x"}],
    "never a password": [{"path": "sftp://me:secret@host/x"}, {"path": "sftp:///x"}],
    "whole path": [{"path": "sftp://host"}, {"path": "ssh://host/a/../b"}],
    "write gs://bucket/path": [{"path": "gs://me@bucket/x"}],
    "write abfss://container@": [{"path": "abfss://box@acc:ount/x"}, {"path": "az:///x"}],
    "write s3://bucket/path": [{"path": "s3:///x"}, {"path": "s3a://key:secret@bucket/x"}],
    "an empty name": [{"path": "s3://bucket/x//y"}, {"path": "s3://bucket/../y"}],
    "for a path on s3": [{"endpoint_url": "http://host:1"}, {"profile": "me"}],
    "credentials come from": [{"path": "s3://b/x", "endpoint_url": "http://key:secret@host:1"}],
    "another machine": [{"path": "file://far/x"}],
    "give the folder": [{"path": ""}],
    "a local folder is a path": [{"path": "file://"}],
    "parquet": [{"format": "orc"}],
    "once": [{"partition_by": ["day", "day"]}],
    "JSON lines and CSV are written plain": [{"format": "json", "compression": "zstd"}],
    "header and delimiter are for format = 'csv'": [{"format": "json", "header": False}, {"delimiter": ";"}],
    "one ASCII mark": [{"format": "csv", "delimiter": mark} for mark in ("", '"', "\\", "||", "x")],
    "a unit": [{"target_file_size": size} for size in ("128", "0 MB", "1.5 MB", "1 mb")],
    "Extra inputs": [{"fromat": "json"}],
}


@pytest.mark.parametrize("message", BAD)
def test_bad_options_are_refused(message: str) -> None:
    for options in BAD[message]:
        with pytest.raises(ValidationError, match=message):
            FilesOptions(**{"path": "/x", **options})


@pytest.mark.parametrize(
    ("columns", "kinds", "message"),
    [
        (["no"], list(SCHEMA), "is not in the rows: they have id, name"),
        (["id", "name"], list(SCHEMA), "all columns are partition columns"),
        (["x"], [("x", pa.float64()), ("y", pa.int8())], "of type double"),
        (["x"], [("x", pa.timestamp("us")), ("y", pa.int8())], "of type timestamp"),
        (["x"], [("x", pa.int8()), ("x", pa.int8()), ("y", pa.int8())], "2 times"),
        ([".x"], [(".x", pa.string()), ("y", pa.int8())], "begin with a dot"),
        ([], [("x", pa.struct([]))], "parquet can't hold these rows"),
    ],
)
def test_check_finds_columns_that_cannot_be_written(
    tmp_path: Path, columns: list[str], kinds: list[Any], message: str
) -> None:
    sink, schema = files(tmp_path, partition_by=columns), pa.schema(kinds)
    (found,) = sink.check(schema)
    assert (found.severity, bool(found.fix)) == ("error", True)
    assert message in found.message
    with pytest.raises(Fatal, match="sink sink: "):
        sink.begin(schema.empty_table())


def test_check_warns_of_an_underscore_only(tmp_path: Path) -> None:
    sink, odd = files(tmp_path, partition_by=["_x"]), pa.schema({"_x": pa.int8(), "y": pa.int8()})
    assert [found.severity for found in sink.check(odd)] == ["warning"]
    assert sink.end(*sink.vote(rows((1, 2), schema=odd))) == [Committed()]


@pytest.mark.parametrize(("in_the_way", "below"), [("file", "x/y"), ("_exactsink", "")])
def test_a_file_in_the_place_of_a_folder_is_found_and_fatal(tmp_path: Path, in_the_way: str, below: str) -> None:
    (tmp_path / in_the_way).write_text("not a folder")
    sink = files(tmp_path / in_the_way / below if below else tmp_path)
    (found,) = sink.check()
    assert (found.severity, found.message) == ("error", f"{tmp_path / in_the_way} is not a folder")
    with pytest.raises(Fatal, match="the target can't be written"):
        sink.begin(SCHEMA.empty_table())


def test_check_leaves_nothing_behind(tmp_path: Path) -> None:
    assert files(tmp_path / "a" / "b").check() == []
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_table_is_refused(tmp_path: Path) -> None:
    for log, name, kind in (("_delta_log", "0.json", "Delta"), ("metadata", "1.metadata.json", "Iceberg")):
        (tmp_path / kind / log).mkdir(parents=True)
        assert files(tmp_path / kind).check() == []
        (tmp_path / kind / log / name).touch()
        assert f"is a table of {kind}, which deletes files" in files(tmp_path / kind).check()[0].message
        with refused(tmp_path / kind / log, "listdir", errno.EIO), pytest.raises(Retryable, match="output error"):
            files(tmp_path / kind).check()


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        ("mkdir", errno.EROFS, "can't make a folder: Read-only file system"),
        ("mkdir", errno.ENOSPC, "can't make a folder: No space left on device"),
        ("fsync", errno.EIO, "can't make a file durably: Input/output error"),
        ("replace", errno.EACCES, "can't replace a file durably: Permission denied"),
        ("link", errno.EXDEV, "can't make a file durably: Invalid cross-device link"),
        ("listdir", errno.EIO, "can't list a folder: Input/output error"),
        ("listdir", errno.ETIMEDOUT, r"(?s)can't list a folder: .* timed out.* again, check .*its mount"),
        ("rmdir", errno.EACCES, "can't list and remove a folder: Permission denied"),
    ],
)
def test_check_tries_each_call_that_a_commit_makes(tmp_path: Path, call: str, code: int, message: str) -> None:
    with refused(tmp_path, call, code):
        if code in (errno.EIO, errno.ETIMEDOUT):
            with pytest.raises(Retryable, match=message):
                files(tmp_path).check()
            return
        (found,) = files(tmp_path).check()
    severity = "warning" if code == errno.ENOSPC else "error"
    assert (found.severity, found.message) == (severity, f"{tmp_path} can't be written: {message}")


def test_check_tries_a_link_from_the_hidden_folder_to_the_root(tmp_path: Path) -> None:
    """A disk of its own at `_exactsink`, say."""
    (tmp_path / "lake" / "_exactsink").mkdir(parents=True)

    def apart(source: Any, final: Any, real: Any = os.link) -> None:
        if Path(source).parent.parent != Path(final).parent.parent:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        real(source, final)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", apart)
        (found,) = files(tmp_path / "lake").check()
    assert "can't give a hidden file its name" in found.message
    assert found.fix.startswith(f"keep all folders below {tmp_path / 'lake'} on one file system")


@pytest.mark.parametrize(
    ("spelled", "words"),
    [
        (str.lower, "upper and lower case"),
        (partial(unicodedata.normalize, "NFD"), "the Unicode forms of é"),
        (lambda name: name.rstrip("."), "a dot at the end"),
    ],
)
def test_text_in_folders_is_refused_where_two_names_are_one(
    tmp_path: Path, spelled: Callable[[str], str], words: str
) -> None:
    """The file system is played: `test_files_folding` has a real one."""
    real = os.stat

    def stat(path: Any, **how: Any) -> os.stat_result:
        names = {spelled(name): name for name in os.listdir(Path(path).parent)} if "probe" in str(path) else {}
        name = spelled(Path(path).name) if names else ""
        return real(Path(path).with_name(names[name]) if name in names else path, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "stat", stat)
        (found,) = files(tmp_path, partition_by=["name"]).check()
        assert (found.severity, f"differ only in {words}: rows could" in found.message) == ("error", True)
        assert found.fix.endswith("set allow_folded_names = true")
        assert files(tmp_path, partition_by=["name"], allow_folded_names=True).check() == []
        assert files(tmp_path, partition_by=["id"]).check() == []
    assert files(tmp_path, partition_by=["name"]).check() == []


FINAL = (errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.ENOENT, errno.EMFILE)


@pytest.mark.parametrize("code", [*FINAL, errno.ENOSPC, errno.EIO, errno.EEXIST])
def test_a_writer_says_whether_it_may_be_tried_again(tmp_path: Path, code: int) -> None:
    sink = files(tmp_path)
    ticket = sink.open(7, SCHEMA)
    with refused(tmp_path, "mkdir", code), pytest.raises(ExactsinkError, match="the target can't be written") as caught:
        sink.writer(7, 0, SCHEMA, ticket)
    assert type(caught.value) is (Fatal if code in FINAL else Retryable)


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_a_full_disk_is_retryable_and_the_attempt_can_be_dropped(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (batch,) = lines("{}").to_batches()
    writer = files(tmp_path, format=form).begin(lines("{}"))
    writer.write(batch)
    with monkeypatch.context() as patch:
        patch.setattr(DurableFile, "write", full)
        with pytest.raises(Retryable, match="No space left"):
            writer.write(batch)
            writer.pre_commit()
        writer.abort()
    assert temps(tmp_path) == []
