"""Estimate the size of a Parquet file: the rows that wait for their row group count by the size of a sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

__all__ = ["SizeGuess"]

_SAMPLED = 1 / 8
"""The part of the rows that is encoded twice."""
_LEAST_STEP = 64 * 1024
_MOST_STEP = 1024 * 1024
_ALIKE = 2
_FULL = 0.85
"""The part of its target size at which a file counts as full. No estimate was too high by more."""


class SizeGuess:
    """Estimate the rows that wait for one folder's next row group, in bytes of a file.

    It encodes a sample once per so many bytes in memory. A small sample takes more bytes per row than a row group does,
    so the real size of the folder's last row group corrects the next estimates while the samples stay similar.
    `encoded(rows)` returns a sample's bytes.
    """

    def __init__(self, target: int, encoded: Callable[[pa.RecordBatch], int]) -> None:
        self._target = target
        self._encoded = encoded
        self._step = min(max(target // 8, _LEAST_STEP), _MOST_STEP)
        self._ratio = 0.0
        self._unsampled = 0
        self._sampled = 0
        self._by_samples = 0.0
        self._corrected = 0.0
        self._learned = (0.0, 1.0)

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Cut a batch into pieces, after each of which the size is estimated: wide rows of one batch may fill many
        files.
        """
        rows = max(1, batch.num_rows * self._step // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows) if rows < batch.num_rows else batch

    def add(self, batch: pa.RecordBatch) -> None:
        """Count rows that wait from now on."""
        self._unsampled += batch.nbytes
        if self._unsampled >= self._step:
            rows = max(1, int(batch.num_rows * self._step * _SAMPLED / max(1, batch.nbytes)))
            sample = batch.slice(0, rows)
            self._ratio = self._encoded(sample) / max(1, sample.nbytes)
            self._by_samples += self._unsampled * self._ratio
            self._corrected += self._unsampled * self._ratio * self._correction
            self._sampled += self._unsampled
            self._unsampled = 0

    def reaches(self, written: int) -> bool:
        """Return whether a file of `written` bytes reaches its size once the waiting rows are written."""
        return written + self._corrected + self._unsampled * self._ratio * self._correction >= self._target

    def is_full(self, written: int) -> bool:
        """Return whether a file gets no more rows."""
        return written >= self._target * _FULL

    def flushed(self, taken: int) -> None:
        """Learn the real size of the rows that waited."""
        guessed = self._by_samples + self._unsampled * self._ratio
        if self._by_samples > 0:
            self._learned = (guessed / (self._sampled + self._unsampled), taken / guessed)
        self._by_samples, self._corrected, self._sampled, self._unsampled = 0.0, 0.0, 0, 0

    @property
    def _correction(self) -> float:
        ratio, correction = self._learned
        return correction if ratio / _ALIKE <= self._ratio <= ratio * _ALIKE else 1.0
