"""A journal in files, SQLite and PostgreSQL alike, what its URL may name, and that nothing shows a password."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import traceback
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from tests.servers.postgres import Postgres
from tests.unit.sql_stores import JOB, at_commit, decided, execute

from exactsink.contract import ConfigError, ExactsinkError, Fenced, PreflightError, Retryable
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.records import Decide
from exactsink.protocol.journal.stores import JournalStore, SeqTaken
from exactsink.protocol.journal.stores.local import LocalStore
from exactsink.protocol.journal.stores.sql import JOURNAL_TABLE, SqlStore

PATIENCE = 120  # seconds until a race that hangs says so
Open = Callable[..., JournalStore]
in_sql = pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)


@pytest.fixture(params=["files", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database, or a folder that does not exist."""
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        return server.create_database(f"journal_{uuid.uuid4().hex}")
    return f"{tmp_path}/new/journal" if request.param == "files" else f"sqlite:///{tmp_path}/new/journal.db"


@pytest.fixture
def opened(url: str) -> Iterator[Open]:
    """Open stores of it; they are closed at the end."""
    stores: list[JournalStore] = []

    def open_store(job: str = JOB) -> JournalStore:
        stores.append(SqlStore(url, job) if "://" in url else LocalStore(Path(url)))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def test_an_entry_is_read_as_it_was_put_also_by_another_store(opened: Open) -> None:
    writer, entries = opened(), {0: b"first", 7: bytes(range(256)) * 1000, 99_999: b"", 2**63 - 1: b"last"}
    for seq, data in entries.items():
        writer.put(seq, data)
    for reader in (writer, opened()):
        assert sorted(reader.list()) == sorted(entries)
        assert reader.newest() == max(entries, default=-1)
        assert reader.sizes([*entries, 77]) == {seq: len(data) for seq, data in entries.items()}
        assert {seq: reader.read(seq) for seq in entries} == entries
        assert reader.read(8) is None
    for _ in range(2):
        writer.close()
    assert writer.read(0) == b"first"


def test_a_journal_that_does_not_exist_is_empty_and_is_not_made_by_reading(
    url: str, opened: Open, tmp_path: Path
) -> None:
    reader = opened()
    assert (list(reader.list()), reader.read(0)) == ([], None)
    reader.delete([0])
    assert os.listdir(tmp_path) == []
    if url.startswith("postgres"):
        assert execute(url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]
    opened().put(0, b"made")
    assert (list(reader.list()), reader.read(0)) == ([0], b"made")


def test_a_seq_has_one_owner(opened: Open) -> None:
    first = opened()
    first.put(3, b"first")
    for other in (first, opened()):
        for again in (b"second", b"first"):
            with pytest.raises(SeqTaken):
                other.put(3, again)
    assert first.read(3) == b"first"


def test_a_deleted_entry_is_gone_and_deleting_it_again_is_nothing(opened: Open) -> None:
    kept = opened()
    for seq in (*range(12), *range(495, 510), 2999):
        kept.put(seq, b"x")
    many = [seq for seq in range(3000) if seq not in (4, 9)]  # several statements
    for seqs in (many, many, []):
        kept.delete(iter(seqs))
        assert sorted(kept.list()) == [4, 9]


@pytest.mark.parametrize("rounds", [1, 10])
def test_of_drivers_that_race_for_a_seq_exactly_one_wins(opened: Open, rounds: int) -> None:
    """The first round also makes the table."""
    start = Barrier(3, timeout=PATIENCE)

    def race(name: bytes) -> list[int]:
        store, mine = opened(), []
        for seq in range(rounds):
            start.wait()
            try:
                store.put(seq, name)
                mine.append(seq)
            except SeqTaken:
                continue
        return mine

    with ThreadPoolExecutor(3) as pool:
        won = dict(zip(b"abc", pool.map(race, [b"a", b"b", b"c"]), strict=True))
    owners = sorted((seq, bytes([name])) for name, seqs in won.items() for seq in seqs)
    assert [(seq, opened().read(seq)) for seq in range(rounds)] == owners


def test_two_drivers_claim_decide_fence_and_trim(opened: Open) -> None:
    old, new = (Journal(opened(), keep_epochs=10, wait=lambda attempt: None) for _ in range(2))
    assert old.claim("query", "driver-1").generation == 1
    for epoch in range(12):
        old.decide(decided(epoch))
        old.trim()
    assert new.claim("query", "driver-2").generation == 2
    with pytest.raises(Fenced, match="driver-2"):
        old.decide(decided(12))
    new.decide(decided(12))
    reader = Journal(opened(), wait=lambda attempt: None)
    reader.read()
    log = reader.whole()
    assert log == new.whole()
    assert [claim.driver for claim in log.claims] == ["driver-1", "driver-2"]
    decisions = [entry.record.epoch for entry in new.entries() if isinstance(entry.record, Decide)]
    assert decisions == list(range(2, 13))  # ten are kept, and what came after the deletion


