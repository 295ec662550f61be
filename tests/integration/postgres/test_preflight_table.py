"""What keeps rows out of a table, and the statement that fixes it: reported before the first row."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from exactsink.contract import Finding
from tests.integration.postgres.preflight_checks import check, reported
from tests.servers.postgres import PostgresServer

STAGED: dict[str, Any] = {"strategy": "staged", "staging_schema": "{s}_staging"}


# The table, and what the role may do with it


FLIGHTS = "CREATE TABLE {s}.flights (id bigint, kind text);"
CUT = "CREATE TABLE {s}.flights (id bigint, kind text) PARTITION BY LIST (kind);"
FAR = "CREATE FOREIGN DATA WRAPPER {s}_w; CREATE SERVER {s}_s FOREIGN DATA WRAPPER {s}_w;"
OTHERS = """
    CREATE TABLE {s}.exactsink_epochs (id int); REVOKE ALL ON {s}.exactsink_epochs FROM writer;
    CREATE TABLE {s}_staging.exactsink_rows_1 (id int);
    COMMENT ON TABLE {s}_staging.exactsink_rows_1 IS 'shop.orders2.free 12ab 0';
    CREATE TABLE {s}_staging.exactsink_rows_2 (id int);
    COMMENT ON TABLE {s}_staging.exactsink_rows_2 IS 'shop.orders.free 12ab 0';
    GRANT ALL ON {s}_staging.exactsink_rows_2 TO writer
