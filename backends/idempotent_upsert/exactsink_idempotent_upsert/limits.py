"""The limits of a table's columns, checked before the decision: the driver reads them, and tasks check each batch.

`unstorable` finds values that no table of a database can hold. Executors import this module.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.contract import BatchValidator, Committable, Fatal, Writer
from exactsink.toolkit.json_columns import plain
from exactsink_idempotent_upsert.table import DELETED, Table

__all__ = [
    *("CheckedWriter", "Limit", "TableValidator", "Ticket", "Trial"),
    *("check_limits", "check_order", "family", "inexact", "unstorable", "without_views"),
]

_FAMILIES = {
    "boolean": ["boolean"],
    "unsigned": ["uint64"],
    "whole": ["integer"],
    "float": ["floating"],
    "decimal": ["decimal"],
    "text": ["string", "large_string", "string_view"],
    "bytes": ["binary", "large_binary", "binary_view", "fixed_size_binary"],
    "timestamp": ["timestamp"],
    "date": ["date"],
    "time": ["time"],
}
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400
_FIRST, _END = -719_162 * _DAY, 2_932_897 * _DAY  # the years 1 to 9999: outside them ISO text loses its width
_WIDE = r"[\x{10000}-\x{10FFFF}]"
_LITTLE = 100_000
_BYTES = ("text", "bytes")
_UNITS = {"s": 10**6, "ms": 10**3, "us": 1}  # in microseconds


def family(kind: pa.DataType) -> str:
    """Name the kind of value that an Arrow type is to a database; "" if no supported database has such a type."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    names = (name for name, kinds in _FAMILIES.items() if any(getattr(pa.types, f"is_{one}")(kind) for one in kinds))
    return next(names, "")


def unstorable(
    batch: pa.RecordBatch,
    product: str,
    column_type: Callable[[pa.DataType], str | None],
    refused: Callable[[pa.Array], str | None] = lambda column: None,
) -> str | None:
    """Return a value of a batch that can't be stored exactly, None if all can.

    `column_type` returns None for types that the product can't hold. `refused` finds other problems of a column.
    """
    try:
        batch.validate(full=True)  # broken UTF-8, which Spark lets through, or digits that the type doesn't have
    except pa.ArrowInvalid as error:
        return str(error)
    for name, column in zip(batch.schema.names, map(plain, batch.columns), strict=True):
        if column_type(column.type) is None:
            return f"column {name} is of type {column.type}, which {product} can't hold"
        if problem := refused(column):
            return f"column {name} has {problem}"
        if _outside_years(column):
            return f"column {name} has a value outside the years 1 to 9999"
    return None


def inexact(column: pa.Array) -> str | None:
    """Return a value of a column that most databases can't hold: NaN, infinity, parts of a microsecond."""
    kind = column.type
    if pa.types.is_floating(kind) and pc.all(pc.is_finite(column.cast(pa.float64()))).as_py() is False:
        return "NaN or infinity"
    if (pa.types.is_timestamp(kind) or pa.types.is_time(kind)) and kind.unit == "ns":
        whole = column.cast(pa.int64())
        if pc.any(pc.not_equal(pc.multiply(pc.divide(whole, 1000), 1000), whole)).as_py():
            return "parts of a microsecond"
    return None


def _outside_years(column: pa.Array) -> bool:
    kind = column.type
    if pa.types.is_date32(kind):
        first, end = _FIRST // _DAY, _END // _DAY
    elif pa.types.is_date64(kind) or pa.types.is_timestamp(kind):
        unit = _PER_SECOND["ms" if pa.types.is_date64(kind) else kind.unit]
        first, end = _FIRST * unit, _END * unit
    else:
        return False
    extremes = pc.min_max(column)
    least, greatest = extremes["min"].value, extremes["max"].value
    return least is not None and not first <= least <= greatest < end


