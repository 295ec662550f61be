"""Read Spark's checkpoint folder: the query's id, the input of a batch, and whether a batch is done."""

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
    """A streaming query's checkpoint, read only, in the layout that Spark 4.3 writes.

    A file counts as absent only if the file system or the store says so. Any other answer raises Retryable or Fatal.
    """

    def __init__(self, folder: AnyPath) -> None:
        self._folder = folder

    def query_id(self) -> str | None:
        """Return the query's id, None before its first start."""
        metadata = self._read("metadata")
        return None if metadata is None else str(json.loads(metadata)["id"])

    def check_bound(self, log: Log) -> None:
        """Refuse a checkpoint that is gone, or belongs to another query than the journal. Raises LineageError."""
        query_id = self.query_id()
        if not log.query_id or query_id == log.query_id:
            return
        if query_id is not None:
            raise other_query(log.query_id, query_id)
        raise LineageError(
            f"the journal belongs to query {log.query_id}, and its checkpoint {self._folder} is gone",
            why="a new checkpoint starts at epoch 0 again, and its epochs would be skipped or written twice",
            next="restore the checkpoint; or `exactsink adopt JOB.toml`, which continues the epochs with a new "
            "checkpoint: rows that its source gives again are doubled in every sink, and rows that it skips are "
            "missing; or give the job a new name and checkpoint",
        )

    def check_follows(self, read: Callable[[], Log]) -> None:
        """Refuse a checkpoint if its next batch neither follows the journal's last decision nor repeats it.

        A start would fail in the same way, but only when that batch comes. `read` reads the journal. A driver may
        change journal and checkpoint at the same time, so a difference counts only if no entry was appended meanwhile.
        Raises LineageError.
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
        numbered = decided >= log.claims[-1].first_epoch  # else an older checkpoint, or a rebase, numbered it
        if decision is not None and numbered and epoch == decided:
            check_replay(decision, self.previous(decided - log.base + 1), self.previous(decided - log.base))
        elif epoch != log.next_epoch:
            raise out_of_order(epoch, log.next_epoch)
        elif numbered:
            check_follows(log, epoch, self.previous(epoch - log.base))

    def fingerprint(self, batch: int) -> str:
        """Hash the offsets that a batch reads. Spark writes their file once, so equal hashes mean the same input."""
        return _sha256(self._offsets(batch))

    def source_ends(self, batch: int) -> tuple[str, ...]:
        """Return a batch's end offsets: one text for each source, as that source writes them.

        Empty for an offset log of version 2, which keeps offsets by the sources' names, because only Spark can read it.
        """
        version, _, *sources = self._offsets(batch).decode().splitlines()
        return tuple(line for line in sources if line != "-") if version == "v1" else ()

    def previous(self, batch: int) -> str:
        """Hash the offsets at which a batch begins; empty if the checkpoint has none, as for the first batch."""
        offsets = self._read(f"offsets/{batch - 1}")
        return "" if offsets is None else _sha256(offsets)

    def is_epoch_done(self, epoch: int, log: Log) -> bool:
        """Return whether Spark has recorded an epoch of this journal as done.

        Only a record of the journal's own query counts, because another query's batches have the same numbers. A later
        batch that is done also proves it, because Spark deletes old records. An epoch before the claim's first was
        committed in every sink before the checkpoint was adopted.
        """
        if not log.claims:
            return False
        if epoch < log.claims[-1].first_epoch:
            return True
        return self.query_id() == log.query_id and self.next_batch() > epoch - log.base

    def check_called(self, log: Log, batch: int, *, ran: bool) -> None:
        """Refuse a batch if the journal never got the batches before it, unless the journal itself went back in time.

        The journal did not go back if this driver run has finished the batch before the missing ones (`ran`). Probably
        it did not go back either if its last decision ends at the offsets that this checkpoint has for that batch.
        Raises LineageError.
        """
        first, decision = log.next_epoch - log.base, log.decision
        if batch <= first:
            return
        if ran:
            why = "this driver itself has written the batch before them, so the journal did not go back in time"
        elif decision is None or decision.epoch != log.next_epoch - 1:
            return
        elif self.previous(first) == decision.fingerprint:
            why = (
                "journal and checkpoint agree on all batches before, and no target's mark is ahead of the journal; it "
                "is less likely that journal and targets were restored from older copies, and the checkpoint was not"
            )
        else:
            return
        missed = f"batch {first}" if batch == first + 1 else f"batches {first} to {batch - 1}"
        raise LineageError(
            f"batch {batch} came, but exactsink's function was not called for {missed}, or its error was caught",
            why=f"{why}. Spark has recorded {missed} as done, and their rows are in no sink",
            next="call it for each batch, also for an empty one, and let its errors end the query. Then "
            f"{self._again(first, batch)}give these rows up: `exactsink rebase JOB.toml` shows them",
        )

    def _again(self, first: int, batch: int) -> str:
        """Return the steps that let Spark repeat batch `first`; empty if the checkpoint no longer has its offsets."""
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
        """Return the batch that the query runs next: the first batch that Spark has not recorded as done."""
        return max((int(name) for name in self._names(self._folder / "commits") if name.isdigit()), default=-1) + 1

    def is_stateful(self) -> bool:
        """Return whether the query keeps state. Then a skipped batch must still run, or its state has a hole."""
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
        """Read a file, None if it is absent."""
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
