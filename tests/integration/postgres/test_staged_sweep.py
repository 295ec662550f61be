"""What the staged strategy lists and drops: its own older attempts, also while they write, and nobody else's."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from exactsink.contract import Fatal, Retryable
from tests.integration.postgres.sinks import SCHEMA, Staged, new_sink

_TABLES = r"SELECT oid FROM pg_class WHERE relname LIKE 'exactsink\_rows\_%' AND relkind = 'r' "
_TABLES += "AND relnamespace = to_regnamespace(current_schema()) ORDER BY 1"


def others_of(sink: Staged) -> list[Staged]:
    return [replace(sink, job="orders2"), replace(sink, sink="out2"), replace(sink, job="o")]


def test_what_is_undecided_goes_with_its_table_and_its_session_and_no_one_elses(sink: Staged) -> None:
    theirs = [(foreign, foreign.vote(1, [(1, "x")])) for foreign in others_of(sink)]
    sink.run("CREATE TABLE exactsink_rows_mine (n int); COMMENT ON TABLE exactsink_rows_mine IS 'orders.out.g0-l1.e0'")
    ticket = sink.open(1)
    voted, writing = sink.txn(1, 0), sink.txn(1, 1)
    sink.task(ticket, voted, (1, "a")).pre_commit()
    writer = sink.task(ticket, writing, (2, "b"))
    assert sink.listed() == [voted.id, writing.id]
    for _ in range(2):
        sink.claim(2).abort(voted, writing)
        assert sink.listed() == []
        assert sink.staging_tables() == [
            "o.out.g1-l1.e1",
            "orders.out.g0-l1.e0",
            "orders.out2.g1-l1.e1",
            "orders2.out.g1-l1.e1",
        ]
    with pytest.raises(Retryable):
        writer.pre_commit()
    for foreign, votes in theirs:
        assert foreign.commit(1, votes) == ["Committed"]
    with pytest.raises(ValueError, match="not a participant of sink out"):
        sink.abort(theirs[0][0].txn(1))


def test_a_claims_first_epoch_drops_older_claims_tables_that_hold_nothing(sink: Staged) -> None:
    sink.open(1)
    replace(sink, lineage="l2").open(1)
    sink.claim(3).open(1)  # begun by a claim that is not older
    for foreign in others_of(sink):
        foreign.open(1)
    held = sink.vote(2, [(1, "a")])
    sink.claim(2).open(2)
    theirs = ["o.out.g1-l1.e1", "orders.out.g1-l2.e1", "orders.out2.g1-l1.e1", "orders2.out.g1-l1.e1"]
    mine = ["orders.out.g1-l1.e2", "orders.out.g2-l1.e2", "orders.out.g3-l1.e1"]
    assert sink.staging_tables() == sorted(theirs + mine)
    assert sink.claim(2).commit(2, held) == ["Committed"]
    assert sink.staging_tables() == theirs


def test_a_marker_of_another_journal_says_nothing_of_own_tables(sink: Staged) -> None:
    ticket = sink.open(1)
    sink.run("INSERT INTO exactsink_epochs VALUES ('orders', 'out', 9, '', 'l2', 'aa')")
    sink.abort(sink.txn(1))
    assert sink.staging_tables() == ["orders.out.g1-l1.e1"]
    vote = sink.task(ticket, sink.txn(1), (1, "a")).pre_commit()
    with pytest.raises(Retryable, match=r"the mark is not that of the epoch before .* is epoch 9 .* of l2"):
        sink.commit(1, [vote])
    assert sink.rows() == []


def test_what_an_operator_has_sweep_tokens_goes_with_its_table(sink: Staged) -> None:
    other = replace(sink, lineage="l2")
    gone, kept = other.claim(7).vote(1, [(1, "a")]), other.claim(7).vote(2, [(2, "b")])
    sink.claim(2).abort(gone[0].txn)
    assert other.staging_tables() == ["orders.out.g7-l2.e2"]
    assert other.claim(7).commit(2, kept) == ["Committed"]


def test_a_table_in_use_is_left_and_reported_once_and_goes_with_the_next_sweep(
    sink: Staged, caplog: pytest.LogCaptureFixture
) -> None:
    votes = sink.vote(1, [(1, "a")])
    table = sink.rows_table()
    with psycopg.connect(sink.conninfo) as reader:
        reader.execute(f"SELECT 1 FROM {table}".encode())
        sink.session.commit(1, votes, times=2)
        assert caplog.text.count(f"{table} (orders.out.g1-l1.e1) is left") == 1
        assert sink.rows() == [(1, "a")]
        assert sink.staging_tables() == ["orders.out.g1-l1.e1"]
    sink.abort(sink.txn(1, 9))  # a loser's session may have held it
    assert sink.staging_tables() == []


def test_a_zombie_task_of_an_older_claim_writes_nowhere(sink: Staged) -> None:
    old = sink.open(1)
    stalled = sink.task(old, sink.txn(1, 0), (1, "a"))
    sink.claim(2).vote(1, [(1, "b")])
    stalled.pre_commit()  # its table was in use: it votes, for a driver that can decide no more
    assert sink.listed() == [sink.txn(1, 0).id, sink.claim(2).txn(1, 0).id]
    sink.claim(2).abort(sink.txn(1, 0))
    with pytest.raises(Retryable, match=r"staging table exactsink_rows_\w+ is gone.*newer driver"):
        sink.task(old, sink.txn(1, 1), (2, "b"))
    assert sink.rows() == []


def test_a_task_that_writes_keeps_its_table_and_the_next_epoch_takes_another(sink: Staged) -> None:
    writer = sink.task(sink.open(1), sink.txn(1), (1, "a"))
    newer = sink.claim(2)
    votes = newer.vote(2, [(2, "b")])
    assert sink.staging_tables() == ["orders.out.g1-l1.e1", "orders.out.g2-l1.e2"]
    assert newer.commit(1, [writer.pre_commit()]) == ["Committed"]
    assert newer.commit(2, votes) == ["Committed"]
    tables = sink.run(_TABLES)
    for epoch in (3, 4):  # both are free again, and no table comes or goes
        assert newer.commit(epoch, newer.vote(epoch, [(epoch, "c")])) == ["Committed"]
    assert sink.run(_TABLES) == tables
    assert len(tables) == 2
    assert sink.rows() == [(1, "a"), (2, "b"), (3, "c"), (4, "c")]


def test_a_second_attempt_clashes_with_no_first_one_that_still_writes_or_has_voted(database: str) -> None:
    with new_sink(database, "CREATE TABLE t (id bigint PRIMARY KEY, v text)") as sink:
        ticket = sink.open(1)
        sink.task(ticket, sink.txn(1, 0, 1), (1, "a")).pre_commit()
        writing = sink.task(ticket, sink.txn(1, 0, 2), (1, "a"))
        votes = [sink.task(ticket, sink.txn(1, 0, 3), (1, "a")).pre_commit()]
        sink.session.check_votes(1, SCHEMA, votes)
        writing.abort()
        votes.append(sink.task(ticket, sink.txn(1, 1, 4), (1, "a")).pre_commit())
        with pytest.raises(Fatal, match=r"(?s)partitions 0 and 1 .*columns: id.*distribution = .hash.key"):
            sink.session.check_votes(1, SCHEMA, votes)
        assert sink.claim(2).commit(1, sink.claim(2).vote(1, [(1, "a")])) == ["Committed"]
        assert sink.rows() == [(1, "a")]