@in_sql
def test_jobs_share_the_table_and_see_nothing_of_each_other(opened: Open) -> None:
    one, other = opened("one"), opened("o" * 61)
    one.put(0, b"one")
    other.put(0, b"other")
    other.put(1, b"more")
    one.delete([1])
    assert (list(one.list()), sorted(other.list())) == ([0], [0, 1])
    assert (one.read(0), other.read(0), one.read(1)) == (b"one", b"other", None)
    with pytest.raises(ValueError, match="65 characters"):
        opened("o" * 65)


@in_sql
def test_deleting_is_all_or_nothing(url: str, opened: Open) -> None:
    """Entries 0 and 2000 fall into different statements; the last one is refused."""
    kept = opened()
    for seq in (0, 2000):
        kept.put(seq, b"x")
    trigger = f"CREATE TRIGGER refusal BEFORE DELETE ON {JOURNAL_TABLE}"
    if url.startswith("sqlite"):
        execute(url, f"{trigger} WHEN OLD.seq = 2000 BEGIN SELECT RAISE(ABORT, 'kept'); END")
    else:
        refuse = "RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'kept'; END $$"
        when = "FOR EACH ROW WHEN (OLD.seq = 2000) EXECUTE FUNCTION refuse()"
        execute(url, f"CREATE FUNCTION refuse() {refuse}", f"{trigger} {when}")
    with pytest.raises(ExactsinkError, match="could not be trimmed: kept"):
        kept.delete(range(2001))
    assert sorted(kept.list()) == [0, 2000]


def make_manually(url: str, constraint: str) -> None:
    """Make the journal's table with another constraint than the store would."""
    binary = "BLOB" if url.startswith("sqlite") else "BYTEA"
    columns = f"job VARCHAR(64) NOT NULL, seq BIGINT NOT NULL, record {binary} NOT NULL"
    execute(url, f"CREATE TABLE {JOURNAL_TABLE} ({columns}, {constraint})")


@in_sql
def test_a_row_refused_for_another_reason_than_its_key_is_not_taken(url: str, opened: Open) -> None:
    make_manually(url, "PRIMARY KEY (job, seq), CHECK (seq <> 5)")
    refused = opened()
    with pytest.raises(IntegrityError):
        refused.put(5, b"x")
    refused.put(6, b"x")
    assert list(refused.list()) == [6]


@in_sql
@pytest.mark.parametrize("constraint", ["CHECK (seq >= 0)", "PRIMARY KEY (job, seq, record)", "UNIQUE (job, seq)"])
def test_a_table_without_the_primary_key_is_refused(url: str, opened: Open, constraint: str) -> None:
    make_manually(url, constraint)
    for call in (lambda: opened().put(0, b"x"), lambda: opened().list(), lambda: opened().read(0)):
        with pytest.raises(PreflightError, match=r"ADD PRIMARY KEY \(job, seq\)"):
            call()
    assert execute(url, f"SELECT * FROM {JOURNAL_TABLE}") == []


@in_sql
def test_a_table_that_vanishes_is_an_error_and_not_an_empty_journal(url: str, opened: Open) -> None:
    seen = opened()
    seen.put(0, b"x")
    execute(url, f"DROP TABLE {JOURNAL_TABLE}")
    for call in (seen.list, lambda: seen.read(0), lambda: seen.delete([0])):
        with pytest.raises(ExactsinkError, match=JOURNAL_TABLE):
            call()
    with pytest.raises(sa.exc.DBAPIError, match=JOURNAL_TABLE):
        seen.put(1, b"x")


SECRET = "s3cr3t"


MEMORY = ["", "/:memory:", "/file::memory:?cache=shared&uri=true", "/file:x?mode=memory&uri=true", "/x.db?mode=memory"]
ME, READ_URL, DRIVER, PATH = f"me:{SECRET}@", "fix the URL", "name another driver", "write sqlite:////"
REFUSED = {
    **{f"sqlite://{memory}": ("can't be in memory", PATH) for memory in MEMORY},
    f"postgresql://{ME}host:port/db": ("SQLAlchemy can't read the journal's URL", READ_URL),
    f"{ME}host/db": ("SQLAlchemy can't read the journal's URL", READ_URL),
    f"postgresql://me:p@{SECRET}@host/db": ("%40 (@)", READ_URL),
    f"nosuch://{ME}host/db": ("nosuch can't hold a journal", DRIVER),
    f"postgresql+nosuch://{ME}host/db": ("can't hold a journal", DRIVER),
    f"mysql://{ME}host/db": ("needs the Python module MySQLdb", "pip install mysqlclient"),
    f"postgresql+psycopg2://{ME}host/db": ("module psycopg2", "pip install psycopg2-binary"),
    f"postgresql+asyncpg://{ME}host/db": ("made for asyncio", DRIVER),
    f"postgresql+psycopg_async://{ME}host/db": ("made for asyncio", DRIVER),
    f"sqlite://{ME}host/x.db": ("holds a path only", PATH),
    "sqlite:////x/y.db?mode=ro&uri=true": ("holds a path only", PATH),
    f"sqlite+pysqlcipher://:{SECRET}@/x.db": ("holds a path only", PATH),
}


