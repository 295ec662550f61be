"""The `files` backend on a real S3 server: seen by nobody before the commit, right with every answer to it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from exactsink.contract import AlreadyCommitted, Committed, Fatal, Lost, Retryable, Unknown
from exactsink.toolkit.storage import ObjectPath, file_sha256
from exactsink_files import stores, upload_files
from exactsink_files.s3 import S3 as Calls
from exactsink_files.s3 import open_s3
from exactsink_files.snapshots import snapshot
from exactsink_files.upload_files import part_bytes
from exactsink_files.votes import Part, VotedFiles
from tests.integration.files_s3.lake import Lake
from tests.servers.s3 import KIND
from tests.servers.s3_proxy import S3Proxy
from tests.servers.s3_rules import ABORT, COMPLETE, Answer, Ask, Cuts, ForgetsUploads, ListsWholeKeys, Trap
from tests.unit.files_sink import DAYS, EPOCH, LINES, STANDS, TEXT, kinds, lines, rows, swept


def test_a_file_of_many_parts_keeps_its_bytes_within_its_memory(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    to_disk, real = [], upload_files.SpooledTemporaryFile.rollover
    monkeypatch.setattr(
        upload_files.SpooledTemporaryFile, "rollover", lambda self: (to_disk.append(self), real(self))[1]
    )
    monkeypatch.setattr(upload_files, "_MOST_WAITING", 1 << 20)
    monkeypatch.setattr(upload_files, "_MOST_ON_THE_WAY", 20 << 20)
    text = [f"{n:05}" + "x" * 100_000 for n in range(330)]
    sink = lake.sink(**TEXT)
    [voted] = sink.vote(rows(*[(line,) for line in text], schema=LINES, size=3))
    [file] = VotedFiles.load(voted).files
    assert [part.size for part in file.parts[:-1]] == [8 << 20] * 3
    assert len(to_disk) == 4
    assert (kinds(sink.end(voted)), lake.lines()) == ([Committed], text)
    assert sum(part_bytes(number) for number in range(1, 10_001)) > 400 << 30


def test_writers_list_their_uploads_before_they_send(lake: Lake) -> None:
    sink = lake.sink(partition_by=["day"], **TEXT)
    ticket = sink.open(EPOCH, DAYS)
    writer = sink.writer(EPOCH, 0, DAYS, ticket)
    writer.write(rows(*[("x", day) for day in range(9)], schema=DAYS, size=9).to_batches()[0])
    writer.pre_commit()
    [record] = lake.records()
    noted = json.loads(lake.store.get(lake.store.key(record)) or b"")
    assert len(noted) == lake.uploads() == 9
    swept(sink)
    assert lake.is_clean()


def test_a_sweep_takes_what_no_list_has_and_nobody_elses(lake: Lake, proxy: S3Proxy) -> None:
    others = [lake.sink("other"), lake.sink("job", "other"), lake.sink("job-sink")]
    kept = [sink.vote(rows((1, "a"))) for sink in others]
    lake.store.create(lake.store.key("somebody's.parquet"), {})
    sink, _ = lake.two_files()
    noted = [record for record in lake.records() if record.startswith("_exactsink/job.sink.")]
    lake.store.delete([lake.store.key(record) for record in noted])
    swept(sink)
    assert (sink.listed(), lake.uploads()) == ([], len(others) + 1)
    for other, voted in zip(others, kept, strict=True):
        assert [participant.ref for participant in other.listed()] == [other.id()]
        assert kinds(other.end(*voted)) == [Committed]


@pytest.mark.parametrize("lists_all", [True, False])
def test_a_server_that_lists_whole_keys_only_is_swept_by_our_own_list(
    lake: Lake, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch, lists_all: bool
) -> None:
    hides = proxy.set(ListsWholeKeys())
    sink, voted = lake.two_files(participants=2, endpoint_url=proxy.endpoint)
    assert kinds(sink.end(voted[0])) == [Committed]
    [repeated, _] = VotedFiles.load(voted[1]).files  # the answer to its first request was lost
    lake.store.create(lake.store.key(repeated.final), {})
    real = Calls.uploads
    with monkeypatch.context() as patch:
        if not lists_all:
            patch.setattr(Calls, "uploads", lambda self, prefix: real(self, prefix) if prefix else iter(()))
        swept(sink)
    assert hides.sprung.is_set() or KIND == "minio"  # which hides them itself
    assert (lake.is_clean(), len(lake.visible())) == (True, 2)


class NoListOfNone(ListsWholeKeys):
    """Answers NoSuchUpload to a listing of unfinished uploads where there is none, as `rclone serve s3` does."""

    def answer(self, request: str, ask: Ask) -> Answer | None:
        given = ask()
        if given is None or b"<Upload>" in given.body:
            return given
        self.sprung.set()
        return Answer.error(404, "NoSuchUpload")


def test_no_such_upload_is_an_empty_listing_of_uploads(lake: Lake, proxy: S3Proxy) -> None:
    empty = proxy.set(NoListOfNone())
    sink, voted = lake.two_files(endpoint_url=proxy.endpoint)
    swept(sink)
    assert (kinds(sink.commit_marked(EPOCH, voted)), sink.check(DAYS), empty.sprung.is_set()) == ([Lost], [], True)
    assert (sink.listed(), ObjectPath.of(lake.url, endpoint_url=proxy.endpoint).uploads()) == ([], [])


def test_a_writer_that_was_swept_can_not_vote(lake: Lake) -> None:
    sink = lake.sink(**TEXT)
    writer = sink.begin(lines("a"))
    writer.write(lines("a").to_batches()[0])
    while not sink.listed():
        """Wait for the upload to begin, which it does beside the writer."""
    swept(sink)
    with pytest.raises(Retryable):
        writer.pre_commit()
    writer.abort()
    assert lake.is_clean()


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_lost_answer_is_asked_again(lake: Lake, proxy: S3Proxy, nth: int, forgets: bool) -> None:
    cut = proxy.set(Trap(COMPLETE, nth))
    repeat = proxy.set(ForgetsUploads()) if forgets else None
    sink, voted = lake.two_files(endpoint_url=proxy.endpoint)
    assert kinds(sink.commit_marked(EPOCH, voted))[0] in STANDS
    assert cut.sprung.is_set()
    assert repeat is None or repeat.sprung.is_set()
    assert (lake.lines(), lake.is_clean()) == (["0", "0"], True)


class DiesInside:
    """Cuts the first Complete, undone, and answers its repeat as done: as versitygw does when it died in the first."""

    def __init__(self) -> None:
        self.asked = 0

    def concerns(self, request: str) -> bool:
        return re.search(COMPLETE, request) is not None

    def answer(self, request: str, ask: Ask) -> Answer | None:
        self.asked += 1
        return None if self.asked == 1 else Answer(200, b"<Result><Key>a</Key><ETag>b</ETag></Result>")


def test_a_repeat_that_was_answered_as_done_and_shows_nothing_is_unknown(lake: Lake, proxy: S3Proxy) -> None:
    sink = lake.sink(endpoint_url=proxy.endpoint, **TEXT)
    sink.put_birth()
    voted = sink.vote(lines("a"))
    lies = proxy.set(DiesInside())
    assert kinds(sink.commit_marked(EPOCH, voted)) == [Unknown]
    assert (lies.asked, lake.visible()) == (2, [])
    proxy.rules.clear()
    assert kinds(sink.commit_marked(EPOCH, voted)) == [Committed]
    assert lake.lines() == ["a"]


@pytest.mark.parametrize("done", [False, True])
def test_an_empty_answer_to_a_complete_is_not_believed(lake: Lake, proxy: S3Proxy, done: bool) -> None:
    sink, voted = lake.two_files(endpoint_url=proxy.endpoint)
    proxy.set(Cuts(COMPLETE, done=done))
    with pytest.raises(Retryable, match="cut without ETag and Key"):
        sink.commit_marked(EPOCH, voted)
    if not done:
        assert (lake.visible(), lake.uploads()) == ([], 2)
        proxy.rules.clear()
    while lake.uploads():  # a Complete that was on its way beside the one that was cut
        assert kinds(sink.commit_marked(EPOCH, voted))[0] in STANDS
    assert kinds(sink.commit_marked(EPOCH, voted))[0] in STANDS
    assert (lake.lines(), lake.is_clean()) == (["0", "0"], True)


def test_an_upload_that_was_not_aborted_as_answered_is_not_lost(lake: Lake, proxy: S3Proxy) -> None:
    sink, voted = lake.two_files(endpoint_url=proxy.endpoint)
    first = VotedFiles.load(voted[0]).files[0]
    lake.store.abort(lake.store.key(first.final), first.temp)
    proxy.set(Cuts(ABORT, done=False))
    with pytest.raises(Retryable, match="keeps uploads"):
        sink.commit_marked(EPOCH, voted)
    proxy.rules.clear()
    assert kinds(sink.commit_marked(EPOCH, voted)) == [Lost]


@pytest.mark.parametrize("without", [None, "x-amz-checksum", ("x-amz-checksum", "etag")])
def test_a_manifest_whose_answer_is_cut_is_read_again_and_never_called_damaged(
    lake: Lake, proxy: S3Proxy, without: Any
) -> None:
    sink, voted = lake.two_files(endpoint_url=proxy.endpoint)
    assert kinds(sink.commit_marked(EPOCH, voted)) == [Committed]
    cut = proxy.set(Cuts(r"^GET .*\.manifest", 2, keep=40, without=without))
    assert kinds(sink.commit_marked(EPOCH, voted)) == [AlreadyCommitted]
    assert cut.sprung.is_set()
    proxy.set(Cuts(r"^GET .*\.manifest", keep=40, without=without))
    with pytest.raises(Retryable, match="get_object was cut"):
        sink.commit_marked(EPOCH, voted)


@pytest.mark.parametrize(
    ("pattern", "call"),
    [
        ("^POST .*uploads", lambda own, key, upload: own.create(key, {})),
        ("partNumber=", lambda own, key, upload: own.put_part(key, upload, 1, b"x")),
        ("^GET .*uploadId=", lambda own, key, upload: own.parts(key, upload)),
        ("^GET .*uploads", lambda own, key, upload: list(own.uploads(""))),
        ("^GET .*list-type", lambda own, key, upload: list(own.objects(""))),
        ("^GET .*/held", lambda own, key, upload: own.get(own.key("held"))),
        ("^GET .*/held", lambda own, key, upload: file_sha256(own.root / "held")),
        ("^HEAD", lambda own, key, upload: own.head(own.key("held"))),
        ("^PUT .*/held", lambda own, key, upload: own.put(own.key("held"), b"x")),
        ("^GET .*lifecycle", lambda own, key, upload: own.lifecycle()),
    ],
)
def test_no_answer_that_is_cut_is_believed(
    lake: Lake, proxy: S3Proxy, pattern: str, call: Callable[[Calls, str, str], object]
) -> None:
    own = Calls(open_s3(lake.url, proxy.endpoint, None))
    own.put(own.key("held"), b"held")
    upload = own.create(own.key("a"), {})
    cut = proxy.set(Cuts(pattern, without="", done="lifecycle" not in pattern))
    with pytest.raises(OSError, match="was cut"):
        call(own, own.key("a"), upload)
    assert cut.sprung.is_set()


@pytest.mark.parametrize("code", ["InternalError", "SlowDown", "ConditionalRequestConflict"])
def test_a_store_that_fails_is_retryable_and_nothing_is_lost(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    sink, voted = lake.two_files()
    with monkeypatch.context() as patch:
        patch.setattr(Calls, "complete", _refusing(code))
        with pytest.raises(Retryable):
            sink.commit_marked(EPOCH, voted)
    assert kinds(sink.commit_marked(EPOCH, voted)) == [Committed]
    assert lake.lines() == ["0", "0"]


class Refusal(OSError):
    """An error with a store's own word for it."""

    def __init__(self, code: str) -> None:
        super().__init__(5, code)
        self.response = {"Error": {"Code": code}}


