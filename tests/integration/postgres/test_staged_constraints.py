"""Constraints and defaults under the staged strategy: what breaks them is found before the decision."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo

from exactsink.contract import Fatal
from exactsink_postgres.options import TableName
from exactsink_postgres.preflight_table import deferred_constraints
from exactsink_postgres.tables import read_table
from tests.integration.postgres.sinks import SCHEMA, new_sink
from tests.servers.postgres import Postgres

pytest_plugins = ["tests.servers.fixtures"]


@dataclass(frozen=True)
class Broken:
    """Rows that a table refuses, and what the message must say. The table holds (1, 'a') before."""

    columns: str
    said: str
    partitions: tuple[list[tuple[int | None, str | None]], ...]


_BROKEN = {
    "NOT NULL": Broken("id bigint NOT NULL, v text", "table public.t, column id", ([(2, "b"), (None, "c")],)),
    "CHECK": Broken("id bigint, v text CONSTRAINT short CHECK (length(v) < 3)", "constraint short", ([(2, "long")],)),
    "a CHECK of two columns": Broken(
        "id bigint, v text, CONSTRAINT pair CHECK (id < 9 OR v > 'm')", "constraint pair", ([(9, "a")],)
    ),
    "a CHECK that is not valid yet": Broken(
        "id bigint, v text; ALTER TABLE t ADD CONSTRAINT later CHECK (id < 9) NOT VALID", "later", ([(9, "a")],)
    ),
    "a CHECK of a column with a default": Broken(
        "id bigint, v text, n int DEFAULT 7, CONSTRAINT seven CHECK (id < n)", "constraint seven", ([(8, "b")],)
    ),
    "a CHECK of a generated column": Broken(
        "id bigint, v text, n bigint GENERATED ALWAYS AS (id * 2) STORED CONSTRAINT even CHECK (n < 9)",
        "constraint even",
        ([(5, "b")],),
    ),
    "a domain": Broken("id positive, v text", "domain positive", ([(2, "b"), (-1, "c")],)),
    "a primary key twice in a partition": Broken(
        "id bigint PRIMARY KEY, v text", "constraint t_pkey: Key (id)=(2) already exists", ([(2, "b"), (2, "c")],)
    ),
    "a unique index twice in a partition": Broken(
        'id bigint, v text; CREATE UNIQUE INDEX "My Index" ON t (v, id)', "constraint My Index", ([(2, "b"), (2, "b")],)
    ),
    "a primary key in two partitions": Broken(
        "id bigint PRIMARY KEY, v text", "partitions 0 and 1 of this epoch", ([(2, "b")], [(3, "c"), (2, "d")])
    ),
    "a primary key that is there": Broken(
        "id bigint PRIMARY KEY, v text", "constraint t_pkey: key (id)=(1) stands in the table", ([(2, "b"), (1, "c")],)
    ),
    "a key of two columns that is there": Broken(
        "id bigint, v text, CONSTRAINT pair UNIQUE (v, id)",
        "constraint pair: key (v, id)=(a,1) stands in the table",
        ([(1, "b"), (2, "a"), (1, "a")],),
    ),
    "a generated key that is there": Broken(
        "id bigint, v text, n text GENERATED ALWAYS AS (upper(v)) STORED UNIQUE",
        "key (n)=(A) stands in the table",
        ([(2, "A")],),
    ),
    "a number that the sequence gave before": Broken(
        "id bigint, v text, n serial UNIQUE; ALTER SEQUENCE t_n_seq RESTART 1",
        "key (n)=(1) stands in the table",
        ([(2, "b")],),
    ),
}


@pytest.mark.parametrize("kind", _BROKEN)
def test_broken_rows_fail_in_their_task_by_the_tables_own_names_and_none_is_kept(database: str, kind: str) -> None:
    broken = _BROKEN[kind]
    columns, _, rest = broken.columns.partition(";")
    make = f"CREATE DOMAIN positive AS bigint CHECK (VALUE > 0); CREATE TABLE t ({columns});"
    make += (
        f"INSERT INTO t (id, v) VALUES (1, 'a'); {rest}"
        if "SEQUENCE" in rest
        else f"{rest}; INSERT INTO t VALUES (1, 'a')"
    )
    with new_sink(database, make) as sink:
        ticket = sink.open(1)
        *good, bad = broken.partitions
        for number, rows in enumerate(good):
            sink.task(ticket, sink.txn(1, number), *rows).pre_commit()
        with pytest.raises(Fatal) as refused:
            sink.task(ticket, sink.txn(1, len(good)), *bad).pre_commit()
        reported = str(refused.value)
        assert broken.said.replace("public.", f"{sink.schema}.") in reported
        assert "exactsink_" not in reported
        assert "next:" in reported
        assert ("hash(key)" in reported) == (len(good) > 0)
        assert sink.rows("SELECT id, v FROM t") == [(1, "a")]
        assert len(sink.registered()) == len(good)
        assert len(sink.staged_rows()) == sum(map(len, good))
        fresh = (
            [(20, "t"), (21, "u")]
            if "id < 9" not in broken.columns + rest and "n < 9" not in broken.columns
            else [(2, "t")]
        )
        if "id < n" in broken.columns:
            fresh = [(2, "t")]
        votes = sink.claim(2).vote(1, fresh)
        if "serial" not in broken.columns:
            assert sink.claim(2).commit(1, votes) == ["Committed"]
            assert len(sink.rows()) == 1 + len(fresh)


def test_nulls_are_no_key_and_rows_of_older_epochs_do_not_clash(database: str) -> None:
    with new_sink(database, "CREATE TABLE t (id bigint PRIMARY KEY, v text UNIQUE)") as sink:
        for epoch in (1, 2):
            votes = sink.vote(epoch, [(2 * epoch, None)], [(2 * epoch + 1, None)])
            assert sink.commit(epoch, votes) == ["Committed"] * 2
        assert len(sink.rows()) == 4


def test_what_the_table_gives_to_a_row_it_gives_once_and_as_it_was_checked(database: str) -> None:
    make = """
        CREATE TABLE t (n bigserial PRIMARY KEY, id bigint, always int GENERATED ALWAYS AS IDENTITY (START 5) UNIQUE,
            v text, by_default int GENERATED BY DEFAULT AS IDENTITY (START 50),
            at timestamptz DEFAULT clock_timestamp(), twice bigint GENERATED ALWAYS AS (id * 2) STORED,
            nothing text, gone int, CHECK (by_default > 0), CHECK (always > 0 OR v IS NULL), CHECK (nothing IS NULL));
        ALTER TABLE t DROP COLUMN gone
    """
    with new_sink(database, make) as sink:
        votes = sink.vote(1, [(10 - n, "a") for n in range(5)], [(20, "b")])
        staged = dict(sink.run(f"SELECT id, at FROM {sink.rows_table()}"))
        assert sink.commit(1, votes) == ["Committed"] * 2
        rows = sink.rows("SELECT n, id, always, by_default, twice FROM t ORDER BY n")
        assert rows == [(1 + k, 10 - k, 5 + k, 50 + k, 20 - 2 * k) for k in range(5)] + [(6, 20, 10, 55, 40)]
        assert dict(sink.rows("SELECT id, at FROM t")) == staged


def test_an_identity_that_rows_bring_is_kept(database: str) -> None:
    make = "CREATE TABLE t (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, v text)"
    with new_sink(database, make) as sink:
        assert sink.commit(1, sink.vote(1, [(7, "a"), (6, "b")])) == ["Committed"]
        assert sink.rows() == [(6, "b"), (7, "a")]
        with pytest.raises(Fatal, match="column id: null value"):
            sink.vote(2, [(None, "c")])


def test_a_participants_rows_go_over_in_their_order(database: str) -> None:
    """More rows than the server would begin to scan at the start, in every scan."""
    with new_sink(database, "CREATE TABLE t (id bigint, v text, n int GENERATED ALWAYS AS IDENTITY)") as sink:
        wide = "x" * 900
        votes = sink.vote(1, [(n, wide) for n in range(10_000)])
        table = sink.rows_table()
        for _ in range(2):  # a scan that others share starts where the last one was
            with psycopg.connect(sink.conninfo) as session:
                session.execute(f"SELECT id FROM {table} LIMIT 4000".encode()).fetchall()
        assert sink.commit(1, votes) == ["Committed"]
        assert sink.rows("SELECT count(*) FROM t WHERE n <> id + 1") == [(0,)]


def test_new_columns_come_into_the_staging_table(database: str) -> None:
    with new_sink(database, "CREATE TABLE t (id bigint)", on_schema_change="add_columns") as sink:
        assert sink.commit(1, sink.vote(1, [(1, "a")])) == ["Committed"]
        wider = pa.schema([*SCHEMA, ("w", pa.float64())])
        assert sink.commit(2, sink.vote(2, [(2, "b", 0.5)], schema=wider)) == ["Committed"]
        assert sink.rows("SELECT * FROM t ORDER BY id") == [(1, "a", None), (2, "b", 0.5)]


def test_what_comes_out_only_after_the_decision_stops_the_job_and_goes_through_when_fixed(database: str) -> None:
    make = "CREATE TABLE p (id bigint PRIMARY KEY); CREATE TABLE t (id bigint REFERENCES p, v text UNIQUE)"
    with new_sink(database, make) as sink:
        sink.run("INSERT INTO p VALUES (1)")
        votes = sink.vote(1, [(1, "a")], [(2, "b")])
        for _ in range(2):
            with pytest.raises(Fatal, match=r"(?s)constraint t_id_fkey.*\(id\)=\(2\).*epoch is decided"):
                sink.commit(1, votes)
            assert sink.rows() == []
        sink.run("INSERT INTO p VALUES (2); INSERT INTO t VALUES (1, 'b')")
        with pytest.raises(Fatal, match="constraint t_v_key"):  # somebody else's row came between
            sink.claim(2).commit(1, votes)
        sink.run("DELETE FROM t")
        assert sink.claim(2).commit(1, votes) == ["Committed"] * 2
        assert sink.rows() == [(1, "a"), (2, "b")]


def test_preflight_names_what_can_be_checked_only_after_the_decision(database: str) -> None:
    make = """
        CREATE TABLE plain (id bigint PRIMARY KEY, v text UNIQUE CHECK (v <> ''), n serial);
        CREATE TABLE t (id bigint PRIMARY KEY DEFERRABLE, v text REFERENCES plain (v),
            n int GENERATED ALWAYS AS IDENTITY, EXCLUDE USING gist (point(id, 0) WITH ~=));
        CREATE UNIQUE INDEX part_of ON t (v) WHERE id > 0;
        CREATE UNIQUE INDEX lowered ON t (lower(v));
        CREATE UNIQUE INDEX nulls ON t (v) NULLS NOT DISTINCT;
        CREATE UNIQUE INDEX numbers ON t (n);
        CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
        CREATE TRIGGER acts BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f();
        CREATE TRIGGER other BEFORE DELETE ON t FOR EACH ROW EXECUTE FUNCTION f();
        CREATE RULE quiet AS ON INSERT TO t WHERE NEW.id < 0 DO INSTEAD NOTHING;
        CREATE TABLE cut (id bigint, v text) PARTITION BY RANGE (id);
        CREATE TABLE part PARTITION OF cut FOR VALUES FROM (0) TO (10);
        CREATE UNIQUE INDEX inner_key ON part (v)
    """
    with new_sink(database, make) as sink, psycopg.connect(sink.conninfo) as connection:
        found = {}
        for name in ("plain", "t", "cut", "part"):
            table = read_table(connection, TableName(None, name))
            assert table is not None
            reported = deferred_constraints(connection, table)
            found[name] = "\n".join(reported)
            assert len(reported) == {"plain": 0, "t": 9, "cut": 2, "part": 1}[name]
        for what in (
            "foreign key t_v_fkey",
            "exclusion constraint t_point_excl",
            "deferrable constraint t_pkey",
            "part_of, which is partial",
            "lowered on expressions",
            "nulls with NULLS NOT DISTINCT",
            "index numbers, whose identity column",
            "trigger acts",
            "rule quiet",
        ):
            assert what in found["t"]
        with sink.committer() as committer:
            warnings = [finding for finding in committer.check(SCHEMA, 2) if "t_v_fkey" in finding.message]
        [warning] = warnings
        assert warning.severity == "warning"
        assert warning.message.startswith(f"table {sink.schema}.t: foreign key t_v_fkey is checked only when")
        assert warning.message.count("table") == 1
        assert "two_phase" in warning.fix


def test_a_role_that_may_only_insert_into_some_columns_leaves_the_others_to_the_table(
    database: str, postgres: Postgres
) -> None:
    role = f"clerk_{uuid.uuid4().hex[:12]}"
    make = f"""
        CREATE TABLE t (id bigint, v text, who text DEFAULT current_user, at int DEFAULT 3 NOT NULL);
        CREATE ROLE {role} LOGIN;
        GRANT SELECT, INSERT (id, v) ON t TO {role}
    """
    with new_sink(database, make) as sink:
        sink.run(f"GRANT ALL ON SCHEMA {sink.schema} TO {role}")
        clerk = replace(sink, conninfo=make_conninfo(sink.conninfo, user=role))
        assert clerk.commit(1, clerk.vote(1, [(1, "a")])) == ["Committed"]
        assert sink.rows("SELECT * FROM t") == [(1, "a", role, 3)]
        sink.run(f"DROP OWNED BY {role}")
    postgres.execute(f"DROP ROLE {role}")