@dataclass(frozen=True, slots=True)
class Limit:
    """The limits of one column. None means no limit.

    `least` and `greatest` bound numbers, and timestamps in seconds since 1970. `digits` are a decimal's digits before
    and after its point. `tick` is the smallest stored part of a time, in microseconds. `narrow` text has characters of
    at most three bytes. `deletes`: rows that delete are checked as well, because the column identifies their key's row.
    """

    required: bool = False
    characters: int | None = None
    bytes: int | None = None
    least: int | None = None
    greatest: int | None = None
    digits: tuple[int, int] | None = None
    tick: int | None = None
    narrow: bool = False
    deletes: bool = False

    def broken_by(self, column: pa.Array) -> Iterator[str]:
        """Return each reason why this column can't hold a batch's column."""
        if self.required and (count := pc.sum(pc.is_null(column, nan_is_null=True)).as_py()):
            yield f"is NOT NULL, and {count} rows of a batch have NULL there"
        kind = column.type
        if self.characters is not None and (longest := _longest(column, ["text"], pc.utf8_length)) > self.characters:
            yield f"takes {self.characters} characters, and a row has {longest}"
        if self.bytes is not None and (longest := _longest(column, _BYTES, pc.binary_length)) > self.bytes:
            yield f"takes {self.bytes} bytes, and a row has {longest}"
        if self.least is not None or self.greatest is not None:
            yield from self._out_of_range(column)
        if self.digits is not None and not _fits(column, *self.digits):
            yield f"takes {self.digits[0]} digits before the point and {self.digits[1]} after it, and a row has more"
        if self.tick is not None and pa.types.is_temporal(kind) and _is_cut(column, self.tick):
            yield f"keeps times to {self.tick} microseconds, and a row's is finer"
        if self.narrow and family(kind) == "text" and pc.any(pc.match_substring_regex(column, _WIDE)).as_py():
            yield "takes characters of three bytes at most, and a row has one of four"

    def _out_of_range(self, column: pa.Array) -> Iterator[str]:
        if pa.types.is_timestamp(column.type):
            column = pc.floor_temporal(column, unit="second").cast(pa.timestamp("s", column.type.tz)).cast(pa.int64())
        if not (pa.types.is_integer(column.type) or pa.types.is_decimal(column.type)):
            return
        found = pc.min_max(column).as_py()
        for value in {found["min"], found["max"]} - {None}:
            below = self.least is not None and value < self.least
            if below or (self.greatest is not None and value > self.greatest):
                yield f"takes {self.least} to {self.greatest}, and a row has {value}"


class Trial(Protocol):
    """A copy of the table on which a task tries its rows."""

    def check(self, batch: pa.RecordBatch) -> None:
        """Try a batch. Raises Fatal with the first row that the table would refuse."""

    def refusal(self, batch: pa.RecordBatch) -> str | None:
        """Try rows, each as if it were alone. Return the table's reason to refuse one. Raises Fatal."""

    def close(self) -> None:
        """Close the copy."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """The data for an epoch's tasks: a staging folder or a lineage, the limits of the table's columns, and its copy.

    The limit with an empty name is that of a whole row.
    """

    given: str
    limits: Mapping[str, Limit]
    form: Sequence[str] = ()

    def dumped(self) -> bytes:
        limits = {name: asdict(limit) for name, limit in self.limits.items()}
        has = json.dumps([limits, list(self.form)]) if limits or self.form else ""
        return (f"{self.given}\0{has}" if has else self.given).encode()  # no path has a NUL

    @classmethod
    def loaded(cls, data: bytes) -> Ticket:
        given, _, has = data.decode().partition("\0")
        limits, form = json.loads(has or "[{}, []]")
        return cls(given, {name: Limit(**limit) for name, limit in limits.items()}, tuple(form))


class CheckedWriter(Writer):
    """Check each batch, and try it, before another writer gets it."""

    def __init__(self, writer: Writer, check: Callable[[pa.RecordBatch], None], trial: Trial | None) -> None:
        self._writer, self._check, self._trial = writer, check, trial

    def write(self, batch: pa.RecordBatch) -> None:
        self._check(batch)
        if self._trial is not None:
            self._trial.check(batch)
        self._writer.write(batch)

    def pre_commit(self) -> Committable:
        self._close_trial()
        return self._writer.pre_commit()

    def abort(self) -> None:
        self._close_trial()
        self._writer.abort()

    def _close_trial(self) -> None:
        if self._trial is not None:
            self._trial.close()


def check_limits(table: str, limits: Mapping[str, Limit], batch: pa.RecordBatch) -> None:
    """Raise Fatal for a row that the table's columns do not take."""
    whole = limits.get("")
    if whole is not None and whole.bytes is not None and (longest := _longest_row(batch)) > whole.bytes:
        what = f"table {table}: a row has {longest} bytes, and a statement takes {whole.bytes}"
        raise Fatal(what, why="the server would refuse it after the decision", next="raise max_allowed_packet")
    stays = pc.invert(batch.column(DELETED)) if DELETED in batch.schema.names else None
    for name in filter(limits.__contains__, batch.schema.names):
        column = without_views(plain(batch.column(name)))
        if stays is not None and not limits[name].deletes:  # of a row that deletes, only the keys are ever used
            column = column.filter(stays)
        broken = next(limits[name].broken_by(column), None)
        if broken is not None:
            raise Fatal(
                f"table {table}: column {name} {broken}",
                why="the database would refuse or change it after the decision, when it is too late",
                next="filter or convert such rows before this sink, or alter the column",
            )


