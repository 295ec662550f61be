"""The XA plugin of the examples, on a real MariaDB: crashes and restores of the server, and preflight."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from exactsink.contract import (
    AlreadyCommitted,
    Committable,
    Committed,
    Fatal,
    Finding,
    InDoubt,
    InDoubtError,
    JobContext,
    Mark,
    Prepared,
    Retryable,
    Unknown,
)
from exactsink.protocol.sinks import Sink
from exactsink.testing import Script, Session
from exactsink.testing.driver_run import run_driver
from exactsink.testing.processes import ended, start
from exactsink.testing.target import ROWS
from tests.plugins.conftest import rows
from tests.servers.mariadb import MariaDB, own_mariadb

PLUGIN = Path(__file__).parents[2] / "examples/plugins/exactsink-mysql-xa"
pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("installed")]


def url(server: MariaDB, database: str, user: str = "root") -> str:
    return f"mysql://{user}@localhost/{database}?unix_socket={server.socket}"


def session(server: MariaDB, database: str, job: str = "shop", user: str = "root", **options: Any) -> Session:
    from exactsink_mysql_xa import XaBackend, XaOptions

    values = {"url": url(server, database, user), "table": "flights", "create": True, "lock_timeout_seconds": 1}
    ctx = JobContext(job, "table", "", 1, "ab")
    return Session(XaBackend(XaOptions.model_validate({**values, **options})), ctx, "ab")


def found(server: MariaDB, database: str) -> list[int]:
    return [row[0] for row in server.execute("SELECT id FROM flights ORDER BY id", database=database)]


@contextmanager
def branch(server: MariaDB, database: str, sink: Session, *statements: str) -> Iterator[Committable]:
    """Prepare a participant's branch by hand, in a session that stays until the end of the block."""
    from exactsink_mysql_xa_server import Branch

    with closing(server.connect(database)) as left, left.cursor() as cursor:
        txn = sink.txn(0, 0)
        xid = Branch(Branch.scope_of("shop", "table", database), txn, left.thread_id(), 1)
        for statement in (f"XA START {xid}", *statements, f"XA END {xid}", f"XA PREPARE {xid}"):
            cursor.execute(statement)
        yield Committable(txn, 1, b"")


def test_a_crash_between_vote_and_commit_and_inside_a_commit_leaves_the_rows_exact() -> None:
    from exactsink_mysql_xa_server import Session as Connection

    with own_mariadb({"log-bin": "log", "sync-binlog": "1", "binlog-format": "ROW"}) as server:
        database = server.new_database("crash")
        sink = session(server, database)
        voted = sink.prepare(0, [rows(1, 2), rows(3), rows(4)])
        server.stop("kill")
        with pytest.raises(Retryable, match="sink table: commit epoch 0"):
            sink.commit(0, voted)
        server.start()
        assert [type(standing) for standing in sink.assess(0, voted)] == [Prepared] * 3
        run, ended = Connection.rows, list[str]()

        def rows_then_crash(self: Any, statement: str, *values: object) -> Any:
            answer = run(self, statement, *values)
            if statement.startswith("XA COMMIT"):
                ended.append(statement)
                server.stop("kill")
            return answer

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "rows", rows_then_crash)
            with pytest.raises(Retryable):
                sink.commit(0, voted)
        server.start()
        assert len(ended) == 1
        outcomes = sink.commit(0, voted)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["AlreadyCommitted", "Committed", "Committed"]
        server.stop("kill")
        server.start()
        assert sink.commit(0, voted) == [AlreadyCommitted()] * 3
        assert found(server, database) == [1, 2, 3, 4]
        assert sink.mark() == Mark("ab", 0, frozenset(["ab"]), 3)


def test_a_database_that_was_restored_stops_the_job(tmp_path: Path) -> None:
    with own_mariadb() as server:
        database = server.new_database("restored")
        sinks = {"table": Sink("table", "mysql_xa", session(server, database).backend, "")}
        batches = [[rows(number * 2, number * 2 + 1)] for number in range(3)]
        script = Script("shop", tmp_path / "job", sinks, batches[:1])

        def run(batches: Sequence[Sequence[pa.Table]]) -> int:
            return ended(start(partial(run_driver, replace(script, batches=batches), None)))

        assert run(batches[:1]) == 0
        server.stop()
        subprocess.run(["cp", "-a", server.folder / "data", tmp_path / "copy"], check=True)
        server.start()
        assert run(batches[:2]) == 0
        assert found(server, database) == [0, 1, 2, 3]
        server.stop()
        shutil.rmtree(server.folder / "data")
        subprocess.run(["cp", "-a", tmp_path / "copy", server.folder / "data"], check=True)
        server.start()
        assert run(batches) == InDoubtError.exit_code
        assert found(server, database) == [0, 1]


