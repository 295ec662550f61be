"""What `check` finds of a table of MariaDB before the first row: each question has a finding, with a fix that works."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from exactsink.contract import Committed
from exactsink_idempotent_upsert.mysql.questions import MysqlQuestions
from exactsink_idempotent_upsert.questions import QUESTIONS
from exactsink_idempotent_upsert.table import DELETED, GUARD
from tests.integration.upserts.test_mariadb import Here
from tests.servers.mariadb import MariaDB, own_mariadb
from tests.unit.upsert_sink import SCHEMA, Sink, rows_of

_T = "CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR(9), o BIGINT)"
_TEXT_KEY = "CREATE TABLE t (id VARCHAR(9) PRIMARY KEY, v VARCHAR(9), o BIGINT)"
_ASKED: dict[str, list[tuple[str, dict[str, Any], str, str]]] = {
    "columns": [
        (_T.replace(", o BIGINT", ""), {}, "error", "has no column o"),
        (f"{_T[:-1]}, n INT NOT NULL)", {}, "error", "NOT NULL without a default"),
        (f"{_T} ENGINE=MyISAM", {}, "error", "has no transactions"),
    ],
    "types": [
        (_TEXT_KEY, {}, "error", "as a key it has another order"),
        (_T.replace("o BIGINT", "o TEXT"), {"version": "o"}, "error", "as `version` it has another order"),
        (_T, {"version": "v"}, "error", "must be compared by its bytes"),
        (_T.replace("VARCHAR(9)", "CHAR(9)"), {}, "warning", "changes the ends"),
        (_T.replace("v VARCHAR(9)", "v INT"), {}, "error", "would be cut, rounded or refused"),
        (_T.replace("o BIGINT", "o BIGINT AS (id + 1)"), {}, "error", "and generated"),
        (_T, {"version": "o", "delete_when": "x"}, "warning", "deletes a row with its version"),
    ],
    "keys": [(_T.replace(" PRIMARY KEY", ""), {}, "error", "no PRIMARY KEY or UNIQUE index over exactly id")],
    "privileges": [],
    "durability": [],
    "triggers": [
        (f"{_T};CREATE TRIGGER x AFTER {event} ON t FOR EACH ROW SET @a = 1", {"delete_when": "x"}, "warning", event)
        for event in ("INSERT", "UPDATE", "DELETE")
    ],
    "constraints": [
        (_T.replace("VARCHAR(9)", "VARCHAR(9) UNIQUE"), {}, "warning", "unique index v"),
        (_T.replace("id BIGINT PRIMARY KEY", "id INT UNIQUE, n INT DEFAULT 1 PRIMARY KEY"), {}, "warning", "PRIMARY"),
        (_T.replace("o BIGINT", "o BIGINT CHECK (o > 0)"), {}, "warning", "CHECK o"),
    ],
    "references": [
        (f"CREATE TABLE p (o BIGINT PRIMARY KEY);{_T[:-1]}, FOREIGN KEY (o) REFERENCES p (o))", {}, "warning", "t may"),
        (f"{_T};CREATE TABLE c (o BIGINT REFERENCES t (id))", {"delete_when": "x"}, "warning", "a delete"),
        (f"{_T[:-1]}, INDEX (o));CREATE TABLE c (o BIGINT REFERENCES t (o))", {}, "warning", "a change of o"),
    ],
    "partitions": [(f"{_T} PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (9))", {}, "warning", "no partition")],
}  # fmt: skip


@pytest.fixture
def here(mariadb: MariaDB) -> Here:
    return Here(mariadb)


@pytest.mark.parametrize(
    ("question", "case"), [(question, case) for question in QUESTIONS for case in _ASKED[question]], ids=str
)
def test_a_question_has_its_finding_and_no_other_one_has(
    here: Here, tmp_path: Path, question: str, case: tuple[str, dict[str, Any], str, str]
) -> None:
    made, options, severity, said = case
    here.sql(*made.split(";"))
    sink = here.sink(tmp_path, create=False, **options)
    assert [(severity, True)] == [
        (found.severity, said in found.message) for found in sink.check(_rows(sink, 0).schema)
    ]
    assert list(_asked(sink, question)) == sink.check(_rows(sink, 0).schema)
    fixes = [found.fix for found in sink.check() if found.fix.startswith(("ALTER", "CREATE")) and found.fix[-1] == ";"]
    if fixes:
        here.sql(*fixes)
        assert sink.check(_rows(sink, 0).schema) == []
    assert "DROP INDEX `PRIMARY`" not in str(sink.check())


@pytest.mark.parametrize(("strategy", "severity"), [("staged", "warning"), ("direct", "error")])
@pytest.mark.parametrize("collation", ["utf8mb4_general_ci", "utf8mb4_bin", "utf8mb4_nopad_bin"])
def test_texts_of_one_key_may_come_from_two_tasks(
    here: Here, tmp_path: Path, collation: str, strategy: str, severity: str
) -> None:
    """Where they are staged, that of the later partition wins, whichever task ends first."""
    guard = "".join(f", {name} BIGINT" for name in GUARD)
    here.sql(f"CREATE TABLE t (id BIGINT, v VARCHAR(9) COLLATE {collation} PRIMARY KEY, o BIGINT{guard})")
    sink = here.sink(tmp_path, create=False, keys=("v",), strategy=strategy)
    found = [one.severity for one in sink.check() if f"table t compares key v by {collation}: texts of" in one.message]
    assert found == ([] if "nopad" in collation else [severity])
    if "error" not in found:
        ticket = sink.open(1, SCHEMA)
        votes = [sink.write(1, place, ticket, rows_of([(place, "a" + " " * place)])) for place in (1, 0)]
        assert sink.commit(1, votes[::-1]) == [Committed(), Committed()]
        assert here.sql("SELECT id FROM t ORDER BY id") == ([(1,)] if found else [(0,), (1,)])


def _asked(sink: Sink, question: str) -> Any:
    database: Any = sink.backend._database()
    with closing(database.connect()) as connection:
        yield from getattr(MysqlQuestions(connection, database.table), question)(_rows(sink, 0).schema)


def _rows(sink: Sink, count: int) -> pa.Table:
    rows = pa.Table.from_pylist([{"id": n, "v": "a", "o": n} for n in range(count)], schema=SCHEMA)
    return (
        rows
        if sink.backend.options.delete_when is None
        else rows.append_column(DELETED, pa.array([False] * count, pa.bool_()))
    )


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"delete_when": "x", "version": "o"},
        {"mode": "insert_if_absent"},
        {"mode": "replace", "strategy": "direct"},
        {"set": {"o": "t.o + excluded.o"}},
        {"create": True},
    ],
    ids=str,
)
def test_the_grants_that_are_printed_are_all_that_a_job_needs(
    here: Here, tmp_path: Path, given: dict[str, Any]
) -> None:
    guard = "".join(f", {name} BIGINT" for name in GUARD)
    if "create" not in given:
        here.sql(f"{_T[:-1]}{guard})")
    here.sql(f"CREATE USER {here.name}@localhost", f"GRANT USAGE ON *.* TO {here.name}@localhost")
    here.sql("CREATE TABLE other (o INT)", f"GRANT SELECT ON other TO {here.name}@localhost")  # the way in
    options = {"create": False, **given, "url": here.server.url(here.name, here.name)}
    sink = here.sink(tmp_path, **options)
    for _ in range(9):
        rows = _rows(sink, 2)
        found = [one for one in sink.check(rows.schema) if one.severity == "error"]
        if not found:
            break
        for one in found:
            here.sql(one.fix if one.fix.startswith("GRANT") else f"GRANT SELECT ON t TO {here.name}@localhost")
    assert found == []
    for epoch in (1, 2):
        assert sink.run(epoch, rows) == [Committed()]


def test_a_server_that_may_lose_what_is_committed_is_refused(tmp_path: Path) -> None:
    given = {"innodb-flush-log-at-trx-commit": "2", "log-bin": "log", "binlog-format": "ROW", "innodb-doublewrite": "0"}
    with own_mariadb({**given, "read-only": "1"}) as server:
        here = Here(server)
        here.sql(_T)
        sink = here.sink(tmp_path, create=False)
        found = sink.check()
        assert [(one.severity, one.message.split()[0]) for one in found] == [
            ("error", "innodb_flush_log_at_trx_commit"),
            ("error", "sync_binlog"),
            ("warning", "innodb_doublewrite"),
            ("error", "read_only"),
        ]
        here.sql(*("SET GLOBAL" + one.fix.partition("SET GLOBAL")[2] for one in found if "SET GLOBAL" in one.fix))
        assert [one.severity for one in sink.check()] == ["warning"]


@pytest.mark.parametrize("given", [{}, {"delete_when": "x", "version": "o"}, {"mode": "replace", "strategy": "direct"}])
def test_a_table_that_keeps_its_history_is_one_like_any_other(
    here: Here, tmp_path: Path, given: dict[str, Any]
) -> None:
    guard = "".join(f", {name} BIGINT" for name in GUARD)
    here.sql(
        f"{_T[:-1]}{guard}, d INT DEFAULT 7) WITH SYSTEM VERSIONING", "INSERT INTO t (id, v, d) VALUES (1, 'old', 1)"
    )
    sink = here.sink(tmp_path, create=False, **given)
    rows = _rows(sink, 2)
    assert [one for one in sink.check(rows.schema) if one.severity == "error"] == []
    assert sink.run(1, rows) == [Committed()]
    assert here.sql("SELECT id, v, d FROM t ORDER BY id") == [(0, "a", 7), (1, "a", 7 if "mode" in given else 1)]
    assert here.sql("SELECT count(*) FROM t FOR SYSTEM_TIME ALL") == [(3,)]
