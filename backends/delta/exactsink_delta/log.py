"""The table's log: what it says of a sink, one entry more, and that both are on disk.

With each entry go numbers that Delta keeps for applications, and that stay when the log is cleaned: the epoch, the
journal's lineage, the claim's token, and the entry's own version.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
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
"""The folder of our records; Delta's VACUUM passes over names that begin so."""

_BIRTH = -1


class TableLog:
    """One sink's view. The table is opened again when its log is not the one that was read: it may have gone back."""

    def __init__(self, root: AnyPath, job: str, sink: str) -> None:
        self._root, self._job, self._sink = root, job, sink
        self._app = f"exactsink:{job}:{sink}"
        self._birth = root / RECORDS / f"{job}.{sink}.birth"
        self._log = root / "_delta_log"
        self._synced: int | None = None
        self._seen = self._due = 0  # the newest version that was opened; the one that asks for a checkpoint
        self._opened: tuple[DeltaTable, bytes] | None = None  # and the log's entry of its version

    def table(self, version: int | None = None) -> DeltaTable | None:
        """Open the table as it is now; None where there is none."""
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
        """Open the table. Raises Fatal where there is none any more."""
        table = self.table()
        if table is None:
            raise Fatal(f"{self._root} is not a Delta table any more", next="restore it, then start the job again")
        return table

    def create(self, columns: pa.Schema, partition_by: Sequence[str]) -> DeltaTable:
        """Make the table, or find it made by another process."""
        schema, options = Schema.from_arrow(columns), _options(self._root)
        try:
            DeltaTable.create(str(self._root), schema, partition_by=[*partition_by], storage_options=options)
        except DeltaError:
            if self.table() is None:
                raise
        return self.standing()

    def add_columns(self, table: DeltaTable, columns: Sequence[Field]) -> DeltaTable:
        """Add columns to the table, or find that another process has; return the table as it is then."""
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
        """Put a birth if there is none: beside the log, as there may be no table yet. The first entry goes over it."""
        create_file(self._birth, lineage.encode())

    def marker(self, table: DeltaTable | None) -> Marker | None:
        """Read the marker of the epoch that the table shows.

        A RESTORE takes rows away and leaves the numbers: what counts is what they were in the version that it brought
        back. Where that is not known any more (its entry names a time, or the log was cleaned) it is the birth.
        """
        if table is None or (epoch := table.transaction_version(self._app)) is None:
            return self._born()
        lineage, token, version = (
            table.transaction_version(f"{self._app}:{name}") for name in ("lineage", "token", "version")
        )
        assert lineage is not None, "an entry has all four"
        assert token is not None
        assert version is not None
        since = table.version() - version
        for entry in table.history(since) if since else ():  # the newest first
            if entry["operation"] == "RESTORE":
                back = str(entry.get("operationParameters", {}).get("version")).strip('"')
                with suppress(DeltaError):
                    return self.marker(self.table(int(back))) if back.isdigit() else self._born()
                return self._born()
        return Marker(self._job, self._sink, f"{lineage:x}"[1:], epoch, 0, f"{token:x}"[1:])

    def append(self, table: DeltaTable, marker: Marker, actions: list[AddAction | RemoveAction]) -> str:
        """Put an entry right after the table's version, or none; return why it may be missing: then look again.

        Another entry may have that version, or the answer was lost. It is durable once it is synced.
        """
        numbers = {"": marker.epoch, ":version": table.version() + 1}
        numbers |= {":lineage": int("1" + marker.lineage, 16), ":token": int("1" + marker.token, 16)}
        now = int(time.time() * 1000)
        entry = CommitProperties(
            {"userMetadata": f"{self._app} epoch {marker.epoch}"},
            max_commit_retries=0,  # else deltalake puts it behind what came in between
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
        """Sync the log from its checkpoint on, what other writers put there, too: behind a gap no entry counts.

        deltalake leaves its files to the system, which may lose them in a power cut. A store keeps what it
        answered for.
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
        except OSError as error:  # a second sync would say that all is well
            why = f"{error}: visible rows may be lost in a power cut"
            raise Fatal(
                f"{self._log} can't be synced", why=why, next="check its disk, then start the job again"
            ) from error
        self._synced = table.version()

    def shorten(self) -> None:
        """Make a checkpoint where one is due; entries that are old enough go once it is on disk.

        The table is opened only then: that reads the names of all its files, which takes long where there are many.
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
        """Return the table that was opened, with the entries that came since. None: it has to be opened again.

        The log must have the entry that it was opened at, byte by byte. An entry names its time and files, or the
        table's random id: no other history has the same.
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

    def _entry(self, version: int) -> bytes | None:
        try:
            return self._entry_path(version).read_bytes()
        except FileNotFoundError:
            return None

    def _entry_path(self, version: int) -> AnyPath:
        return self._log / f"{version:020}.json"

    def _born(self) -> Marker | None:
        try:
            return Marker(self._job, self._sink, self._birth.read_text(), _BIRTH, 0)
        except FileNotFoundError:
            return None

    def _checkpoint(self) -> int:
        try:
            return int(json.loads((self._log / "_last_checkpoint").read_text())["version"])
        except FileNotFoundError:
            return 0


def _options(root: AnyPath) -> dict[str, str] | None:
    """Return what deltalake needs beside the environment: entries that overwrite none, and botocore's endpoint."""
    if isinstance(root, Path):
        return None
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    found = {"aws_endpoint_url": endpoint, "allow_http": str(endpoint.startswith("http:")).lower()} if endpoint else {}
    return {"aws_conditional_put": "etag", **found}
