"""The driver's side: one snapshot of the table names an epoch's files, and holds the sink's mark.

The committer reads the branch's last snapshot, and adds the new one directly after it, or not at all: see `tables`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortDirection
from pyiceberg.transforms import IdentityTransform

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
    ObjectPath,
    make_folder,
    store_findings,
)
from exactsink.toolkit.tabular.table_committer import TableCommitter, TableFile
from exactsink.toolkit.tabular.tables import raise_errors
from exactsink_iceberg.durable_io import path_at
from exactsink_iceberg.options import IcebergOptions
from exactsink_iceberg.preflight import misfits, new_table_problems, sink_problems, table_problems
from exactsink_iceberg.tables import SinkTable
from exactsink_iceberg.votes import data_file, votes_of
from exactsink_iceberg.writer import Ticket, answering

__all__ = ["IcebergCommitter"]

_TRIES = 100
"""How often other writers may be faster: each try takes about 10 ms."""

_FAILURES = 2
"""How often a call may fail for another reason: a call may wait for a lock or an answer for up to a minute."""


class IcebergCommitter(TableCommitter):
    """Commit files by one snapshot; the sink's mark in it proves which were committed."""

    def __init__(self, options: IcebergOptions, ctx: JobContext) -> None:
        self._options, self._target = options, SinkTable(options, ctx.job, ctx.sink)
        super().__init__(ctx, self._target.records)

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        with self.answering():
            yield from self._sink_problems()
            table = self._target.table()
            if table is not None:
                yield from table_problems(table, self._options)
                yield from self._misfits(schema, table)
            elif self._options.create:
                yield from new_table_problems(schema, self._options)
            else:
                yield Finding("error", self._no_table, "make it, or set create = true")

    def check_target(self, participants: int | None) -> Iterable[Finding]:
        with self.answering():
            yield from self._sink_problems()
            table = self._target.table()
            yield from [] if table is None else table_problems(table, self._options)

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        with self.answering():
            table = self._target.table() or self._made(schema)
            raise_errors(self._ctx.sink, [*table_problems(table, self._options), *self._misfits(schema, table)])
            self._marker(epoch).check_new(self._target.marker(table))  # before the table is changed
            if self._adds and any(self._misfits(schema, table)):
                table = self._target.add_columns(table, schema)
            table = self._target.begin_branch(table)
            make_folder(self._records)
            self._opened = schema, self._ticket(table, schema)
        return self._opened[1]

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        """Add all files by one snapshot. Before it, read the table's mark, and then look at the files.

        Idempotent, from any process; durable when it returns. If a file is gone, the whole set is lost once an empty
        snapshot exists: a driver that saw all files and stalled can't add them any more.
        """
        marker, refusals = self._marker(epoch, committables), list[Exception]()
        with self.answering():
            while len(refusals) < _TRIES:
                table = self._target.standing()
                self._target.remove_refused(table)
                stored = self._target.marker(table)
                if not marker.must_apply(stored):
                    return self._settled(committables, AlreadyCommitted())
                damage = self._damage(epoch, committables)
                if isinstance(damage, Unknown):
                    return [damage] * len(committables)
                if damage is None:
                    files = self._added(table, committables)
                    refused = self._target.put(table, marker, files, self._replaced(table, files))
                else:
                    assert stored is not None, "only epochs below a mark can be lost"
                    refused = self._target.put(table, stored, [])
                if refused is None:
                    return [damage] * len(committables) if damage else self._settled(committables, Committed())
                refusals.append(refused)
                if sum(not isinstance(each, CommitFailedException) for each in refusals) == _FAILURES:
                    break
        why = f"{type(refusals[-1]).__name__}: {getattr(refusals[-1], 'orig', None) or refusals[-1]}"
        what = f"{self._options.table} accepted no snapshot in {len(refusals)} tries"
        raise Retryable(what, why=why, next="start the job again")

    def stored(self, *, may_lack: bool = False) -> Marker | None:
        return self._target.marker(self._target.table() if may_lack else self._target.standing())

    def named(self) -> set[str]:
        return {file.file_path.rpartition("/")[2] for file in self._target.files(self._target.table())}

    def voted(self, committable: Committable) -> Iterator[TableFile]:
        return (TableFile(path_at(each.path), each.size, each.sha256) for each in votes_of(committable))

    def ticket(self, schema: pa.Schema) -> bytes:
        return self._ticket(self._target.standing(), schema)

    def put_birth(self) -> Mark:
        with self.answering():
            self._target.put_birth(self._ctx.lineage)
        return self.mark() or Mark(self._ctx.lineage)

    def trim_marks(self) -> None:
        """Delete no mark, because a mark replaces the one before; with keep_snapshots, expire the sink's older ones."""
        keep = self._options.keep_snapshots
        if keep is not None:
            with self.answering():
                self._target.expire(self._target.standing(), keep)

    def close(self) -> None:
        self._target.close()

    @property
    def _no_table(self) -> str:
        return f"the catalog has no table {self._options.table}"

    def _made(self, schema: pa.Schema) -> Table:
        if not self._options.create:
            raise Fatal(self._no_table, next="make it, or set create = true")
        raise_errors(self._ctx.sink, new_table_problems(schema, self._options))
        return self._target.create(schema)

    @property
    def _adds(self) -> bool:
        return self._options.on_schema_change == "add_columns"

    def _sink_problems(self) -> Iterator[Finding]:
        yield from sink_problems(self._options)
        if isinstance(self._target.root, ObjectPath):
            fix = "keep the table in a folder that driver and executors share"
            yield from store_findings(self._target.root, "the records", fix)

    def _misfits(self, schema: pa.Schema, table: Table) -> Iterator[Finding]:
        return misfits(schema, table, adds=self._adds)

    def _ticket(self, table: Table, schema: pa.Schema) -> bytes:
        sort = list[tuple[str, Any]]()
        for field in table.sort_order().fields:
            if not isinstance(field.transform, IdentityTransform):
                break
            way = "ascending" if field.direction == SortDirection.ASC else "descending"
            sort.append((table.schema().find_column_name(field.source_id) or "", way))
        ticket = Ticket(
            location=table.location(),
            records=str(self._records),
            properties={name: text for name, text in table.properties.items() if not name.startswith("exactsink.")},
            columns=table.schema().select(*schema.names),
            spec=table.spec(),
            sort=tuple(sort) if all(name in schema.names for name, _ in sort) else (),
        )
        return ticket.model_dump_json().encode()

    def _added(self, table: Table, committables: Sequence[Committable]) -> list[DataFile]:
        """Return the votes' files for a manifest.

        Raises Fatal if the table no longer has the files' columns or partitions.
        """
        voted = [voted for committable in committables for voted in votes_of(committable)]
        gone = {int(place) for each in voted for place in each.numbers["column_sizes"]} - {*table.schema().field_ids}
        specs = {each.spec for each in voted} - {table.spec().spec_id}
        if gone or specs:
            why = f"its columns or partitions were changed since: {sorted(gone or specs)}"
            what = f"{self._options.table} can't take decided rows"
            raise Fatal(what, why=why, next="put its columns and partitions back, then start the job again")
        return [data_file(each) for each in voted]

    def _replaced(self, table: Table, added: Sequence[DataFile]) -> list[DataFile]:
        """Return the files that a batch run replaces: all in the partitions of its rows."""
        if self._options.mode == "append":
            return []
        partitions, spec = {repr(file.partition) for file in added}, table.spec().spec_id
        there = self._target.files(table)
        if any(file.spec_id != spec for file in there):
            what = f"{self._options.table} has files of earlier partitions"
            fix = 'rewrite them by rewrite_data_files, or set mode = "append"'
            raise Fatal(what, why="exactsink does not know to which partitions their rows belong", next=fix)
        return [file for file in there if repr(file.partition) in partitions]

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Turn errors of the catalog and of the storage into Retryable or Fatal."""
        with answering(self._records), self._target.answering():
            yield
