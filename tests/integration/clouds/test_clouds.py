"""Files and journals on Azure and Google Cloud Storage: nothing shows before the commit, whatever is answered to it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Barrier

import pytest

from exactsink.contract import AlreadyCommitted, Committed, Committer, Fatal, Lost, Retryable, Unknown
from exactsink.protocol.journal.stores import SeqTaken
from exactsink.protocol.journal.stores.objects import ObjectStore
from exactsink.toolkit.storage import ObjectPath, store_findings
from exactsink.toolkit.storage.object_file import ObjectFile
from exactsink_files import upload_files
from exactsink_files.marks import MarkFolder
from exactsink_files.snapshots import snapshot
from exactsink_files.stores import Store
from exactsink_files.uploads import identity
from exactsink_files.votes import VotedFiles
from tests.integration.clouds.cloud import Cloud, Counted, Gives, buckets, everywhere
from tests.servers.s3_rules import Answer, SlowDown, Trap
from tests.unit.files_sink import DAYS, EPOCH, LINES, STANDS, TEXT, kinds, lines, rows, swept
from tests.unit.journals import DRIVER, QUERY, Driver, decided
from tests.unit.upsert_sink import upsert


@everywhere
def test_nothing_shows_before_the_commit_and_all_of_it_after(cloud: Cloud) -> None:
    sink, voted = cloud.two_files(participants=2)
    assert cloud.visible() == []
    assert sorted(participant.ref for participant in sink.listed()) == [sink.id(0), sink.id(1)]
    assert kinds(sink.commit_marked(EPOCH, voted)) == [Committed, Committed]
    assert (len(cloud.visible()), cloud.lines(), cloud.left()) == (4, ["0", "0", "1", "1"], [])
    assert kinds(sink.commit_marked(EPOCH, voted)) == [AlreadyCommitted, AlreadyCommitted]
    assert (sink.listed(), len(snapshot(cloud.url).files)) == ([], 4)
    given = {"AZURE_STORAGE_CONNECTION_STRING": "AccountKey=none", "AWS_SECRET_ACCESS_KEY": "none"}
    given |= cloud.direct.environment
    for secret in (given["AZURE_STORAGE_CONNECTION_STRING"].partition("Key=")[2], given["AWS_SECRET_ACCESS_KEY"]):
        assert secret.partition(";")[0] not in "".join(vote.payload.decode() for vote in voted)


ANSWERS = {f"{status} in a row": partial(SlowDown, times=4, status=status) for status in (429, 503)}
ANSWERS |= {f"lost, {nth}, {done=}": partial(Trap, nth=nth, done=done) for nth in (1, 2) for done in (True, False)}


@pytest.mark.parametrize("what", ["complete", "part"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_call_is_settled_whatever_its_answer(cloud: Cloud, what: str, answer: str) -> None:
    rule = cloud.set(ANSWERS[answer](getattr(cloud.kind, what)))
    sink, voted = cloud.two_files()
    assert kinds(sink.commit_marked(EPOCH, voted))[0] in STANDS
    assert rule.sprung.is_set()
    assert (cloud.lines(), cloud.left()) == (["0", "0"], [])


def test_a_sweep_takes_what_is_undecided_and_nobody_elses(cloud: Cloud) -> None:
    others = [cloud.sink("other", **TEXT), cloud.sink("job", "other", **TEXT), cloud.sink("job-sink", **TEXT)]
    kept = [sink.vote(lines("a")) for sink in others]
    sink, voted = cloud.two_files(participants=2)
    assert kinds(sink.end(voted[0])) == [Committed]
    swept(sink)
    swept(sink)
    assert (sink.listed(), len(cloud.visible())) == ([], 2)
    assert kinds(sink.commit(EPOCH, voted[1:])) == [Unknown]  # a zombie's: its uploads can't be completed any more
    assert len(cloud.visible()) == 2
    for other, vote in zip(others, kept, strict=True):
        assert [participant.ref for participant in other.listed()] == [other.id()]
        assert kinds(other.end(*vote)) == [Committed]


def test_a_sweep_that_dies_inside_is_ended_by_the_next_and_never_takes_a_file(cloud: Cloud) -> None:
    sink, _ = cloud.two_files(participants=2)
    cloud.set(SlowDown("^DELETE", 10**6))
    with pytest.raises(Retryable):
        swept(sink)
    cloud.ends_faults()
    swept(sink)
    assert (cloud.visible(), cloud.left(), sink.listed()) == ([], [], [])
    [late] = sink.vote(rows(("b", 1), schema=DAYS))
    assert kinds(sink.end(late)) == [Committed]
    cloud.remove_uploads(late)
    assert cloud.lines() == ["b"]


def test_a_writer_that_was_swept_can_not_vote_rows_that_are_gone(cloud: Cloud) -> None:
    sink = cloud.sink(**TEXT)
    sink.put_birth()
    writer = sink.begin(lines("a"))
    writer.write(lines("a").to_batches()[0])
    with suppress(Retryable):
        vote = writer.pre_commit()
        swept(sink)
        assert kinds(sink.commit_marked(EPOCH, [vote])) == [Lost]
    writer.abort()
    assert (cloud.visible(), cloud.left()) == ([], [])


def test_what_is_gone_is_lost_before_its_commit_and_unknown_after(cloud: Cloud) -> None:
    sink, voted = cloud.two_files(participants=2)
    cloud.remove_uploads(voted[1])
    assert kinds(sink.commit_marked(EPOCH, voted)) == [Committed, Lost]
    [late] = sink.prepare(EPOCH + 1, [rows(("x", 1), schema=DAYS)])
    cloud.set(SlowDown(cloud.kind.complete, 10**6))
    with pytest.raises(Retryable):
        sink.commit_marked(EPOCH + 1, [late])
    cloud.ends_faults()
    cloud.remove_uploads(late)
    assert kinds(sink.commit_marked(EPOCH + 1, [late])) == [Unknown]


def test_a_loss_stays_a_loss_if_its_driver_dies_while_it_removes_the_rest(cloud: Cloud) -> None:
    """Azure drops blocks by an empty blob, which then has the file's name."""
    sink, voted = cloud.two_files()
    cloud.remove_uploads(*voted)
    cloud.set(SlowDown("^DELETE", 10**6))
    with suppress(Retryable):  # Google's store has nothing to remove
        sink.commit_marked(EPOCH, voted)
    cloud.ends_faults()
    assert (kinds(sink.commit_marked(EPOCH, voted)), cloud.visible(), cloud.left()) == ([Lost], [], [])


