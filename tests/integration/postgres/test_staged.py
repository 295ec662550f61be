"""The staged strategy on a real server: an epoch is applied once, whoever asks, however often, and whatever breaks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import pytest
from psycopg.conninfo import make_conninfo

from exactsink.contract import Fatal, Lost, Unknown
from tests.integration.postgres.sinks import SCHEMA, Staged, new_sink

_Answer = TypeVar("_Answer")


@pytest.fixture
def sink(database: str) -> Iterator[Staged]:
    with new_sink(database, "CREATE TABLE t (id bigint PRIMARY KEY, v text)") as sink:
        yield sink


def test_drivers_that_open_the_first_epoch_at_once_all_get_a_ticket(database: str) -> None:
    with new_sink(database, "SELECT", create=True) as sink:
        both_connected = threading.Barrier(2)

        def opened() -> bytes:
            with sink.committer() as committer:
                list(committer.in_doubt())  # connects
                both_connected.wait(60)
                return committer.open_epoch(1, SCHEMA, None)

        one, other = _twice(opened)
        assert one == other
        assert sink.staging_tables() == ["orders.out.g1-l1.e1"]


def test_staged_rows_hold_no_lock_in_the_table_and_have_no_deadline(sink: Staged) -> None:
    votes = sink.vote(1, [(1, "a")])
    assert [vote.deadline for vote in votes] == [None]
    sink.run("DO $$ BEGIN LOCK TABLE t IN ACCESS EXCLUSIVE MODE NOWAIT; END $$")
    assert sink.commit(1, votes) == ["Committed"]


def _twice(call: Callable[[], _Answer]) -> list[_Answer]:
    with ThreadPoolExecutor(2) as pool:
        return [future.result() for future in [pool.submit(call), pool.submit(call)]]


def test_votes_and_commits_are_durable_where_the_database_says_otherwise(sink: Staged) -> None:
    sink.open(1)
    there = make_conninfo(sink.conninfo, options=f"-csearch_path={sink.schema} -csynchronous_commit=off")
    careless = replace(sink, conninfo=there)
    assert careless.run("SHOW synchronous_commit") == [("off",)]
    sink.run("CREATE TABLE seen (place text, setting text)")
    sink.run(
        "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO seen VALUES (TG_TABLE_NAME, current_setting('synchronous_commit')); RETURN NEW; END $$"
    )
    for table in ("exactsink_staged", "exactsink_epochs", "t"):
        sink.run(
            f"CREATE CONSTRAINT TRIGGER see AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION see()"
        )
    careless.commit(1, careless.vote(1, [(1, "a")]))
    assert sorted(sink.run("SELECT * FROM seen")) == [
        ("exactsink_epochs", "on"),
        ("exactsink_staged", "on"),
        ("t", "on"),
    ]


def test_a_vote_without_its_rows_or_rows_without_their_vote_never_stand(sink: Staged) -> None:
    writer = sink.task(sink.open(1), sink.txn(1), (1, "a"))
    sink.run(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;"
        "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON exactsink_staged DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    with pytest.raises(Fatal, match="no"):
        writer.pre_commit()
    assert sink.registered() == sink.staged_rows() == []


def test_an_epoch_that_was_decided_again_is_applied_from_both_staging_tables(sink: Staged) -> None:
    kept = sink.vote(1, [(1, "a")])
    again = sink.claim(2).vote(1, [(2, "b")])
    assert sink.claim(2).commit(1, [*kept, *again]) == ["Committed"] * 2
    assert sink.rows() == [(1, "a"), (2, "b")]
    assert sink.staging_tables() == []


_HOLES: dict[str, str] = {
    "a row was taken out": "DELETE FROM {rows} WHERE id = 1",
    "a row was put in": "INSERT INTO {rows} VALUES (100, 9, 'x')",
    "a trigger drops rows": "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;"
    "CREATE TRIGGER skip BEFORE INSERT ON t FOR EACH ROW WHEN (NEW.id = 1) EXECUTE FUNCTION skip()",
}
_GONE: dict[str, str] = {
    "the staging table": "DROP TABLE {rows}",
    "the registry's entries": "DELETE FROM exactsink_staged",
    "the entry of one": "DELETE FROM exactsink_staged WHERE participant LIKE '%%.p1.%%'",
    "the registry": "DROP TABLE exactsink_staged",
}


@pytest.mark.parametrize("hole", [*_HOLES, *_GONE])
def test_an_epoch_whose_rows_are_not_what_was_voted_is_in_doubt_or_lost_and_none_of_it_visible(
    sink: Staged, hole: str
) -> None:
    """Gone is lost, as the mark says that they were not applied; what was changed, only a person can judge."""
    votes = sink.vote(1, [(1, "a"), (2, "b")], [(3, "c")])
    rows = json.loads(votes[0].payload)["rows_table"]
    sink.run(dict(**_HOLES, **_GONE)[hole].format(rows=rows).replace("%%", "%"))
    outcomes = sink.session.commit(1, votes)
    assert {type(outcome) for outcome in outcomes} == {Lost if hole in _GONE else Unknown}
    assert "exactsink_" in str(outcomes[0])
    sink.run("DELETE FROM exactsink_epochs")
    outcomes = sink.session.commit(1, votes)  # without a mark nobody knows
    assert {type(outcome) for outcome in outcomes} == {Unknown}
    assert sink.rows() == []


def test_names_that_need_quotes_are_quoted(database: str) -> None:
    make = 'CREATE SCHEMA "My 100%s"; CREATE TABLE "My 100%s"."T ""%s""" (id bigint, v text, UNIQUE (v, id))'
    with new_sink(database, make, table='"My 100%s"."T ""%s"""') as sink:
        votes = sink.vote(1, [(1, "a")], [(2, "b")])
        assert sink.listed() == [vote.txn.id for vote in votes]
        assert sink.commit(1, votes) == ["Committed"] * 2
        with pytest.raises(Fatal, match='constraint T "%s"_v_id_key'):
            sink.vote(2, [(2, "b")])
        newer = sink.claim(2)
        with pytest.raises(Fatal, match="partition 0 of this epoch has the key twice"):
            newer.session.check_votes(2, SCHEMA, newer.vote(2, [(3, "b"), (3, "b")]))
        assert sink.rows('SELECT * FROM "My 100%s"."T ""%s""" ORDER BY id') == [(1, "a"), (2, "b")]
        sink.claim(3).abort(*(vote.txn for vote in votes))
        sink.run('DROP SCHEMA "My 100%s" CASCADE')
