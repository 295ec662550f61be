"""Rows as records: the columns of Spark's own Kafka sink, or the whole row as JSON text, made by the JVM.

`shaped` makes Spark's expressions on the driver; `Records` reads a task's batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.contract import ConfigError, Fatal
from exactsink.toolkit.json_columns import JSON_OPTIONS, check_map_keys
from exactsink.toolkit.spark_sql import quoted_name, text_map
from exactsink_kafka.options import KafkaOptions

__all__ = ["Header", "Records", "shaped", "uvarint"]

Header = tuple[str, bytes | None]

_is = pa.types


def _is_text(kind: pa.DataType) -> bool:
    return bool(_is.is_string(kind) or _is.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(_is_text(kind) or _is.is_binary(kind) or _is.is_large_binary(kind))


def _of_structs(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields of an array's structs; none for any other type."""
    listed = _is.is_list(kind) or _is.is_large_list(kind)
    return list(kind.value_type) if listed and _is.is_struct(kind.value_type) else []


def _is_headers(kind: pa.DataType) -> bool:
    fields = _of_structs(kind)
    named = [field.name for field in fields] == ["key", "value"]
    return named and _is_text(fields[0].type) and _is_bytes(fields[1].type) and not _is_text(fields[1].type)


def _header_fields(kind: pa.DataType) -> Sequence[str]:
    """Name the fields of a header's key and value: by their names, else by their order."""
    names = [field.name for field in _of_structs(kind)]
    return list(map(quoted_name, names)) if len(names) == 2 and set(names) != {"key", "value"} else ("key", "value")


_COLUMNS: dict[str, tuple[str, Callable[[pa.DataType], bool], str]] = {
    "key": ("string or binary", _is_bytes, "CAST({} AS STRING)"),
    "value": ("string or binary", _is_bytes, "CAST({} AS STRING), or to_json({})"),
    "topic": ("string", _is_text, "CAST({} AS STRING)"),
    "partition": ("int", _is.is_int32, "CAST({} AS INT)"),
    "headers": (
        "array<struct<key: string, value: binary>>",
        _is_headers,
        "transform({}, h -> named_struct('key', CAST(h.{key} AS STRING), 'value', CAST(h.{value} AS BINARY)))",
    ),
    "timestamp": (
        "timestamp (of a moment, with the session's time zone)",
        lambda kind: bool(_is.is_timestamp(kind) and kind.tz is not None),
        "CAST({} AS TIMESTAMP)",
    ),
}
"""A record's columns: Spark's name of the type, the test, and the expression that casts another type."""


def shaped(options: KafkaOptions, schema: pa.Schema) -> list[str] | None:
    """Return Spark's expressions for a record's columns; None if the frame has exactly these columns.

    A column `topic` is kept, but the option `topic` overrides it, as in Spark. Raises ConfigError, with the fix, for
    rows that fit no record.
    """
    if twice := sorted({name for name in schema.names if schema.names.count(name) > 1}):
        raise ConfigError(f"more than one column is named {twice[0]}", next="rename one, or name others in `columns`")
    if options.value_format == "json":
        return _json_record(options.key, schema)
    _check_columns(options, schema)
    return None


def _check_columns(options: KafkaOptions, schema: pa.Schema) -> None:
    _check_names(options, schema.names)
    for field in schema:
        if field.name == "topic" and options.topic is not None:
            continue  # unused
        wanted, fits, fixed = _COLUMNS[field.name]
        if not fits(field.type):
            key, value = _header_fields(field.type)
            given = f"map_entries({field.name})" if _is.is_map(field.type) and fits is _is_headers else field.name
            raise ConfigError(
                f"column {field.name} is of Arrow type {field.type}, and has to be {wanted}",
                next=f"cast it in the frame: {fixed.format(given, given, key=key, value=value)} AS {field.name}",
            )


def _check_names(options: KafkaOptions, names: Sequence[str]) -> None:
    known = [name for name in names if name in _COLUMNS]
    if "value" not in known:
        raise ConfigError(
            f"there is no column `value` among {', '.join(names) or 'none'}",
            why=f"a record is made of the columns {', '.join(_COLUMNS)}",
            next='add one in the frame, or set value_format = "json" for the whole row as JSON',
        )
    if options.topic is None and "topic" not in known:
        raise ConfigError("the rows name no topic", next='set topic = "..." for the sink, or make a column `topic`')
    if len(known) < len(names):
        odd = ", ".join(name for name in names if name not in _COLUMNS)
        kept = ", ".join(f'"{name}"' for name in known)
        raise ConfigError(
            f"a record has no place for column {odd}",
            why=f"it is made of the columns {', '.join(_COLUMNS)}",
            next=f'leave it out: columns = [{kept}]; or set value_format = "json" for the whole row as JSON',
        )


def _json_record(keys: Sequence[str], schema: pa.Schema) -> list[str]:
    if not schema.names:
        raise ConfigError("the rows have no columns", next="name some in `columns`, or fix the job's transform")
    check_map_keys(schema)
    if unknown := [key for key in keys if key not in schema.names]:
        raise ConfigError(
            f"key: there is no column {', '.join(unknown)}", next=f"name columns from {', '.join(schema.names)}"
        )
    value = f"{_json(schema.names)} AS value"
    return [f"{_key(keys, schema)} AS key", value] if keys else [value]


def _key(names: Sequence[str], schema: pa.Schema) -> str:
    if len(names) > 1:
        return _json(names)
    kind = schema.field(names[0]).type
    if _is_bytes(kind):
        return quoted_name(names[0])
    if _is.is_nested(kind):
        raise ConfigError(
            f"key: column {names[0]} is of Arrow type {kind}, which Spark can't write as text that can be read back",
            next="name plain columns, or make the text in the frame, for example with to_json",
        )
    return f"CAST({quoted_name(names[0])} AS STRING)"


