"""What keeps rows out of a table, and the statement that fixes it: reported before the first row."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import psycopg
import pyarrow as pa
import pytest

from exactsink.contract import Finding
from tests.integration.postgres.preflight_checks import (
    check,
    reported,
)
from tests.servers.postgres import PostgresServer

TWO_PHASE: dict[str, Any] = {}
STAGED: dict[str, Any] = {"strategy": "staged"}


# The table, and what the role may do with it


class Case(NamedTuple):
    """A table in schema {s}, what is found wrong with it for role writer, and how often its fixes must be run."""

    made: str
    reported: list[str]
    options: dict[str, Any] = TWO_PHASE


CASES = {
    "no schema": Case(
        "DROP SCHEMA {s}", ["schema {s} does not exist", "does not exist in schema {s}", "may not insert"]
    ),
    "no table": Case("", ["table {s}.flights does not exist in schema {s}"]),
    "none to be made": Case("REVOKE CREATE ON SCHEMA {s} FROM writer", ["may not make the table"], {"create": True}),
    "to be made": Case("", [], {"create": True}),
    "unlogged": Case("CREATE UNLOGGED TABLE {s}.flights (id bigint, kind text)", ["is unlogged: a crash"]),
    "unlogged partition": Case(
        "CREATE TABLE {s}.flights (id bigint, kind text) PARTITION BY LIST (kind);"
        "CREATE UNLOGGED TABLE {s}.part1 PARTITION OF {s}.flights DEFAULT",
        ["table {s}.part1 is unlogged"],
    ),
    "foreign partition": Case(
        "CREATE FOREIGN DATA WRAPPER {s}_w; CREATE SERVER {s}_s FOREIGN DATA WRAPPER {s}_w;"
        "CREATE TABLE {s}.flights (id bigint, kind text) PARTITION BY LIST (kind);"
        "CREATE FOREIGN TABLE {s}.far PARTITION OF {s}.flights DEFAULT SERVER {s}_s",
        ["partition {s}.far of table {s}.flights is a foreign table"],
    ),
    "row security": Case(
        "CREATE TABLE {s}.flights (id bigint, kind text); ALTER TABLE {s}.flights ENABLE ROW LEVEL SECURITY",
        ["row security of table {s}.flights applies"],
    ),
    "closed schema": Case(
        "CREATE TABLE {s}.flights (id bigint, kind text); REVOKE ALL ON SCHEMA {s} FROM writer",
        ['role "writer" may not use schema {s}'],
    ),
    "closed table": Case(
        "CREATE TABLE {s}.flights (id bigint, kind text); REVOKE ALL ON {s}.flights FROM writer",
        ["may not insert into table {s}.flights"],
    ),
    "closed column": Case(
        "CREATE TABLE {s}.flights (id bigint, kind text); REVOKE ALL ON {s}.flights FROM writer;"
        "GRANT INSERT (id) ON {s}.flights TO writer",
        ['may not insert into table {s}.flights ("kind")'],
    ),
    "closed sequence": Case(
        "CREATE TABLE {s}.flights (id bigint, kind text, n bigserial, m bigint GENERATED ALWAYS AS IDENTITY)",
        ["may not use sequence {s}.flights_n_seq, which fills column n of table {s}.flights"],
    ),
    "sequence of a column that rows have": Case("CREATE TABLE {s}.flights (id bigserial, kind text)", []),
    "no column": Case("CREATE TABLE {s}.flights (id bigint)", ["has no column kind"]),
    "columns of others": Case(
        "CREATE TABLE {s}.flights (id bigint)",
        ['lacks columns of the rows, and role "writer", which does not own it, can\'t add them'],
        {"on_schema_change": "add_columns"},
    ),
    "another type": Case(
        "CREATE TABLE {s}.flights (id bigint, kind int)", ["column kind: the rows' string does not go"]
    ),
    "staged: no right to make tables": Case(
        "CREATE TABLE {s}.flights (id bigint, kind text); REVOKE CREATE ON SCHEMA {s} FROM writer",
        ["may not make its staging tables"],
        STAGED,
    ),
    "staged: no right to read": Case(
        "CREATE TABLE {s}.flights (id bigint, kind text); REVOKE SELECT ON {s}.flights FROM writer",
        ["may not read table {s}.flights"],
        STAGED,
    ),
    "staged: others' own tables": Case(
        "CREATE TABLE {s}.flights (id bigint, kind text); CREATE TABLE {s}.exactsink_epochs (id int);"
        "CREATE TABLE {s}.exactsink_rows_0 (id int); COMMENT ON TABLE {s}.exactsink_rows_0 IS 'shop.orders.g1-x.e2';"
        "CREATE TABLE {s}.exactsink_rows_1 (id int); COMMENT ON TABLE {s}.exactsink_rows_1 IS 'shop.orders2.g1-x.e2';"
        "REVOKE ALL ON {s}.exactsink_epochs FROM writer",
        [
            "may not use table {s}.exactsink_epochs",
            "staging table {s}.exactsink_rows_0 of this sink belongs to another",
        ],
        STAGED,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_table_that_can_not_take_the_rows_is_reported_with_the_statement_that_fixes_it(
    shop: PostgresServer, request: pytest.FixtureRequest, case: Case
) -> None:
    space = "s" + str(list(CASES.values()).index(case))
    shop.execute(
        f"CREATE SCHEMA {space}; GRANT ALL ON SCHEMA {space} TO writer;"
        f"ALTER DEFAULT PRIVILEGES IN SCHEMA {space} GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO writer",
        "shop",
    )
    if case.made:
        shop.execute(case.made.replace("{s}", space), "shop")

    def look() -> list[Finding]:
        options = {"table": f"{space}.flights", **case.options}
        found = check(shop, role="writer", **options)
        assert "does not report" not in reported(found)
        return [finding for finding in found if finding.severity == "error"]

    found: list[Finding] = []
    while errors := look():
        found += errors
        assert len(found) <= len(case.reported), reported(found)
        if not errors[0].fix[:2].isupper():  # no statement: the user chooses
            break
        for error in errors:
            shop.execute(re.split(r";? or ", error.fix)[0], "shop")
    for finding, words in zip(found, case.reported, strict=True):
        assert words.replace("{s}", space) in finding.message
    if not errors and not case.options.get("create") and "FOREIGN" not in case.made:
        copy_as_writer(shop, space, case.options)


def copy_as_writer(shop: PostgresServer, space: str, options: dict[str, Any]) -> None:
    """Do what the strategy does, with no more rights than were found enough."""
    with psycopg.connect(shop.conninfo("shop", "writer")) as session:
        if options == STAGED:
            session.execute(f"CREATE TABLE {space}.exactsink_rows_9 (LIKE {space}.flights)".encode())
        with session.cursor().copy(f"COPY {space}.flights (id, kind) FROM STDIN".encode()) as copy:
            copy.write_row((1, "a"))


def test_columns_that_will_be_added_are_reported_with_the_statement(shop: PostgresServer) -> None:
    shop.execute("CREATE TABLE narrow (id bigint)", "shop")
    [warning] = check(shop, table="narrow", on_schema_change="add_columns")
    assert warning.severity == "warning"
    assert warning.fix.startswith('ALTER TABLE "public"."narrow" ADD COLUMN IF NOT EXISTS "kind" text;')
    shop.execute("ALTER TABLE narrow OWNER TO writer", "shop")
    assert "error" not in reported(check(shop, role="writer", table="narrow", on_schema_change="add_columns"))


def test_columns_are_matched_as_the_writer_does_also_for_privileges(shop: PostgresServer) -> None:
    shop.execute(
        "CREATE TABLE cased (id bigint, kind text, n serial); GRANT INSERT (id, kind) ON cased TO writer", "shop"
    )
    rows = pa.schema([("ID", pa.int64()), ("Kind", pa.string()), ("N", pa.int32())])
    [error] = check(shop, role="writer", table="cased", rows=rows)
    assert error.fix == 'GRANT INSERT ("n") ON "public"."cased" TO "writer";'


@pytest.mark.parametrize("kind", ["VIEW v1 AS SELECT 1 AS id", "MATERIALIZED VIEW v2 AS SELECT 1 AS id", "SEQUENCE v3"])
def test_what_is_no_table_is_refused(shop: PostgresServer, kind: str) -> None:
    shop.execute(f"CREATE {kind}", "shop")
    name = re.findall(r"v\d", kind)[0]
    [error] = check(shop, table=name)
    assert error.severity == "error"
    assert f"{name} is a {kind.split(' v')[0].lower()}: rows go into" in error.message


def test_a_type_that_no_column_can_have_is_reported_before_the_table_is_made(shop: PostgresServer) -> None:
    rows = pa.schema([("id", pa.int64()), ("nothing", pa.null())])
    for create in (True, False):
        [error] = check(shop, table="unmade", rows=rows, create=create)
        assert (error.severity, "column nothing" in error.message) == ("error", True)


def test_what_the_staged_strategy_checks_too_late_is_a_warning_that_proposes_two_phase(shop: PostgresServer) -> None:
    shop.execute(
        "CREATE TABLE kinds (kind text PRIMARY KEY); CREATE TABLE linked (id bigint, kind text REFERENCES kinds)",
        "shop",
    )
    assert check(shop, table="linked") == []
    [warning] = check(shop, table="linked", strategy="staged")
    assert (warning.severity, "linked_kind_fkey" in warning.message) == ("warning", True)
    assert 'strategy = "two_phase"' in warning.fix
