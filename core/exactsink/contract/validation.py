"""Judge rows without writing them, so that rows which a store can't hold go to the quarantine in the same epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import pyarrow as pa

from exactsink.contract.errors import Fatal

__all__ = ["BatchValidator", "Validator"]


class Validator(ABC):
    """Judge a sink's rows, in one task. A validator writes nothing.

    The verdict on a row depends only on the row and on the arguments that made the validator. It does not depend on the
    other rows, on a clock or on a store. So a row gets the same verdict again when lost votes are written again.
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
        return self._bad(batch, 0)

    def _bad(self, batch: pa.RecordBatch, first: int) -> Iterator[tuple[int, str]]:
        if batch.num_rows == 0 or self._check(batch) is None:
            return
        if batch.num_rows == 1:  # a copy, because a check may read the rows that lie beside a slice
            if (why := self._check(batch.take(pa.array([0])))) is not None:
                yield first, why
            return
        half = batch.num_rows // 2
        yield from self._bad(batch.slice(0, half), first)
        yield from self._bad(batch.slice(half), first + half)
