"""Rows as Postgres' binary COPY: pgpq writes it, from batches whose columns were made what the table's are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pgpq import ArrowToPostgresBinaryEncoder
from pgpq import encoders as pgpq_encoders
from pgpq.schema import Jsonb

from exactsink.contract import Fatal
from exactsink_postgres.rows.arrays import array_bytes, relisted
from exactsink_postgres.rows.fits import ELEMENTS, Column, cast_for, column_type, element_of, matches, misfit
from exactsink_postgres.rows.values import Conversion, conversion, decoded

__all__ = ["RowEncoder", "column_type", "misfit"]

_MEND = "cast or filter such values before this sink"
_JSONB: dict[pa.DataType, Any] = {
    pa.string(): pgpq_encoders.StringEncoderBuilder,
    pa.large_string(): pgpq_encoders.LargeStringEncoderBuilder,
}


class RowEncoder:
    """Encodes batches of one schema for a table's columns, matched by name. Keeps bytes back until `finish`.

    Raises Fatal, with table, column and the first value that doesn't fit, for what the server would cut, round or
    wrap. NOT NULL, and whether JSON is JSON, are the server's to check.
    """

    def __init__(self, table: str, schema: pa.Schema, columns: Sequence[Column]) -> None:
        self._columns = []
        for field, found in zip(schema, matches(schema.names, columns), strict=True):
            if len(found) != 1:
                raise Fatal(
                    f"table {table} has no column for the rows' {field.name}",
                    why=f"its columns are {', '.join(column.name for column in columns)}",
                    next="see that the job is not fed by two schemas, then start it again",
                )
            self._columns.append(_ColumnEncoder(table, field, found[0]))
        self.names = [column.name for column in self._columns]
        self._schema = pa.schema([(str(place), column.type) for place, column in enumerate(self._columns)])
        builders = {}
        for place, column in enumerate(self._columns):
            field = self._schema.field(place)
            if column.is_jsonb:
                builders[str(place)] = _JSONB[column.type].new_with_output(field, Jsonb())
            else:
                builders[str(place)] = ArrowToPostgresBinaryEncoder.infer_encoder(field)
        self._encoder = ArrowToPostgresBinaryEncoder.new_with_encoders(self._schema, builders)

    def header(self) -> bytes:
        """Return what begins the COPY."""
        return self._encoder.write_header()

    def encode(self, batch: pa.RecordBatch) -> bytes:
        """Take a batch's rows; give the bytes that are ready, of these rows and earlier ones, perhaps none."""
        columns = [column.encode(values) for column, values in zip(self._columns, batch.columns, strict=True)]
        return self._encoder.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def finish(self) -> bytes:
        """Return the rest, and what ends the COPY."""
        return self._encoder.finish()


class _ColumnEncoder:
    """Turns one column's values into what pgpq writes."""

    def __init__(self, table: str, field: pa.Field, column: Column) -> None:
        self.name = column.name
        self._table = table
        self._column = column
        why = misfit(field, column)
        if why is not None:
            cast = cast_for(field, column)
            raise Fatal(
                f"table {table}, column {column.name}: {why}",
                next=f"write {cast} in the frame" if cast else "make it fit in the frame, or leave it out of columns",
            )
        plain = decoded(pa.array([], field.type)).type
        element = element_of(plain)
        self._is_list = element is not None
        inner = plain if element is None else decoded(pa.array([], element)).type
        self._convert: Conversion = conversion(inner, column)
        self._as_bytes = self._is_list and (column.base not in ELEMENTS or pa.types.is_null(inner))
        self.type = self.encode(pa.array([], field.type)).type
        self.is_jsonb = column.base == "jsonb" and self.type in _JSONB

    def encode(self, values: pa.Array) -> pa.Array:
        values = decoded(values)
        if not self._is_list:
            return self._checked(values)
        elements = self._checked(decoded(values.flatten()))
        if not self._as_bytes:
            return relisted(values, elements)
        return array_bytes(values, elements, self._column.element, b"\1" if self._column.base == "jsonb" else b"")

    def _checked(self, values: pa.Array) -> pa.Array:
        try:
            return self._convert(values)
        except ValueError as error:
            what = f"table {self._table}, column {self._column.name}: {self._first(values)} does not go in"
            raise Fatal(what, why=str(error), next=_MEND) from None

    def _first(self, values: pa.Array) -> str:
        """Show the first value that doesn't convert, found by halving."""
        while len(values) > 1:
            half = values.slice(0, len(values) // 2)
            try:
                self._convert(half)
            except ValueError:
                values = half
            else:
                values = values.slice(len(values) // 2)
        return _shown(values[0])


def _shown(value: pa.Scalar) -> str:
    """Show a value as it is, whether or not Python has it: broken UTF-8, the year 300000, a nanosecond."""
    kind = value.type
    try:
        text = repr(value.as_py()) if isinstance(value.as_py(), (str, bytes)) else str(value.as_py())
        if pa.types.is_timestamp(kind) or pa.types.is_time(kind):  # with all its digits
            text = str(value.cast(pa.string()).as_py())
            text = str(value.value) if text.startswith("<") else text
    except (ValueError, OverflowError):
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        text = repr(bytes(value.as_buffer())) if is_text else str(value.value)
    return text if len(text) <= 100 else f"{text[:100]}... ({len(text)} characters)"
