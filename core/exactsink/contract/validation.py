"""Judge rows without writing them, so that those a store can't hold go elsewhere in the same epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import pyarrow as pa

from exactsink.contract.errors import Fatal

__all__ = ["BatchValidator", "Validator"]


class Validator(ABC):
    """One task's judge of a sink's rows. It writes nothing.

    A row's judgement depends on the row and on what the validator was made of, on nothing else: not on the rows beside
    it, on a clock or on a store. So the same row is judged the same again when lost votes are written again.
    """

    @abstractmethod
    def bad_rows(self, batch: pa.RecordBatch) -> Iterator[tuple[int, str]]:
        """Return the place of each row that the writer would refuse, in rising order, and why in a line.

        Raises Fatal for what is no single row's fault.
        """

    def close(self) -> None:  # noqa: B027  # most hold nothing
        """Close what was opened."""


class BatchValidator(Validator):
    """Find bad rows by a check of whole batches: one that is refused is looked at in halves.

    `check` returns why it refuses a batch, None when it takes it. What it refuses of a batch without rows is no row's
    fault: raises Fatal.
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
        if batch.num_rows == 1:  # a copy: a check may look at what lies beside a slice
            if (why := self._check(batch.take(pa.array([0])))) is not None:
                yield first, why
            return
        half = batch.num_rows // 2
        yield from self._bad(batch.slice(0, half), first)
        yield from self._bad(batch.slice(half), first + half)