def check_order(table: Table, batch: pa.RecordBatch) -> None:
    """Raise Fatal for a NaN in an ordering column: some databases rank it highest, others lowest."""
    name = table.ordered_by
    if name is None or not pa.types.is_floating(batch.schema.field(name).type):
        return
    if count := pc.sum(pc.is_nan(batch.column(name))).as_py():
        raise Fatal(
            f"table {table.name}: column {name} is NaN in {count} rows of a batch",
            why=f"`{'version' if table.version else 'order_by'}` takes rows by that column, and NaN has no order",
            next=f"filter `NOT isnan({name})`, or make it NULL, which is the lowest, before this sink",
        )


class TableValidator(BatchValidator):
    """Judges rows by `check`, and on a copy of the table."""

    def __init__(self, check: Callable[[pa.RecordBatch], None], trial: Trial | None, schema: pa.Schema) -> None:
        self._trial = trial

        def refusal(batch: pa.RecordBatch) -> str | None:
            try:
                check(batch)
            except Fatal as refused:
                return refused.what
            return None if trial is None else trial.refusal(batch)

        super().__init__(refusal, schema)

    def close(self) -> None:
        if self._trial is not None:
            self._trial.close()


def without_views(column: pa.Array) -> pa.Array:
    """Return text and bytes of a layout that Arrow can filter, sort and measure."""
    if pa.types.is_string_view(column.type):
        return column.cast(pa.large_string())
    return column.cast(pa.large_binary()) if pa.types.is_binary_view(column.type) else column


def _longest_row(batch: pa.RecordBatch) -> int:
    """Return the most bytes of texts that a row has; cheaply at most, where that is little."""
    texts = (without_views(plain(column)) for column in batch.columns)
    columns = [column for column in texts if family(column.type) in _BYTES]
    if sum(_longest(column, _BYTES, pc.binary_length) for column in columns) < _LITTLE:
        return 0
    lengths = [pc.fill_null(pc.binary_length(column), 0).cast(pa.int64()) for column in columns]
    return int(pc.max(reduce(pc.add, lengths)).as_py())


def _longest(column: pa.Array, families: Sequence[str], length: Callable[[pa.Array], pa.Array]) -> int:
    return int(pc.max(length(column)).as_py() or 0) if family(column.type) in families else 0


def _fits(column: pa.Array, before: int, after: int) -> bool:
    """Return whether all numbers keep their digits."""
    kind = column.type
    if pa.types.is_integer(kind):
        found = pc.min_max(column).as_py()
        return all(value is None or abs(value) < 10**before for value in found.values())
    if not pa.types.is_decimal(kind) or (kind.precision - kind.scale <= before and kind.scale <= after):
        return True
    try:
        column.cast(pa.decimal256(before + after, after))
    except pa.ArrowInvalid:
        return False
    return True


def _is_cut(column: pa.Array, tick: int) -> bool:
    """Return whether a time has parts below `tick` microseconds."""
    kind = column.type
    if not (pa.types.is_timestamp(kind) or pa.types.is_time(kind)):
        return False
    nanoseconds = kind.unit == "ns"
    if not nanoseconds and _UNITS[kind.unit] % tick == 0:
        return False
    step = tick * 1000 if nanoseconds else max(1, tick // _UNITS[kind.unit])
    whole = column.cast(pa.int64()) if kind.bit_width == 64 else column.cast(pa.int32()).cast(pa.int64())
    kept = pc.multiply(pc.divide(whole, step), step)
    return bool(pc.any(pc.not_equal(whole, kept)).as_py())
