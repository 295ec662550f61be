"""What Spark's checkpoint folder says of a query: who it is, what a batch reads, and whether a batch is done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from shlex import quote

from exactsink.contract import LineageError
from exactsink.protocol.journal.journal import other_query
from exactsink.protocol.journal.log import Log
from exactsink.protocol.lineage import check_follows, check_replay, out_of_order
from exactsink.toolkit.storage import AnyPath, file_names, storage_errors

__all__ = ["Checkpoint"]


class Checkpoint:
    """A streaming query's checkpoint, read only. Layout as Spark 4.3 writes it.

    What is absent is said to be so only where the file system, or the store, says it: any other answer raises.
    """

    def __init__(self, folder: AnyPath) -> None:
        self._folder = folder

    def query_id(self) -> str | None:
        """The query's id; None before its first start."""
        metadata = self._read("metadata")
        return None if metadata is None else str(json.loads(metadata)["id"])

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
            next="restore the checkpoint; or `exactsink adopt JOB.toml`, which lets the epochs go on with a new "
            "one: rows that its source gives again are doubled in every sink, and rows that it leaves out are missing; "
            "or give the job a new name and checkpoint",
        )

    def check_follows(self, read: Callable[[], Log]) -> None:
        """Refuse a checkpoint whose next batch neither follows the journal's last decision nor repeats it.

        A start meets the same once that batch comes. `read` reads the journal: a driver may be at work on both, so a
        difference counts only if nothing was appended meanwhile. Raises LineageError.
        """
        log = read()
        while True:
            try:
                self._check_follows(log)
            except LineageError:
                before, log = log, read()
                if log.last_seq == before.last_seq:
                    raise
            else:
                return

    def _check_follows(self, log: Log) -> None:
        self.check_bound(log)
        if not log.query_id:
            return
        decision, epoch = log.decision, log.base + self.next_batch()
        decided = decision.epoch if decision is not None else -1
        numbered = decided >= log.claims[-1].first_epoch  # else by an older checkpoint, or by an operator's rebase
        if decision is not None and numbered and epoch == decided:
            check_replay(decision, self.previous(decided - log.base + 1), self.previous(decided - log.base))
        elif epoch != log.next_epoch:
            raise out_of_order(epoch, log.next_epoch)
        elif numbered:
            check_follows(log, epoch, self.previous(epoch - log.base))

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
        offsets = self._read(f"offsets/{batch - 1}")
        return "" if offsets is None else _sha256(offsets)

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

    def check_called(self, log: Log, batch: int, *, ran: bool) -> None:
        """Refuse a batch that comes after others which the journal never got, unless the journal itself went back.

        That it has not is known where this driver run has finished the batch before them itself (`ran`); and likely
        where its last decision read up to the very offsets that this checkpoint has of that batch. Raises LineageError.
        """
        first, decision = log.next_epoch - log.base, log.decision
        if batch <= first:
            return
        if ran:
            why = "this driver has written the batch before itself, so its journal did not go back in time"
        elif decision is None or decision.epoch != log.next_epoch - 1:
            return
        elif self.previous(first) == decision.fingerprint:
            why = (
                "journal and checkpoint agree on all before, and no mark in a target is ahead of the journal; less "
                "likely is that journal and targets were put back to older copies, and the checkpoint was not"
            )
        else:
            return
        missed = f"batch {first}" if batch == first + 1 else f"batches {first} to {batch - 1}"
        raise LineageError(
            f"batch {batch} comes, and exactsink's function was not called for {missed}, or its error was caught",
            why=f"{why}. Spark has recorded {missed} as done, and their rows are in no sink",
            next="call it for each batch, also for an empty one, and let its errors end the query. Then "
            f"{self._again(first, batch)}give these rows up: `exactsink rebase JOB.toml` shows which",
        )

    def _again(self, first: int, batch: int) -> str:
        """Return how to have Spark go on with batch `first`, while the checkpoint has its offsets."""
        if not self.previous(first + 1):
            return ""
        offsets, commits = f"{{{first + 1}..{batch}}}", f"{{{first}..{batch - 1}}}"
        if not isinstance(self._folder, Path):
            gone = f"offsets/{offsets} and commits/{commits}"
            return f"either move {gone} out of {self._folder}: Spark gives batch {first} again; or "
        gone = f"{{offsets/,offsets/.}}{offsets}{{,.crc}} {{commits/,commits/.}}{commits}{{,.crc}}"
        place = quote(str(self._folder))
        command = f"cp -a {place} {place}.copy && cd {place} && bash -c 'rm -f {gone}'"
        return f"either let Spark give batch {first} again: {command}; or "

    def next_batch(self) -> int:
        """Return the batch that the query runs next: the first that Spark has not recorded as done."""
        return max((int(name) for name in self._names(self._folder / "commits") if name.isdigit()), default=-1) + 1

    def is_stateful(self) -> bool:
        """Return whether the query keeps state: then a skipped batch must still run, or its state has a hole."""
        return "state" in self._names(self._folder)

    def _offsets(self, batch: int) -> bytes:
        if (offsets := self._read(f"offsets/{batch}")) is None:
            raise LineageError(
                f"the checkpoint has no offsets of batch {batch}",
                why="asynchronous progress tracking writes them late, and then a replay looks like new input",
                next="set asyncProgressTrackingEnabled to false",
            )
        return offsets

    def _read(self, name: str) -> bytes | None:
        """Read a file; None where it is absent."""
        with self._explained(), suppress(FileNotFoundError):
            return (self._folder / name).read_bytes()
        return None

    def _names(self, folder: AnyPath) -> Sequence[str]:
        """List a folder; an absent one is empty."""
        with self._explained(), suppress(FileNotFoundError):
            return file_names(folder)
        return ()

    def _explained(self) -> AbstractContextManager[None]:
        return storage_errors(self._folder, f"the checkpoint {self._folder} can't be read")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
