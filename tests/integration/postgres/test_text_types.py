"""Columns of types that only the server can read: what rows' texts become there is what an INSERT of them becomes."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest

from exactsink.contract import Fatal
from tests.integration.postgres import test_columns as columns
from tests.integration.postgres.sinks import Branches, new_sink
from tests.servers.postgres import Postgres, own_postgres

TEXTS = {
    "inet": ["10.0.0.1/8", None, "::ffff:1.2.3.4", "fe80::1"],
    "cidr": ["10.0.0.0/8", None, "2001:db8::/32"],
    "macaddr": ["08:00:2b:01:02:03", None, "08002b010203"],
    "xml": ['<a b="q">ü\t\'\\\n\r\n&amp;</a>', None, "", "\\.\n\\."],
    "int4range": ["[1,5)", None, "empty", "(,7]"],
    "numrange": ["[0.10,)", None],
    "tstzrange": ['["2026-01-01 00:00:00+02",)', None],
    "datemultirange": ["{[2026-01-01,2026-02-01),[2027-01-01,)}", "{}", None],
    "tsvector": ["'a b':1A,3 'c\\\\d'", None, "", "über 'it''s'"],
    "tsquery": ["fat & (rat | !'c\\\\d')", None],
    "hstore": ['a=>1, "b c"=>NULL', None, "", '"q\\"\\\\"=>"ü \t\n=> "'],
    "ltree": ["Top.Science", None, ""],
    "bit(3)": ["101", None],
    "point": ["(0.1,-2e-300)", None],
    "pg_lsn": ["16/B374D848", None],
    "pair": ['(1,"a ""b\\\\ ,")', "(,)", None],
    "network": ["10.1.0.0/16", None],
}
NET = pa.schema([("id", pa.int64()), ("net", pa.string())])


@pytest.fixture(scope="module")
def connection(postgres: Postgres) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres.new_database("texts"), autocommit=True, prepare_threshold=None) as session:
        session.execute("CREATE EXTENSION hstore; CREATE EXTENSION ltree; CREATE TYPE pair AS (n int, t text)")
        session.execute("CREATE DOMAIN network AS cidr CHECK (masklen(value) = 16)")
        yield session


@pytest.mark.parametrize("as_arrays", [False, True])
def test_texts_become_what_an_insert_of_them_becomes(connection: psycopg.Connection, as_arrays: bool) -> None:
    kinds = {kind: f"{kind}[]" if as_arrays else kind for kind in TEXTS}
    rows = max(map(len, TEXTS.values()))
    given: dict[str, list[object]] = {kind: [*texts, *[None] * (rows - len(texts))] for kind, texts in TEXTS.items()}
    if as_arrays:
        given = {kind: [texts, [], None, texts[:1]] for kind, texts in given.items()}
    table = columns.made(connection, kinds)
    arrow = pa.list_(pa.string()) if as_arrays else pa.string()
    batch = pa.record_batch({kind: pa.array(values, arrow) for kind, values in given.items()})
    columns.filled(connection, table, [batch, batch[:0], batch[2:]])
    stored = columns.read(connection, [f'"{kind}"::text' for kind in kinds])
    connection.execute("TRUNCATE t RESTART IDENTITY")
    insert = f"INSERT INTO t SELECT {', '.join(f'%s::{kind}' for kind in kinds.values())}"
    for row in [batch.to_pylist()[n] for n in (*range(rows), *range(2, rows))]:
        connection.execute(insert.encode(), list(row.values()))
    assert stored == columns.read(connection, [f'"{kind}"::text' for kind in kinds])


@pytest.mark.parametrize("strategy", ["two_phase", "staged"])
def test_what_the_server_can_not_read_is_refused_in_the_task_by_row_and_column(database: str, strategy: str) -> None:
    with new_sink(database, "CREATE TABLE t (id bigint PRIMARY KEY, net inet)", strategy=strategy) as sink:
        session = sink.session
        ticket = session.open(0, NET)
        rows = pa.Table.from_pylist([{"id": n, "net": f"10.0.0.{n}"} for n in (255, 256)], schema=NET)
        with pytest.raises(Fatal, match=r'invalid input syntax for type inet: "10\.0\.0\.256"') as refused:
            session.write(0, 0, ticket, rows)
        assert "line 2, column net" in refused.value.why
        assert sink.commit(0, [session.write(0, 0, ticket, rows[:1], attempt=1)]) == ["Committed"]
        assert sink.rows("SELECT id, host(net) FROM t") == [(255, "10.0.0.255")]


def test_types_whose_input_cuts_a_text_are_refused(branches: Branches) -> None:
    branches.table("id bigint, kind name")
    with pytest.raises(Fatal, match="string does not go into name"):
        branches.ticket()


@pytest.mark.proof
def test_vectors_of_pgvector() -> None:
    """Debian 12 has no pgvector; the server that comes from PyPI has it."""
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    make = "CREATE TABLE t (id bigint PRIMARY KEY, v public.vector(3))"
    with own_postgres(release="18-pypi") as server:
        server.execute("CREATE EXTENSION vector")
        for strategy in ("two_phase", "staged"):
            with new_sink(server.conninfo(), make, strategy=strategy) as sink:
                ticket = sink.session.open(0, schema)
                texts = ["[1, 2.5,-3e-2]", None, "[1,2]"]
                rows = pa.Table.from_pydict({"id": [1, 2, 3], "v": texts}, schema=schema)
                with pytest.raises(Fatal, match="expected 3 dimensions, not 2"):
                    sink.session.write(0, 0, ticket, rows)
                assert sink.commit(0, [sink.session.write(0, 0, ticket, rows[:2], attempt=1)]) == ["Committed"]
                assert sink.rows("SELECT id, v::text FROM t ORDER BY id") == [(1, "[1,2.5,-0.03]"), (2, None)]
