"""A target file size: files end once they have reached it, under names of their own, and all are in the vote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.fakes import undecided
from tests.unit.files_target import (
    MINE,
    SCHEMA,
    VALUE,
    Killed,
    a_backend,
    a_txn,
    at_step,
    batches,
    commit,
    each_step,
    kill,
    open_epoch,
    temps,
    visible,
    vote,
)

from exactsink.contract import Committable, Committed, Retryable
from exactsink_files import writer as writer_module
from exactsink_files.backend import FilesBackend, FilesOptions

DAYS = pa.schema({"value": pa.string(), "day": pa.int32()})


def names(count: int, form: str) -> list[str]:
    """Name a participant's files in the order that they are written."""
    return [f"{a_txn().id}{f'.{n}' if n else ''}.{form}" for n in range(count)]


def small_files(root: Path) -> tuple[FilesBackend, list[Committable]]:
    """Vote with two participants for three files each, over two partition folders."""
    backend = a_backend(root, format="json", partition_by=["day"], target_file_size="10 B")
    rows = [("12345", 1), ("67890", 1), ("abc", 2), ("defgh", 1)]
    return backend, [vote(backend, batches(*rows, schema=DAYS), a_txn(n)) for n in range(2)]


def assert_small_files(root: Path) -> None:
    expected = {}
    for n in range(2):
        expected[f"day=1/{a_txn(n).id}.json"] = "12345\n67890\n"
        expected[f"day=1/{a_txn(n).id}.1.json"] = "defgh\n"
        expected[f"day=2/{a_txn(n).id}.json"] = "abc\n"
    assert {str(file.relative_to(root)): file.read_text() for file in visible(root)} == expected
    assert temps(root) == []


@pytest.mark.parametrize(
    ("size", "count"), [("1 B", 1), ("1B", 1), ("3KB", 3 << 10), ("128 MB", 128 << 20), ("2 GB", 2 << 30)]
)
def test_sizes_have_units_and_stay_when_options_are_read_again(size: str, count: int) -> None:
    options = FilesOptions(path="/x", target_file_size=size)
    assert options.target_bytes == count
    assert FilesOptions.model_validate(options.model_dump()) == options
    assert FilesOptions(path="/x").target_bytes is None


@pytest.mark.parametrize("options", [{"format": "json"}, {"format": "csv", "header": False}])
def test_lines_end_a_file_at_the_batch_that_reaches_the_size(tmp_path: Path, options: dict[str, Any]) -> None:
    lines = [f"row {n:04}" for n in range(10)]
    backend = a_backend(tmp_path, target_file_size="36 B", **options)
    voted = vote(backend, batches(*[(line,) for line in lines], schema=VALUE, size=2))
    assert commit(backend, voted) == [Committed()]
    read = {file.name: file.read_text().splitlines() for file in visible(tmp_path)}
    assert read == dict(zip(names(3, options["format"]), [lines[:4], lines[4:8], lines[8:]], strict=True))


def test_a_file_that_is_full_with_the_last_row_is_the_last(tmp_path: Path) -> None:
    backend = a_backend(tmp_path, format="json", target_file_size="18 B")
    commit(backend, vote(backend, batches(*[(f"row {n:04}",) for n in range(4)], schema=VALUE)))
    assert [file.name for file in visible(tmp_path)] == sorted(names(2, "json"))


def test_without_a_target_size_there_is_one_file(tmp_path: Path) -> None:
    backend = a_backend(tmp_path, format="json")
    commit(backend, vote(backend, batches(*[("x" * 1000,)] * 100, schema=VALUE)))
    assert [file.name for file in visible(tmp_path)] == names(1, "json")


def test_parquet_ends_a_file_at_the_row_group_that_reaches_the_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "ROW_GROUP_ROWS", 10)
    parts = batches(*[(n, f"{n:08}" * 1000) for n in range(45)], size=5)  # about 80 KB a row group
    for size, expected in (("1 KB", [10, 10, 10, 10, 5]), ("100 KB", [20, 20, 5])):
        backend = a_backend(tmp_path / size, target_file_size=size, compression="none")
        commit(backend, vote(backend, parts))
        read = [tmp_path / size / name for name in names(len(expected), "parquet")]
        assert sorted(read) == visible(tmp_path / size)
        assert [pq.read_metadata(file).num_rows for file in read] == expected
        assert pa.concat_tables(map(pq.read_table, read)) == pa.Table.from_batches(parts)


def test_a_flush_that_memory_asks_for_ends_full_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = batches(*[(n, f"name {n % 2}") for n in range(40)], size=10)
    monkeypatch.setattr(writer_module, "BUFFERED_BYTES", parts[0].nbytes)  # passed by every second batch
    backend = a_backend(tmp_path, partition_by=["name"], target_file_size="100 B")
    commit(backend, vote(backend, parts))
    assert [pq.read_metadata(file).num_rows for file in visible(tmp_path)] == [10] * 4


def test_every_file_is_in_the_vote_with_its_own_names(tmp_path: Path) -> None:
    _, voted = small_files(tmp_path)
    for n, one in enumerate(voted):
        files = json.loads(one.payload)["files"]
        assert len({file["final"] for file in files}) == 3
        written = [path.name for path in (tmp_path / "_exactsink" / a_txn(n).id).iterdir()]
        assert sorted(file["temp"] for file in files) == sorted(written)
        assert one.version == 1


def test_small_files_are_whole_after_a_crash_at_any_step_of_their_commit(tmp_path: Path) -> None:
    def run(nth: int) -> list[int]:
        root = tmp_path / str(nth)
        backend, voted = small_files(root)
        with at_step(root, nth, kill) as ran:
            try:
                commit(backend, *voted)
            except Killed:
                assert len(visible(root)) <= 6
        commit(backend, *voted)
        assert_small_files(root)
        return ran

    each_step(run, least=40)


def test_a_sweep_between_two_files_leaves_no_vote_and_nothing_behind(tmp_path: Path) -> None:
    backend = a_backend(tmp_path, format="json", target_file_size="1 B")
    writer = backend.writer(a_txn(), VALUE, open_epoch(backend, VALUE))
    first, second = batches(("a",), ("b",), schema=VALUE, size=1)
    writer.write(first)
    backend.committer(MINE).abort(undecided(a_txn()))
    with pytest.raises(Retryable):
        writer.write(second)
    with pytest.raises(Retryable):
        writer.pre_commit()
    writer.abort()
    assert (visible(tmp_path), temps(tmp_path)) == ([], [])


def test_an_abort_drops_full_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "ROW_GROUP_ROWS", 1)
    backend = a_backend(tmp_path, target_file_size="1 B")
    writer = backend.writer(a_txn(), SCHEMA, open_epoch(backend))
    for part in batches((1, "a"), (2, "b"), size=1):
        writer.write(part)
    assert len(list((tmp_path / "_exactsink" / a_txn().id).iterdir())) == 2
    writer.abort()
    assert temps(tmp_path) == []
