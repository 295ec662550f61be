"""The table: what it says of a sink, and one snapshot more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa
from pydantic import ValidationError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import AssertCurrentSchemaId, AssertDefaultSpecId, AssertTableUUID
from requests import RequestException
from sqlalchemy.exc import SQLAlchemyError

from exactsink.contract import Fatal, Retryable
from exactsink.toolkit.roads import Marker
from exactsink.toolkit.storage import ObjectPath, create_file, make_folder, path_of
from exactsink_iceberg.durable_io import path_at, sync_file
from exactsink_iceberg.marks import KeptMark, ancestors, shown_mark
from exactsink_iceberg.options import IcebergOptions
from exactsink_iceberg.preflight import new_columns, new_spec

__all__ = ["SinkTable"]

_BIRTH = -1
_NO_ACCESS = (UnauthorizedError, ForbiddenError, OAuthError)
_NO_ANSWER = (SQLAlchemyError, RESTError, RequestException, ValidationError)
_CALL_SECONDS = 60


@dataclass(frozen=True, slots=True)
class _Try:
    """A snapshot that may not have become the branch's: what it was to follow, and the files that it alone names."""

    base: int | None
    snapshot: int
    files: tuple[str, ...]


class SinkTable:
    """One sink's view. The table is read again in each call: what was known of it may have gone back in time."""

    def __init__(self, options: IcebergOptions, job: str, sink: str) -> None:
        self._options, self._job, self._sink = options, job, sink
        self._key = f"exactsink.{job}.{sink}"
        self.root = path_of(options.warehouse)
        self.records = self.root / "_exactsink" / f"{options.catalog}.{options.table}"
        self._birth = self.records / f"{job}.{sink}.birth"
        self._catalog: Catalog | None = None
        self._tries: list[_Try] = []
        self._synced: set[str] = set()

    @property
    def catalog(self) -> Catalog:
        """Open the catalog. A SQL catalog makes its tables where they are missing."""
        if self._catalog is None:
            make_folder(self.root)
            options = self._options
            given = {name: value.get_secret_value() for name, value in options.catalog_options.items()}
            given["py-io-impl"] = "exactsink_iceberg.durable_io.DurableFileIO"
            if options.uri is not None:
                given["uri"] = options.uri.get_secret_value()
            if options.catalog_kind == "sql":
                given |= {"type": "sql", "warehouse": self._location}
            self._catalog = load_catalog(options.catalog, **given)
            if (session := getattr(self._catalog, "_session", None)) is not None:
                real = session.request  # it waits for ever by itself
                session.request = lambda *args, **more: real(*args, **{"timeout": _CALL_SECONDS, **more})
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
            raise Fatal(what, next="restore it, then start the job again")
        return table

    def create(self, rows: pa.Schema) -> Table:
        """Make the table, or find it made by another process."""
        columns = new_columns(rows)
        spec = new_spec(columns, self._options.partition_by)
        name = self._options.table
        self.catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        location = f"{self._location}/{name.replace('.', '/')}"
        try:
            return self.catalog.create_table(name, columns, location, spec)
        except TableAlreadyExistsError:
            return self.standing()

    def add_columns(self, table: Table, columns: Schema) -> Table:
        """Add columns to the table, or widen them, or find that another process has; return the table as it is then."""
        try:
            table.update_schema().union_by_name(columns).commit()
        except CommitFailedException as error:
            what = f"the columns of {self._options.table} were changed at the same time"
            raise Retryable(what, why=str(error), next="start the job again") from error
        return self.standing()

    def begin_branch(self, table: Table) -> Table:
        """Let a branch that does not exist begin at the end of `main`; return the table as it is then."""
        branch, main = self._options.branch, table.metadata.current_snapshot_id
        if branch in table.metadata.refs or main is None or self._key in table.properties:
            return table
        try:
            table.manage_snapshots().create_branch(main, branch).commit()
        except CommitFailedException as error:
            what = f"the branch {branch} was made at the same time"
            raise Retryable(what, why=str(error), next="start the job again") from error
        return self.standing()

    def put_birth(self, lineage: str) -> None:
        """Put a birth if there is none: beside the table, as there may be none yet. The first epoch goes over it."""
        make_folder(self.records)
        create_file(self._birth, lineage.encode())

    def marker(self, table: Table | None) -> Marker | None:
        """Read the marker of the epoch that the table shows; the birth's if it shows none, or if it can't be known."""
        kept = None if table is None else shown_mark(table.metadata, self._key, self._options.branch)
        if kept is not None:
            return Marker(self._job, self._sink, kept.lineage, kept.epoch, 0, kept.token)
        try:
            return Marker(self._job, self._sink, self._birth.read_text(), _BIRTH, 0)
        except FileNotFoundError:
            return None

    def files(self, table: Table | None) -> list[DataFile]:
        """List the files that the branch names."""
        if table is None or table.metadata.snapshot_by_name(self._options.branch) is None:
            return []
        return [task.file for task in table.scan().use_ref(self._options.branch).plan_files()]

    def put(self, table: Table, marker: Marker, files: Sequence[DataFile], replaced: Sequence[DataFile] = ()) -> str:
        """Put a snapshot right behind the branch's, or none; return why it may be missing: then read the table again.

        It is one call of the catalog. pyiceberg's own commit would repeat it, with our mark over another's, and after a
        refusal it deletes manifests that may be the table's: the answer to a commit that went through can be a refusal.
        """
        branch = self._options.branch
        mark = KeptMark(lineage=marker.lineage, epoch=marker.epoch, token=marker.token)
        tx = table.transaction()
        update = tx.update_snapshot(snapshot_properties={self._key: mark.text()}, branch=branch)
        snapshot = update.overwrite() if replaced else update.fast_append()
        for file in files:
            snapshot.append_data_file(file)
        for file in replaced:
            snapshot.delete_data_file(file)
        place = {"snapshot": snapshot.snapshot_id, "sequence": tx.table_metadata.next_sequence_number()}
        self._sync_others(table)
        snapshot.commit()
        tx.set_properties({self._key: mark.model_copy(update=place).text()})
        guards = (
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertCurrentSchemaId(current_schema_id=table.metadata.current_schema_id),
            AssertDefaultSpecId(default_spec_id=table.metadata.default_spec_id),
        )
        head = table.metadata.snapshot_by_name(branch)
        written = (*snapshot._written_manifests, *snapshot._uncommitted_manifests, *snapshot._written_manifest_lists)
        self._tries.append(_Try(head.snapshot_id if head is not None else None, snapshot.snapshot_id, written))
        try:
            self.catalog.commit_table(table, (*tx._requirements, *guards), tx._updates)
        except Exception as error:  # whatever it says, and if nothing: the table alone knows
            return f"{type(error).__name__}: {error}"
        self._tries.pop()
        return ""

    def remove_refused(self, table: Table) -> None:
        """Remove the manifests of tries that lost: another snapshot has followed what they were to follow.

        One that may have become the table's keeps its files. So does one whose place an expiry has cut off.
        """
        line, cut = ancestors(table.metadata, self._options.branch)
        ids = [snapshot.snapshot_id for snapshot in line]
        for each in tuple(self._tries):
            followed = each.base in ids[1:] or (each.base is None and bool(ids) and not cut)
            if each.snapshot in ids:
                self._tries.remove(each)
            elif followed:
                self._tries.remove(each)
                for file in each.files:
                    with suppress(OSError):
                        path_at(file).unlink(missing_ok=True)

    def expire(self, table: Table, keep: int) -> None:
        """Expire this sink's older snapshots. One that a branch or tag names stays."""
        named = {ref.snapshot_id for ref in table.metadata.refs.values()}
        line, _ = ancestors(table.metadata, self._options.branch)
        mine = [each for each in line if each.summary is not None and self._key in each.summary.additional_properties]
        old = [each.snapshot_id for each in mine[keep:] if each.snapshot_id not in named]
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()

    def close(self) -> None:
        """Close the catalog's connections."""
        if isinstance(self._catalog, SqlCatalog):
            self._catalog.engine.dispose()
        self._catalog = None

    @property
    def _location(self) -> str:
        return str(self.root) if isinstance(self.root, ObjectPath) else f"file://{self.root}"

    def _sync_others(self, table: Table) -> None:
        """Sync the manifests that a new snapshot takes over from other writers: without them it can't be read."""
        head = table.metadata.snapshot_by_name(self._options.branch)
        if head is None or isinstance(path_at(table.location()), ObjectPath):
            return
        named = {manifest.manifest_path for manifest in head.manifests(table.io)}
        for path in named - self._synced:
            sync_file(path)
        self._synced = named

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Raise what the catalog says as what the caller does next."""
        name = self._options.table
        try:
            yield
        except _NO_ACCESS as error:
            fix = "give the job's account the right to load and change the table, then start again"
            raise Fatal(f"the catalog of {name} refuses this account", why=type(error).__name__, next=fix) from None
        except _NO_ANSWER as error:
            what = f"the catalog of {name} can't be used"
            raise Retryable(what, why=type(error).__name__, next="start the job again") from error
