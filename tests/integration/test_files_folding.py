"""The `files` backend on a real file system that takes upper and lower case for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from exactsink.contract import AlreadyCommitted, Committed
from exactsink_files.snapshots import snapshot
from tests.servers.folding import folding
from tests.unit.files_sink import EPOCH, files, rows


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with folding(tmp_path) as root:
        yield root / "lake"


@pytest.mark.parametrize("ids", [(1, 1), (1, 2)], ids=["equal bytes", "other bytes"])
def test_each_row_is_there_once_though_two_folders_are_one(root: Path, ids: tuple[int, int]) -> None:
    (refused,) = files(root, partition_by=["name"]).check()
    assert "differ only in upper and lower case: rows could come back with another value" in refused.message
    sink = files(root, partition_by=["name"], allow_folded_names=True)
    assert (sink.check(), sink.put_birth().epoch) == ([], None)
    voted = sink.vote(rows((ids[0], "Globex"), (ids[1], "globex")))
    assert [sink.commit_marked(EPOCH, voted) for _ in range(2)] == [[Committed()], [AlreadyCommitted()]]
    (folder,) = root.glob("name=*")
    found = [n for path in folder.iterdir() for n in pq.ParquetFile(path).read()["id"].to_pylist()]
    assert (sorted(found), snapshot(root).rows) == (sorted(ids), 2)
