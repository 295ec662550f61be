"""What backends of tables share: rows in a table's types, and what stops an epoch before its first row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import date, datetime

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.contract import BatchValidator, Finding, PreflightError
from exactsink.toolkit.spark_sql import quoted_name

__all__ = ["CALENDAR", "TableValidator", "check_values", "fitted", "lacking", "raise_errors"]

CALENDAR = {b"org.apache.spark.version": b"3.0.0"}
"""A Parquet footer's key, by which Spark 3 knows that dates before 1582 and times before 1900 are in today's calendar.

Without it, Spark 3.5 refuses to read them.
"""

_ENDS = ((datetime.min, datetime.max), (date.min, date.max))
"""Not as Arrow's scalars: to make one imports pandas, which takes a third of each command's start."""

_SQL_NAMES = {"int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint", "bool": "boolean"}
_SQL_NAMES |= {"date32[day]": "date", "large_string": "string", "string_view": "string", "large_binary": "binary"}
"""Spark's names of types that have another name in Arrow."""


def fitted(batch: pa.RecordBatch, columns: pa.Schema, in_python: Collection[str]) -> pa.Table:
    """Return rows in the table's types. Raises ValueError for what a column can't hold.

    A writer computes with the values of the columns `in_python`, and Python has no dates outside the years 1 to 9999.
    """
    arrays = [batch.column(field.name).cast(field.type) for field in columns]
    for field, values in zip(columns, arrays, strict=True):
        check_values(values, field.name)
        _check(values, field, field.name, in_python=field.name in in_python)
    return pa.Table.from_arrays(arrays, schema=columns)


def check_values(values: pa.Array, name: str) -> None:
    """Raise ValueError for a text that is not UTF-8, at any depth, or a number with more digits than its type has.

    Spark lets such texts through, and readers of Parquet refuse a whole file for one of them.
    """
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ValueError(f"column {name}: {error}") from None


class TableValidator(BatchValidator):
    """Judges rows by `fit`, which raises ValueError for rows that a table, or files, can't hold."""

    def __init__(self, schema: pa.Schema, fit: Callable[[pa.RecordBatch], object]) -> None:
        def refusal(batch: pa.RecordBatch) -> str | None:
            try:
                fit(batch)
            except ValueError as error:
                return str(error)
            return None

        super().__init__(refusal, schema)


def lacking(table: str, field: pa.Field, names: Iterable[str], *, adds: bool) -> Finding:
    """Report a column of the rows that a table lacks. With `adds`, that is a warning.

    `table` is its name in Spark SQL, and `names` are those of all columns of the table and the rows.
    """
    name, what = field.name, f"the table has no column {field.name}"
    for other in names:
        if other != name and other.lower() == name.lower():
            return Finding("error", f"{what}, and {other} differs from it only in case", f"rename {name} in the rows")
    if adds:
        return Finding("warning", f"{what}: the first epoch adds it", "do nothing if you want that")
    statement = f"ALTER TABLE {table} ADD COLUMN {quoted_name(name)} {_in_sql(field.type)}"
    return Finding("error", what, f'{statement}; or leave {name} out, or set on_schema_change = "add_columns"')


def raise_errors(sink: str, findings: Iterable[Finding]) -> None:
    """Raise PreflightError for the errors among what preflight finds. More than one error become a table."""
    errors = [(each.message, each.fix) for each in findings if each.severity == "error"]
    if len(errors) == 1:
        raise PreflightError(f"sink {sink}: {errors[0][0]}", next=errors[0][1])
    if errors:
        wide = max(len(message) for message, _ in errors)
        lines = [f"  {message:<{wide}}  {fix}".rstrip() for message, fix in [("problem", "fix"), *errors]]
        what = f"sink {sink}: {len(errors)} problems; no row of this epoch was written"
        why = "the table can't take these rows\n" + "\n".join(lines)
        raise PreflightError(what, why=why, next="fix each of them, as the table shows, then start the job again")


def _in_sql(kind: pa.DataType) -> str:
    """Return a type's name in Spark SQL."""
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{quoted_name(each.name)}: {_in_sql(each.type)}' for each in kind)}>"
    if pa.types.is_nested(kind):
        parts = (kind.key_type, kind.item_type) if pa.types.is_map(kind) else (kind.value_type,)
        return f"{'map' if len(parts) > 1 else 'array'}<{', '.join(map(_in_sql, parts))}>"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    return _SQL_NAMES.get(str(kind), str(kind))


def _check(values: pa.Array, field: pa.Field, name: str, *, in_python: bool) -> None:
    """Look for NULL where there may be none, and for dates that Python lacks, at any depth."""
    kind = field.type
    if not field.nullable and values.null_count:
        raise ValueError(f"column {name} is NOT NULL")
    if in_python and (pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
        plain = values.cast(pa.timestamp("us")) if pa.types.is_timestamp(kind) else values
        first, last = (pa.scalar(end, plain.type) for end in _ENDS[pa.types.is_date32(kind)])
        if pc.any(pc.or_(pc.less(plain, first), pc.greater(plain, last))).as_py():
            raise ValueError(f"column {name} has a date outside the years 1 to 9999")
    if pa.types.is_struct(kind):
        for inner, part in zip(kind, values.drop_null().flatten(), strict=True):
            _check(part, inner, f"{name}.{inner.name}", in_python=in_python)
    elif pa.types.is_nested(kind):
        inner = kind.field(0)
        items = values.cast(pa.list_(inner.type)) if pa.types.is_map(kind) else values
        _check(items.flatten(), inner, f"{name}.{inner.name}", in_python=in_python)
