"""The sink's mark on a real broker: each epoch's rows bring it, nothing puts it back, and what destroys it is seen."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import NewTopic
from kafka import TopicPartition
from kafka.structs import OffsetAndMetadata

from exactsink.contract import Committed, Fatal, InDoubtError, JobContext, LineageError, Mark, Retryable
from exactsink.protocol.commit import Retry
from exactsink.protocol.coordinator import Batch, Coordinator
from exactsink.protocol.events import Events
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.stores.local import LocalStore
from exactsink.protocol.participant import no_probe, write_partition
from exactsink.protocol.sinks import Sink
from exactsink.protocol.votes import EpochPlan, Vote
from exactsink.testing import Session
from exactsink.testing.driver_run import hashed
from exactsink.toolkit.waiting import backoff
from exactsink_kafka import transactions
from exactsink_kafka.backend import KafkaBackend
from exactsink_kafka.committer import KafkaCommitter
from exactsink_kafka.group import MarkKeeper, group_of, mark_offset
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.wire import Wire
from tests.servers.kafka_view import Kafka
from tests.servers.waiting import wait_until

pytest_plugins = ["tests.servers.fixtures"]

SCHEMA = pa.schema([("value", pa.binary())])
LINEAGE, TOKEN = "00aa11bb22cc", "0123456789ab"
BIRTH = Mark(LINEAGE)


class Site:
    """One job's sink `out`, with drivers of any claim."""

    def __init__(self, kafka: Kafka, **given: Any) -> None:
        self.kafka = kafka
        self.job = f"job-{uuid.uuid4().hex[:12]}"
        self.topic = kafka.new_topic("marked", 2)
        standard = {"bootstrap_servers": kafka.bootstrap, "topic": self.topic, "transaction_timeout_seconds": 60}
        self.options = KafkaOptions.model_validate({**standard, **given})

    def session(self, token: str = TOKEN, generation: int = 1, lineage: str = LINEAGE) -> Session:
        ctx = JobContext(self.job, "out", "", generation, lineage)
        return Session(KafkaBackend(self.options), ctx, token)

    def committer(self, **claim: Any) -> KafkaCommitter:
        return KafkaCommitter(self.options, self.session(**claim).ctx)

    def keeper(self, wire: Wire, **claim: Any) -> MarkKeeper:
        return MarkKeeper(self.options, self.session(**claim).ctx, wire)

    def wire(self) -> Any:
        return closing(Wire(self.options, f"test {uuid.uuid4().hex}"))

    def born(self, lineage: str = LINEAGE) -> Mark:
        with closing(self.committer(lineage=lineage)) as committer:
            return committer.put_birth()

    def mark(self) -> Mark | None:
        with closing(self.committer()) as committer:
            return committer.mark()

    def stored(self) -> tuple[int, dict[str, Any]]:
        """Read all of the group's offsets as tools do: one number, and the text beside it."""
        group = group_of(self.job, "out")
        with self.wire() as wire:  # confluent-kafka reads past the end of such a text, now and then
            [(place, found)] = wire.admin.list_group_offsets(group)[group].items()
        assert place == TopicPartition(self.options.marked_topic, 0)
        return found.offset, json.loads(found.metadata)

    def forget(self) -> None:
        """Delete the group with its offsets, as an administrator does."""
        client, group = self.kafka.admin(), group_of(self.job, "out")
        client.delete_consumer_groups([group])[group].result(30)

    def made_again(self) -> None:
        """Delete the topic and make it again."""
        self.kafka.delete_topic(self.topic)
        client = self.kafka.admin()
        client.create_topics([NewTopic(self.topic, 2, 1)])[self.topic].result(30)
        with self.wire() as wire:
            wait_until(lambda: self.topic in wire.topics([self.topic]), "the topic to be there")
        wait_until(lambda: self.mark() is None, "the group's offsets to be gone")

    def values(self) -> list[bytes]:
        return sorted(row.value or b"" for row in self.kafka.rows(self.topic))


def rows(*values: str) -> pa.Table:
    return pa.table({"value": pa.array([value.encode() for value in values])}, SCHEMA)


@pytest.fixture
def site(kafka: Kafka) -> Site:
    return Site(kafka)


# What stands in the group