def _refusing(code: str) -> Any:
    def complete(self: Calls, *given: Any, **options: Any) -> None:
        raise Refusal(code)

    return complete


def test_a_store_without_conditions_on_complete_is_asked_without(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, voted = lake.two_files()
    real, refuse = Calls._call, _refusing("NotImplemented")
    monkeypatch.setattr(
        Calls, "_call", lambda own, *name, **given: (refuse if "IfNoneMatch" in given else real)(own, *name, **given)
    )
    assert kinds(sink.end(*voted)) == [Committed]
    assert lake.lines() == ["0", "0"]


@pytest.mark.parametrize("listed", [True, False])
def test_a_vote_that_does_not_list_all_parts_is_not_committed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    monkeypatch.setattr(upload_files, "_PART_BYTES", 5 << 20)
    sink = lake.sink(**TEXT)
    sink.put_birth()
    [voted] = sink.vote(lines(*["x" * (1 << 20)] * 11))
    vote = VotedFiles.load(voted)
    [file] = vote.files
    if not listed:
        monkeypatch.setattr(Calls, "uploads", lambda self, prefix: iter(()))
    for parts in (
        file.parts[:-1],
        file.parts[1:],
        (),
        (*file.parts[:-1], Part(3, file.parts[-1].size, '"' + "0" * 32 + '"')),
        (*file.parts[:-1], file.parts[-1]._replace(size=1)),
    ):
        wrong = [replace(voted, payload=replace(vote, files=(replace(file, parts=parts),)).dump())]
        assert kinds(sink.assess(EPOCH, wrong)) == kinds(sink.commit_marked(EPOCH, wrong)) == [Unknown]
        assert lake.visible() == []
        assert listed or not any(name.endswith(".manifest") for name in lake.names())


def test_a_committer_that_another_overtakes_inside_finds_the_objects(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, voted = lake.two_files(participants=2)
    real = Calls.complete

    def overtaken(self: Calls, *given: Any, **options: Any) -> None:
        monkeypatch.setattr(Calls, "complete", real)
        assert kinds(sink.commit_marked(EPOCH, voted)) == [Committed, Committed]
        real(self, *given, **options)

    monkeypatch.setattr(stores, "AT_ONCE", 1)
    monkeypatch.setattr(Calls, "complete", overtaken)
    assert set(kinds(sink.commit_marked(EPOCH, voted))) <= STANDS
    assert lake.lines() == ["0", "0", "1", "1"]


def test_a_file_name_that_no_key_can_be_is_refused(lake: Lake) -> None:
    schema = pa.schema({"value": pa.string(), "day": pa.string()})
    sink = lake.sink(partition_by=["day"], **TEXT)
    long = rows(("x", "y" * 1000), schema=schema)
    writer = sink.begin(long)
    with pytest.raises(Fatal, match="longer than the store accepts"):
        writer.write(long.to_batches()[0])
    writer.abort()


def test_an_attempt_that_is_dropped_leaves_nothing(lake: Lake) -> None:
    sink = lake.sink(target_file_size="1 B", **TEXT)
    writer = sink.begin(lines("a"))
    for line in "abc":
        writer.write(lines(line).to_batches()[0])
    writer.abort()
    assert (lake.is_clean(), lake.visible()) == (True, [])


def test_a_listing_that_is_empty_shows_no_empty_target(lake: Lake, proxy: S3Proxy) -> None:
    sink, voted = lake.two_files()
    sink.commit_marked(EPOCH, voted)
    assert len(snapshot(lake.url).files) == 2
    proxy.set(Cuts("list-type=2"))
    for listed in (snapshot, lambda path: lake.sink(endpoint_url=proxy.endpoint).listed()):
        with pytest.raises((OSError, Retryable), match="list_objects_v2 was cut without IsTruncated and Name"):
            listed(ObjectPath.of(lake.url, endpoint_url=proxy.endpoint))


def test_a_part_of_a_participant_that_is_lost_takes_the_rest_with_it(lake: Lake) -> None:
    sink, voted = lake.two_files()
    first = VotedFiles.load(voted[0]).files[0]
    lake.store.abort(lake.store.key(first.final), first.temp)
    assert kinds(sink.commit_marked(EPOCH, voted)) == [Lost]
    assert (lake.visible(), lake.is_clean()) == ([], True)


def test_without_a_mark_that_the_journal_knows_nothing_is_lost(lake: Lake) -> None:
    sink, voted = lake.two_files()
    lake.remove_uploads(*voted)
    assert kinds(sink.commit(EPOCH, voted)) == [Unknown]


def test_a_final_file_that_a_reader_moved_away_was_committed(lake: Lake) -> None:
    sink, voted = lake.two_files()
    sink.commit_marked(EPOCH, voted)
    lake.store.delete([lake.store.key(name) for name in lake.visible()])
    assert kinds(sink.commit_marked(EPOCH, voted)) == [AlreadyCommitted]
    assert lake.visible() == []


def test_an_abort_that_was_done_and_whose_answer_was_lost(lake: Lake, proxy: S3Proxy) -> None:
    sink, _ = lake.two_files(endpoint_url=proxy.endpoint)
    cut = proxy.set(Trap(ABORT))
    swept(sink)
    assert (cut.sprung.is_set(), lake.is_clean()) == (True, True)
