"""The table's log: read a sink's mark, append an entry, and make both durable.

Each entry carries numbers that Delta keeps for applications, also when it cleans the log: the epoch, the journal's
lineage, the claim's token, and the entry's own version.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from exactsink.contract import Fatal
from exactsink.toolkit.roads import Marker
from exactsink.toolkit.storage import AnyPath, ObjectPath, create_file, sync_folders

__all__ = ["RECORDS", "TableLog"]

RECORDS = "_exactsink"
"""The folder of exactsink's records. Delta's VACUUM ignores names that begin with an underscore."""

_BIRTH = -1


class TableLog:
    """One sink's view. It opens the table again if an entry that it read has changed: the log may be restored."""

    def __init__(self, root: AnyPath, job: str, sink: str) -> None:
        self._root, self._job, self._sink = root, job, sink
        self._app = f"exactsink:{job}:{sink}"
        self._birth = root / RECORDS / f"{job}.{sink}.birth"
        self._log = root / "_delta_log"
        self._synced: int | None = None
        self._seen = self._due = 0  # the newest version that was opened; the version of the next checkpoint
        self._opened: tuple[DeltaTable, bytes] | None = None  # and the log's entry of its version

    def table(self, version: int | None = None) -> DeltaTable | None:
        """Open the table as it is now, or an old version; return None if there is no table."""
        if version is None and (known := self._known()) is not None:
            return known
        try:
            table = DeltaTable(str(self._root), version=version, storage_options=_options(self._root))
        except TableNotFoundError:
            return None
        if version is None:
            self._seen = table.version()
            entry = self._entry(self._seen)
            self._opened = None if entry is None else (table, entry)
        return table

    def standing(self) -> DeltaTable:
        """Open the table. Raises Fatal if it no longer exists."""
        table = self.table()
        if table is None:
            raise Fatal(f"{self._root} is not a Delta table any more", next="restore it, then start the job again")
        return table

    def create(self, columns: pa.Schema, partition_by: Sequence[str]) -> DeltaTable:
        """Make the table, unless another process has made it; return it. Idempotent."""
        schema, options = Schema.from_arrow(columns), _options(self._root)
        try:
            DeltaTable.create(str(self._root), schema, partition_by=[*partition_by], storage_options=options)
        except DeltaError:
            if self.table() is None:
                raise
        return self.standing()

    def add_columns(self, table: DeltaTable, columns: Sequence[Field]) -> DeltaTable:
        """Add columns to the table, unless another process has; return the table as it is then. Idempotent."""
        if not columns:
            return table
        self._opened = None
        try:
            table.alter.add_columns([*columns])
        except DeltaError:
            there = {field.name for field in self.standing().schema().fields}
            if any(column.name not in there for column in columns):
                raise
        return self.standing()

    def put_birth(self, lineage: str) -> None:
        """Write a birth if there is none, beside the log, because there may be no table yet. An entry overrides it."""
        create_file(self._birth, lineage.encode())

    def marker(self, table: DeltaTable | None) -> Marker | None:
        """Read the marker of the epoch that the table shows.

        A RESTORE removes rows but not the numbers, so the numbers of the restored version count. If that version is not
        known (the entry names a time, or the log was cleaned), the birth counts.
        """
        if table is None or (epoch := table.transaction_version(self._app)) is None:
            return self._born()
        lineage, token, version = (
            table.transaction_version(f"{self._app}:{name}") for name in ("lineage", "token", "version")
        )
        assert lineage is not None, "an entry has all four"
        assert token is not None
        assert version is not None
        with ThreadPoolExecutor() as pool:
            newest_first = range(table.version(), version, -1)
            restores = [back for back in pool.map(self._restored, newest_first) if back is not None]
        if restores:
            with suppress(DeltaError):
                return self.marker(self.table(int(restores[0]))) if restores[0].isdigit() else self._born()
            return self._born()
        return Marker(self._job, self._sink, f"{lineage:x}"[1:], epoch, 0, f"{token:x}"[1:])

    def append(self, table: DeltaTable, marker: Marker, actions: list[AddAction | RemoveAction]) -> str:
        """Append an entry as the next version of this table, or none; return why it may be missing, empty on success.

        Another entry may have that version, or the answer was lost: then read the table again. The entry is durable
        after `sync`.
        """
        numbers = {"": marker.epoch, ":version": table.version() + 1}
        numbers |= {":lineage": int("1" + marker.lineage, 16), ":token": int("1" + marker.token, 16)}
        now = int(time.time() * 1000)
        entry = CommitProperties(
            {"userMetadata": f"{self._app} epoch {marker.epoch}"},
            max_commit_retries=0,  # else deltalake puts it after entries of others
            app_transactions=[Transaction(self._app + name, number, now) for name, number in numbers.items()],
        )
        hooks, by = PostCommitHookProperties(False, False), table.metadata().partition_columns
        schema = table.schema()
        try:
            table.create_write_transaction(
                actions, "append", schema, by, commit_properties=entry, post_commithook_properties=hooks
            )
        except CommitFailedError as error:
            return str(error)
        return ""

    def sync(self, table: DeltaTable) -> None:
        """Sync the log from its checkpoint on, other writers' entries included, because no entry counts after a gap.

        deltalake does not sync its files, so a power cut may lose them. A store keeps each object that it acknowledged.
        """
        if isinstance(self._log, ObjectPath):
            return
        checkpoint = self._checkpoint()
        first = checkpoint if self._synced is None else self._synced + 1
        names = [f"{version:020}.json" for version in range(first, table.version() + 2)]
        try:
            for name in (*names, f"{checkpoint:020}.checkpoint.parquet", "_last_checkpoint"):
                with suppress(FileNotFoundError), open(self._log / name, "rb") as file:
                    os.fsync(file.fileno())
            sync_folders([self._log, self._root])
        except OSError as error:  # a second sync could succeed although data is lost
            why = f"{error}: visible rows may be lost in a power cut"
            raise Fatal(
                f"{self._log} can't be synced", why=why, next="check its disk, then start the job again"
            ) from error
        self._synced = table.version()

    def shorten(self) -> None:
        """Make a checkpoint if one is due. Once it is durable, remove old entries.

        Only then is the table opened, because that reads the names of all its files, and can take long.
        """
        if self._seen < self._due or (table := self.table()) is None:
            return
        settings = table.metadata().configuration
        interval = int(settings.get("delta.checkpointInterval", 100))
        self._due = self._checkpoint() + interval
        if table.version() < self._due:
            return
        self._opened = None
        table.create_checkpoint()
        self._due = table.version() + interval
        self.sync(table)
        if settings.get("delta.enableExpiredLogCleanup") != "false":
            table.cleanup_metadata()

    def _known(self) -> DeltaTable | None:
        """Return the table that was opened, with the entries since then; None if it must be opened again.

        The log must still hold the entry of that version, byte by byte. No other history has the same entry, because an
        entry names its time and files, or the table's random id.
        """
        if self._opened is None or self._entry(self._opened[0].version()) != self._opened[1]:
            return None
        table, self._opened = self._opened[0], None
        with suppress(DeltaError):  # a log that was cleaned meanwhile may have a gap
            if self._entry_path(table.version() + 1).exists():
                table.update_incremental()
            self._seen = table.version()
            if (entry := self._entry(self._seen)) is not None:
                self._opened = table, entry
                return table
        return None

    def _restored(self, version: int) -> str | None:
        """Return the version that an entry restores, as text; None if it restores none.

        deltalake's `history` has no such answer for an old version: it always lists the log's newest entries.
        """
        for line in (self._entry(version) or b"").splitlines():
            if b"RESTORE" in line and (about := json.loads(line).get("commitInfo", {})).get("operation") == "RESTORE":
                return str(about.get("operationParameters", {}).get("version")).strip('"')
        return None

    def _entry(self, version: int) -> bytes | None:
        try:
            return self._entry_path(version).read_bytes()
        except FileNotFoundError:
            return None

    def _entry_path(self, version: int) -> AnyPath:
        return self._log / f"{version:020}.json"

    def _born(self) -> Marker | None:
        try:
            return Marker(self._job, self._sink, self._birth.read_text(), _BIRTH, 0, "")
        except FileNotFoundError:
            return None

    def _checkpoint(self) -> int:
        try:
            return int(json.loads((self._log / "_last_checkpoint").read_text())["version"])
        except FileNotFoundError:
            return 0


def _options(root: AnyPath) -> dict[str, str] | None:
    """Return deltalake's options beside the environment: conditional writes of entries, and botocore's endpoint."""
    if isinstance(root, Path):
        return None
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    found = {"aws_endpoint_url": endpoint, "allow_http": str(endpoint.startswith("http:")).lower()} if endpoint else {}
    return {"aws_conditional_put": "etag", **found}
