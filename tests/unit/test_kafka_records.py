"""Which rows become records, by which expressions, and what is said of those that don't."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from exactsink.contract import ConfigError
from exactsink_kafka.options import FAST_SETTINGS, KafkaOptions, slow_because
from exactsink_kafka.records import Records, shaped

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECORD = {"key": pa.binary(), "value": pa.string(), "topic": pa.string(), "partition": pa.int32()}
RECORD |= {"headers": HEADERS, "timestamp": pa.timestamp("us", "UTC")}
JSON_OPTIONS = (
    "map('ignoreNullFields', 'false', 'timestampFormat', "
    "concat('yyyy-MM-dd', char(39), 'T', char(39), 'HH:mm:ss.SSSSSSXXXXX'), "
    "'timestampNTZFormat', concat('yyyy-MM-dd', char(39), 'T', char(39), 'HH:mm:ss.SSSSSS'))"
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
    assert shaped(options(), schema(value=pa.string(), topic=pa.int32())) is None
    assert shaped(options(writer="fast"), schema(**dict(list(RECORD.items())[:4]))) is None


TEXT, JSON = pa.string(), {"value_format": "json"}
TWICE = pa.schema([("value", TEXT), ("value", TEXT)])
MORE = schema(key=TEXT, Value=TEXT, value=TEXT, id=pa.int64())
NO_TEXT = [pa.list_(pa.int32()), pa.struct([("a", pa.int32())]), pa.map_(TEXT, pa.int32())]


@pytest.mark.parametrize(
    ("rows", "given", "what", "next"),
    [
        (schema(key=TEXT), {}, "`value`", 'value_format = "json"'),
        (schema(value=TEXT), {"topic": None}, "", 'topic = "..."'),
        (schema(value=TEXT, topic=pa.int32()), {"topic": None}, "topic", ""),
        (MORE, {}, "column Value, id", 'columns = ["key", "value"]'),
        (MORE, {}, "", 'value_format = "json"'),
        (TWICE, {}, "more than one", ""),
        (TWICE, JSON, "more than one", ""),
        (schema(x=pa.int32()), {**JSON, "key": ("x", "y")}, "there is no column y", ""),
        *[(schema(x=kind), {**JSON, "key": ("x",)}, "", "to_json") for kind in NO_TEXT],
        (pa.schema([]), JSON, "no columns", ""),
    ],
)
def test_rows_of_which_no_record_can_be_made_are_refused(rows: pa.Schema, given: Any, what: str, next: str) -> None:
    error = refusal(rows, **given)
    assert (what in error.what, next in error.next) == (True, True), error


@pytest.mark.parametrize(
    ("column", "kind", "fix"),
    [
        ("key", pa.int64(), "CAST(key AS STRING) AS key"),
        ("value", pa.struct([("a", pa.int32())]), "to_json(value) AS value"),
        ("value", pa.null(), "CAST(value AS STRING)"),
        ("topic", pa.binary(), "CAST(topic AS STRING) AS topic"),
        ("partition", pa.int64(), "CAST(partition AS INT) AS partition"),
        ("timestamp", pa.timestamp("us"), "CAST(timestamp AS TIMESTAMP) AS timestamp"),
        ("headers", pa.list_(pa.string()), "AS headers"),
        ("headers", pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())])), "AS headers"),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])), "CAST(h.value AS BINARY)"),
        ("headers", pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())])), "CAST(h.key AS STRING)"),
        (
            "headers",
            pa.list_(pa.struct([("name", pa.string()), ("v", pa.binary())])),
            "'key', CAST(h.`name` AS STRING)",
        ),
        ("headers", pa.list_(pa.struct([("Key", pa.string()), ("Value", pa.binary())])), "CAST(h.`Value` AS BINARY)"),
        ("headers", pa.map_(pa.string(), pa.binary()), "transform(map_entries(headers), h -> "),
    ],
)
def test_a_column_of_another_type_is_refused_with_the_cast(column: str, kind: pa.DataType, fix: str) -> None:
    error = refusal(schema(**{**RECORD, column: kind}), topic=None)
    assert f"column {column} " in error.what
    assert fix in error.next


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"topic": None}, "the rows name their own topics"),
        ({"producer": {"socket.keepalive.enable": True, "linger.ms": 5}}, "the setting socket.keepalive.enable"),
        ({"producer": dict.fromkeys(FAST_SETTINGS, 1)}, None),
        ({"epoch_header": "epoch"}, None),
    ],
)
def test_what_needs_the_plain_writer_is_refused_to_the_fast_one(given: dict[str, Any], why: str | None) -> None:
    assert (why or "") in (slow_because(options(**given)) or "")
    if why is None:
        assert options(**given, writer="fast").writer == "fast"
    else:
        with pytest.raises(ValueError, match=f'writer = "fast": .*{why}'):
            options(**given, writer="fast")


def test_json_is_the_whole_row_with_its_nulls_and_microseconds() -> None:
    rows = schema(id=pa.int64(), **{"it's `odd`, *": pa.string()})
    assert shaped(options(value_format="json"), rows) == [
        f"to_json(struct(`id`, `it's ``odd``, *`), {JSON_OPTIONS}) AS value"
    ]


KINDS = [(pa.int64(), "CAST(`k` AS STRING) AS key"), (pa.string(), "`k` AS key"), (pa.binary(), "`k` AS key")]


@pytest.mark.parametrize(("kind", "expression"), KINDS)
def test_a_key_of_one_column_is_its_text_and_of_several_their_json(kind: pa.DataType, expression: str) -> None:
    rows = schema(k=kind, v=pa.int32())
    json = f"to_json(struct(`k`, `v`), {JSON_OPTIONS}) AS value"
    assert shaped(options(value_format="json", key=("k",)), rows) == [expression, json]
    both = f"to_json(struct(`v`, `k`), {JSON_OPTIONS}) AS key"  # in their order
    assert shaped(options(value_format="json", key=("v", "k")), rows) == [both, json]


MAPS = [pa.map_(pa.binary(), TEXT), pa.list_(pa.struct([("m", pa.map_(pa.date32(), TEXT))]))]
MAPS += [pa.map_(TEXT, pa.map_(pa.timestamp("us"), TEXT))]


@pytest.mark.parametrize("kind", MAPS)
def test_json_of_maps_whose_keys_are_no_text_is_refused(kind: pa.DataType) -> None:
    error = refusal(schema(m=kind, id=pa.int64()), value_format="json")
    assert "column m holds a map" in error.what
    assert "transform_keys" in error.next
    for fine in (pa.map_(pa.string(), pa.binary()), pa.map_(pa.int32(), pa.list_(pa.binary()))):
        assert shaped(options(value_format="json"), schema(m=fine)) is not None


def test_an_epochs_header_comes_after_the_records_own() -> None:
    own = pa.array([[{"key": "a", "value": b"1"}], [], None], HEADERS)
    batch = pa.record_batch({"value": pa.array(["x", "y", "z"]), "headers": own})
    epoch = ("epoch", b"7")
    assert Records(batch, "t", "write", epoch).headers == [[("a", b"1"), epoch], [epoch], [epoch]]
    assert Records(batch.select(["value"]), "t", "write", epoch).headers == [[epoch]] * 3
    assert Records(batch, "t", "write").headers == [[("a", b"1")], None, None]
