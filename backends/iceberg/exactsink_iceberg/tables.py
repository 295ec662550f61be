"""The table: what it says of a sink, and one snapshot more.

The sink's mark is in the table's properties and in the summary of its snapshot, put there by one commit. A rollback
leaves properties as they are, and an expiry removes snapshots: each is seen by the other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertCurrentSchemaId, AssertDefaultSpecId, AssertTableUUID
from sqlalchemy.exc import SQLAlchemyError

from exactsink.contract import Fatal
from exactsink.toolkit.roads import Marker
from exactsink.toolkit.storage import create_file, make_folder
from exactsink_iceberg.options import IcebergOptions
from exactsink_iceberg.preflight import new_columns, new_spec

__all__ = ["SinkTable"]

_BIRTH = -1
_UNSURE = (CommitFailedException, CommitStateUnknownException, SQLAlchemyError, OSError)


class SinkTable:
    """One sink's view. The table is read again in each call: what was known of it may have gone back in time."""

    def __init__(self, options: IcebergOptions, job: str, sink: str) -> None:
        self._options, self._job, self._sink = options, job, sink
        self._key = f"exactsink.{job}.{sink}"
        self.records = Path(options.warehouse) / "_exactsink" / f"{options.catalog}.{options.table}"
        self._birth = self.records / f"{job}.{sink}.birth"
        self._catalog: Catalog | None = None

    @property
    def catalog(self) -> Catalog:
        """Open the catalog, and make its tables where they are missing."""
        if self._catalog is None:
            make_folder(Path(self._options.warehouse))
            self._catalog = SqlCatalog(
                self._options.catalog,
                **{
                    "uri": self._options.uri.get_secret_value(),
                    "warehouse": f"file://{self._options.warehouse}",
                    "py-io-impl": "exactsink_iceberg.durable_io.DurableFileIO",
                },
            )
        return self._catalog

    def table(self) -> Table | None:
        """Load the table as it is now; None where there is none."""
        try:
            return self.catalog.load_table(self._options.table)
        except NoSuchTableError:
            return None

    def standing(self) -> Table:
        """Load the table. Raises Fatal where there is none any more."""
        table = self.table()
        if table is None:
            what = f"the catalog has no table {self._options.table} any more"
            raise Fatal(what, next="bring it back, then start the job again")
        return table

    def create(self, rows: pa.Schema) -> Table:
        """Make the table, or find it made by another process."""
        columns = new_columns(rows)
        spec = new_spec(columns, self._options.partition_by)
        self.catalog.create_namespace_if_not_exists(self._options.table.partition(".")[0])
        try:
            return self.catalog.create_table(self._options.table, columns, partition_spec=spec)
        except TableAlreadyExistsError:
            return self.standing()

    def put_birth(self, lineage: str) -> None:
        """Put a birth if there is none: beside the table, as there may be none yet. The first epoch goes over it."""
        make_folder(self.records)
        create_file(self._birth, lineage.encode())

    def marker(self, table: Table | None) -> Marker | None:
        """Read the marker of the epoch that the table shows.

        Where the snapshot of the newest mark is no ancestor of the current one, the table was rolled back, and shows
        the epoch of the newest ancestor that has a mark. Where expiry has cut the ancestors, the mark in the properties
        counts if the current snapshot is younger than its, and else nothing is known: that is the birth.
        """
        if table is None or (text := table.properties.get(self._key)) is None:
            return self._born()
        kept = json.loads(text)
        head = table.current_snapshot()
        by_id = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
        older: Marker | None = None
        at: Snapshot | None = head
        while at is not None:
            if at.snapshot_id == kept["snapshot"]:
                return self._of(kept)
            if older is None and at.summary is not None and (said := at.summary.additional_properties.get(self._key)):
                older = self._of(json.loads(said))
            if at.parent_snapshot_id == kept["snapshot"]:
                return self._of(kept)  # expired, and known as a parent
            # pyiceberg's expiry takes the parent's id away, others leave it; a table's first snapshot has number 1
            cut = at.parent_snapshot_id not in by_id and (at.sequence_number or 0) > 1
            if cut and older is None and (head is not None and (head.sequence_number or 0) > kept["sequence"]):
                return self._of(kept)
            at = by_id.get(at.parent_snapshot_id) if at.parent_snapshot_id is not None else None
        return older or self._born()

    def append(self, table: Table, marker: Marker, files: Sequence[DataFile]) -> str:
        """Put a snapshot right behind the table's, or none; return why it is not known to stand: then read it again.

        It is one call of the catalog. pyiceberg's own commit would repeat it, with our mark over another's, and after a
        refusal it deletes manifests that may be the table's: the answer to a commit that went through can be a refusal.
        """
        mark = {"lineage": marker.lineage, "epoch": marker.epoch, "token": marker.token}
        tx = table.transaction()
        snapshot = tx.update_snapshot(snapshot_properties={self._key: json.dumps(mark)}).fast_append()
        for file in files:
            snapshot.append_data_file(file)
        place = {"snapshot": snapshot.snapshot_id, "sequence": tx.table_metadata.next_sequence_number()}
        snapshot.commit()
        tx.set_properties({self._key: json.dumps({**mark, **place})})
        guards = (
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertCurrentSchemaId(current_schema_id=table.metadata.current_schema_id),
            AssertDefaultSpecId(default_spec_id=table.metadata.default_spec_id),
        )
        try:
            self.catalog.commit_table(table, (*tx._requirements, *guards), tx._updates)
        except _UNSURE as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def close(self) -> None:
        """Let go of the catalog's connections."""
        if isinstance(self._catalog, SqlCatalog):
            self._catalog.engine.dispose()
        self._catalog = None

    def _of(self, kept: dict[str, str]) -> Marker:
        return Marker(self._job, self._sink, kept["lineage"], int(kept["epoch"]), 0, kept["token"])

    def _born(self) -> Marker | None:
        try:
            return Marker(self._job, self._sink, self._birth.read_text(), _BIRTH, 0)
        except FileNotFoundError:
            return None
