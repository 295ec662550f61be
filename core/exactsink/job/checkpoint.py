"""What Spark's checkpoint folder says of a query: who it is, what a batch reads, and whether a batch is done."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from exactsink.contract import LineageError
from exactsink.protocol.journal.log import Log

__all__ = ["Checkpoint"]


class Checkpoint:
    """A streaming query's checkpoint, read only. Layout as Spark 4.3 writes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def query_id(self) -> str | None:
        """The query's id; None before its first start."""
        try:
            metadata = json.loads((self._folder / "metadata").read_text())
        except FileNotFoundError:
            return None
        return str(metadata["id"])

    def fingerprint(self, batch: int) -> str:
        """Hash the offsets that a batch reads: Spark writes that file once, so equal means the same input."""
        path = self._folder / "offsets" / str(batch)
        try:
            return hashlib.sha256(path.read_bytes()).hexdigest()
        except FileNotFoundError:
            raise LineageError(
                f"the checkpoint has no offsets of batch {batch}",
                why="asynchronous progress tracking writes them late, and then a replay looks like new input",
                next="set asyncProgressTrackingEnabled to false",
            ) from None

    def source_ends(self, batch: int) -> tuple[str, ...]:
        """Return where a batch ends, source by source, in each one's own words.

        Empty for a log that keeps offsets by the sources' names (version 2): what a line of it means is Spark's own.
        """
        version, _, *sources = (self._folder / "offsets" / str(batch)).read_text().splitlines()
        return tuple(line for line in sources if line != "-") if version == "v1" else ()

    def previous(self, batch: int) -> str:
        """Hash the offsets at which a batch begins; empty where the checkpoint has none, as for the first batch."""
        path = self._folder / "offsets" / str(batch - 1)
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""

    def is_epoch_done(self, epoch: int, log: Log) -> bool:
        """Return whether Spark has recorded an epoch of this journal as done.

        Only the journal's own query can say so: what stands at the path may be another one's, and its batches have the
        same numbers. A later batch that is done proves it, too, as Spark deletes old records. An epoch before the
        claim's first was committed in every sink before the checkpoint was adopted.
        """
        if not log.claims:
            return False
        if epoch < log.claims[-1].first_epoch:
            return True
        return self.query_id() == log.query_id and self.next_batch() > epoch - log.base

    def next_batch(self) -> int:
        """Return the batch that the query runs next: the first that Spark has not recorded as done."""
        try:
            names = os.listdir(self._folder / "commits")
        except FileNotFoundError:
            return 0
        return max((int(name) for name in names if name.isdigit()), default=-1) + 1

    def is_stateful(self) -> bool:
        """Return whether the query keeps state: then a skipped batch must still run, or its state has a hole."""
        return (self._folder / "state").exists()