"""
OWN_STAGING = "CREATE SCHEMA {s}_staging AUTHORIZATION writer;"
MARKS = "CREATE TABLE {s}.exactsink_epochs (id int);"
SEQUENCE = "CREATE TABLE {s}.flights (id bigint, kind text, n bigserial, m bigint GENERATED ALWAYS AS IDENTITY)"

# What stands in schema {s}, what is found wrong with it for role writer, and the sink's options.
CASES: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "no schema": ("DROP SCHEMA {s}", ["schema {s} does not exist", "does not exist in", "may not insert"], {}),
    "no table": ("", ["table {s}.flights does not exist in schema {s}"], {}),
    "none to be made": ("REVOKE CREATE ON SCHEMA {s} FROM writer", ["may not make the table"], {"create": True}),
    "to be made": ("", [], {"create": True}),
    "unlogged": ("CREATE UNLOGGED TABLE {s}.flights (id bigint, kind text)", ["is unlogged: a crash"], {}),
    "unlogged part": (
        CUT + "CREATE UNLOGGED TABLE {s}.part1 PARTITION OF {s}.flights DEFAULT",
        ["table {s}.part1 is unlogged"],
        {},
    ),
    "foreign part": (
        CUT + FAR + "CREATE FOREIGN TABLE {s}.far PARTITION OF {s}.flights DEFAULT SERVER {s}_s",
        ["partition {s}.far of table {s}.flights is a foreign table"],
        {},
    ),
    "row security": (
        FLIGHTS + "ALTER TABLE {s}.flights ENABLE ROW LEVEL SECURITY",
        ["row security of table {s}.flights applies"],
        {},
    ),
    "closed schema": (
        FLIGHTS + "REVOKE ALL ON SCHEMA {s} FROM writer",
        ['"writer" may not use schema {s}', "may not make table {s}.exactsink_epochs"],
        {},
    ),
    "closed table": (FLIGHTS + "REVOKE ALL ON {s}.flights FROM writer", ["may not insert into table {s}.flights"], {}),
    "closed column": (
        FLIGHTS + "REVOKE ALL ON {s}.flights FROM writer; GRANT INSERT (id) ON {s}.flights TO writer",
        ['may not insert into table {s}.flights ("kind")'],
        {},
    ),
    "closed sequence": (SEQUENCE, ["sequence {s}.flights_n_seq, which fills column n of table {s}.flights"], {}),
    "sequence of a column that rows have": ("CREATE TABLE {s}.flights (id bigserial, kind text)", [], {}),
    "no column": ("CREATE TABLE {s}.flights (id bigint)", ["has no column kind"], {}),
    "others' table": (
        "CREATE TABLE {s}.flights (id bigint)",
        ['lacks columns of the rows, and role "writer", which does not own it, can\'t add them'],
        {"on_schema_change": "add_columns"},
    ),
    "another type": ("CREATE TABLE {s}.flights (id bigint, kind int)", ["kind: the rows' string does not go"], {}),
    "no right to make the marks": (
        FLIGHTS + "REVOKE CREATE ON SCHEMA {s} FROM writer",
        ["may not make table {s}.exactsink_epochs"],
        {},
    ),
    "others' marks": (
        FLIGHTS + MARKS + "REVOKE DELETE ON {s}.exactsink_epochs FROM writer",
        ["may not use table {s}.exactsink_epochs"],
        {},
    ),
    "no right to stage": (
        FLIGHTS + "CREATE SCHEMA {s}_staging",
        ["may not make its staging tables in schema {s}_staging (staging_schema)"],
        STAGED,
    ),
    "no right to make the schema": (FLIGHTS, ["may not make schema {s}_staging for its staging tables"], STAGED),
    "no right to read": (
        FLIGHTS + OWN_STAGING + "REVOKE SELECT ON {s}.flights FROM writer",
        ["may not read table {s}.flights"],
        STAGED,
    ),
    "others' staging tables": (
        FLIGHTS + OWN_STAGING + OTHERS,
        [
            "may not use table {s}.exactsink_epochs",
            "table {s}_staging.exactsink_rows_2 of this sink belongs to another",
        ],
        STAGED,
    ),
}


@pytest.mark.parametrize("strategy", ["two_phase", "staged"])
def test_a_publication_that_takes_the_marks_too_is_reported(shop: PostgresServer, strategy: str) -> None:
    shop.execute('CREATE PUBLICATION one FOR TABLE flights; CREATE PUBLICATION "All" FOR ALL TABLES', "shop")
    shop.execute("CREATE PUBLICATION space FOR TABLES IN SCHEMA public", "shop")
    found = check(shop, strategy=strategy)
    shop.execute('DROP PUBLICATION one, "All", space', "shop")
    if strategy == "staged":
        staging = found.pop()
        assert 'publication "All" takes all tables of schema exactsink_staging, staged rows among' in staging.message
        assert 'staging = "unlogged"' in staging.fix
    assert [finding.severity for finding in found] == ["warning"] * 2
    for finding, name in zip(found, ('"All"', "space"), strict=True):
        assert f"publication {name} takes all tables of schema public, exactsink_epochs among" in finding.message
        assert 'CREATE TABLE "public"."exactsink_epochs" (job text' in finding.fix


@pytest.mark.parametrize("case", CASES)
def test_a_table_that_can_not_take_the_rows_is_reported_with_the_statement_that_fixes_it(
    shop: PostgresServer, case: str
) -> None:
    space, (made, wanted, options) = f"s{list(CASES).index(case)}", CASES[case]
    shop.execute(
        f"CREATE SCHEMA {space}; GRANT ALL ON SCHEMA {space} TO writer;"
        f"ALTER DEFAULT PRIVILEGES IN SCHEMA {space} GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO writer",
        "shop",
    )
    shop.execute(made.replace("{s}", space) or "SELECT", "shop")
    found: list[Finding] = []
    given = {name: str(value).replace("{s}", space) for name, value in options.items()}
    while errors := _errors(shop, table=f"{space}.flights", **given):
        found += errors
        assert len(found) <= len(wanted), reported(found)
        if not errors[0].fix[:2].isupper():  # no statement: the user chooses
            break
        for error in errors:
            shop.execute(re.split(r";? or ", error.fix)[0], "shop")
    for finding, words in zip(found, wanted, strict=True):
        assert words.replace("{s}", space) in finding.message
    if not errors and not options and "FOREIGN" not in made:  # no more rights are needed than were found enough
        copying = f"COPY {space}.flights (id, kind) FROM STDIN".encode()
        with psycopg.connect(shop.conninfo("shop", "writer")) as session, session.cursor().copy(copying) as copy:
            copy.write_row((1, "a"))


def _errors(shop: PostgresServer, **options: Any) -> list[Finding]:
    found = check(shop, role="writer", **options)
    assert "does not report" not in reported(found)
    return [finding for finding in found if finding.severity == "error"]


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
