"""Write JSON lines as Spark's to_json does, from Arrow columns: 0.5 us a row of six columns; to_json takes 1.3.

The JVM sends values that only it can format as text: floats, nested values, decimals, times in zones. All other values
travel unchanged. Rows that come from elsewhere need no such text, but have fewer types.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.contract import ConfigError
from exactsink.toolkit.spark_sql import EXACT_TIMES, quoted_name, text_map

__all__ = ["OWN", "expressions", "impossible", "json_lines"]

_VALUE, _MEMBER = "value", "member"
"""The field of a struct with text of the JVM: a value, or an object of one member.

Shaped rows have no other structs.
"""
OWN = "exactsink:"
"""The prefix of columns that the JVM makes for JSON. A frame's columns must not have it."""
_NULLS, _FLOAT_TEXT = f"{OWN} nulls are written", f"{OWN} text of the float before"
"""Columns beside the values. They are not structs, because a struct costs the JVM 0.1 us a row."""
_TEXT = pa.large_string()  # 64-bit offsets: no batch overflows them
_UTC = ("UTC", "Etc/UTC", "GMT", "Z", "+00:00")
_CYCLE = timedelta(days=146_097)  # 400 years, after which the calendar repeats
_YEAR_0, _YEAR_10000 = -719_528, 2_932_897  # in days from 1970; years between them have four digits
_SHORT_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")  # one error to Java, three to Python
_is = pa.types


@dataclass(frozen=True, slots=True)
class _Member:
    """A member of each row: texts, with the text before and after each. A NULL text leaves its member out."""

    before: str
    text: pa.Array
    after: str

    def whole(self, lead: str = "") -> pa.Array:
        """Return the complete members, NULL for one that is left out."""
        if not (lead or self.before or self.after):
            return self.text
        return pc.binary_join_element_wise(_scalar(lead + self.before), self.text, _scalar(self.after), _scalar(""))


def expressions(fields: Sequence[pa.Field]) -> list[str]:
    """Return Spark's expressions for the fields, and another one: are NULLs written?.

    The session's `spark.sql.jsonGenerator.ignoreNullFields` decides that; the optimizer makes the expression a
    constant.
    """
    for field in fields:
        if field.name.startswith(OWN):
            raise ConfigError(f"column {field.name}: names that begin with `{OWN}` are taken", next="rename the column")
    written = "to_json(named_struct('x', CAST(NULL AS STRING))) <> '{}'"
    return [*chain.from_iterable(map(_expressions, fields)), f"{written} AS {quoted_name(_NULLS)}"]


def impossible(schema: pa.Schema) -> list[pa.Field]:
    """Return the columns that `json_lines` can't write."""
    names = [*schema.names, ""]
    return [
        field
        for place, field in enumerate(schema)
        if not (_is_plain(field.type) or _wrapped(field.type))
        and not (_is.is_floating(field.type) and names[place + 1] == _FLOAT_TEXT)
    ]


def json_lines(batch: pa.RecordBatch) -> pa.Buffer:
    """Return the rows as lines, each with its line end. NULLs are left out unless the JVM's column says otherwise."""
    names, columns = batch.schema.names, [*batch.columns, None]
    with_nulls = _NULLS in names and batch.column(_NULLS)[0].as_py()
    members = [
        _member(name, columns[place], columns[place + 1], with_nulls)
        for place, name in enumerate(names)
        if not name.startswith(OWN)
    ]
    if members[0].text.null_count:  # then the first member differs from row to row
        members = [_Member("", _joined([member.whole() for member in members]), "")]
    return _filled(_joined_lines(members))


def _expressions(field: pa.Field) -> list[str]:
    name, kind = quoted_name(field.name), field.type
    if _is_plain(kind):
        return [name]
    if _is.is_floating(kind):
        text = f"CAST({name} AS STRING)"
        text = f"IF({name} - {name} = 0, {text}, concat('\"', {text}, '\"'))"  # neither NaN nor infinite
        odd = f"IF(abs({name}) >= 1e-3 AND abs({name}) < 1e7 OR {name} = 0, NULL, {text})"
        return [name, f"{odd} AS {quoted_name(_FLOAT_TEXT)}"]
    if _is.is_nested(kind):
        return [f"named_struct('{_VALUE}', to_json({name}, {text_map(EXACT_TIMES)})) AS {name}"]
    member = f"to_json(struct({name}), {text_map(EXACT_TIMES)})"
    return [f"named_struct('{_MEMBER}', {member}) AS {name}"]


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether Python writes a type's values exactly as Spark does."""
    if _is.is_timestamp(kind):
        return kind.unit == "us" and kind.tz in (None, *_UTC)
    tests = (_is.is_string, _is.is_large_string, _is.is_signed_integer, _is.is_boolean, _is.is_date32)
    return any(test(kind) for test in tests)


def _wrapped(kind: pa.DataType) -> str | None:
    """Return which text of the JVM's a struct holds: a value, a member, or None."""
    made = _is.is_struct(kind) and kind.num_fields == 1 and kind[0].type in (pa.string(), _TEXT)
    return kind[0].name if made and kind[0].name in (_VALUE, _MEMBER) else None


def _member(name: str, column: pa.Array, after: pa.Array | None, with_nulls: bool) -> _Member:
    """Return a column's members, `"name":value`. `after` is the next column."""
    if _wrapped(column.type) == _MEMBER:
        text = pc.utf8_slice_codeunits(column.flatten()[0], 1, -1).cast(_TEXT)
        return _Member("", pc.if_else(pc.equal(text, ""), pa.scalar(None, _TEXT), text), "")
    key = f'"{_escaped(pa.array([name], _TEXT))[0]}":'
    opening, text, end = ("", _floats(column, after), "") if _is.is_floating(column.type) else _value(column)
    member = _Member(key + opening, text, end)
    return _Member("", member.whole().fill_null(f"{key}null"), "") if with_nulls and text.null_count else member


