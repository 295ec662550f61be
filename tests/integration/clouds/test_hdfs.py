"""HDFS alone: quotas, DataNodes that sync, and files that are cut while they are sent."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from getpass import getuser
from urllib.parse import urlsplit

import pytest
from requests import put

from exactsink.contract import Committed, Fatal, Retryable
from exactsink.toolkit.roads.staging import abort_staged, staged_in_doubt, staged_name
from exactsink.toolkit.storage import ObjectPath
from exactsink.toolkit.storage.hdfs_files import HdfsFiles
from exactsink_files.snapshots import snapshot
from tests.servers.hdfs import Hdfs, HdfsServer, own_hdfs
from tests.servers.s3_proxy import cutting_s3
from tests.servers.s3_rules import Trap
from tests.servers.waiting import wait_until
from tests.unit.files_sink import DAYS, EPOCH, files, rows, swept, two_files

pytestmark = pytest.mark.proof


@pytest.fixture(scope="module")
def cluster() -> Iterator[HdfsServer]:
    with own_hdfs() as server:
        yield server


def test_a_start_on_a_used_up_quota_is_warned_and_may_free_space(cluster: HdfsServer) -> None:
    url = f"webhdfs://{cluster.new_bucket('full')}"
    sink, voted = two_files(f"{url}/lake", participants=2)  # type: ignore[arg-type]
    sink.put_birth()
    quota = f"http://{url.partition('://')[2].replace('/', '/webhdfs/v1/', 1)}/lake?op=SETQUOTA&user.name={getuser()}"
    for names, space in ((1, -1), (-1, 1)):
        put(f"{quota}&namespacequota={names}&storagespacequota={space}").raise_for_status()
        [found] = sink.check(DAYS)
        assert (found.severity, found.fix) == ("warning", "free space there, or raise the quota")
        with pytest.raises(Retryable, match="QuotaExceeded"):
            sink.commit_marked(EPOCH, voted)
    swept(sink)
    assert sink.listed() == []


def test_datanodes_sync_each_file_as_it_ends(cluster: HdfsServer) -> None:
    """Also with `dfs.datanode.synconclose` off, as it is by default."""
    root = ObjectPath.of(f"webhdfs://{cluster.new_bucket('synced')}")
    written, synced = cluster.synced_blocks()
    (root / "state.json").replace(b"{}")
    two_files(f"{root}/lake")  # type: ignore[arg-type]
    wait_until(lambda: cluster.synced_blocks()[0] - written >= 3, "the DataNode's figures")
    now_written, now_synced = cluster.synced_blocks()
    assert now_synced - synced == now_written - written


@pytest.mark.parametrize("done", [True, False])
def test_a_file_is_sent_again_whole_where_the_datanodes_answer_is_lost(
    cluster: HdfsServer, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    cut = Trap("op=CREATE", done=done)
    place_for = HdfsFiles.place_for
    with ExitStack() as ways:

        def by_proxy(self: HdfsFiles, path: str, flags: str, **given: str) -> str:
            place = place_for(self, path, flags, **given)
            port = urlsplit(place).port or 0
            way = ways.enter_context(cutting_s3(Hdfs(cluster.folder, port)))  # type: ignore[arg-type]
            way.set(cut)
            return place.replace(f":{port}/", f":{way.port}/", 1)

        monkeypatch.setattr(HdfsFiles, "place_for", by_proxy)
        root = ObjectPath.of(f"webhdfs://{cluster.new_bucket('cut')}")
        assert [(root / "entry").create(data) for data in (b"first", b"second")] == [True, False]
    assert (root.names(), (root / "entry").read_bytes(), cut.sprung.is_set()) == (["entry"], b"first", True)


def test_a_file_that_is_cut_while_it_is_sent_is_no_vote(cluster: HdfsServer) -> None:
    """HDFS closes the part that it has, as if it were whole."""
    root = ObjectPath.of(f"webhdfs://{cluster.new_bucket('part')}")
    root.fs.mkdir(root.url)
    sending = root.fs.begin_own(f"{root.url}/0.tmp")
    sending.write(memoryview(b"x" * 2**20))
    sending.close()
    wait_until(lambda: any(found.size for found in root.listed().values()), "the part to stand")
    with pytest.raises(OSError, match=r"already exists|AlreadyBeingCreated"):
        root.fs.seal(root.fs.begin_own(f"{root.url}/0.tmp"))
    with pytest.raises(FileNotFoundError):
        root.fs.seal(root.fs.begin_own(f"{root.url}/swept/0.tmp"))


def test_rows_that_a_killed_executor_had_nearly_staged_are_swept(
    cluster: HdfsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = ObjectPath.of(f"webhdfs://{cluster.new_bucket('staged')}")
    refs = [files(root).id(partition) for partition in range(2)]  # type: ignore[arg-type]
    monkeypatch.setattr(HdfsFiles, "give_name", lambda *given: sys.exit())
    for ref in refs:
        with pytest.raises(SystemExit):
            (root / staged_name(ref)).replace(b"x")
    assert sorted(found.ref for found in staged_in_doubt(root, "job", "sink")) == refs
    abort_staged(root, refs[:1])
    assert [name.rpartition(".")[0] for name in root.names()] == [staged_name(refs[1])]


def test_names_are_kept_and_one_that_no_commit_could_give_is_refused_in_the_task(cluster: HdfsServer) -> None:
    for name in ("ACME Inc.", "#1 in what?", "50% é..", "a+b;c&d=e"):
        url = f"webhdfs://{cluster.new_bucket('odd')}/{name}"
        sink = files(url, partition_by=["name"])  # type: ignore[arg-type]
        assert (sink.check(), sink.put_birth().epoch) == ([], None)
        voted = sink.vote(rows((1, "ACME: Inc."), (2, "a")))
        assert (sink.commit_marked(EPOCH, voted), snapshot(url).rows) == ([Committed()], 2)
    with pytest.raises(Fatal, match="no file can be called"):
        sink.vote(rows((1, "x" * 256)))
