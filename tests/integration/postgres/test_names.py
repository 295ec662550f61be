"""Names that are words of SQL, with spaces, quotes, signs that mean something elsewhere, and letters beyond ASCII."""

from __future__ import annotations

import pyarrow as pa
import pytest

from exactsink.contract import Fatal
from exactsink.toolkit.sql import quoted
from exactsink_postgres.options import TableName
from tests.integration.postgres.sinks import Staged, new_sink
from tests.servers.postgres import Postgres

ODD = "Ünï 100%s {0} \"q\" 'a' \\ $1"
ROWS = pa.schema([("select", pa.int64()), (ODD, pa.string()), ("from", pa.string())])


@pytest.mark.parametrize("strategy", ["two_phase", "staged"])
@pytest.mark.parametrize("name", [ODD, "select"])
def test_odd_names_work_everywhere(database: str, strategy: str, name: str) -> None:
    with new_sink(
        database, f"DROP SCHEMA IF EXISTS {quoted(ODD)} CASCADE; CREATE SCHEMA {quoted(ODD)}", strategy=strategy
    ) as plain:
        table = TableName(ODD, f"{name} {strategy}")
        sink: Staged = plain.with_(table=table.sql, create=True, on_schema_change="add_columns").bound()
        session = sink.session
        ticket = session.open(0, pa.schema([ROWS.field(0)]))
        sink.run(f'ALTER TABLE {table.sql} ADD CONSTRAINT {quoted(name)} UNIQUE ("select")')
        assert sink.commit(0, [session.write(0, 0, ticket, pa.table({"select": [0]}))]) == ["Committed"]
        rows = [{"select": n, ODD: f"v{n}", "from": None} for n in (1, 2)]
        ticket = session.open(1, ROWS)
        with pytest.raises(Fatal) as refused:
            session.write(1, 0, ticket, pa.Table.from_pylist([*rows, {"select": 0}], schema=ROWS))
        assert str(table) in refused.value.what
        assert name in refused.value.what
        assert ")=(0)" in str(refused.value)
        vote = session.write(1, 1, ticket, pa.Table.from_pylist(rows, schema=ROWS), attempt=1)
        assert sink.listed() == [vote.txn.id]
        assert sink.commit(1, [vote]) == ["Committed"]
        assert sink.run(f"SELECT * FROM {table.sql} ORDER BY 1") == [(0, None, None), (1, "v1", None), (2, "v2", None)]


def test_names_without_quotes_are_folded_as_the_server_does(postgres: Postgres) -> None:
    for number, name in enumerate(["Übung", "ÄÖÜ", "ORDERS", "İstanbul", "Ωmega_1$", "straße"]):
        postgres.execute(f"CREATE TEMP TABLE {name} (n int)")
        [(there,)] = postgres.execute(f"SELECT (parse_ident('{name}'))[1]")
        assert TableName.parse(name).name == there, number


def test_a_name_that_the_server_would_cut_is_refused() -> None:
    assert TableName.parse("ü" * 31).name == "ü" * 31
    with pytest.raises(ValueError, match="after 63 bytes"):
        TableName.parse("ü" * 32)
