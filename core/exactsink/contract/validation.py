"""Judge rows without writing them, so that rows which a store can't hold go to the quarantine in the same epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from exactsink.contract.errors import Fatal

__all__ = ["BatchValidator", "Validator", "picked"]


class Validator(ABC):
    """Judge a sink's rows, in one task. A validator writes nothing.

    The verdict on a row depends only on the row and on the arguments that made the validator. It does not depend on the
    other rows, on a clock or on a store. So a row gets the same verdict again when lost rows are written again.
    """

    @abstractmethod
    def bad_rows(self, batch: pa.RecordBatch) -> Iterator[tuple[int, str]]:
        """Return the index of each row that the writer would refuse, in rising order, with the reason in one line.

        Raises Fatal for a problem that is not the fault of a single row.
        """

    def close(self) -> None:  # noqa: B027  # most validators open nothing
        """Close the resources that this validator opened."""


class BatchValidator(Validator):
    """Find bad rows by checking whole batches: a batch that fails is cut in half, and both halves are checked.

    `check` returns the reason why it refuses a batch, or None if it accepts it. It is called once with an empty batch.
    If it refuses that, no row is at fault, and the constructor raises Fatal.
    """

    def __init__(self, check: Callable[[pa.RecordBatch], str | None], schema: pa.Schema) -> None:
        self._check = check
        if (why := check(pa.RecordBatch.from_pylist([], schema=schema))) is not None:
            raise Fatal(why, next="cast the column, or leave it out of columns")

    def bad_rows(self, batch: pa.RecordBatch) -> Iterator[tuple[int, str]]:
        if batch.num_rows and self._check(batch) is not None:
            yield from self._bad(picked(batch, range(batch.num_rows)), 0)

    def _bad(self, batch: pa.RecordBatch, first: int) -> Iterator[tuple[int, str]]:
        if (why := self._check(batch)) is None:
            return
        if batch.num_rows == 1:
            yield first, why
            return
        half = batch.num_rows // 2
        yield from self._bad(picked(batch, range(half)), first)
        yield from self._bad(picked(batch, range(half, batch.num_rows)), first + half)


def picked(batch: pa.RecordBatch, places: Sequence[int]) -> pa.RecordBatch:
    """Copy some rows: nothing of the others lies beside them, as it does beside a slice."""
    try:
        return batch.take(pa.array(places, pa.int64()))
    except pa.ArrowNotImplementedError:  # Arrow can't take text and bytes that are views
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, batch.schema) as stream:
            for place in places:
                stream.write_batch(batch.slice(place, 1))
        copies = pa.ipc.open_stream(out.getvalue()).read_all().combine_chunks().to_batches()
        return copies[0] if copies else batch.slice(0, 0)