def test_a_branch_is_not_ended_while_a_session_holds_it(mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch) -> None:
    """MariaDB answers OK to who comes while the session ends, and then has the branch nowhere until it is restarted."""
    from exactsink_mysql_xa_server import Session as Connection

    database = mariadb.new_database("held")
    sink = session(mariadb, database)
    sink.open(0, ROWS)
    sink.put_birth()
    run, sent = Connection.rows, list[str]()

    def rows_sent(self: Any, statement: str, *values: object) -> Any:
        sent.append(statement)
        return run(self, statement, *values)

    monkeypatch.setattr(Connection, "rows", rows_sent)
    with branch(mariadb, database, sink, "INSERT INTO flights (id) VALUES (1)") as voted:
        with pytest.raises(Retryable, match="still holds it"):
            sink.commit(0, [voted])
        assert not [statement for statement in sent if statement.startswith("XA COMMIT")]
        assert sink.assess(0, [voted]) == [Prepared()]
        assert len(sink.blocked()) == 3
    [outcome] = sink.commit(0, [voted])
    assert isinstance(outcome, Unknown), "the answer was OK, and there is no mark of it"
    assert found(mariadb, database) == [1]


def test_who_commits_while_the_session_ends_loses_nothing(mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commit without a pause: without the look at sessions one round of 100 leaves a branch that nobody can end."""
    import exactsink_mysql_xa_server as module

    database = mariadb.new_database("race")
    sink = session(mariadb, database, lock_timeout_seconds=5)
    sink.open(0, ROWS)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    with ThreadPoolExecutor() as pool:
        both = [module.Session(sink.backend.options) for _ in range(2)]
        for number in range(100):
            with branch(mariadb, database, sink, f"INSERT INTO flights (id) VALUES ({number})") as voted:
                [held] = module.listed(both[0], b"shop.table@" + database.encode(), "shop", "table").values()
                calls = [pool.submit(module.end, own, "XA COMMIT", {voted.ref: held}, 5) for own in both]
            assert [ref for call in calls for ref in call.result()] == [voted.ref]
            assert found(mariadb, database) == list(range(number + 1))


def test_a_commit_in_another_session_than_the_marks_is_refused_first(mariadb: MariaDB) -> None:
    database = mariadb.new_database("lost")
    sink = session(mariadb, database)
    voted = sink.prepare(0, [rows(1)])
    with closing(sink.backend.committer(sink.ctx)) as committer:
        assert committer.mark() is None
        for (id_,) in mariadb.execute(f"SELECT ID FROM information_schema.PROCESSLIST WHERE DB = '{database}'"):
            mariadb.execute(f"KILL {id_}")
        with pytest.raises(Retryable, match="the session that had read the mark is lost"):
            committer.commit(0, voted)
        assert found(mariadb, database) == []
        committer.mark()
        assert committer.commit(0, voted) == [Committed()]


def test_a_task_on_another_server_than_the_drivers_is_refused(mariadb: MariaDB) -> None:
    here, there = (session(mariadb, mariadb.new_database(name)) for name in ("drivers", "tasks"))
    here.put_birth()
    for sink in (here, there):
        sink.open(0, ROWS)
    with pytest.raises(Fatal, match="reaches another database than the driver"):
        there.write(0, 0, here.open(0, ROWS), rows(1))


def test_only_this_sinks_branches_of_this_database_are_listed(mariadb: MariaDB) -> None:
    here, there = mariadb.new_database("here"), mariadb.new_database("there")
    mine, prefixed, away = session(mariadb, here), session(mariadb, here, "shop-2"), session(mariadb, there)
    others = prefixed.prepare(0, [rows(1)]) + away.prepare(0, [rows(2)])
    voted = mine.prepare(0, [rows(3)])
    assert [participant.ref for participant in mine.listed()] == [voted[0].ref]
    mine.abort(*mine.listed())
    assert mine.listed() == []
    assert [type(outcome) for outcome in (prefixed.commit(0, others[:1]) + away.commit(0, others[1:]))] == [
        Committed
    ] * 2
    assert (found(mariadb, here), found(mariadb, there)) == ([1], [2])


def test_a_task_that_votes_after_its_abort_is_swept(mariadb: MariaDB) -> None:
    database = mariadb.new_database("zombie")
    sink = session(mariadb, database)
    zombie = sink.writer(0, 0, ROWS, sink.open(0, ROWS))
    zombie.write(rows(1).to_batches()[0])
    assert sink.listed() == []
    sink.abort(InDoubt.of(sink.txn(0, 0)))
    zombie.pre_commit()
    assert len(sink.listed()) == 1
    sink.abort(*sink.listed())
    assert (sink.listed(), found(mariadb, database)) == ([], [])


def test_marks_are_trimmed_beside_prepared_branches(mariadb: MariaDB) -> None:
    database = mariadb.new_database("trim")
    sink, other = session(mariadb, database), session(mariadb, database, "shoq")
    for epoch in range(3):
        sink.commit(epoch, sink.prepare(epoch, [rows(epoch), rows(10 + epoch)]))
    late = [sink.write(1, 0, sink.open(1, ROWS), rows(20), attempt=9)]  # of an epoch that is over
    waiting = other.prepare(0, [rows(21)])
    sink.trim_marks()
    assert mariadb.execute("SELECT DISTINCT epoch FROM exactsink_xa WHERE job = 'shop'", database=database) == [(2,)]
    sink.abort(*sink.listed())
    assert [type(outcome) for outcome in other.commit(0, waiting)] == [Committed]
    assert sink.commit(1, late) == [AlreadyCommitted()], "a later epoch stands: all of this one was committed"


@pytest.mark.parametrize(
    ("declared", "value", "said"),
    [
        ("TINYINT", pa.array([300]), "Out of range value for column 'v'"),
        ("VARCHAR(3)", pa.array(["abcd"]), "Data too long for column 'v'"),
        ("VARCHAR(3)", pa.array(["abc "]), "Data truncated for column 'v'"),
        ("VARCHAR(9) CHARACTER SET latin1", pa.array(["\u4e2d"]), "Incorrect string value"),
        ("INT NOT NULL", pa.array([None], pa.int64()), "'v' cannot be null"),
        ("DOUBLE", pa.array([float("nan")]), "column v: the server has no NaN"),
        ("DATETIME", pa.array([1], pa.timestamp("us", "UTC")), "column v: the column keeps times to 1000000 micro"),
        ("BIGINT UNIQUE", pa.array([7]), "Duplicate entry '7' for key"),
    ],
)
def test_a_value_that_the_table_can_not_hold_stops_the_task(
    mariadb: MariaDB, declared: str, value: pa.Array, said: str
) -> None:
    database = mariadb.new_database("values")
    mariadb.execute(f"CREATE TABLE flights (v {declared})", database=database)
    if "UNIQUE" in declared:
        mariadb.execute("INSERT INTO flights VALUES (7)", database=database)
    sink = session(mariadb, database)
    with pytest.raises(Fatal, match=f"table flights: .*{re.escape(said)}"):
        sink.prepare(0, [pa.table({"v": value})])
    assert sink.listed() == []


def test_values_come_back_as_they_were_and_columns_are_found_by_name(mariadb: MariaDB) -> None:
    database = mariadb.new_database("kept")
    at = datetime(2026, 3, 29, 1, 30, 0, 123456, timezone(timedelta(hours=2)))
    given = {
        "t`x%": ["it's \\ \u4e2d", "", None],
        "f": [0.1, 1e300, None],
        "d": [Decimal("12345678.901"), Decimal("-0.5"), None],
        "b": [b"\0\xff'", b"", None],
        "at": [at, at, None],
        "day": [date(2026, 2, 28), date(1, 1, 1), None],
        "yes": [True, False, None],
    }
    types = [pa.string(), pa.float64(), pa.decimal128(12, 3), pa.binary(), pa.timestamp("us", "Europe/Berlin")]
    schema = pa.schema(list(zip(given, [*types, pa.date32(), pa.bool_()], strict=True)))
    sink = session(mariadb, database)
    sink.commit(0, sink.prepare(0, [pa.table(given, schema)]))
    stored = mariadb.execute("SELECT f, yes, at, day, d, b, `t``x%` FROM flights", database=database)
    utc = at.astimezone(timezone.utc).replace(tzinfo=None)
    assert stored[0] == (0.1, 1, utc, date(2026, 2, 28), Decimal("12345678.901"), b"\0\xff'", "it's \\ \u4e2d")
    assert stored[1] == (1e300, 0, utc, date(1, 1, 1), Decimal("-0.500"), b"", "")
    assert stored[2] == (None,) * 7


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("", "table flights does not exist"),
        ("CREATE TABLE flights (id BIGINT, kind TEXT, amount DOUBLE) ENGINE=Aria", "engine Aria"),
        ("CREATE VIEW flights AS SELECT 1 AS id, 'k' AS kind, 1e0 AS amount", "no table but a view"),
        ("CREATE TABLE flights (id BIGINT, kind TEXT)", "has no column amount"),
        ("CREATE TABLE flights (id BIGINT, kind TEXT, amount DECIMAL(9, 2))", "amount of table flights is decimal"),
        ("CREATE TABLE flights (id BIGINT, kind TEXT, amount DOUBLE, x INT NOT NULL)", "column x"),
    ],
)
def test_preflight_finds_what_of_a_table_is_wrong_and_its_fix_helps(mariadb: MariaDB, table: str, said: str) -> None:
    database = mariadb.new_database("check")
    if table:
        mariadb.execute(table, database=database)
    sink = session(mariadb, database, create=False)
    [error] = [finding for finding in checked(sink) if finding.severity == "error"]
    assert said in error.message
    with pytest.raises(Fatal, match=re.escape(error.message)):
        sink.open(0, ROWS)
    statement = error.fix.rpartition("run: ")[2]
    if statement.endswith(";"):
        mariadb.execute(statement, database=database)
        assert checked(sink) == []


def checked(sink: Session) -> list[Finding]:
    return sink.with_committer(lambda committer: list(committer.check(ROWS, None)))


def test_preflight_shows_the_grants_that_are_missing_and_no_more(mariadb: MariaDB) -> None:
    database = mariadb.new_database("grants")
    user = f"u{database[-8:]}"
    mariadb.execute(f"CREATE USER {user}@localhost", f"GRANT SELECT ON {database}.* TO {user}@localhost")
    sink = session(mariadb, database, user=user)
    lacking = [finding.fix for finding in checked(sink)]
    assert len(lacking) == 3
    mariadb.execute(*lacking, database=database)
    assert checked(sink) == []
    assert [type(outcome) for outcome in sink.commit(0, sink.prepare(0, [rows(1)]))] == [Committed]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"version": "10.4.34-MariaDB"}, "MariaDB 10.4.34-MariaDB loses prepared branches"),
        ({"version": "8.0.28"}, "MySQL 8.0.28 loses prepared branches"),
        ({"version": "8.4.6", "xa_detach_on_prepare": "OFF"}, "xa_detach_on_prepare is OFF"),
        ({"wsrep_on": "ON"}, "Galera"),
        ({"read_only": "ON"}, "the server is read-only (read_only is ON)"),
        ({"super_read_only": "ON"}, "the server is read-only (super_read_only is ON)"),
        ({"innodb_flush_log_at_trx_commit": "2"}, "innodb_flush_log_at_trx_commit is 2"),
        ({"log_bin": "ON", "sync_binlog": "0", "version": "8.4.6"}, "sync_binlog is 0"),
        ({"log_bin": "ON", "sync_binlog": "1"}, "a replica may differ"),
    ],
)
def test_a_server_that_can_not_keep_the_promise_is_found(mariadb: MariaDB, settings: dict[str, str], said: str) -> None:
    from exactsink_mysql_xa_server import Session as Connection
    from exactsink_mysql_xa_table import findings

    sink = session(mariadb, mariadb.new_database("server"))
    with closing(Connection(sink.backend.options)) as asked:
        run = asked.rows

        class Pretends:
            def rows(self, statement: str, *values: object) -> Any:
                answer = run(statement, *values)
                return tuple({**dict(answer), **settings}.items()) if "GLOBAL VARIABLES" in statement else answer

        [finding] = findings(Pretends(), "flights", ROWS, create=True)
    assert said in finding.message


def test_a_password_is_never_shown(mariadb: MariaDB) -> None:
    from exactsink_mysql_xa import XaBackend, XaOptions

    backend = XaBackend(XaOptions.model_validate({"url": "mysql://etl:s3cret@db.example/shop", "table": "t"}))
    assert (backend.target, backend.servers) == ("mysql:db.example:3306/shop/t", ("db.example:3306",))
    assert "s3cret" not in repr(backend.options)
    refused = [
        "mysql://etl:s3/cret@db/shop",
        "postgresql://etl:s3cret@db/x",
        "mysql://etl:s3cret@db",
        "mysql://db/x?a=1",
    ]
    for given in refused:
        with pytest.raises(ValueError, match="url") as error:
            XaOptions.model_validate({"url": given, "table": "t"})
        assert "s3" not in str(error.value)
    sink = session(mariadb, mariadb.new_database("secret"), user="root:s3cret")
    with pytest.raises(Fatal, match="Access denied") as denied:
        sink.open(0, ROWS)
    assert "s3cret" not in str(denied.value)