@pytest.mark.parametrize("emulator", ["gcs"], indirect=True)
@pytest.mark.parametrize("fault", ["dies", "repeat", "replaced"])
def test_parts_go_one_by_one_and_no_part_that_comes_late_is_composed(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A driver dies while it removes them, and another participant is lost; a part is sent again, or replaced."""
    monkeypatch.setattr(upload_files, "_PART_BYTES", 4)
    sink = cloud.sink(**TEXT)
    sink.put_birth()
    voted = sink.vote(lines(*"abcdef"), lines("g"))
    cloud.remove_uploads(voted[1])
    [upload] = [file.temp for file in VotedFiles.load(voted[0]).files]
    if fault == "repeat":
        cloud.store.put_part("", upload, 99, b"late")
    else:
        part = cloud.aside / f"_exactsink/{upload}.00001"
        replaced = Trap(cloud.kind.complete, before=lambda: part.replace(b"A\nB\n"))
        cloud.set(replaced if fault == "replaced" else SlowDown("^DELETE .*parts.*0000[^1]", 10**6))
        with pytest.raises(Retryable):
            sink.commit_marked(EPOCH, voted)
        cloud.ends_faults()
    ends = {"dies": AlreadyCommitted, "repeat": Committed, "replaced": Unknown}
    assert kinds(sink.commit_marked(EPOCH, voted)) == [ends[fault], Lost]
    assert cloud.lines() == (list("abcdef") if fault != "replaced" else [])


@pytest.mark.parametrize("fault", ["away", "refused"])
def test_what_a_store_is_not_there_for_is_committed_once_when_it_is_back(cloud: Cloud, fault: str) -> None:
    """Killed, or with credentials that ended, between the vote and the commit."""
    sink, voted = cloud.two_files(participants=2)
    cloud.set(Gives(None)) if fault == "away" else cloud.end_credentials()
    with pytest.raises(Retryable if fault == "away" else Fatal, match="can't be written") as failed:
        sink.commit_marked(EPOCH, voted)
    said = "start the job again, nothing is lost" if fault == "away" else "right"
    assert (said in str(failed.value.next), cloud.visible()) == (True, [])
    cloud.ends_faults()
    assert kinds(sink.commit_marked(EPOCH, voted)) == [Committed, Committed]
    assert (kinds(sink.commit_marked(EPOCH, voted)), cloud.lines()) == ([AlreadyCommitted] * 2, ["0", "0", "1", "1"])


@pytest.mark.parametrize("call", ["part", "create"])
def test_credentials_that_end_before_a_decision_are_named_and_nothing_is_lost(cloud: Cloud, call: str) -> None:
    """They end while a task sends rows, or as the decision's entry is created."""
    sink, journal = cloud.sink(**TEXT), Driver(cloud.entries)
    sink.put_birth()
    journal.claim(QUERY, DRIVER)
    cloud.end_credentials(getattr(cloud.kind, call))
    why = "AuthenticationFailed|ExpiredToken|Anonymous credentials|HTTP 401"
    with pytest.raises(
        Fatal, match=rf"(?s) \S+{cloud.url.partition(':')[2]}.*({why}).*\n  next: .*(right|credentials)"
    ):
        sink.vote(lines("a")) if call == "part" else journal.decide(decided(0))
    cloud.ends_faults()
    swept(sink)
    assert (cloud.left(), Driver(cloud.entries).claim(QUERY, "host:2").generation) == ([], 2)
    assert (kinds(sink.end(*sink.vote(lines("a")))), cloud.lines()) == ([Committed], ["a"])


@pytest.mark.parametrize("emulator", ["azure", "gcs", "s3"], indirect=True)
def test_a_file_that_goes_before_its_epoch_is_done_comes_again_on_googles_store_only(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, voted = cloud.two_files()
    with monkeypatch.context() as dies, pytest.raises(AttributeError):
        dies.delattr(MarkFolder, "finish")
        sink.commit_marked(EPOCH, voted)
    (cloud.aside / cloud.visible()[0]).unlink()
    found = kinds(sink.commit_marked(EPOCH, voted)), len(cloud.visible())
    assert found == (([Committed], 2) if cloud.kind.scheme == "gs" else ([Unknown], 1))


@pytest.mark.parametrize("emulator", ["azure", "gcs", "s3"], indirect=True)
@pytest.mark.parametrize("upload", ["stands", "is gone"])
@pytest.mark.parametrize("ours", [True, False])
def test_a_foreign_object_is_not_overwritten(cloud: Cloud, upload: str, ours: bool) -> None:
    """versitygw completes an unknown upload with success wherever any object has the name."""
    sink, voted = cloud.two_files()
    file = VotedFiles.load(voted[0]).files[0]
    store, key = cloud.store, cloud.store.key(file.final)
    if upload == "is gone":
        store.abort(key, file.temp)
    if ours:  # of another file of this participant, as its metadata says
        metadata = identity(voted[0].txn.id, "another")
        upload = store.create(key, identity("elsewhere", "another"))
        store.complete(key, upload, [store.put_part(key, upload, 1, b"x" * file.size)], metadata)
    else:
        store.put(key, b"x" * file.size)
    for call in (sink.assess, sink.commit_marked):
        with pytest.raises(Fatal, match="is not the file that was voted for"):
            call(EPOCH, voted)
    assert store.get(key) == b"x" * file.size


@buckets
def test_of_sixteen_completes_of_one_name_one_wins(cloud: Cloud) -> None:
    barrier = Barrier(16)

    def complete(number: int) -> int | None:
        store: Store = cloud.store
        key, metadata = store.key("raced.parquet"), identity(f"txn-{number}", "raced")
        upload = store.create(key, metadata)
        part = store.put_part(key, upload, 1, b"%02d" % number)
        barrier.wait()
        try:
            store.complete(key, upload, [part], metadata)
        except OSError as error:
            return None if store.proves(error) == "condition" else -1
        return number

    with ThreadPoolExecutor(16) as pool:
        [won] = [number for number in pool.map(complete, range(16)) if number is not None]
    assert cloud.store.get(cloud.store.key("raced.parquet")) == b"%02d" % won


def test_two_committers_at_once(cloud: Cloud) -> None:
    sink, voted = cloud.two_files(participants=4)
    together = Barrier(2)

    def commit(_: int) -> list[object]:
        together.wait()
        return sink.commit_marked(EPOCH, voted)

    with ThreadPoolExecutor(2) as pool:
        assert {kind for ended in pool.map(commit, range(2)) for kind in kinds(ended)} <= STANDS
    assert (len(cloud.lines()), cloud.left()) == (8, [])


@buckets
def test_a_file_of_many_parts_keeps_its_bytes(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_files, "_PART_BYTES", 1 << 10)
    text = [f"{n:05}" + "x" * 200 for n in range(200)]
    sink = cloud.sink(**TEXT)
    sink.put_birth()
    [voted] = sink.vote(rows(*[(line,) for line in text], schema=LINES, size=3))
    assert kinds(sink.end(voted)) == [Committed]
    assert (cloud.lines(), cloud.left()) == (text, [])


@everywhere
def test_an_epoch_of_four_files_takes_so_many_requests(cloud: Cloud) -> None:
    sink, parts = cloud.sink(partition_by=["day"], **TEXT), [rows((f"{n}", 1), (f"{n}", 2), schema=DAYS) for n in "ab"]
    assert sink.check(DAYS) == []
    sent = cloud.set(Counted()).sent

    def run(committer: Committer, epoch: int) -> tuple[int, int]:
        """Make a driver's calls in an epoch, and its tasks'; return the requests of tasks and driver."""
        sent.clear()
        if committer.mark() is None:
            committer.put_birth()
        ticket = committer.open_epoch(epoch, DAYS, None)
        opened = len(sent)
        voted = [sink.write(epoch, number, ticket, part) for number, part in enumerate(parts)]
        tasks = len(sent) - opened
        committer.mark()
        assert kinds(committer.commit(epoch, voted)) == [Committed, Committed]
        assert list(committer.in_doubt()) == []
        committer.trim_marks()
        return tasks, len(sent) - tasks

    found = sink.with_committer(lambda committer: tuple(run(committer, EPOCH + n) for n in range(3)))
    assert found == (*REQUESTS[cloud.kind.scheme], REQUESTS[cloud.kind.scheme][1])


REQUESTS = {"az": ((12, 31), (12, 19)), "gs": ((4, 32), (4, 18)), "s3": ((12, 29), (12, 16))}
REQUESTS |= {"webhdfs": ((8, 53), (8, 40))}
"""Of a job's first epoch, and of each later one. `webhdfs`: to the NameNode."""


def test_a_decision_and_two_staged_files_take_so_many_requests(cloud: Cloud, tmp_path: Path) -> None:
    journal, sink = Driver(cloud.entries), upsert(tmp_path)
    journal.claim(QUERY, DRIVER)
    sink = replace(sink, ctx=replace(sink.ctx, staging=f"{cloud.url}/staged"))
    assert sink.check() == []
    sent, found = cloud.set(Counted()).sent, list[int]()
    journal.decide(decided(0))
    found.append(len(sent))
    voted = sink.vote(1, [(1, "a")], [(2, "b")])
    found.append(len(sent))
    assert sink.commit(1, voted) == [Committed()] * 2
    assert [*found, len(sent)] == {"s3": [1, 3, 14], "webhdfs": [3, 9, 21]}.get(cloud.kind.scheme, [1, 3, 15])


@pytest.mark.parametrize("fault", ["lost", "undone", "slow"])
def test_a_decision_is_settled_whatever_its_put_answers(cloud: Cloud, fault: str) -> None:
    journal = Driver(cloud.entries)
    journal.claim(QUERY, DRIVER)
    cloud.set(SlowDown(cloud.kind.create, 3) if fault == "slow" else Trap(cloud.kind.create, done=fault == "lost"))
    journal.decide(decided(0))
    slow, store = cloud.set(SlowDown(cloud.kind.listing, 2)), cloud.entries
    assert (store.list(), slow.sprung.is_set(), Driver(store).read().next_epoch) == ([0, 1], True, 1)


def test_of_sixteen_writers_of_an_entry_one_wins_and_staged_rows_are_whole(cloud: Cloud) -> None:
    barrier, place = Barrier(16), ObjectPath.of(f"{cloud.url}/jobs", skip_instance_cache=True)
    assert list(store_findings(place, "the journal", "a way out", large=True)) == []

    def write(number: int) -> int | None:
        store = ObjectStore(ObjectPath.of(place.url))
        barrier.wait()
        with suppress(SeqTaken):
            store.put(7, b"%d" % number)
            return number
        return None

    with ThreadPoolExecutor(16) as threads:
        [won] = [number for number in threads.map(write, range(16)) if number is not None]
    assert ObjectStore(place).read(7) == b"%d" % won
    with ObjectFile(place / "rows.arrow") as staged:
        staged.write(b"x" * (17 << 20))
        assert not (place / "rows.arrow").exists()
        staged.seal()
    with (place / "rows.arrow").reading() as read:
        assert len(read.read()) == 17 << 20
    (place / "rows.arrow").unlink()
    ObjectStore(place).delete([7, 8])
    assert (place.names(), place.exists()) == ([], cloud.aside.renames)


UNPROVEN = {
    "a rename that is not done": ("op=RENAME", Answer(200, b""), "was not done"),
    "a server without options": ("op=RENAME", Answer(200, b'{"boolean": true}'), "not HttpFS"),
    "an empty file": ("op=OPEN", Answer(200, b""), "cut"),
    "half a listing": ("op=LISTSTATUS", Answer(200, b'{"FileStatuses": '), "cut"),
    "nobody's absence": ("op=GETFILESTATUS", Answer(404, b"<html>"), "HTTP 404"),
}


@pytest.mark.parametrize("emulator", ["hdfs"], indirect=True)
@pytest.mark.parametrize("answer", UNPROVEN)
def test_an_answer_that_proves_nothing_is_not_believed(cloud: Cloud, answer: str) -> None:
    pattern, given, said = UNPROVEN[answer]
    store = cloud.entries
    store.put(0, b"x")
    cloud.set(Gives(given, pattern))
    with pytest.raises((OSError, Retryable), match=said):
        store.list()
        store.read(0)
        store.put(1, b"y")
