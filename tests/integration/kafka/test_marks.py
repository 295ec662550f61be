"""The sink's mark on a real broker: each epoch's rows bring it, and nothing else does."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pytest
from kafka import TopicPartition
from kafka.structs import OffsetAndMetadata

from exactsink.contract import Committed, Fatal, LineageError, Mark, Retryable
from exactsink.testing import Session
from exactsink_kafka import transactions
from exactsink_kafka.backend import KafkaBackend
from exactsink_kafka.errors import NOT_MINE
from exactsink_kafka.group import group_of, mark_offset
from tests.integration.kafka.marked import BIRTH, LINEAGE, SCHEMA, TOKEN, Site, rows
from tests.servers.kafka_view import Kafka
from tests.servers.waiting import wait_until


@pytest.mark.parametrize("writer", ["plain", "fast"])
def test_each_epoch_brings_its_mark_with_its_rows(kafka: Kafka, writer: str) -> None:
    site = Site(kafka, writer=writer)
    assert site.mark() is None
    assert site.born() == BIRTH == site.mark()
    session = site.session()
    for epoch in (0, 1):
        votes = session.prepare(epoch, [rows(f"{epoch}a"), rows(f"{epoch}b", f"{epoch}c")])
        assert site.mark() == (Mark(LINEAGE, 0, frozenset([TOKEN])) if epoch else BIRTH), "prepared, and not committed"
        assert [transactions.Voted.load(vote).marked for vote in votes] == [("__consumer_offsets", 0)] * 2
        assert session.commit(epoch, votes) == [Committed()] * 2
        assert site.mark() == Mark(LINEAGE, epoch, frozenset([TOKEN]))
    assert site.stored() == (1, {"exactsink": 1, "lineage": LINEAGE, "epoch": 1, "tokens": [TOKEN]})
    assert site.born() == Mark(LINEAGE, 1, frozenset([TOKEN])), "a mark is no birth's business"
    assert site.values() == [b"0a", b"0b", b"0c", b"1a", b"1b", b"1c"]


def test_a_driver_that_has_seen_where_the_mark_goes_says_so_to_its_tasks(site: Site) -> None:
    """They describe their transaction while the mark is on its way into it."""
    site.born()
    session = site.session()
    with closing(site.committer()) as committer:
        for epoch, place in enumerate([None, ("__consumer_offsets", 0)]):
            ticket = committer.open_epoch(epoch, SCHEMA, 1)
            assert transactions.Ticket.load(ticket).marking.place == place
            vote = session.write(epoch, 0, ticket, rows("row"))
            assert transactions.Voted.load(vote).marked == ("__consumer_offsets", 0)
            assert committer.commit(epoch, [vote]) == [Committed()]
    assert site.mark() == Mark(LINEAGE, 1, frozenset([TOKEN]))


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


@pytest.mark.parametrize("joins", [False, True], ids=["transaction.version 1", "transaction.version 2"])
def test_an_attempt_whose_id_another_one_has_taken_writes_no_mark(site: Site, joins: bool) -> None:
    site.born()
    with site.wire() as wire:
        if joins and not wire.cluster().joins:
            pytest.skip("this cluster's transaction.version is below 2")
        older, newer = (wire.take(f"{site.job}.out.g1-{TOKEN}.s0") for _ in range(2))
        late, mine = (mark_offset(site.job, "out", site.topic, Mark(name, 0)) for name in ("late", LINEAGE))
        assert wire.write_offset(older, late, joins=joins) in NOT_MINE
        assert wire.write_offset(newer, mine, joins=joins, keeper=99) == 0, "no broker any more: another is found"
        assert wire.write_offset(older, late, joins=joins) in NOT_MINE
        assert wire.describe([newer.id])[newer.id].offsets == (("__consumer_offsets", 0),)
        assert wire.end([newer], commit=True) == [0]
        wait_until(lambda: site.mark() == Mark(LINEAGE, 0), "the mark to show")


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
        assert (transactions.Voted.load(vote).marked is None) is (mark_topic is None)
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
    payload = transactions.Voted.load(vote)
    assert payload.marked is not None
    with site.wire() as wire:
        open_there = wire.rows_of(payload.transaction, [payload.marked])[payload.marked]
        assert wire.mark(payload.transaction, payload.marked, open_there.coordinator_epoch, commit=True) == 0
        assert site.mark() == Mark(LINEAGE, 0, frozenset([TOKEN]))
    assert session.commit(0, [vote]) == [Committed()]


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


def test_one_name_is_one_job_s_on_a_cluster_whichever_topics_two_would_write_to(site: Site, kafka: Kafka) -> None:
    """Transactional ids and the group are by this name: two jobs of it would stop at each other's work by chance."""
    site.born()
    other = Site(kafka)
    other.job, mine = site.job, site.mark()
    with closing(other.committer(lineage="ffffffffffff")) as committer:
        warnings = [one for one in committer.check(SCHEMA, 1) if "another job named" in one.message]
        assert [(one.severity, site.topic in one.message) for one in warnings] == [("warning", True)]
        for start in (committer.mark, committer.put_birth):
            with pytest.raises(
                LineageError, match=f"another job named {site.job} .* for topic {site.topic}"
            ) as refused:
                start()
            assert warnings[0].fix == refused.value.next
    assert (site.mark(), other.mark()) == (mine, None), "the one that came first goes on; nothing was written"
    with closing(other.committer()) as committer:
        assert committer.put_birth() == BIRTH, "the same journal may move to another topic"
        assert not [one for one in committer.check(SCHEMA, 1) if "another job named" in one.message]
    group = group_of(site.job, "out")
    assert refused.value.next.endswith(f"--delete-offsets --group {group} --topic {site.topic}")
    with site.wire() as wire:
        for topic in (site.topic, other.topic):
            wire.admin.delete_group_offsets(group, [TopicPartition(topic, 0)])
    assert other.born("ffffffffffff") == Mark("ffffffffffff")