@pytest.mark.parametrize("writer", ["plain", "fast"])
def test_each_epoch_brings_its_mark_with_its_rows(kafka: Kafka, writer: str) -> None:
    site = Site(kafka, writer=writer)
    assert site.mark() is None
    assert site.born() == BIRTH == site.mark()
    session = site.session()
    for epoch in (0, 1):
        votes = session.prepare(epoch, [rows(f"{epoch}a"), rows(f"{epoch}b", f"{epoch}c")])
        assert site.mark() == (Mark(LINEAGE, 0, frozenset([TOKEN])) if epoch else BIRTH), "prepared, and not committed"
        assert [transactions.Vote.load(vote).marked for vote in votes] == [("__consumer_offsets", 0)] * 2
        assert session.commit(epoch, votes) == [Committed()] * 2
        assert site.mark() == Mark(LINEAGE, epoch, frozenset([TOKEN]))
    assert site.stored() == (1, {"exactsink": 1, "lineage": LINEAGE, "epoch": 1, "tokens": [TOKEN]})
    assert site.born() == Mark(LINEAGE, 1, frozenset([TOKEN])), "a mark is no birth's business"
    assert site.values() == [b"0a", b"0b", b"0c", b"1a", b"1b", b"1c"]


def test_what_is_aborted_leaves_the_old_mark_and_what_stays_open_hinders_no_reader_of_it(site: Site) -> None:
    site.born()
    first, orphan = site.session(), site.session("aaaaaaaaaaaa")
    first.commit(0, first.prepare(0, [rows("kept")]))
    [lost] = orphan.prepare(1, [rows("orphan")])
    kept = Mark(LINEAGE, 0, frozenset([TOKEN]))
    assert site.mark() == kept, "while it is open"
    orphan.abort(*orphan.listed())
    assert orphan.listed() == []
    assert site.mark() == kept
    assert orphan.commit(1, [lost]) != [Committed()]
    assert (site.mark(), site.values()) == (kept, [b"kept"])


def test_rows_that_name_their_topics_have_a_mark_where_one_is_named_and_none_without(kafka: Kafka) -> None:
    marked = kafka.new_topic("keeps-marks", 1)
    schema = pa.schema([("topic", pa.string()), ("value", pa.binary())])
    for mark_topic in (marked, None):
        site = Site(kafka, topic=None, mark_topic=mark_topic)
        session = site.session()
        assert session.backend.traits.marks is (mark_topic is not None)
        if mark_topic is not None:
            site.born()
        ticket = session.open(0, schema)
        vote = session.write(0, 0, ticket, pa.table({"topic": [site.topic], "value": [b"row"]}, schema))
        assert (transactions.Vote.load(vote).marked is None) is (mark_topic is None)
        assert session.commit(0, [vote]) == [Committed()]
        assert site.values() == [b"row"]
        if mark_topic is not None:
            assert site.mark() == Mark(LINEAGE, 0, frozenset([TOKEN]))
            assert [one.topic for one in kafka.rows(marked)] == []


def test_a_vote_of_the_release_before_is_committed_and_the_mark_stays(site: Site) -> None:
    site.born()
    before = Session(KafkaBackend(site.options), replace(site.session().ctx, lineage=""), TOKEN)
    votes = before.prepare(0, [rows("old")])
    old = json.loads(votes[0].payload)
    assert old.pop("marked") is None
    votes = [replace(votes[0], payload=json.dumps(old).encode())]
    assert site.session().commit(0, votes) == [Committed()]
    assert (site.mark(), site.values()) == (BIRTH, [b"old"])


def test_what_is_no_mark_of_ours_is_none_and_a_later_release_s_is_refused(site: Site) -> None:
    """Somebody resets the group's offsets, say."""
    later = '{"exactsink": 2, "lineage": "a", "epoch": null, "tokens": []}'
    with site.wire() as wire:

        def commit(text: str) -> None:
            offset = OffsetAndMetadata(7, text, None)
            wire.admin.alter_group_offsets(group_of(site.job, "out"), {TopicPartition(site.topic, 0): offset})

        site.born()
        for text in ("", "no json", "7", "[]", '{"lineage": "a"}', '{"exactsink": 1, "lineage": "a", "epoch": 7}'):
            commit(text)
            assert site.mark() is None, text
        commit(later.replace("2", "1"))
        assert site.mark() == Mark("a")
        commit(later)
        with pytest.raises(Fatal, match="keeps a mark of version 2"):
            site.mark()


# Birth and renewal


def test_of_two_journals_that_bind_one_sink_the_second_finds_the_first(site: Site) -> None:
    assert site.born("ffff") == Mark("ffff")
    assert site.born() == Mark("ffff") == site.mark()


