"""The journal in a database, SQLite and PostgreSQL alike: one owner per seq, and what Journal makes of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from tests.unit.sql_stores import OpenStore, execute

from exactsink.contract import ExactsinkError, PreflightError
from exactsink.protocol.journal.stores import SeqTaken
from exactsink.protocol.journal.stores.sql import JOURNAL_TABLE

pytest_plugins = ["tests.unit.sql_fixtures"]


def by_hand(url: str, constraint: str) -> None:
    """Make the journal's table with another constraint than the store would."""
    binary = "BLOB" if url.startswith("sqlite") else "BYTEA"
    columns = f"job VARCHAR(64) NOT NULL, seq BIGINT NOT NULL, record {binary} NOT NULL"
    execute(url, f"CREATE TABLE {JOURNAL_TABLE} ({columns}, {constraint})")


def test_an_entry_is_read_as_it_was_put_also_by_another_store(open_sql_store: OpenStore) -> None:
    writer, entries = open_sql_store(), {0: b"first", 7: bytes(range(256)) * 1000, 99_999: b"", 2**63 - 1: b"last"}
    for seq, data in entries.items():
        writer.put(seq, data)
    for reader in (writer, open_sql_store()):
        assert sorted(reader.list()) == sorted(entries)
        assert {seq: reader.read(seq) for seq in entries} == entries
        assert reader.read(8) is None


def test_a_journal_that_does_not_exist_is_empty_and_is_not_made_by_reading(
    sql_url: str, open_sql_store: OpenStore, tmp_path: Path
) -> None:
    reader = open_sql_store()
    assert (list(reader.list()), reader.read(0)) == ([], None)
    reader.delete([0])
    assert os.listdir(tmp_path) == []
    if not sql_url.startswith("sqlite"):
        assert execute(sql_url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]
    open_sql_store().put(0, b"made")
    assert (list(reader.list()), reader.read(0)) == ([0], b"made")


def test_a_seq_has_one_owner(open_sql_store: OpenStore) -> None:
    first = open_sql_store()
    first.put(3, b"first")
    for other in (first, open_sql_store()):
        for again in (b"second", b"first"):
            with pytest.raises(SeqTaken):
                other.put(3, again)
    assert first.read(3) == b"first"


def test_jobs_share_the_table_and_see_nothing_of_each_other(open_sql_store: OpenStore) -> None:
    one, other = open_sql_store("one"), open_sql_store("o" * 61)
    one.put(0, b"one")
    other.put(0, b"other")
    other.put(1, b"more")
    one.delete([1])
    assert (list(one.list()), sorted(other.list())) == ([0], [0, 1])
    assert (one.read(0), other.read(0), one.read(1)) == (b"one", b"other", None)
    with pytest.raises(ValueError, match="65 characters"):
        open_sql_store("o" * 65)


def test_a_deleted_entry_is_gone_and_deleting_it_again_is_nothing(open_sql_store: OpenStore) -> None:
    kept = open_sql_store()
    for seq in (*range(12), *range(495, 510), 2999):
        kept.put(seq, b"x")
    many = [seq for seq in range(3000) if seq not in (4, 9)]  # several statements
    for seqs in (many, many, []):
        kept.delete(iter(seqs))
        assert sorted(kept.list()) == [4, 9]


def test_deleting_is_all_or_nothing(sql_url: str, open_sql_store: OpenStore) -> None:
    """Entries 0 and 2000 fall into different statements; the last one is refused."""
    kept = open_sql_store()
    for seq in (0, 2000):
        kept.put(seq, b"x")
    if sql_url.startswith("sqlite"):
        refusal = f"BEFORE DELETE ON {JOURNAL_TABLE} WHEN OLD.seq = 2000 BEGIN SELECT RAISE(ABORT, 'kept'); END"
        execute(sql_url, f"CREATE TRIGGER refusal {refusal}")
    else:
        execute(
            sql_url,
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'kept'; END $$",
            f"CREATE TRIGGER refusal BEFORE DELETE ON {JOURNAL_TABLE} FOR EACH ROW WHEN (OLD.seq = 2000) "
            "EXECUTE FUNCTION refuse()",
        )
    with pytest.raises(ExactsinkError, match="could not be trimmed: kept"):
        kept.delete(range(2001))
    assert sorted(kept.list()) == [0, 2000]


def test_a_row_refused_for_another_reason_than_its_key_is_not_taken(sql_url: str, open_sql_store: OpenStore) -> None:
    by_hand(sql_url, "PRIMARY KEY (job, seq), CHECK (seq <> 5)")
    refused = open_sql_store()
    with pytest.raises(IntegrityError):
        refused.put(5, b"x")
    refused.put(6, b"x")
    assert list(refused.list()) == [6]


@pytest.mark.parametrize("constraint", ["CHECK (seq >= 0)", "PRIMARY KEY (job, seq, record)", "UNIQUE (job, seq)"])
def test_a_table_without_the_primary_key_is_refused(sql_url: str, open_sql_store: OpenStore, constraint: str) -> None:
    by_hand(sql_url, constraint)
    for call in (
        lambda: open_sql_store().put(0, b"x"),
        lambda: open_sql_store().list(),
        lambda: open_sql_store().read(0),
    ):
        with pytest.raises(PreflightError, match=r"ADD PRIMARY KEY \(job, seq\)"):
            call()
    assert execute(sql_url, f"SELECT * FROM {JOURNAL_TABLE}") == []


def test_a_table_that_vanishes_is_an_error_and_not_an_empty_journal(sql_url: str, open_sql_store: OpenStore) -> None:
    seen = open_sql_store()
    seen.put(0, b"x")
    execute(sql_url, f"DROP TABLE {JOURNAL_TABLE}")
    for call in (seen.list, lambda: seen.read(0), lambda: seen.delete([0])):
        with pytest.raises(ExactsinkError, match=JOURNAL_TABLE):
            call()
    with pytest.raises(sa.exc.DBAPIError, match=JOURNAL_TABLE):
        seen.put(1, b"x")


@pytest.mark.parametrize("call", ["list", "read"])
def test_a_closed_store_opens_again(open_sql_store: OpenStore, call: str) -> None:
    used = open_sql_store()
    used.put(0, b"x")
    used.close()
    used.close()
    assert (used.list() if call == "list" else used.read(0)) in ([0], b"x")
