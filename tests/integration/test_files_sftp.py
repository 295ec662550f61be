"""The `files` backend on a real SFTP server: names that stand are kept, and only a server that is known is used."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from exactsink.contract import AlreadyCommitted, Committed, Fatal, Retryable
from exactsink_files.sftp import open_sftp
from exactsink_files.snapshots import snapshot
from tests.servers.sftp import Sftp, own_sftp
from tests.unit.files_sink import DAYS, EPOCH, TEXT, assert_two_files, files, lines, rows, swept, two_files, visible


@pytest.fixture(scope="module")
def server() -> Iterator[Sftp]:
    with own_sftp() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


def test_files_get_their_names_once_also_after_a_connection_was_lost(server: Sftp) -> None:
    sink, voted = two_files(f"{server.url}/lake", participants=2)  # type: ignore[arg-type]
    assert (sink.check(DAYS), sink.put_birth().epoch) == ([], None)
    committer = sink.backend.committer(sink.ctx)
    committer.mark()
    server.crash()
    committer._place.root.fs.ftp.get_channel().close()  # type: ignore[attr-defined]
    with pytest.raises(Retryable):
        committer.commit(EPOCH, voted)
    server.start()
    assert list(committer.commit(EPOCH, voted)) == [Committed()] * 2
    assert sink.commit_marked(EPOCH, voted) == [AlreadyCommitted()] * 2
    assert_two_files(server.files / "lake", participants=2)
    assert [path.rpartition("/lake/")[0] for path in snapshot(f"{server.url}/lake").paths] == [server.url] * 4


def test_a_name_that_stands_is_neither_replaced_nor_taken_for_the_file(server: Sftp) -> None:
    sink = files(f"{server.url}/other", **TEXT)  # type: ignore[arg-type]
    sink.put_birth()
    voted = sink.vote(lines("a"))
    final = server.files / "other" / f"{voted[0].txn.id}.csv"
    final.write_text("b\n")
    with pytest.raises(Fatal, match="is not the file that was voted for"):
        sink.commit_marked(EPOCH, voted)
    assert final.read_text() == "b\n"
    place = open_sftp(f"{server.url}/other/mark")
    assert [place.create(data) for data in (b"first", b"second")] == [True, False]
    assert place.read_bytes() == b"first"


def test_a_writer_that_was_swept_can_not_vote(server: Sftp) -> None:
    sink = files(f"{server.url}/swept", **TEXT)  # type: ignore[arg-type]
    writer = sink.begin(lines("a"))
    writer.write(lines("a").to_batches()[0])
    swept(sink)
    with pytest.raises(Retryable):
        writer.pre_commit()
    writer.abort()
    assert sink.listed() == []


@pytest.mark.parametrize("name", ["ACME Inc.", "#1 in what?", "50% é.."])
def test_odd_names_of_roots_and_partitions_are_kept(server: Sftp, name: str) -> None:
    sink = files(f"{server.url}/{name}", partition_by=["name"])  # type: ignore[arg-type]
    assert (sink.check(), sink.put_birth().epoch) == ([], None)
    voted = sink.vote(rows((1, "ACME Inc."), (2, "a")))
    assert [sink.commit_marked(EPOCH, voted) for _ in range(2)] == [[Committed()], [AlreadyCommitted()]]
    folders = [path.parent.relative_to(server.files) for path in visible(server.files / name)]
    assert sorted(map(str, folders)) == [f"{name}/name=ACME Inc.", f"{name}/name=a"]
    assert snapshot(f"{server.url}/{name}").rows == 2


DENIED = {
    "posix-rename": "can't replace a file durably",
    "fsync": "can't make a file durably",
    "rename": "can't make a file durably",
    "read": "can't read a file",
    "remove": "can't list and remove a folder",
    "mkdir": "can't make a folder",
}


@pytest.mark.parametrize("denied", DENIED)
def test_a_server_that_lacks_a_call_of_a_commit_is_refused(denied: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_sftp(denied) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        (found,) = files(f"{server.url}/lake").check()  # type: ignore[arg-type]
    assert (found.severity, DENIED[denied] in found.message) == ("error", True), found.message


def test_a_server_that_is_not_known_is_refused(server: Sftp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(server.files))
    [found] = files(f"{server.url}/lake").check()  # type: ignore[arg-type]
    assert (found.severity, "known_hosts" in found.message) == ("error", True)
