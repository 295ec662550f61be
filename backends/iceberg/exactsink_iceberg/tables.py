"""The table: read a sink's mark, and add a snapshot."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pydantic import ValidationError
from pyiceberg import exceptions
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, update
from pyiceberg.utils.config import Config
from requests import RequestException
from sqlalchemy import Connection, ExceptionContext, event, make_url
from sqlalchemy.exc import SQLAlchemyError

from exactsink.contract import Fatal, Retryable
from exactsink.toolkit.roads import Marker
from exactsink.toolkit.sql import limits_of_libpq, postgres_limits
from exactsink.toolkit.storage import ObjectPath, create_file, make_folder, path_of
from exactsink_iceberg.durable_io import path_at, sync_file
from exactsink_iceberg.marks import KeptMark, ancestors, moved_marks, shown_mark
from exactsink_iceberg.options import IcebergOptions
from exactsink_iceberg.preflight import new_columns, new_spec, stage_columns

__all__ = ["LimitedSqlCatalog", "SinkTable"]

_BIRTH = -1
_NO_ACCESS = (exceptions.UnauthorizedError, exceptions.ForbiddenError, exceptions.OAuthError)
_NO_ANSWER = (SQLAlchemyError, exceptions.RESTError, RequestException, ValidationError)
_SETTINGS = re.compile("Region|Credential|Profile|Token")
_CALL_SECONDS = 60


@dataclass(frozen=True, slots=True)
class _Try:
    """A snapshot that may not be in the branch: its parent there (`base`), and the files that only this one names."""

    base: int | None
    snapshot: int
    files: tuple[str, ...]


class LimitedSqlCatalog(SqlCatalog):
    """A SQL catalog with durable commits. It waits permanently for no server, and for no lock of a stalled process."""

    def __init__(self, name: str, **properties: str) -> None:
        url = make_url(properties["uri"])
        limits = limits_of_libpq(url.get_driver_name(), url.query)
        limited = url.update_query_dict({setting: str(number) for setting, number in limits.items()})
        super().__init__(name, **{**properties, "uri": limited.render_as_string(hide_password=False)})

    def _init_catalog(self) -> None:
        event.listen(self.engine, "begin", self._begin)
        event.listen(self.engine, "handle_error", self._drop)
        super()._init_catalog()

    @staticmethod
    def _begin(connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SELECT {postgres_limits()}")
        elif connection.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA synchronous = EXTRA")  # it syncs the folder, too

    @staticmethod
    def _drop(error: ExceptionContext) -> None:
        """Close the connection. A COMMIT that SQLite refused would stay open there, and be read as if it was done."""
        error.is_disconnect = True


class SinkTable:
    """One sink's view. Each call reads the table again, because it may have been restored."""

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
        """Open the catalog. A SQL catalog makes its own tables if they are missing."""
        if self._catalog is None:
            make_folder(self.root)
            options = self._options
            given: dict[str, Any] = {name: value.get_secret_value() for name, value in options.catalog_options.items()}
            given["py-io-impl"] = "exactsink_iceberg.durable_io.DurableFileIO"
            if options.uri is not None:
                given["uri"] = options.uri.get_secret_value()
            if options.catalog_kind == "sql":
                given |= {"warehouse": self._location, "py-catalog-impl": "exactsink_iceberg.tables.LimitedSqlCatalog"}
                given = {**(Config().get_catalog_config(options.catalog) or {}), **given}
                given.pop("type", None)
            self._catalog = load_catalog(options.catalog, **given)
            if (session := getattr(self._catalog, "_session", None)) is not None:
                real = session.request  # by itself, it waits permanently
                session.request = lambda *args, **more: real(*args, **{"timeout": _CALL_SECONDS, **more})
        return self._catalog

    def table(self) -> Table | None:
        """Load the table as it is now; return None if it does not exist."""
        try:
            return self.catalog.load_table(self._options.table)
        except exceptions.NoSuchTableError:
            return None

    def standing(self) -> Table:
        """Load the table. Raises Fatal if it no longer exists."""
        table = self.table()
        if table is None:
            what = f"the catalog has no table {self._options.table} any more"
            raise Fatal(what, next="restore it, then start the job again")
        return table

    def create(self, rows: pa.Schema) -> Table:
        """Make the table, unless another process has made it; return it. Idempotent."""
        columns = new_columns(rows)
        spec = new_spec(columns, self._options.partition_by)
        name = self._options.table
        self.catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        location = f"{self._location}/{name.replace('.', '/')}"
        try:
            return self.catalog.create_table(name, columns, location, spec)
        except exceptions.TableAlreadyExistsError:
            return self.standing()

    def add_columns(self, table: Table, rows: pa.Schema) -> Table:
        """Add columns to the table, or widen them; return the table as it is then. Idempotent. Raises Retryable."""
        return self._changed(stage_columns(rows, table), f"the columns of {self._options.table}")

    def begin_branch(self, table: Table) -> Table:
        """Begin a missing branch at the end of `main`; return the table as it is then. Idempotent. Raises Retryable."""
        branch, main = self._options.branch, table.metadata.current_snapshot_id
        if branch in table.metadata.refs or main is None:
            return table
        return self._changed(table.manage_snapshots().create_branch(main, branch), f"the branch {branch}")

    def put_birth(self, lineage: str) -> None:
        """Write a birth if there is none, beside the table, which may not exist yet. The first epoch overrides it."""
        make_folder(self.records)
        create_file(self._birth, lineage.encode())

    def marker(self, table: Table | None) -> Marker | None:
        """Read the marker of the epoch that the table shows; if it shows none, or it is not known, read the birth."""
        kept = None if table is None else shown_mark(table.metadata, self._key, self._options.branch)
        if kept is not None:
            return Marker(self._job, self._sink, kept.lineage, kept.epoch, 0, kept.token)
        try:
            return Marker(self._job, self._sink, self._birth.read_text(), _BIRTH, 0, "")
        except FileNotFoundError:
            return None

    def files(self, table: Table | None) -> list[DataFile]:
        """List the files that the branch names."""
        if table is None or table.metadata.snapshot_by_name(self._options.branch) is None:
            return []
        return [task.file for task in table.scan().use_ref(self._options.branch).plan_files()]

    def put(
        self, table: Table, marker: Marker, files: Sequence[DataFile], replaced: Sequence[DataFile] = ()
    ) -> Exception | None:
        """Add a snapshot directly after the branch's last one, or none; return the error if it may be missing.

        If it may be missing, read the table again. It is one call of the catalog. pyiceberg's own commit would repeat
        the call, and write our mark over another. It would also delete manifests after a refusal, although the table
        may have them, because the answer to a successful commit can be a refusal.
        """
        branch = self._options.branch
        if self.begin_branch(table) is not table:  # somebody has removed it
            return exceptions.CommitFailedException(f"the branch {branch} was missing")
        mark = KeptMark(lineage=marker.lineage, epoch=marker.epoch, token=marker.token, branch=branch)
        tx = table.transaction()
        made = tx.update_snapshot(snapshot_properties={self._key: mark.text()}, branch=branch)
        snapshot = made.overwrite() if replaced else made.fast_append()
        for file in files:
            snapshot.append_data_file(file)
        for file in replaced:
            snapshot.delete_data_file(file)
        place = {"snapshot": snapshot.snapshot_id, "sequence": tx.table_metadata.next_sequence_number()}
        self._sync_others(table)
        snapshot.commit()
        tx.set_properties({self._key: mark.model_copy(update=place).text()})
        guards = (
            update.AssertTableUUID(uuid=table.metadata.table_uuid),
            update.AssertCurrentSchemaId(current_schema_id=table.metadata.current_schema_id),
            update.AssertDefaultSpecId(default_spec_id=table.metadata.default_spec_id),
        )
        head = table.metadata.snapshot_by_name(branch)
        written = (*snapshot._written_manifests, *snapshot._uncommitted_manifests, *snapshot._written_manifest_lists)
        self._tries.append(_Try(head.snapshot_id if head is not None else None, snapshot.snapshot_id, written))
        try:
            self.catalog.commit_table(table, (*tx._requirements, *guards), tx._updates)
        except _NO_ACCESS:
            raise
        except Exception as error:  # whatever the error is, only the table shows the outcome
            return error
        self._tries.pop()
        return None

    def remove_refused(self, table: Table) -> None:
        """Remove the manifests of tries that failed, because another snapshot follows their parent.

        A try keeps its files if the table has its snapshot, or may get it, or if an expiry has removed its parent.
        """
        line, cut = ancestors(table.metadata, self._options.branch)
        ids = [snapshot.snapshot_id for snapshot in line]
        for each in tuple(self._tries):
            followed = each.base in ids[1:] or (each.base is None and bool(ids) and not cut)
            if each.snapshot in ids:
                self._tries.remove(each)
            elif followed and table.snapshot_by_id(each.snapshot) is None:  # else a rollback took it from the branch
                self._tries.remove(each)
                for file in each.files:
                    with suppress(OSError):
                        path_at(file).unlink(missing_ok=True)

    def expire(self, table: Table, keep: int) -> None:
        """Expire this sink's older snapshots, except those named by a branch or tag. Idempotent.

        It is one call of the catalog, which refuses it if a branch or tag of the table has moved: the catalog would
        remove a branch together with its newest snapshot. On a branch other than `main`, only snapshots go that `main`
        also has, because `main` can't be forwarded to a branch with a gap.
        """
        line, _ = ancestors(table.metadata, self._options.branch)
        mine = [each for each in line if each.summary is not None and self._key in each.summary.additional_properties]
        main, refs = ancestors(table.metadata, "main")[0], table.metadata.refs
        may_go = {each.snapshot_id for each in main} - {ref.snapshot_id for ref in refs.values()}
        old = [each.snapshot_id for each in mine[keep:] if each.snapshot_id in may_go]
        if not old:
            return
        guards = [update.AssertRefSnapshotId(ref=name, snapshot_id=ref.snapshot_id) for name, ref in refs.items()]
        moved = update.SetPropertiesUpdate(updates=moved_marks(table.metadata, {*old}))
        removal = (update.RemoveSnapshotsUpdate(snapshot_ids=old), moved)
        try:
            self.catalog.commit_table(table, (update.AssertTableUUID(uuid=table.metadata.table_uuid), *guards), removal)
        except exceptions.CommitFailedException:
            pass  # another writer was faster: the next call expires them
        except ValueError:
            if {*old} <= {each.snapshot_id for each in self.standing().snapshots()}:
                raise  # else another expiry was faster

    def close(self) -> None:
        """Close the catalog's connections."""
        if isinstance(self._catalog, SqlCatalog):
            self._catalog.engine.dispose()
        self._catalog = None

    @property
    def _location(self) -> str:
        return str(self.root) if isinstance(self.root, ObjectPath) else f"file://{self.root}"

    def _changed(self, change: update.UpdateTableMetadata[Any], what: str) -> Table:
        """Commit a change; return the table as it is then. Raises Retryable."""
        try:
            change.commit()
        except exceptions.CommitFailedException as error:
            what = f"another process changed {what} at the same time"
            raise Retryable(what, why=str(error), next="start the job again") from error
        return self.standing()

    def _sync_others(self, table: Table) -> None:
        """Sync other writers' manifests that the new snapshot names, because it can't be read without them."""
        head = table.metadata.snapshot_by_name(self._options.branch)
        if head is None or isinstance(path_at(table.location()), ObjectPath):
            return
        named = {manifest.manifest_path for manifest in head.manifests(table.io)}
        for path in named - self._synced:
            sync_file(path)
        self._synced = named

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Turn errors of the catalog into Retryable or Fatal."""
        name = self._options.table
        try:
            yield
        except _NO_ACCESS as error:
            fix = "give the job's account the right to load and change the table, then start again"
            raise Fatal(f"the catalog of {name} refuses this account", why=type(error).__name__, next=fix) from None
        except Exception as error:
            kind, what = type(error).__name__, f"the catalog of {name} can't be used"
            why = f"{kind}: {getattr(error, 'orig', None) or error}".partition("\n")[0]
            of_aws = type(error).__module__.startswith("botocore.")  # the client of Glue and DynamoDB
            if of_aws and _SETTINGS.search(kind):
                fix = "set AWS's region and credentials (AWS_REGION, AWS_PROFILE), then start the job again"
                raise Fatal(what, why=why, next=fix) from None
            if of_aws or isinstance(error, _NO_ANSWER):
                raise Retryable(what, why=why, next="start the job again") from error
            raise