def _json(names: Sequence[str]) -> str:
    return f"to_json(struct({', '.join(map(quoted_name, names))}), {text_map(JSON_OPTIONS)})"


class Records:
    """The columns of a batch of records; None for a missing column. Raises Fatal for a row that makes no record."""

    def __init__(self, batch: pa.RecordBatch, topic: str | None, doing: str, header: Header | None = None) -> None:
        """Read a batch. `header` is added after each row's own headers."""
        self._doing = doing
        self.bytes = batch.nbytes
        self.values = _bytes(batch.column("value"))
        self.keys = _bytes(batch.column("key")) if "key" in batch.schema.names else None
        self.topics = self._topics(batch) if topic is None else None
        self.partitions = self._partitions(batch)
        self.timestamps = self._timestamps(batch)
        self.headers = self._headers(batch, [] if header is None else [header])

    @property
    def kinds(self) -> Sequence[object]:
        """Return the kinds of the columns: records can be joined if these are equal."""
        columns = (self.values, self.keys, self.partitions, self.timestamps)
        return [self.headers is None, *(column and column.type for column in columns)]

    def encoded_headers(self) -> pa.Array:
        """Return each row's headers as record batches hold them, after their count."""
        return pa.array([count + headers for count, headers in self._encoded], pa.binary())

    def sizes(self) -> pa.Array:
        """Return the bytes that librdkafka counts of each row: key, value, and headers without their count."""
        sizes = _lengths(self.values) if self.keys is None else pc.add(_lengths(self.values), _lengths(self.keys))
        return pc.add(sizes, pa.array([len(headers) for _, headers in self._encoded])) if self.headers else sizes

    @cached_property
    def _encoded(self) -> Sequence[tuple[bytes, bytes]]:
        """Encode each row's count of headers and its headers; a list that rows share is encoded once."""
        rows = {id(row): row or () for row in self.headers or ()}
        made = {of: (_varint(len(row)), _encoded(row)) for of, row in rows.items()}
        return [made[id(row)] for row in self.headers or ()]

    def _topics(self, batch: pa.RecordBatch) -> list[str]:
        topics = batch.column("topic")
        self._refuse(topics.is_null(), "topic", "NULL", 'name one, or set topic = "..." for the sink')
        names = list(topics.to_pylist())
        if any("\0" in name for name in set(names)):
            raise self._refusal("topic", "with a NUL in its name", "name a topic that exists")
        return names

    def _partitions(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Return partitions, -1 if the partitioner chooses. A row's own -1 is refused, because it would mean that."""
        if "partition" not in batch.schema.names:
            return None
        partitions = batch.column("partition")
        self._refuse(pc.less(partitions, 0), "partition", "negative", "make it 0 or more, or NULL for the partitioner")
        return partitions.fill_null(-1)

    def _timestamps(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Return milliseconds since 1970, 0 for now. A row's own 0 is refused, because it would mean that."""
        if "timestamp" not in batch.schema.names:
            return None
        moments = batch.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        millis = pc.divide(moments, 1000)
        self._refuse(pc.less(millis, 1), "timestamp", "not after 1970-01-01", "fix it, or make it NULL for now")
        return millis.fill_null(0)

    def _headers(self, batch: pa.RecordBatch, more: list[Header]) -> Sequence[list[Header] | None] | None:
        if "headers" not in batch.schema.names:
            return [more] * batch.num_rows if more else None
        rows = batch.column("headers").to_pylist()
        headers = [row and [(header["key"], header["value"]) for header in row if header is not None] for row in rows]
        names = [name for row in headers if row for name, _ in row]
        if None in names:
            raise self._refusal("headers", "without a key", "give every header a key")
        if any("\0" in name for name in names):  # the client library would cut it there
            raise self._refusal("headers", "with a NUL in a key", "give the header another key")
        return [[*(row or ()), *more] or None for row in headers]

    def _refuse(self, bad: pa.Array, column: str, how: str, next: str) -> None:
        if pc.any(bad).as_py():
            raise self._refusal(column, how, next)

    def _refusal(self, column: str, how: str, next: str) -> Fatal:
        return Fatal(f"{self._doing}: a row's {column} is {how}", why="no record can be made of it", next=next)


def _encoded(headers: Sequence[Header]) -> bytes:
    encoded = []
    for name, value in headers:
        key = name.encode()
        encoded += [_varint(len(key)), key, _varint(-1 if value is None else len(value)), value or b""]
    return b"".join(encoded)


def _varint(number: int) -> bytes:
    """Encode a signed number as records do (zigzag)."""
    return uvarint((number << 1) ^ (number >> 63))


def uvarint(number: int) -> bytes:
    """Encode an unsigned number, with seven bits in a byte."""
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


def _lengths(values: pa.Array) -> pa.Array:
    return pc.fill_null(pc.binary_length(values), 0).cast(pa.int64())


def _bytes(values: pa.Array) -> pa.Array:
    """Return values as binary. The bytes of a text are unchanged, valid UTF-8 or not, as in Spark's own sink."""
    if _is.is_dictionary(values.type):
        values = values.dictionary_decode()
    if _is.is_binary(values.type) or _is.is_large_binary(values.type):
        return values
    if _is.is_string(values.type):
        return values.view(pa.binary())
    if _is.is_large_string(values.type):
        return values.view(pa.large_binary())
    return values.cast(pa.large_binary())
