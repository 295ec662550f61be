"""What a vote of the `files` backend holds is enough for any process, of this release or a later one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.unit.files_target import (
    a_backend,
    a_txn,
    assert_all_committed,
    commit,
    json_votes,
    open_epoch,
    temps,
    visible,
)

from exactsink.contract import AlreadyCommitted, Committable, Committed, Fatal

FIRST_RELEASE = """{"root": "ROOT", "folder": "_exactsink/job.sink.g3-ab12.e7.p0.a0", "files": [
{"temp": "0.tmp", "final": "day=1/job.sink.g3-ab12.e7.p0.a0.json", "size": 3,
 "sha256": "ca3d163bab055381827226140568f3bef7eaac187cebd76878e0b63e9e442356"},
{"temp": "1.tmp", "final": "day=2/job.sink.g3-ab12.e7.p0.a0.json", "size": 6,
 "sha256": "3b00ba5361676a0a8152642a6edaf54a222bd409b5774b5b461ac8d1cee09cb4"}]}"""


def an_old_vote(root: Path) -> Committable:
    """Put down what the first release left between its vote and its commit."""
    folder = root / "_exactsink" / a_txn().id
    open_epoch(a_backend(root))
    folder.mkdir()
    (folder / "0.tmp").write_bytes(b"{}\n")
    (folder / "1.tmp").write_bytes(b"{}\n{}\n")
    return Committable(a_txn(), 3, FIRST_RELEASE.replace("ROOT", str(root)).encode(), version=1)


def test_a_vote_of_the_first_release_is_committed_by_this_one(tmp_path: Path) -> None:
    voted = an_old_vote(tmp_path)
    backend = a_backend(tmp_path, format="csv", target_file_size="1 B")  # whatever the options have become
    assert commit(backend, voted) == [Committed()]
    name = "job.sink.g3-ab12.e7.p0.a0.json"
    read = {str(file.relative_to(tmp_path)): file.read_text() for file in visible(tmp_path)}
    assert read == {f"day=1/{name}": "{}\n", f"day=2/{name}": "{}\n{}\n"}
    assert temps(tmp_path) == []
    assert commit(backend, voted) == [AlreadyCommitted()]


def test_the_first_releases_hash_reports_its_file_from_a_foreign_one(tmp_path: Path) -> None:
    voted = an_old_vote(tmp_path)
    assert commit(a_backend(tmp_path), voted) == [Committed()]
    visible(tmp_path)[1].write_bytes(b"{}\n[]\n")
    with pytest.raises(Fatal, match="is not overwritten"):
        commit(a_backend(tmp_path), voted)


def test_a_vote_of_another_version_is_refused(tmp_path: Path) -> None:
    backend, voted = json_votes(tmp_path)
    newer = Committable(voted[0].txn, 2, voted[0].payload, version=2)
    with pytest.raises(Fatal, match="version 2"):
        commit(backend, newer)


def test_links_without_unlinks_are_finished(tmp_path: Path) -> None:
    backend, voted = json_votes(tmp_path)
    payload = json.loads(voted[0].payload)
    for file in payload["files"]:
        (tmp_path / file["final"]).parent.mkdir()
        os.link(tmp_path / payload["folder"] / file["temp"], tmp_path / file["final"])
    assert commit(backend, *voted) == [AlreadyCommitted(), Committed()]
    assert_all_committed(tmp_path)
