"""A journal on S3: each entry once, whoever writes and whatever answers are lost; and what it costs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from exactsink.contract import Fatal, Fenced, Retryable
from exactsink.observe.state import Heartbeat, StateFile
from exactsink.protocol.coordinator import State
from exactsink.protocol.journal.records import sealed
from exactsink.protocol.journal.stores import SeqTaken
from exactsink.protocol.journal.stores.objects import ObjectStore
from exactsink.toolkit.storage import ObjectPath, store_findings
from tests.integration.s3.calls import Calls
from tests.servers.s3 import S3, own_s3
from tests.unit.journals import DRIVER, QUERY, Driver, a_claim, decided


def test_entries_lie_in_blocks_and_each_is_written_once(place: ObjectPath) -> None:
    store = ObjectStore(place, block_entries=3)
    assert (store.newest(), store.list(), store.read(0), store.sizes([0])) == (-1, [], None, {})
    (place / "notes.json").replace(b"somebody's")
    for seq in (0, 2, 3, 5, 6, 12):
        store.put(seq, b"x" * (seq + 1))
    with pytest.raises(SeqTaken):
        store.put(5, b"other")
    assert (store.newest(), sorted(store.list()), store.read(5)) == (12, [0, 2, 3, 5, 6, 12], b"x" * 6)
    assert store.sizes([5, 6, 7]) == {5: 6, 6: 7}
    store.delete([12, 0, 5, 1])
    store.delete([])
    assert (store.newest(), sorted(store.list())) == (6, [2, 3, 6])
    assert sorted(place.names()) == [f"{2:020d}.json", f"{1:017d}", f"{2:017d}", "notes.json"]


@pytest.mark.parametrize("fault", ["lost", "empty", "conflict", "slow", "down"])
def test_a_decision_is_settled_whatever_its_put_answers(place: ObjectPath, calls: Calls, fault: str) -> None:
    journal = Driver(ObjectStore(place))
    journal.claim(QUERY, DRIVER)
    if fault == "lost":
        calls.lose_answer("PutObject")
    elif fault == "empty":
        calls.answer("PutObject", {})
    else:
        answers = {"conflict": (409, "ConditionalRequestConflict"), "slow": (503, "SlowDown"), "down": (500, "Oops")}
        calls.refuse("PutObject", *answers[fault], times=3)
    journal.decide(decided(0))
    read = Driver(ObjectStore(place)).read()
    assert (read.next_epoch, read.last_sum) == (1, journal.log.last_sum)


def test_an_epoch_takes_three_requests_at_most(place: ObjectPath, calls: Calls) -> None:
    """A decision and the state, each by one; trims, each by three, come rarely."""
    journal, epochs = Driver(ObjectStore(place / "journal"), keep_epochs=60), 90
    journal.claim(QUERY, DRIVER)
    beat = Heartbeat(StateFile(place / "state.json"), seconds=3600)
    beat.write(State(None, 1, DRIVER, 1.0))
    calls.sent.clear()
    for epoch in range(epochs):
        journal.decide(decided(epoch))
        journal.trim()
        beat.write(State(epoch, 1, DRIVER, 1.0))
    assert len(calls.sent) <= 3 * epochs
    sent = Counter(calls.sent)
    assert sent.pop("PutObject") == 2 * epochs
    assert sent == {"ListObjectsV2": 2 * 15, "DeleteObjects": 5}
    beat.close()
    assert json.loads((place / "state.json").read_text())["complete_epoch"] == epochs - 1
    assert len(ObjectStore(place / "journal").list()) <= 60 + 6 + 1


@pytest.mark.parametrize("defect", ["none", "overwrites", "refuses", "lists late", "removes late", "no deletes"])
def test_the_place_is_tried_before_the_first_claim_and_nothing_is_left(
    place: ObjectPath, calls: Calls, monkeypatch: pytest.MonkeyPatch, defect: str
) -> None:
    if defect == "overwrites":
        calls.ignored = "IfNoneMatch"
    elif defect == "refuses":
        calls.refuse("PutObject", 412, "PreconditionFailed")
    elif defect == "lists late":
        monkeypatch.setattr(ObjectPath, "names", lambda path: [])
    elif defect == "removes late":
        calls.answer("DeleteObject", {})
    elif defect == "no deletes":
        calls.refuse("DeleteObject", 403, "AccessDenied")
    found = list(store_findings(place, "the journal", "a way out"))
    store = "use a store with {}, for example AWS S3, MinIO or versitygw; or a way out"
    conditions = store.format("conditional writes (If-None-Match)")
    late = store.format("listings that show each write at once")
    words = {"overwrites": f"only if it is absent {conditions}", "refuses": f"has that name {conditions}"}
    words |= {"lists late": f"just written {late}", "removes late": f"just removed {late}"}
    words["no deletes"] = "AccessDenied"
    if defect == "none":
        assert found == []
    else:
        assert [finding.severity for finding in found] == ["error"]
        assert words[defect] in f"{found[0].message} {found[0].fix}"
    assert len(place.listed()) == (defect in ("no deletes", "removes late"))


@pytest.mark.parametrize("wrong", ["bucket", "secret", "refused delete"])
def test_what_no_retry_helps_is_fatal_and_says_what_does(
    place: ObjectPath, calls: Calls, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """A bucket that is missing must never be taken for a journal without entries."""
    if wrong == "secret":
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    url = "s3://no-such-bucket-here/job" if wrong == "bucket" else place.url
    store = ObjectStore(ObjectPath.of(url, skip_instance_cache=True))
    if wrong == "refused delete":
        calls.answer("DeleteObjects", {"Errors": [{"Key": "1", "Code": "AccessDenied", "Message": "no"}]})
    every = [lambda: store.delete([1]), store.newest, store.list, lambda: store.read(0)]
    for call in every[:1] if wrong == "refused delete" else every:
        with pytest.raises(Fatal) as refused:
            call()
        assert ("make the bucket" if wrong == "bucket" else "give the process credentials") in refused.value.next


def test_a_server_that_is_down_for_a_while_is_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    with own_s3() as server:
        for name, value in {**server.environment, "AWS_MAX_ATTEMPTS": "1"}.items():
            monkeypatch.setenv(name, value)
        url = f"s3://{server.new_bucket('down')}/j"
        store = ObjectStore(ObjectPath.of(url, skip_instance_cache=True))
        store.put(0, sealed(replace(a_claim(), seq=0))[1])
        server.stop()
        with pytest.raises(Retryable, match="can't be read or written") as refused:
            store.newest()
        with pytest.raises(Retryable, match="the journal can't be written"):
            list(store_findings(ObjectPath.of(url, skip_instance_cache=True), "the journal", "a way out"))
        assert "AWS_ENDPOINT_URL" in refused.value.next
        server.start()
        assert store.newest() == 0


def test_an_empty_answer_to_a_listing_is_no_empty_journal(place: ObjectPath, calls: Calls) -> None:
    Driver(ObjectStore(place)).claim(QUERY, DRIVER)
    calls.answer("ListObjectsV2", {})
    with pytest.raises(Retryable, match="list_objects_v2 was cut"):
        Driver(ObjectStore(place)).read()


def test_a_driver_that_finds_a_claim_at_its_seq_is_fenced(place: ObjectPath, calls: Calls) -> None:
    old, new = (Driver(ObjectStore(place)) for _ in range(2))
    old.claim(QUERY, DRIVER)
    new.claim(QUERY, "host:2")
    calls.lose_answer("PutObject")
    with pytest.raises(Fenced):
        old.decide(decided(0))
    new.decide(decided(0, generation=2))
    again = Driver(ObjectStore(place))
    assert (again.claim(QUERY, "host:3").generation, again.log.next_epoch) == (3, 1)


def test_a_start_after_100000_epochs_takes_one_request_more_than_after_ten(place: ObjectPath, calls: Calls) -> None:
    def started() -> tuple[int, Counter[str]]:
        calls.sent.clear()
        read = Driver(ObjectStore(place)).read()
        return read.next_epoch, Counter(calls.sent)

    journal = Driver(ObjectStore(place))
    journal.claim(QUERY, DRIVER)
    for epoch in range(10):
        journal.decide(decided(epoch))
    epochs, ten = started()
    assert epochs == 10
    last = 100_000
    store, claim = ObjectStore(place), journal.log.anchors[-1]
    for seq in (last - 400, last - 200):
        store.put(seq, b"of an older epoch")
    prior = ""
    for seq in (last - 1, last):
        named: dict[str, Any] = {"names": (seq,), "before": claim.seq, "before_sum": claim.sha256, "prior_sum": prior}
        record, data = sealed(replace(decided(seq), seq=seq, **named))
        store.put(seq, data)
        prior = record.sha256
    epochs, many = started()
    assert epochs == last + 1
    assert many - ten == Counter({"ListObjectsV2": 1})
    assert not ten - many


def test_nothing_that_was_listed_is_kept(place: ObjectPath, s3: S3) -> None:
    one, other = (ObjectStore(ObjectPath.of(place.url)) for _ in range(2))
    for seq in range(3):
        assert one.newest() == seq - 1
        other.put(seq, b"x")