def test_an_older_driver_s_renewal_is_fenced_and_never_puts_the_mark_back(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stalls right after it has read the mark; meanwhile a newer driver renews, and commits an epoch."""
    site.born()
    newer = site.session("bbbbbbbbbbbb", 2)
    now = Mark(LINEAGE, 0, frozenset(["bbbbbbbbbbbb"]))
    with site.wire() as wire:
        older = site.keeper(wire)
        _stall_once(wire, monkeypatch, "write_offset", lambda: newer.commit(0, newer.prepare(0, [rows("newer")])))
        assert older._write_again(birth=False) is None
        assert site.mark() == now
        older.renew()
        assert site.mark() == now


@pytest.mark.parametrize("at", ["write_offset", "ongoing"])
@pytest.mark.parametrize("committed", [True, False])
def test_a_renewal_that_is_late_but_not_fenced_gives_way_to_an_epoch(
    site: Site, monkeypatch: pytest.MonkeyPatch, at: str, committed: bool
) -> None:
    """The newer driver has renewed before: between the older one's look and its write it only commits an epoch."""
    site.born()
    newer = site.session("bbbbbbbbbbbb", 2)
    ticket = newer.open(0, SCHEMA)
    votes = []

    def epoch() -> None:
        votes.append(newer.write(0, 0, ticket, rows("newer")))
        if committed:
            assert newer.commit(0, votes) == [Committed()]

    with site.wire() as wire:
        _stall_once(wire, monkeypatch, at, epoch)
        assert site.keeper(wire)._write_again(birth=False) is None
    if not committed:
        assert newer.commit(0, votes) == [Committed()]
    assert site.mark() == Mark(LINEAGE, 0, frozenset(["bbbbbbbbbbbb"]))


def test_the_mark_is_renewed_once_under_a_claim_and_after_a_day_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.born()
    taken: list[str] = []
    with closing(site.committer()) as committer:
        take, now = committer._wire.take, 1000.0
        monkeypatch.setattr("exactsink_kafka.group.time.monotonic", lambda: now)
        monkeypatch.setattr(committer._wire, "take", lambda name: taken.append(name) or take(name))
        for epoch, later in enumerate((0, 60, 86_000, 500)):
            now += later
            committer.open_epoch(epoch, SCHEMA, 1)
    assert taken == [f"{site.job}.out.mark"] * 2
    assert site.mark() == BIRTH


def test_a_sink_that_no_journal_has_bound_is_not_marked_by_a_renewal(site: Site) -> None:
    with closing(site.committer()) as committer:
        committer.open_epoch(0, SCHEMA, 1)
        assert committer.mark() is None


def test_a_commit_through_other_connections_than_the_mark_was_read_through_waits_for_another_look(site: Site) -> None:
    site.born()
    votes = site.session().prepare(0, [rows("once")])
    with closing(site.committer()) as committer:
        assert committer.mark() == BIRTH
        committer._wire.close()
        with pytest.raises(Retryable, match="the connection to the brokers was lost"):
            committer.commit(0, votes)
        assert site.values() == []
        assert committer.mark() == BIRTH
        assert committer.commit(0, votes) == [Committed()]


def test_the_end_of_a_mark_that_got_lost_is_written_as_that_of_rows_is(site: Site) -> None:
    """What a coordinator owes after a crash; here the marker is written before the coordinator ends the rest."""
    site.born()
    session = site.session()
    [vote] = session.prepare(0, [rows("row")])
    payload = transactions.Vote.load(vote)
    assert payload.marked is not None
    with site.wire() as wire:
        [open_there] = [
            one
            for one in wire.open_in([payload.marked])[payload.marked]
            if (one.id, one.epoch) == (payload.transaction.producer_id, payload.transaction.producer_epoch)
        ]
        assert wire.mark(payload.transaction, payload.marked, open_there.coordinator_epoch, commit=True) == 0
        assert site.mark() == Mark(LINEAGE, 0, frozenset([TOKEN]))
    assert session.commit(0, [vote]) == [Committed()]


def _stall_once(wire: Wire, monkeypatch: pytest.MonkeyPatch, at: str, meanwhile: Callable[[], object]) -> None:
    """Do something before the next call of a method, once."""
    call, done = getattr(wire, at), []

    def stalled(*arguments: Any) -> Any:
        if not done:
            done.append(True)
            meanwhile()
        return call(*arguments)

    monkeypatch.setattr(wire, at, stalled)


# Journal and target that don't belong together


class Driver:
    """A job without Spark: the real coordinator, one participant an epoch, and its journal in a folder."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site = site
        self.folder = folder

    def run(self, *epochs: int) -> None:
        """Claim, and run these epochs, each with one row of its number; close whatever comes."""
        backend = KafkaBackend(self.site.options)
        sinks = {"out": Sink("out", "kafka", backend, "", max_participants=2)}
        coordinator = Coordinator(
            self.site.job,
            sinks,
            Journal(LocalStore(self.folder), wait=backoff),
            Events(self.site.job, []),
            driver="test",
            retry=Retry(3, lambda attempt: None),
            save_state=lambda state: None,
        )
        with closing(coordinator):
            coordinator.start("query", lambda epoch: True)
            for epoch in epochs:
                previous = f"batch {epoch - 1}" if epoch else ""
                write = self._writing(backend, epoch)
                coordinator.run_epoch(Batch(epoch, f"batch {epoch}", {"out": SCHEMA}, write, previous=previous))

    def _writing(self, backend: KafkaBackend, epoch: int) -> Callable[[EpochPlan], Sequence[Vote]]:
        def write(plan: EpochPlan) -> Sequence[Vote]:
            batches = [{"out": (batch, hashed(batch))} for batch in rows(f"{epoch}").to_batches()]
            return list(write_partition(plan, {"out": backend}, 0, epoch, batches, no_probe))

        return write


@pytest.fixture
def driver(site: Site, tmp_path: Path) -> Driver:
    return Driver(site, tmp_path / "journal")


def test_epochs_and_restarts_agree_with_the_mark(driver: Driver) -> None:
    driver.run(0, 1)
    driver.run(2)
    driver.run()
    assert driver.site.values() == [b"0", b"1", b"2"]
    found = driver.site.mark()
    assert found is not None
    assert found.epoch == 2


def test_a_mark_that_was_deleted_stops_the_job_in_doubt(driver: Driver) -> None:
    driver.run(0, 1)
    driver.site.forget()
    assert driver.site.mark() is None
    with pytest.raises(InDoubtError, match="its target holds no mark, the journal expects epoch 1") as stopped:
        driver.run(2)
    assert stopped.value.exit_code == 3
    assert driver.site.values() == [b"0", b"1"]


def test_a_journal_that_went_back_stops_the_job_and_no_row_comes_twice(driver: Driver, tmp_path: Path) -> None:
    driver.run(0)
    shutil.copytree(driver.folder, tmp_path / "copy")
    driver.run(1, 2)
    shutil.rmtree(driver.folder)
    shutil.copytree(tmp_path / "copy", driver.folder)
    with pytest.raises(LineageError, match=r"its target holds epoch 2 .*, the journal expects epoch 0") as stopped:
        driver.run(1)
    assert stopped.value.exit_code == 5
    assert driver.site.values() == [b"0", b"1", b"2"]


def test_another_journal_s_sink_is_not_written_to(driver: Driver, tmp_path: Path) -> None:
    driver.run(0)
    with pytest.raises(LineageError, match="its target holds epoch 0"):
        Driver(driver.site, tmp_path / "another").run(0)
    assert driver.site.values() == [b"0"]


def test_a_topic_that_is_made_again_under_a_running_query_stops_it_at_the_next_epoch(driver: Driver) -> None:
    site = driver.site

    class Again(Driver):
        """The topic is deleted and made again while the second epoch's coordinator stands."""

        def _writing(self, backend: KafkaBackend, epoch: int) -> Callable[[EpochPlan], Sequence[Vote]]:
            if epoch == 1:
                site.made_again()
            return super()._writing(backend, epoch)

    with pytest.raises(InDoubtError, match="its target holds no mark, the journal expects epoch 0") as stopped:
        Again(site, driver.folder).run(0, 1)
    assert "put back or replaced" in stopped.value.why
    assert site.values() == []


# What preflight says


def test_what_keeps_a_mark_from_being_kept_is_found_before_the_first_row(kafka: Kafka) -> None:
    def found(site: Site) -> list[tuple[str, str]]:
        with site.wire() as wire:
            return [(finding.severity, finding.message) for finding in site.keeper(wire).findings()]

    assert found(Site(kafka)) == []
    [(severity, message)] = found(Site(kafka, topic=None))
    assert (severity, "keeps no mark" in message) == ("warning", True)
    [(severity, message)] = found(Site(kafka, mark_topic="no-such-topic"))
    assert (severity, "there is no topic no-such-topic" in message) == ("error", True)


def test_a_mark_is_written_as_one_offset_of_partition_0() -> None:
    offset = mark_offset("job", "out", "rows", Mark("ab", 7, frozenset(["cd"])))
    assert (offset.group, offset.topic, offset.partition, offset.offset) == ("exactsink.job.out", "rows", 0, 7)
    assert offset.text == '{"exactsink":1,"lineage":"ab","epoch":7,"tokens":["cd"]}'
