"""Which rows become records, by which expressions, and what is said of those that don't."""

from __future__ import annotations

import pyarrow as pa
import pytest

from exactsink.contract import ConfigError
from exactsink_kafka.options import KafkaOptions
from exactsink_kafka.records import plain_only, shaped

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECORD = {
    "key": pa.binary(),
    "value": pa.string(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "headers": HEADERS,
    "timestamp": pa.timestamp("us", "UTC"),
}
JSON_OPTIONS = (
    "map('ignoreNullFields', 'false', 'timestampFormat', 'yyyy-MM-dd''T''HH:mm:ss.SSSSSSXXXXX', "
    "'timestampNTZFormat', 'yyyy-MM-dd''T''HH:mm:ss.SSSSSS')"
)


def options(**given: object) -> KafkaOptions:
    return KafkaOptions.model_validate({"bootstrap_servers": "localhost:9092", "topic": "t", **given})


def schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


def refusal(schema: pa.Schema, **given: object) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        shaped(options(**given), schema)
    assert refused.value.next
    return refused.value


def test_rows_with_a_record_s_columns_stay_as_they_are() -> None:
    assert shaped(options(), schema(value=pa.string())) is None
    assert shaped(options(), schema(value=pa.large_binary(), key=pa.large_string())) is None
    assert shaped(options(topic=None), schema(**RECORD)) is None
    assert shaped(options(), schema(**RECORD)) is None  # `topic` stays to be warned of: the option wins


def test_a_topic_column_is_not_looked_at_beside_the_option() -> None:
    assert shaped(options(), schema(value=pa.string(), topic=pa.int32())) is None
    assert "topic" in refusal(schema(value=pa.string(), topic=pa.int32()), topic=None).what


def test_a_value_and_a_topic_have_to_be_there() -> None:
    error = refusal(schema(key=pa.string()))
    assert "`value`" in error.what
    assert 'value_format = "json"' in error.next
    error = refusal(schema(value=pa.string()), topic=None)
    assert 'topic = "..."' in error.next


def test_columns_that_no_record_has_are_refused_with_the_way_to_leave_them_out() -> None:
    error = refusal(schema(key=pa.string(), Value=pa.string(), value=pa.string(), id=pa.int64()))
    assert error.what.endswith("Value, id")
    assert 'columns = ["key", "value"]' in error.next
    assert 'value_format = "json"' in error.next


def test_two_columns_of_one_name_are_refused() -> None:
    double = pa.schema([("value", pa.string()), ("value", pa.string())])
    assert "more than one" in refusal(double).what
    assert "more than one" in refusal(double, value_format="json").what


@pytest.mark.parametrize(
    ("column", "kind", "fix"),
    [
        ("key", pa.int64(), "CAST(key AS STRING) AS key"),
        ("value", pa.struct([("a", pa.int32())]), "to_json(value) AS value"),
        ("value", pa.null(), "CAST(value AS STRING)"),
        ("topic", pa.binary(), "CAST(topic AS STRING) AS topic"),
        ("partition", pa.int64(), "CAST(partition AS INT) AS partition"),
        ("partition", pa.int16(), "CAST(partition AS INT) AS partition"),
        ("timestamp", pa.timestamp("us"), "CAST(timestamp AS TIMESTAMP) AS timestamp"),
        ("timestamp", pa.int64(), "CAST(timestamp AS TIMESTAMP) AS timestamp"),
        ("headers", pa.map_(pa.string(), pa.binary()), "AS headers"),
        ("headers", pa.list_(pa.string()), "AS headers"),
        ("headers", pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())])), "AS headers"),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])), "CAST(h.value AS BINARY)"),
        ("headers", pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())])), "CAST(h.key AS STRING)"),
    ],
)
def test_a_column_of_another_type_is_refused_with_the_cast(column: str, kind: pa.DataType, fix: str) -> None:
    error = refusal(schema(**{**RECORD, column: kind}), topic=None)
    assert f"column {column} " in error.what
    assert fix in error.next


@pytest.mark.parametrize("column", ["headers", "timestamp", "topic"])
def test_the_fast_writer_is_refused_rows_that_only_the_plain_one_takes(column: str) -> None:
    topic = None if column == "topic" else "t"
    rows = schema(**{"value": pa.string(), "partition": pa.int32(), "topic": pa.string(), column: RECORD[column]})
    error = refusal(rows, writer="fast", topic=topic)
    assert f"a column {column}" in error.what
    assert f'"{column}"' not in error.next
    assert '"value", "partition"' in error.next
    assert plain_only(options(topic=topic), rows) == [column]
    for writer in ("auto", "plain"):
        assert shaped(options(writer=writer, topic=topic), rows) is None


def test_the_fast_writer_takes_keys_values_partitions_and_a_topic_that_counts_nothing() -> None:
    rows = schema(**{name: RECORD[name] for name in ("key", "value", "topic", "partition")})
    assert shaped(options(writer="fast"), rows) is None


def test_json_is_the_whole_row_with_its_nulls_and_microseconds() -> None:
    rows = schema(id=pa.int64(), **{"it's `odd`, *": pa.string()})
    assert shaped(options(value_format="json"), rows) == [
        f"to_json(struct(`id`, `it's ``odd``, *`), {JSON_OPTIONS}) AS value"
    ]


@pytest.mark.parametrize(
    ("kind", "expression"),
    [
        (pa.int64(), "CAST(`k` AS STRING) AS key"),
        (pa.timestamp("us", "UTC"), "CAST(`k` AS STRING) AS key"),
        (pa.string(), "`k` AS key"),
        (pa.binary(), "`k` AS key"),
    ],
)
def test_a_key_of_one_column_is_its_text_and_bytes_stay(kind: pa.DataType, expression: str) -> None:
    given = shaped(options(value_format="json", key=("k",)), schema(k=kind, v=pa.int32()))
    assert given == [expression, f"to_json(struct(`k`, `v`), {JSON_OPTIONS}) AS value"]


def test_a_key_of_several_columns_is_json_of_these_in_their_order() -> None:
    given = shaped(options(value_format="json", key=("b", "a")), schema(a=pa.int64(), b=pa.int64(), c=pa.int64()))
    assert given is not None
    assert given[0] == f"to_json(struct(`b`, `a`), {JSON_OPTIONS}) AS key"


@pytest.mark.parametrize(
    "kind",
    [
        pa.map_(pa.binary(), pa.int32()),
        pa.map_(pa.date32(), pa.int32()),
        pa.list_(pa.struct([("m", pa.map_(pa.struct([("a", pa.int32())]), pa.int32()))])),
        pa.map_(pa.string(), pa.map_(pa.timestamp("us"), pa.int32())),
    ],
)
def test_json_of_maps_whose_keys_are_no_text_is_refused(kind: pa.DataType) -> None:
    error = refusal(schema(m=kind, id=pa.int64()), value_format="json")
    assert "column m holds a map" in error.what
    assert "transform_keys" in error.next
    for fine in (pa.map_(pa.string(), pa.binary()), pa.map_(pa.int32(), pa.list_(pa.binary()))):
        assert shaped(options(value_format="json"), schema(m=fine)) is not None


def test_keys_that_are_not_there_or_no_text_are_refused() -> None:
    assert "there is no column y" in refusal(schema(x=pa.int32()), value_format="json", key=("x", "y")).what
    for kind in (pa.list_(pa.int32()), pa.struct([("a", pa.int32())]), pa.map_(pa.string(), pa.int32())):
        error = refusal(schema(x=kind), value_format="json", key=("x",))
        assert "to_json" in error.next
    assert "no columns" in refusal(pa.schema([]), value_format="json").what
