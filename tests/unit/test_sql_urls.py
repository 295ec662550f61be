"""What a journal's URL may name: the refusals, each with its way out, and never a password."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.servers.postgres import Postgres
from tests.unit.sql_stores import JOB, at_commit

from exactsink.contract import ConfigError, PreflightError, Retryable
from exactsink.protocol.journal.stores.sql import SqlStore

pytest_plugins = ["tests.servers.fixtures"]

PATIENCE = 120  # seconds until a process that hangs says so
SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("url", "said", "next"),
    [
        *[
            (f"sqlite://{memory}", "can't be in memory", "write sqlite:////")
            for memory in (
                "",
                "/:memory:",
                "/file::memory:?cache=shared&uri=true",
                "/file:x?mode=memory&uri=true",
                "/x.db?mode=memory",
            )
        ],
        (f"postgresql://me:{SECRET}@host:port/db", "not one that SQLAlchemy reads", "fix the URL"),
        (f"me:{SECRET}@host/db", "not one that SQLAlchemy reads", "fix the URL"),
        (f"postgresql://me:p@{SECRET}@host/db", "%40 (@)", "fix the URL"),
        (f"nosuch://me:{SECRET}@host/db", "nosuch can't hold a journal", "name another driver"),
        (f"postgresql+nosuch://me:{SECRET}@host/db", "can't hold a journal", "name another driver"),
        (f"mysql://me:{SECRET}@host/db", "needs the Python module MySQLdb", "pip install mysqlclient"),
        (f"postgresql+asyncpg://me:{SECRET}@host/db", "made for asyncio", "name another driver"),
        (f"postgresql+psycopg2://me:{SECRET}@host/db", "module psycopg2", "pip install psycopg2-binary"),
        (f"postgresql+psycopg_async://me:{SECRET}@host/db", "made for asyncio", "name another driver"),
        (f"sqlite://me:{SECRET}@host/x.db", "holds a path only", "write sqlite:////"),
        ("sqlite:////x/y.db?mode=ro&uri=true", "holds a path only", "write sqlite:////"),
        ("sqlite:///file:/x/y.db", "holds a path only", "write sqlite:////"),
        (f"sqlite+pysqlcipher://:{SECRET}@/x.db", "holds a path only", "write sqlite:////"),
    ],
)
def test_a_url_that_can_hold_no_journal_is_refused_at_once(url: str, said: str, next: str) -> None:
    with pytest.raises((ConfigError, PreflightError)) as refused:
        SqlStore(url, JOB)
    assert isinstance(refused.value, PreflightError) == ("in memory" in said)
    assert said in str(refused.value)
    assert refused.value.next.startswith(next)
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


def test_importing_it_does_not_import_sqlalchemy_and_a_store_says_how_to_install_it() -> None:
    assert run("import sys, exactsink.protocol.journal.stores.sql; print('sqlalchemy' in sys.modules)") == "False\n"
    without = "import sys\nsys.modules['sqlalchemy'] = None\n"
    without += "from exactsink.protocol.journal.stores.sql import SqlStore as S\n"
    said = run(f"{without}try: S('sqlite:////x/y.db', 'job')\nexcept Exception as e: print(type(e).__name__, e)")
    assert said.startswith("ConfigError a journal in a database needs sqlalchemy")
    assert said.endswith("next: pip install SQLAlchemy\n")


def test_a_server_that_is_not_there_is_retryable_for_reading_and_leaves_a_put_open(tmp_path: Path) -> None:
    store = SqlStore(f"postgresql+psycopg://me@/db?host={tmp_path}", JOB)
    for call in (store.list, lambda: store.read(0), lambda: store.delete([0])):
        with pytest.raises(Retryable, match="see that the database answers"):
            call()
    with pytest.raises(sa.exc.OperationalError):
        store.put(0, b"x")