def _joined(members: Sequence[pa.Array]) -> pa.Array:
    """Join each row's members by commas."""
    first, *others = members
    empty = reduce(pc.and_, [member.is_null() for member in members])  # because pyarrow drops a row with NULLs only
    first = pc.if_else(empty, _scalar(""), first)
    return pc.binary_join_element_wise(first, *others, _scalar(","), null_handling="skip")


def _joined_lines(members: Sequence[_Member]) -> pa.Array:
    """Join each row's members by commas, in one pass over all. The first member has no NULL."""
    pieces, text = [], "{"
    for place, member in enumerate(members):
        comma = "," if place else ""
        if member.text.null_count:
            pieces += [_scalar(text), member.whole(comma).fill_null("")]
            text = ""
        else:
            pieces += [_scalar(text + comma + member.before), member.text]
            text = member.after
    return pc.binary_join_element_wise(*pieces, _scalar(text + "}\n"), _scalar(""))


def _filled(texts: pa.Array) -> pa.Buffer:
    """Return the bytes of a new column's texts, one after the other."""
    _, offsets, data = texts.buffers()
    return data.slice(0, pa.Array.from_buffers(pa.int64(), len(texts) + 1, [None, offsets])[-1].as_py())


def _value(column: pa.Array) -> tuple[str, pa.Array, str]:
    """Return the values as text, with the text before and after each."""
    kind = column.type
    if _wrapped(kind) == _VALUE:
        return "", column.flatten()[0].cast(_TEXT), ""
    if _is.is_string(kind) or _is.is_large_string(kind):
        return '"', _escaped(column.cast(_TEXT)), '"'
    if _is.is_date(kind):
        return '"', _moments(column), '"'
    if _is.is_timestamp(kind):
        return '"', _moments(column.cast(pa.timestamp("us"))), '"' if kind.tz is None else 'Z"'
    return "", column.cast(_TEXT), ""


def _floats(column: pa.Array, odd: pa.Array) -> pa.Array:
    """Write floats as Java does. `odd` holds the JVM's text for floats that need another notation."""
    text = column.cast(_TEXT)
    whole = pc.equal(column, pc.floor(column))
    if pc.any(whole).as_py():
        text = pc.if_else(whole, pc.binary_join_element_wise(text, _scalar(".0"), _scalar("")), text)
    return text if odd.null_count == len(odd) else pc.coalesce(odd.cast(_TEXT), text)


def _moments(column: pa.Array) -> pa.Array:
    """Write dates, or times with a `T`, including years that don't have four digits."""
    is_date = _is.is_date(column.type)
    numbers = column.cast(pa.int32() if is_date else pa.int64())
    day = timedelta(days=1) // _unit(is_date)
    least, greatest = pc.min_max(numbers).as_py().values()
    if least is None or (least >= _YEAR_0 * day and greatest < _YEAR_10000 * day):
        return pc.replace_substring(column.cast(_TEXT), " ", "T")
    return pa.array((None if number is None else _write(number, is_date) for number in numbers.to_pylist()), _TEXT)


def _write(number: int, is_date: bool) -> str:
    """Write a number of days, or of microseconds, as Java does: a year past 9999 has a sign."""
    unit = _unit(is_date)
    cycles, rest = divmod(number, _CYCLE // unit)
    moment = datetime(1970, 1, 1) + rest * unit
    year = moment.year + 400 * cycles
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    text = moment.date().isoformat() if is_date else moment.isoformat(timespec="microseconds")
    return f"{sign}{abs(year):04}{text[4:]}"


def _unit(is_date: bool) -> timedelta:
    return timedelta(days=1) if is_date else timedelta(microseconds=1)


def _escaped(column: pa.Array) -> pa.Array:
    """Escape characters that JSON strings can't hold, and replace bytes that are not UTF-8, as Java does."""
    seen = _bytes(column)
    least, greatest = pc.min_max(seen).as_py().values()
    if greatest is None:
        return column
    if greatest > 127:
        column = _decoded(column)
    for char in ("\\", '"'):
        if pc.min(pc.bit_wise_xor(seen, pa.scalar(ord(char), pa.uint8()))).as_py() == 0:  # far faster than equal()
            column = pc.replace_substring(column, char, "\\" + char)
    if least < 32:
        for code in seen.filter(pc.less(seen, 32)).unique().to_pylist():
            column = pc.replace_substring(column, chr(code), _SHORT_ESCAPES.get(chr(code), f"\\u{code:04X}"))
    return column


def _bytes(column: pa.Array) -> pa.Array:
    """Return all bytes of a column's texts, without a copy."""
    _, offsets, data = column.buffers()
    ends = pa.Array.from_buffers(pa.int64(), column.offset + len(column) + 1, [None, offsets])
    first = ends[column.offset].as_py()
    return pa.Array.from_buffers(pa.uint8(), ends[-1].as_py() - first, [None, data or pa.py_buffer(b"")], offset=first)


def _decoded(column: pa.Array) -> pa.Array:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raw = column.cast(pa.large_binary()).to_pylist()
        texts = (value and _SURROGATE.sub(b"\xff", value).decode(errors="replace") for value in raw)
        return pa.array(texts, _TEXT)
    return column


def _scalar(text: str) -> pa.Scalar:
    return pa.scalar(text, _TEXT)
