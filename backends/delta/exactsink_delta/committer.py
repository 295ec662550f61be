"""The driver's side: one entry of the table's log names an epoch's files, and holds the sink's mark.

The committer reads a version of the table, and adds the entry as the next version, or not at all: see `log`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from exactsink.contract import (
    AlreadyCommitted,
    Committable,
    Committed,
    Fatal,
    Finding,
    JobContext,
    Mark,
    Outcome,
    Retryable,
    Unknown,
)
from exactsink.toolkit.roads import Marker
from exactsink.toolkit.storage import (
    AnyPath,
    ObjectPath,
    file_names,
    make_folder,
    path_of,
    store_findings,
)
from exactsink.toolkit.tabular.table_committer import TableCommitter, TableFile
from exactsink.toolkit.tabular.tables import raise_errors
from exactsink_delta.log import RECORDS, TableLog
from exactsink_delta.options import DeltaOptions
from exactsink_delta.preflight import added, arrow_schema, delta_columns, misfits, new_table_problems, table_problems
from exactsink_delta.writer import answering, columns_of, file_of, text_of

__all__ = ["DeltaCommitter"]

_TRIES = 20
_NO_TABLE = "make it, or set create = true"
_NOT_REMOVED = "deltalake can't remove file {}, because the log spells its name in another way"
_UNQUOTED = "/!$&'()+,-.:;=@_~"
_APPEND = 'set mode = "append"'


class DeltaCommitter(TableCommitter):
    """Commit files by one entry of the log; the sink's mark in the entry proves which were committed."""

    def __init__(self, options: DeltaOptions, ctx: JobContext) -> None:
        self._options, self._root = options, path_of(options.path)
        super().__init__(ctx, self._root / RECORDS)
        self._log = TableLog(self._root, ctx.job, ctx.sink)

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        with self.answering():
            yield from self._store_problems()
            if isinstance(self._root, Path) and self._root.is_file():
                yield Finding("error", f"{self._root} is not a folder", "move it away, or set path to another folder")
                return
            table = self._log.table()
            if table is not None:
                yield from self._problems(table)
                yield from misfits(schema, table, adds=self._adds)
            elif self._options.create:
                yield from self._stray_problems()
                yield from self._new_problems(schema)
            else:
                yield Finding("error", f"{self._root} is not a Delta table", _NO_TABLE)

    def check_target(self, participants: int | None) -> Iterable[Finding]:
        with self.answering():
            yield from self._store_problems()
            table = self._log.table()
            yield from [] if table is None else self._problems(table)

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        with self.answering():
            table = self._log.table() or self._made(schema)
            raise_errors(self._ctx.sink, [*self._problems(table), *misfits(schema, table, adds=self._adds)])
            self._marker(epoch).check_new(self._log.marker(table))  # before columns are added
            if self._adds:
                table = self._log.add_columns(table, added(schema, table))
            make_folder(self._records)
            self._log.sync(table)
            self._opened = schema, self._ticket(table, schema)
        return self._opened[1]

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        """Add all files by one entry. Before it, read the table's mark and version, and then look at the files.

        Idempotent, from any process; durable when it returns. If a file is gone, the whole set is lost once another
        entry has taken the next version: a driver that saw all files and stalled can't add them any more.
        """
        marker, refused = self._marker(epoch, committables), ""
        with self.answering():
            for _ in range(_TRIES):
                table = self._log.standing()
                stored = self._log.marker(table)
                if not marker.must_apply(stored):
                    return self._synced(table, committables, AlreadyCommitted())
                damage = self._damage(epoch, committables)
                if isinstance(damage, Unknown):
                    return [damage] * len(committables)
                put, actions = (marker, self._actions(table, committables)) if damage is None else (stored, [])
                assert put is not None, "only epochs below a mark can be lost"
                refused = self._log.append(table, put, actions)
                if not refused and damage is None:
                    return self._synced(table, committables, Committed())
                if not refused and damage is not None:
                    self._log.sync(table)
                    return [damage] * len(committables)
        raise Retryable(
            f"{self._root} accepts no entry", why=f"{_TRIES} tries were refused: {refused}", next="start the job again"
        )

    def stored(self, *, may_lack: bool = False) -> Marker | None:
        return self._log.marker(self._log.table() if may_lack else self._log.standing())

    def named(self) -> set[str]:
        table = self._log.table()
        return set() if table is None else {uri.rpartition("/")[2] for uri in table.file_uris()}

    def voted(self, committable: Committable) -> Iterator[TableFile]:
        return (TableFile(path, v["size"], v["sha256"]) for path, v in self._files(committable))

    def ticket(self, schema: pa.Schema) -> bytes:
        return self._ticket(self._log.standing(), schema)

    def put_birth(self) -> Mark:
        with self.answering():
            make_folder(self._records)
            self._log.put_birth(self._ctx.lineage)
        return self.mark() or Mark(self._ctx.lineage)

    def trim_marks(self) -> None:
        """Delete no mark, because a mark replaces the one before; shorten the log."""
        with self.answering():
            self._log.shorten()

    def close(self) -> None:
        """Do nothing: nothing stays open between calls."""

    def _made(self, schema: pa.Schema) -> DeltaTable:
        if not self._options.create:
            raise Fatal(f"{self._root} is not a Delta table", next=_NO_TABLE)
        raise_errors(self._ctx.sink, self._new_problems(schema))
        return self._log.create(delta_columns(schema)[0], self._options.partition_by)

    @property
    def _replaces(self) -> bool:
        return self._options.mode == "overwrite_partitions"

    @property
    def _adds(self) -> bool:
        return self._options.on_schema_change == "add_columns"

    def _ticket(self, table: DeltaTable, schema: pa.Schema) -> bytes:
        columns = [field for field in arrow_schema(table) if field.name in schema.names]
        by = json.dumps(table.metadata().partition_columns)
        ticket: bytes = pa.schema(columns, {"partition_by": by}).serialize().to_pybytes()
        return ticket

    def _problems(self, table: DeltaTable) -> Iterator[Finding]:
        about = table.metadata()
        yield from table_problems(table, self._options.partition_by, self._ctx.longest_pause_seconds)
        yield from self._partition_problems(about.partition_columns)
        if self._replaces:
            if about.configuration.get("delta.appendOnly") == "true":
                yield Finding("error", "the table forbids removing rows (delta.appendOnly)", _APPEND)
            files = pa.table(table.get_add_actions())["path"].to_pylist()
            yield from (Finding("error", _NOT_REMOVED.format(each), _APPEND) for each in files if not _removable(each))

    def _new_problems(self, schema: pa.Schema) -> Iterator[Finding]:
        yield from new_table_problems(schema, self._options.partition_by)
        yield from self._partition_problems(self._options.partition_by)

    def _partition_problems(self, by: Sequence[str]) -> Iterator[Finding]:
        if self._replaces and not by:
            yield Finding("error", "the table has no partitions to overwrite", _APPEND)

    def _store_problems(self) -> Iterable[Finding]:
        """Check that a store can create an object only if it does not exist, because the log needs that."""
        fix = "keep the table in a folder that driver and executors share"
        return store_findings(self._root, "the log", fix) if isinstance(self._root, ObjectPath) else ()

    def _stray_problems(self) -> Iterable[Finding]:
        """Find other files in the folder of a new table, because its VACUUM would delete them."""
        with suppress(FileNotFoundError):
            if stray := [name for name in file_names(self._root) if not name.startswith(("_", "."))]:
                message = f"{self._root} is not a Delta table, and VACUUM would delete its files: {min(stray)}"
                yield Finding("error", message, "set path to an empty folder, or make a table of these files first")

    def _synced(self, table: DeltaTable, committables: Sequence[Committable], outcome: Outcome) -> Sequence[Outcome]:
        """Make the entry durable, whoever wrote it."""
        self._log.sync(table)
        return self._settled(committables, outcome)

    def _files(self, committable: Committable) -> list[tuple[AnyPath, Any]]:
        """Return a vote's files, each with its entry in the vote."""
        files = enumerate(json.loads(committable.payload))
        return [(file_of(self._root, v["values"], f"{committable.ref}.{number}.parquet"), v) for number, v in files]

    def _actions(self, table: DeltaTable, committables: Sequence[Committable]) -> list[AddAction | RemoveAction]:
        """Return the log's actions: add the votes' files, and remove the files that they replace.

        Raises Fatal if the table no longer has the files' columns.
        """
        now, actions, written = int(time.time() * 1000), list[AddAction | RemoveAction](), list[Mapping[str, Any]]()
        for path, voted in (file for committable in committables for file in self._files(committable)):
            written.append(voted["values"])
            name = str(path).removeprefix(f"{self._root}/")
            actions.append(AddAction(name, voted["size"], written[-1], now, True, json.dumps(voted["stats"])))
        # All files have the columns of one ticket, so the last one is enough.
        wrong = [*misfits(columns_of(path), table, [*written[-1]])]
        if wrong:
            why = f"its columns were changed meanwhile: {wrong[0].message}"
            raise Fatal(
                f"{self._root} can't take decided rows", why=why, next="RESTORE it to the version before that change"
            )
        return [*actions, *(_removals(table, written, now) if self._replaces else ())]

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Turn errors of deltalake and of the storage into Retryable or Fatal."""
        with answering(self._root):
            try:
                yield
            except DeltaError as error:
                raise Retryable(f"{self._root} can't be used", why=str(error), next="start the job again") from error


def _removals(table: DeltaTable, written: Iterable[Mapping[str, str | None]], now: int) -> Iterator[RemoveAction]:
    """Yield the removal of all files in the partitions of the written files."""
    by = table.metadata().partition_columns
    replaced = {tuple(values[name] for name in by) for values in written}
    files = pa.table(table.get_add_actions(flatten=True))
    columns = [files[name].to_pylist() for name in ("path", "size_bytes", *(f"partition.{name}" for name in by))]
    for path, size, *values in zip(*columns, strict=True):
        place = tuple(map(text_of, values))
        if place in replaced and not _removable(path):  # it was written after the epoch was opened
            raise Fatal(_NOT_REMOVED.format(path), next="have its writer rewrite it, then write the run again")
        if place in replaced:
            yield RemoveAction(unquote(path), True, now, size, dict(zip(by, place, strict=True)))


def _removable(path: str) -> bool:
    """Return whether deltalake spells a file's name as the log does. If not, a removal would have no effect."""
    return quote(unquote(path), safe=_UNQUOTED) == path
