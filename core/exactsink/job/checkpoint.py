"""What Spark's checkpoint folder says of a query: who it is, what a batch reads, and whether a batch is done.

And whose the journal beside such a folder is.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import AbstractContextManager
from pathlib import Path

from exactsink.contract import AnyPath, ExactsinkError, LineageError, file_names, storage_errors
from exactsink.protocol.journal.journal import Journal, other_query
from exactsink.protocol.journal.log import Log
from exactsink.protocol.journal.stores.local import LocalStore
from exactsink.toolkit.waiting import backoff

__all__ = ["Checkpoint", "check_not_left"]


class Checkpoint:
    """A streaming query's checkpoint, read only. Layout as Spark 4.3 writes it.

    What is absent is said to be so only where the file system, or the store, says it: any other answer raises.
    """

    def __init__(self, folder: AnyPath) -> None:
        self._folder = folder

    def query_id(self) -> str | None:
        """The query's id; None before its first start."""
        with self._explained():
            try:
                metadata = json.loads((self._folder / "metadata").read_text())
            except FileNotFoundError:
                return None
        return str(metadata["id"])

    def check_bound(self, log: Log) -> None:
        """Refuse a checkpoint that is not the one that the journal belongs to, or is gone. Raises LineageError."""
        query_id = self.query_id()
        if not log.query_id or query_id == log.query_id:
            return
        if query_id is not None:
            raise other_query(log.query_id, query_id)
        raise LineageError(
            f"the journal belongs to query {log.query_id}, and its checkpoint {self._folder} is gone",
            why="a new checkpoint starts at epoch 0 again, and its epochs would be skipped or written twice",
            next="bring the checkpoint back; or `exactsink adopt JOB.toml`, which lets the epochs go on with a new "
            "one; or give the job a new name and checkpoint",
        )

    def fingerprint(self, batch: int) -> str:
        """Hash the offsets that a batch reads: Spark writes that file once, so equal means the same input."""
        return _sha256(self._offsets(batch))

    def source_ends(self, batch: int) -> tuple[str, ...]:
        """Return where a batch ends, source by source, in each one's own words.

        Empty for a log that keeps offsets by the sources' names (version 2): what a line of it means is Spark's own.
        """
        version, _, *sources = self._offsets(batch).decode().splitlines()
        return tuple(line for line in sources if line != "-") if version == "v1" else ()

    def previous(self, batch: int) -> str:
        """Hash the offsets at which a batch begins; empty where the checkpoint has none, as for the first batch."""
        with self._explained():
            try:
                return _sha256((self._folder / "offsets" / str(batch - 1)).read_bytes())
            except FileNotFoundError:
                return ""

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
        with self._explained():
            try:
                names = file_names(self._folder / "commits")
            except FileNotFoundError:
                return 0
        return max((int(name) for name in names if name.isdigit()), default=-1) + 1

    def is_stateful(self) -> bool:
        """Return whether the query keeps state: then a skipped batch must still run, or its state has a hole."""
        with self._explained():
            try:
                return "state" in file_names(self._folder)
            except FileNotFoundError:
                return False

    def _offsets(self, batch: int) -> bytes:
        with self._explained():
            try:
                return (self._folder / "offsets" / str(batch)).read_bytes()
            except FileNotFoundError:
                raise LineageError(
                    f"the checkpoint has no offsets of batch {batch}",
                    why="asynchronous progress tracking writes them late, and then a replay looks like new input",
                    next="set asyncProgressTrackingEnabled to false",
                ) from None

    def _explained(self) -> AbstractContextManager[None]:
        return storage_errors(self._folder, f"the checkpoint {self._folder} can't be read")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def check_not_left(old: Path, new: Path) -> None:
    """Refuse a job whose journal stands where an earlier release put it: beside a link to the checkpoint, or in the
    folder in which the job was started. It would not be found, and every row be written again. Raises ValueError.
    """
    if old.exists() and not new.exists() and not _is_at_home(old):
        raise ValueError(f"its journal is looked for in {new} now, and stands in {old}: move it, mv {old} {new}")


def _is_at_home(history: Path) -> bool:
    """Return whether the journal says that its checkpoint is beside it: it is another job's, then."""
    try:
        claims = Journal(LocalStore(history / "journal"), wait=backoff).read().claims
    except (ExactsinkError, OSError):
        return False
    identity = claims[-1].identity if claims else None
    return identity is not None and f"{identity.checkpoint}.exactsink" == str(history)
