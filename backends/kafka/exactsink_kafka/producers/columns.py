"""A batch's columns as records want them: bytes, checked for what a record can't hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

import pyarrow as pa
import pyarrow.compute as pc

from exactsink.contract import Fatal

__all__ = ["Records"]

_is = pa.types


class Records:
    """The columns of a batch; None for those that are not there. Raises Fatal for a row that makes no record."""

    def __init__(self, batch: pa.RecordBatch, topic: str | None, doing: str) -> None:
        self._doing = doing
        self.values = _bytes(batch.column("value"))
        self.keys = _bytes(batch.column("key")) if "key" in batch.schema.names else None
        self.topics = self._topics(batch) if topic is None else None
        self.partitions = self._partitions(batch)
        self.timestamps = self._timestamps(batch)
        self.headers = self._headers(batch)

    def keys_or_none(self) -> Iterable[bytes | None]:
        return repeat(None) if self.keys is None else self.keys.to_pylist()

    def _topics(self, batch: pa.RecordBatch) -> list[str]:
        topics = batch.column("topic")
        self._refuse(topics.is_null(), "topic", "NULL", 'name one, or set topic = "..." for the sink')
        return list(topics.to_pylist())

    def _partitions(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Return numbers, -1 where the partitioner chooses: a row's own -1 must not pass for that."""
        if "partition" not in batch.schema.names:
            return None
        partitions = batch.column("partition")
        self._refuse(pc.less(partitions, 0), "partition", "negative", "make it 0 or more, or NULL for the partitioner")
        return partitions.fill_null(-1)

    def _timestamps(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Return milliseconds since 1970, 0 for now: a row's own 0 must not pass for that."""
        if "timestamp" not in batch.schema.names:
            return None
        moments = batch.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        millis = pc.divide(moments, 1000)
        self._refuse(pc.less(millis, 1), "timestamp", "not after 1970-01-01", "fix it, or make it NULL for now")
        return millis.fill_null(0)

    def _headers(self, batch: pa.RecordBatch) -> Sequence[list[tuple[str, bytes | None]] | None] | None:
        if "headers" not in batch.schema.names:
            return None
        rows = batch.column("headers").to_pylist()
        headers = [row and [(header["key"], header["value"]) for header in row if header is not None] for row in rows]
        if any(name is None for row in headers if row for name, _ in row):
            raise self._refusal("headers", "without a key", "give every header a key")
        return [row or None for row in headers]

    def _refuse(self, bad: pa.Array, column: str, how: str, next: str) -> None:
        if pc.any(bad).as_py():
            raise self._refusal(column, how, next)

    def _refusal(self, column: str, how: str, next: str) -> Fatal:
        return Fatal(f"{self._doing}: a row's {column} is {how}", why="no record can be made of it", next=next)


def _bytes(values: pa.Array) -> pa.Array:
    """Return binary: a text's bytes go as they are, valid UTF-8 or not, as Spark's own sink sends them."""
    if _is.is_dictionary(values.type):
        values = values.dictionary_decode()
    if _is.is_binary(values.type) or _is.is_large_binary(values.type):
        return values
    if _is.is_string(values.type):
        return values.view(pa.binary())
    if _is.is_large_string(values.type):
        return values.view(pa.large_binary())
    return values.cast(pa.large_binary())
