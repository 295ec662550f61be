"""Columns of types that only the server can read: what rows' texts become there is what an INSERT of them becomes."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest

from exactsink.contract import Fatal
from exactsink_postgres.tables import problems
from tests.integration.postgres import test_columns as binary
from tests.integration.postgres.sinks import Branches, new_sink
from tests.servers.postgres import Postgres

pytest_plugins = ["tests.servers.fixtures"]

TEXTS = {
    "inet": ["10.0.0.1/8", None, "::ffff:1.2.3.4", "fe80::1"],
    "cidr": ["10.0.0.0/8", None, "2001:db8::/32"],
    "macaddr": ["08:00:2b:01:02:03", None, "08002b010203"],
    "xml": ["<a b=\"q\">\u00fc\t'\\\n&amp;</a>", None, "", "plain"],
    "int4range": ["[1,5)", None, "empty", "(,7]"],
    "numrange": ["[0.10,)", None],
    "tstzrange": ['["2026-01-01 00:00:00+02",)', None],
    "datemultirange": ["{[2026-01-01,2026-02-01),[2027-01-01,)}", "{}", None],
    "tsvector": ["'a b':1A,3 'c\\\\d'", None, "", "\u00fcber 'it''s'"],
    "tsquery": ["fat & (rat | !'c\\\\d')", None],
    "hstore": ['a=>1, "b c"=>NULL', None, "", '"q\\"\\\\"=>"\u00fc \t\n=> "'],
    "ltree": ["Top.Science", None, ""],
    "bit(3)": ["101", None],
    "point": ["(0.1,-2e-300)", None],
    "pg_lsn": ["16/B374D848", None],
    "pair": ['(1,"a ""b\\\\ ,")', "(,)", None],
    "network": ["10.1.0.0/16", None],
}


@pytest.fixture(scope="module")
def connection(postgres: Postgres) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres.new_database("texts"), autocommit=True, prepare_threshold=None) as session:
        session.execute("SET timezone = 'Asia/Tokyo'; SET datestyle = 'SQL, DMY'; SET intervalstyle = 'iso_8601'")
        session.execute("CREATE EXTENSION hstore; CREATE EXTENSION ltree; CREATE TYPE pair AS (n int, t text)")
        session.execute("CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE EXTENSION citext")
        session.execute("CREATE DOMAIN cents AS numeric(9,2); CREATE DOMAIN price AS cents CHECK (value >= 0)")
        session.execute("CREATE DOMAIN network AS cidr CHECK (masklen(value) = 16)")
        yield session


@pytest.mark.parametrize("array", [False, True])
def test_texts_become_what_an_insert_of_them_becomes(connection: psycopg.Connection, array: bool) -> None:
    """All types in one table, as values and as arrays of them."""
    most = max(map(len, TEXTS.values()))
    given = {kind: [*texts, *[None] * (most - len(texts))] for kind, texts in TEXTS.items()}
    if array:
        given = {kind: [texts, [], None, texts[:1]] for kind, texts in given.items()}  # type: ignore[misc]
    types = {kind: f"{kind}[]" if array else kind for kind in TEXTS}
    table = binary.made(connection, types)
    batch = pa.record_batch({k: pa.array(v, pa.list_(pa.string()) if array else pa.string()) for k, v in given.items()})
    binary.filled(connection, table, [batch, batch[:0], batch[1:]])
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS beside (LIKE t); DROP TABLE beside; CREATE TEMP TABLE beside (LIKE t)")
    wanted = ", ".join(f"%s::{kind}" for kind in types.values())
    for row in [*zip(*given.values(), strict=True), *list(zip(*given.values(), strict=True))[1:]]:
        connection.execute(f"INSERT INTO beside SELECT {wanted}, nextval('t_place_seq')".encode(), row)
    for name in types:
        stored, inserted = (
            connection.execute(f'SELECT "{name}"::text FROM {where} ORDER BY place'.encode()).fetchall()
            for where in ("t", "beside")
        )
        assert stored == inserted, name


@pytest.mark.parametrize("case", binary.KEPT)
def test_the_other_columns_come_back_as_they_were(connection: psycopg.Connection, case: str) -> None:
    """Beside such a column all values go as text, under whatever the session is set to."""
    columns, types, values = binary.KEPT[case]
    for kind in columns:
        arrays = [pa.array(values, type) if not pa.types.is_dictionary(type) else pa.array(values).dictionary_encode() for type in types]
        ...