@pytest.mark.parametrize("url", REFUSED)
def test_a_url_that_can_hold_no_journal_is_refused_at_once(url: str) -> None:
    said, way_out = REFUSED[url]
    with pytest.raises(PreflightError if "in memory" in said else ConfigError) as refused:
        SqlStore(url, JOB)
    assert said in str(refused.value)
    assert refused.value.next.startswith(way_out)
    assert SECRET not in everything(refused.value)


def everything(error: BaseException) -> str:
    """All that an error, its causes and its contexts say, as a log would."""
    reported = "".join(traceback.format_exception(error))
    seen: BaseException | None = error
    while seen is not None:
        reported += repr(seen) + str(seen)
        seen = seen.__cause__ or seen.__context__
    return reported


def test_no_error_no_log_and_no_repr_shows_the_password(
    tmp_path: Path, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    name = f"journal_{uuid.uuid4().hex}"
    postgres.create_database(name)
    store = SqlStore(postgres.url(name, password=SECRET), JOB)
    store.put(0, SECRET.encode())
    reported = [repr(store), caplog.text]
    store.close()
    wrong = f"postgresql+psycopg://me:{SECRET}@/db?host={tmp_path}&sslpassword={SECRET}"
    absent = SqlStore(wrong, JOB)
    for call in (absent.list, lambda: absent.read(0), lambda: absent.delete([0]), lambda: absent.put(0, b"x")):
        with pytest.raises((Retryable, sa.exc.OperationalError)) as failed:
            call()
        reported.append(everything(failed.value))
    reported.append(repr(absent) + caplog.text)
    assert "me" in reported[-2]
    assert [text for text in reported if SECRET in text] == []


def test_the_file_stays_the_same_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = SqlStore("sqlite:///folder/journal.db", JOB)
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.put(0, b"x")
    assert (tmp_path / "folder" / "journal.db").is_file()
    assert repr(store) == f"SqlStore('sqlite:///{tmp_path}/folder/journal.db', '{JOB}')"


def test_sqlite_commits_with_synchronous_extra(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/journal.db", JOB)
    with at_commit("PRAGMA synchronous") as seen:
        store.put(0, b"x")
        store.put(1, b"x")
    assert set(seen) == {"3"}


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_file_that_can_only_be_read_is_refused(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.db"
    store = SqlStore(f"sqlite:///{path}", JOB)
    store.put(0, b"x")
    closed, access = path if what == "file" else tmp_path, os.access  # asked here, for root may write anywhere
    calls: list[Callable[[], object]] = [store.list, lambda: store.read(0), lambda: store.put(1, b"x")]
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: Path(path) != closed and access(path, mode))
        for call in calls:
            with pytest.raises(PreflightError, match=f"the journal {path} is read-only") as refused:
                call()
            fix = f"chmod u+rw {path} and u+rwx {tmp_path}, or run the driver as its owner"
            assert refused.value.next == fix


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout


def test_only_a_journal_in_a_database_imports_sqlalchemy_and_says_how_to_install_it() -> None:
    assert run("import sys, exactsink.job.history; print('sqlalchemy' in sys.modules)") == "False\n"
    without = "import sys\nsys.modules['sqlalchemy'] = None\nfrom exactsink.job.history import _sql_stores\n"
    said = run(f"{without}try: _sql_stores()\nexcept Exception as e: print(type(e).__name__, e)")
    assert said.startswith("ConfigError a journal in a database needs sqlalchemy")
    assert said.endswith("next: pip install SQLAlchemy\n")


def test_a_server_that_is_not_there_is_retryable_for_reading_and_leaves_a_put_open(tmp_path: Path) -> None:
    store = SqlStore(f"postgresql+psycopg://me@/db?host={tmp_path}", JOB)
    for call in (store.list, lambda: store.read(0), lambda: store.delete([0])):
        with pytest.raises(Retryable, match="check that the database answers"):
            call()
    with pytest.raises(sa.exc.OperationalError):
        store.put(0, b"x")
