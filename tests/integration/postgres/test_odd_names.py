"""Tables and columns whose names hold quotes, separators, line ends and control characters, on a real server."""

from __future__ import annotations

import pyarrow as pa
import pytest

from exactsink.toolkit.sql import quoted
from tests.integration.postgres.sinks import Branches, batch, kinds, new_sink
from tests.unit.odd_names import ODD_NAMES


@pytest.mark.parametrize("odd", ODD_NAMES.values(), ids=ODD_NAMES)
def test_odd_names_of_a_schema_a_table_and_columns(database: str, odd: str) -> None:
    schema = pa.schema([("id", pa.int64()), (odd, pa.string()), (f"{odd}2", pa.string())])
    place = quoted(f"s{odd}", odd)
    make = f"CREATE SCHEMA {quoted(f's{odd}')}; CREATE TABLE {place} (id bigint UNIQUE, {quoted(odd)} text)"
    with new_sink(database, make, table=place, on_schema_change="add_columns") as sink:
        session = sink.session
        votes = session.prepare(1, [pa.Table.from_batches([batch(schema, [(1, odd, "x")])])])
        assert kinds(session.commit(1, votes)) == ["Committed"]
        assert sink.rows(f"SELECT id, {quoted(odd)}, {quoted(f'{odd}2')} FROM {place}") == [(1, odd, "x")]
        sink.run(f"DROP SCHEMA {quoted(f's{odd}')} CASCADE")


@pytest.mark.parametrize("odd", ODD_NAMES.values(), ids=ODD_NAMES)
def test_odd_names_with_prepared_transactions(branches: Branches, odd: str) -> None:
    schema = pa.schema([("id", pa.int64()), (odd, pa.string())])
    place = quoted(f"{odd} {branches.job}")
    sink = branches.with_(table=place, create=True).bound()
    votes = sink.session.prepare(0, [pa.Table.from_batches([batch(schema, [(1, odd)])])])
    assert kinds(sink.session.commit(0, votes)) == ["Committed"]
    assert sink.run(f"SELECT id, {quoted(odd)} FROM {place}") == [(1, odd)]
    sink.run(f"DROP TABLE {place}")
