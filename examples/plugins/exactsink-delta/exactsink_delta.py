"""Delta tables as a sink of exactsink: tasks write Parquet files, one entry of the table's log names an epoch's.

Until then no reader sees them. The entry goes to the version that comes right after the one that was looked at, or
nowhere; with it go numbers that the table keeps for us (Delta's application transactions): the epoch, the journal's
lineage, the claim's token, and the entry's own version. They stay when the log is cleaned.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime, timezone
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction
from exactsink.contract import (
    AlreadyCommitted,
    Backend,
    BackendOptions,
    BackendSpec,
    Committable,
    Committed,
    Committer,
    DurableFile,
    Fatal,
    Finding,
    InDoubt,
    JobContext,
    Lost,
    Mark,
    Marker,
    Outcome,
    PreflightError,
    Prepared,
    Retryable,
    Standing,
    Traits,
    Txn,
    Undecided,
    Unknown,
    Writer,
    create_file,
    disk_errors,
    file_times,
    hookimpl,
    make_folder,
    new_file,
    remove_files,
    sync_folders,
)
from pydantic import ValidationInfo, field_validator

__all__ = ["DeltaBackend", "DeltaOptions", "exactsink_backends"]

_BIRTH = -1
_TRIES = 20
_BUFFERED = 64 * 2**20
_LONGEST_STATISTIC = 64
_INDEXED_COLUMNS = 32
_OWN = "_exactsink"
"""The folder of our records; Delta's VACUUM passes over names that begin so."""

_FEATURES = {"appendOnly", "changeDataFeed", "checkConstraints", "generatedColumns", "invariants", "timestampNtz"}
"""What a table may ask of its writers. A column's or table's own rule, which these allow, is looked for by itself."""

_RULES = re.compile(r"delta\.(constraints\.|columnMapping\.mode|generationExpression|invariants|identity\.)")
_PARTITION_TYPES = (pa.types.is_string, pa.types.is_integer, pa.types.is_date, pa.types.is_boolean)
_INTERVAL = re.compile(r"(?:interval\s+)?(\d+)\s+(second|minute|hour|day|week)s?", re.IGNORECASE)
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_KEPT: Mapping[str, tuple[Literal["error", "warning"], str, str]] = {
    "delta.setTransactionRetentionDuration": ("error", "", "the table forgets which epoch it holds"),
    "delta.logRetentionDuration": ("warning", "30 days", "a RESTORE of the table may not be seen"),
    "delta.deletedFileRetentionDuration": ("warning", "7 days", "VACUUM may delete an epoch that is not committed yet"),
}
"""What the table keeps for how long: how bad it is if the job may stand still for longer, Delta's default, and why."""


@hookimpl
def exactsink_backends() -> list[BackendSpec]:
    return [
        BackendSpec(
            "delta",
            load="exactsink_delta:DeltaBackend",
            install="pip install exactsink-delta",
            strategies={"append": "tasks write Parquet files, then one entry of the table's log names them"},
            conformance="exactsink_delta_targets:targets",
        )
    ]


class DeltaOptions(BackendOptions):
    """What a job's file may say of such a sink."""

    path: str
    """The table's folder, on a file system that the driver and all executors share."""
    create: bool = True
    """Whether to make the table, with the rows' columns, if there is none."""
    partition_by: tuple[str, ...] = ()
    """The columns that a new table is partitioned by; for a table that stands, its own or none."""

    @field_validator("path")
    @classmethod
    def _whole(cls, path: str, info: ValidationInfo) -> str:
        if not path or re.match(r"[A-Za-z][\w+.-]*:", path):
            raise ValueError("give a local folder: Delta tables in object stores are not proven here")
        return os.path.realpath(Path((info.context or {}).get("folder") or ".", path).expanduser())


class DeltaBackend(Backend):
    """What is journaled and travels to the executors: the options, no open table."""

    Options = DeltaOptions
    options: DeltaOptions

    @property
    def strategy(self) -> str:
        return "append"

    @property
    def target(self) -> str:
        return f"delta:{self.options.path}"

    @property
    def traits(self) -> Traits:
        """A VACUUM may take files for rubbish that wait for their commit."""
        return Traits(atomic_visibility=True, can_lose_votes=True, marks=True)

    def writer(self, txn: Txn, schema: pa.Schema, ticket: bytes) -> Writer:
        return DeltaWriter(Path(self.options.path), txn, pa.ipc.read_schema(pa.py_buffer(ticket)))

    def committer(self, ctx: JobContext) -> Committer:
        return DeltaCommitter(self.options, ctx)


@dataclass(slots=True)
class _Part:
    """One Parquet file below the table: rows of one partition, those that are not written yet, and its footer."""

    values: tuple[str | None, ...]
    file: DurableFile
    parquet: pq.ParquetWriter
    footer: list[pq.FileMetaData]
    waiting: list[pa.Table]

    def flush(self) -> None:
        if self.waiting:
            self.parquet.write_table(pa.concat_tables(self.waiting))
            self.waiting.clear()


class DeltaWriter(Writer):
    """A task attempt's files, `TXN.N.parquet` with N from 0 on, and a record of it, by which a sweep finds them.

    They lie side by side, whatever their partition: in Delta the log says which one a file belongs to.
    """

    def __init__(self, root: Path, txn: Txn, columns: pa.Schema) -> None:
        self._root, self._txn, self._columns = root, txn, columns
        self._partition_by: list[str] = json.loads(columns.metadata[b"partition_by"])
        kept = [field for field in columns if field.name not in self._partition_by]
        self._schema = pa.schema(kept)
        self._parts: dict[tuple[str | None, ...], _Part] = {}
        self._rows = self._waiting = 0
        self._record = root / _OWN / txn.id
        with _on_disk(root):
            new_file(self._record).close()  # first: no file of ours is without it

    def write(self, batch: pa.RecordBatch) -> None:
        rows = self._fitted(batch)
        for values, part in self._divided(rows):
            self._part(values).waiting.append(part)
        self._rows += rows.num_rows
        self._waiting += rows.nbytes
        if self._waiting >= _BUFFERED:
            self._flush()

    def pre_commit(self) -> Committable:
        self._flush()
        files = []
        with _on_disk(self._root):
            for part in self._parts.values():
                part.parquet.close()
                size, _ = part.file.seal()
                values = dict(zip(self._partition_by, part.values, strict=True))
                files.append({"size": size, "values": values, "stats": _statistics(part.footer[0])})
            sync_folders([self._root, self._record.parent])
            if not self._record.exists():
                raise Retryable(f"{self._txn.id} was swept", next="start the job again: its driver is not the newest")
        return Committable(self._txn, self._rows, json.dumps(files).encode())

    def abort(self) -> None:
        with _on_disk(self._root):
            for part in self._parts.values():
                part.file.close()
            _remove(self._root, self._txn.id)

    def _part(self, values: tuple[str | None, ...]) -> _Part:
        if values not in self._parts:
            with _on_disk(self._root):
                file, footer = DurableFile(_place(self._root, self._txn.id, len(self._parts))), list[pq.FileMetaData]()
            sink = pa.PythonFile(file, mode="w")
            parquet = pq.ParquetWriter(sink, self._schema, metadata_collector=footer)
            self._parts[values] = _Part(values, file, parquet, footer, [])
        return self._parts[values]

    def _flush(self) -> None:
        with _on_disk(self._root):
            for part in self._parts.values():
                part.flush()
        self._waiting = 0

    def _fitted(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the rows in the table's types. Raises Fatal for what a column can't hold."""
        for field in self._columns:
            column = batch.column(field.name)
            if column.null_count and not field.nullable:
                raise _unfit(self._txn, f"column {field.name} is NOT NULL", f"filter {field.name} IS NOT NULL")
        try:
            columns = [batch.column(field.name).cast(field.type) for field in self._columns]
        except pa.ArrowInvalid as error:
            raise _unfit(self._txn, str(error), "cast the column in the query") from error
        return pa.Table.from_arrays(columns, schema=self._columns.remove_metadata())

    def _divided(self, rows: pa.Table) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
        """Divide rows by their partition, in their order; the partition's columns are left out."""
        by = self._partition_by
        if not by:
            yield (), rows
            return
        places = rows.select(by).append_column("", pa.array(range(rows.num_rows)))
        for group in places.group_by(by, use_threads=False).aggregate([("", "list")]).to_pylist():
            if "" in (group[name] for name in by):
                why = "an empty text as a partition's value is NULL to Delta"
                raise _unfit(self._txn, why, "nullif(column, '') if that is meant")
            yield tuple(_text(group[name]) for name in by), rows.take(group["_list"]).drop_columns(by)


class DeltaCommitter(Committer):
    """The driver's side. The table is read anew in each call: what was known of it may have gone back in time."""

    def __init__(self, options: DeltaOptions, ctx: JobContext) -> None:
        self._options, self._ctx = options, ctx
        self._root = Path(options.path)
        self._records = self._root / _OWN
        self._log = self._root / "_delta_log"
        self._app = f"exactsink:{ctx.job}:{ctx.sink}"
        self._held: Marker | Literal["any"] | None = "any"
        self._synced = ""

    def check(self, schema: pa.Schema, participants: int | None) -> Iterable[Finding]:
        with self._answering():
            table = self._table()
            if table is not None:
                yield from self._problems(table)
                yield from self._misfits(schema, table)
            elif self._options.create:
                yield from _columns(schema)[1]
                yield from self._partition_problems(schema, self._options.partition_by)
            else:
                yield Finding("error", f"{self._root} is no Delta table", "make it, or set create = true")

    def check_target(self, participants: int | None) -> Iterable[Finding]:
        with self._answering():
            table = self._table()
            yield from [] if table is None else self._problems(table)

    def open_epoch(self, epoch: int, schema: pa.Schema, participants: int | None) -> bytes:
        with self._answering():
            table = self._table() or self._made(schema)
            wrong = [f for f in (*self._problems(table), *self._misfits(schema, table)) if f.severity == "error"]
            if wrong:
                raise PreflightError(f"sink {self._ctx.sink}: {wrong[0].message}", next=wrong[0].fix)
            self._marker(epoch).check_new(self._stored(table))
            make_folder(self._records)
            self._sync()
            columns = [field for field in _arrow(table.schema()) if field.name in schema.names]
            by = json.dumps(table.metadata().partition_columns)
            ticket: bytes = pa.schema(columns, {"partition_by": by}).serialize().to_pybytes()
            return ticket

    def commit(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Outcome]:
        """Add all files by one entry, right after the version that was looked at: first at the mark, then at the files.

        A set of which a file is gone is lost as a whole, once another entry has taken that version: who had seen all
        the files there, and stalled, can't add them any more.
        """
        marker = self._marker(epoch, committables)
        with self._answering():
            for _ in range(_TRIES):
                table = self._standing_table()
                stored = self._stored(table)
                if not marker.must_apply(stored):
                    return self._settled(committables, AlreadyCommitted())
                damage = self._damage(epoch, committables)
                if isinstance(damage, Unknown):
                    return [damage] * len(committables)
                files = [] if damage else self._files(table, committables)
                if self._append(table, files, (stored or marker) if damage else marker):
                    return [damage] * len(committables) if damage else self._settled(committables, Committed())
        raise Retryable(
            f"{self._root}: others change the table all the time",
            why=f"{_TRIES} times another entry came in between",
            next="start the job again",
        )

    def assess(self, epoch: int, committables: Sequence[Committable]) -> Sequence[Standing]:
        marker = self._marker(epoch, committables)
        with self._answering():
            damage = None if not self._must_apply(marker) else self._damage(epoch, committables)
            # Another driver may have committed since, and others may have replaced its files.
            pending = self._must_apply(marker)
        standing: Standing = (damage or Prepared()) if pending else AlreadyCommitted()
        return [standing] * len(committables)

    def abort(self, undecided: Undecided) -> None:
        with self._answering():
            table = self._table() if len(undecided) else None
            named = {Path(uri).name for uri in table.file_uris()} if table is not None else set()
            for participant in undecided:
                if named & {path.name for path in _files(self._root, participant.ref)}:
                    what = f"the table's log names files of {participant.ref}, which was never decided"
                    raise Fatal(what, next="look who added them; nothing was touched")
                _remove(self._root, participant.ref)

    def in_doubt(self) -> Iterable[InDoubt]:
        with self._answering():
            listed = list(file_times(self._records)) if self._records.exists() else []
        known = [(Txn.parse(name), modified) for name, modified in listed]
        mine = (self._ctx.job, self._ctx.sink)
        now = time.time()
        return [
            InDoubt.of(txn, age_seconds=now - (modified or now))
            for txn, modified in known
            if txn is not None and (txn.job, txn.sink) == mine
        ]

    def mark(self) -> Mark | None:
        with self._answering():
            self._held = self._stored(self._table())
        return None if self._held is None else self._held.mark

    def put_birth(self) -> Mark:
        """Put it beside the log, as there may be no table yet; the first epoch's entry goes over it."""
        with self._answering():
            make_folder(self._records)
            create_file(self._birth, self._ctx.lineage.encode())
        return self.mark() or Mark(self._ctx.lineage)

    def trim_marks(self) -> None:
        """Delete none, as one takes the place of the one before; shorten the log where its checkpoint is due.

        Entries are deleted once the checkpoint that stands for them is on disk: deltalake syncs nothing itself.
        """
        with self._answering():
            table = self._table()
            if table is None or not self._is_checkpoint_due(table):
                return
            table.create_checkpoint()
            self._sync()
            if table.metadata().configuration.get("delta.enableExpiredLogCleanup", "true") == "true":
                table.cleanup_metadata()

    def close(self) -> None:
        """Nothing stays open between calls."""

    @property
    def _birth(self) -> Path:
        return self._records / f"{self._ctx.job}.{self._ctx.sink}.birth"

    def _table(self, version: int | None = None) -> DeltaTable | None:
        try:
            return DeltaTable(self._root, version=version)
        except TableNotFoundError:
            return None

    def _standing_table(self) -> DeltaTable:
        table = self._table()
        if table is None:
            raise Fatal(f"{self._root} is no Delta table any more", next="bring it back, then start the job again")
        return table

    def _made(self, schema: pa.Schema) -> DeltaTable:
        if not self._options.create:
            raise Fatal(f"{self._root} is no Delta table", next="make it, or set create = true")
        columns, wrong = _columns(schema)
        wrong += self._partition_problems(schema, self._options.partition_by)
        if wrong:
            raise PreflightError(f"sink {self._ctx.sink}: {wrong[0].message}", next=wrong[0].fix)
        make_folder(self._root)
        with suppress(DeltaError):  # another process was first
            DeltaTable.create(self._root, Schema.from_arrow(columns), partition_by=list(self._options.partition_by))
        return self._standing_table()

    def _marker(self, epoch: int, committables: Sequence[Committable] = ()) -> Marker:
        """Make an epoch's marker; its token is the newest generation's of the set."""
        ctx = self._ctx
        token = max(((c.txn.generation, c.txn.token) for c in committables), default=(0, ""))[1]
        return Marker(ctx.job, ctx.sink, ctx.lineage, epoch, 0, token, expected=self._held)

    def _must_apply(self, marker: Marker) -> bool:
        return marker.must_apply(self._stored(self._standing_table()))

    def _stored(self, table: DeltaTable | None) -> Marker | None:
        """Read the marker of what the table shows.

        A RESTORE takes rows away and leaves these numbers: what counts then is what they were in the version that it
        brought back. Where its entry does not name it (it went by time), that is taken for the birth.
        """
        epoch = None if table is None else table.transaction_version(self._app)
        if table is None or epoch is None:
            return self._born()
        since = table.version() - self._number(table, "version")
        for entry in table.history(since) if since else ():
            if entry["operation"] == "RESTORE":
                version = entry.get("operationParameters", {}).get("version")
                return self._stored(self._table(int(version))) if version else self._born()
        lineage, token = (f"{self._number(table, name):x}"[1:] for name in ("lineage", "token"))
        return Marker(self._ctx.job, self._ctx.sink, lineage, epoch, 0, token)

    def _born(self) -> Marker | None:
        try:
            lineage = self._birth.read_text()
        except FileNotFoundError:
            return None
        return Marker(self._ctx.job, self._ctx.sink, lineage, _BIRTH, 0)

    def _number(self, table: DeltaTable, name: str) -> int:
        number = table.transaction_version(f"{self._app}:{name}")
        assert number is not None, f"{self._app} stands without its {name}"
        return number

    def _append(self, table: DeltaTable, files: list[AddAction], marker: Marker) -> bool:
        """Put the next entry, durably; False where another one has that version, or the answer was lost: look again."""
        version = table.version() + 1
        said = {"": marker.epoch, ":version": version}
        said |= {":lineage": int("1" + marker.lineage, 16), ":token": int("1" + marker.token, 16)}
        now = int(time.time() * 1000)
        entry = CommitProperties(
            {"userMetadata": f"{self._app} epoch {marker.epoch}"},
            max_commit_retries=0,  # deltalake would add the files behind what came in between
            app_transactions=[Transaction(self._app + name, number, now) for name, number in said.items()],
        )
        no_hooks = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
        by = table.metadata().partition_columns
        try:
            table.create_write_transaction(
                files, "append", table.schema(), by, commit_properties=entry, post_commithook_properties=no_hooks
            )
        except CommitFailedError:
            return False
        return True

    def _settled(self, committables: Sequence[Committable], outcome: Outcome) -> Sequence[Outcome]:
        """Make the entry durable, whoever wrote it; only then drop the records, durably: they name files to sweep."""
        self._sync()
        remove_files(self._records, [committable.ref for committable in committables])
        sync_folders([self._records])
        return [outcome] * len(committables)

    def _sync(self) -> None:
        """Sync the log's entries that this committer has not synced, another writer's too: without one, none counts."""
        names = sorted(name for name in os.listdir(self._log) if name > self._synced)
        try:
            for name in names:
                with suppress(FileNotFoundError), open(self._log / name, "rb") as file:
                    os.fsync(file.fileno())
            sync_folders([self._log, self._root])
        except OSError as error:  # a second sync would say that all is well
            why = f"{error}: rows that show may be gone after a power cut"
            raise Fatal(f"{self._log} can't be synced", why=why, next="look at its disk, then start again") from error
        self._synced = max([name for name in names if name[0].isdigit()], default=self._synced)

    def _is_checkpoint_due(self, table: DeltaTable) -> bool:
        try:
            last = json.loads((self._log / "_last_checkpoint").read_text())["version"]
        except FileNotFoundError:
            last = 0
        every = int(table.metadata().configuration.get("delta.checkpointInterval", 100))
        return bool(table.version() - last >= every)

    def _damage(self, epoch: int, committables: Sequence[Committable]) -> Lost | Unknown | None:
        """Return what is wrong with the files of a set that is not committed; it is committed as a whole or not at all.

        Lost are files that are gone, if the mark, which the journal knows, is of an earlier epoch.
        """
        lost, changed = list[str](), list[str]()
        for committable in committables:
            for number, voted in enumerate(json.loads(committable.payload)):
                path = _place(self._root, committable.ref, number)
                try:
                    if (size := path.stat().st_size) != voted["size"]:
                        changed.append(f"{path} has {size} bytes, and was voted with {voted['size']}")
                except FileNotFoundError:
                    lost.append(f"{path} is gone")
        if not lost and not changed:
            return None
        evidence = "; ".join((changed + lost)[:3])
        known = isinstance(self._held, Marker) and self._held.epoch < epoch
        return Lost(evidence) if known and not changed else Unknown(evidence)

    def _files(self, table: DeltaTable, committables: Sequence[Committable]) -> list[AddAction]:
        """Return the votes' files for the log. Raises Fatal where the table's columns are not those they have."""
        now, files = int(time.time() * 1000), list[AddAction]()
        for committable in committables:
            for number, voted in enumerate(json.loads(committable.payload)):
                name = _place(self._root, committable.ref, number).name
                files.append(AddAction(name, voted["size"], voted["values"], now, True, json.dumps(voted["stats"])))
        with pq.ParquetFile(self._root / files[0].path) as first:  # all were written by one ticket
            wrong = list(self._misfits(first.schema_arrow, table, [*files[0].partition_values]))
        if wrong:
            why = f"its columns were changed since: {wrong[0].message}"
            raise Fatal(
                f"{self._root} can't take rows that are decided", why=why, next="RESTORE its columns as they were"
            )
        return files

    def _problems(self, table: DeltaTable) -> Iterator[Finding]:
        """Find what a table asks for that a plain writer does not give, and what it does not keep for long enough."""
        asked, settings = table.protocol(), table.metadata().configuration
        rules = [key for key, value in settings.items() if _RULES.match(key) and value != "none"]
        rules += [f"{key} of column {f.name}" for f in table.schema().fields for key in f.metadata if _RULES.match(key)]
        rules += sorted(set(asked.writer_features or ()) - _FEATURES)
        for rule in rules:
            yield Finding(
                "error", f"the table asks its writers for {rule}", "write to one without, and copy from there"
            )
        by = self._options.partition_by
        if by and list(by) != table.metadata().partition_columns:
            yield Finding(
                "error", f"the table is partitioned by {table.metadata().partition_columns}", "leave out partition_by"
            )
        yield from self._partition_problems(_arrow(table.schema()), table.metadata().partition_columns)
        pause = self._ctx.longest_pause_seconds
        for key, (severity, default, why) in _KEPT.items():
            kept = settings.get(key) or default
            if kept and _seconds(kept) < pause:
                fix = f"ALTER TABLE delta.`{self._root}` SET TBLPROPERTIES ('{key}' = 'interval {-int(-pause // 86400)} days')"
                yield Finding(severity, f"{key} is {kept}, and the job may stand still for {pause:.0f} s: {why}", fix)

    def _partition_problems(self, columns: pa.Schema, by: Sequence[str]) -> Iterator[Finding]:
        for name in by:
            if name not in columns.names:
                yield Finding("error", f"the rows have no column {name}", f"select {name} into this sink")
            elif not any(fits(columns.field(name).type) for fits in _PARTITION_TYPES):
                message = f"partition column {name} is {columns.field(name).type}"
                yield Finding("error", message, "partition by texts, whole numbers, dates or booleans")

    def _misfits(self, schema: pa.Schema, table: DeltaTable, without: Sequence[str] | None = None) -> Iterator[Finding]:
        """Compare columns with the table's; `without` are its partition columns where a file's columns are compared."""
        columns, wrong = _columns(schema)
        yield from wrong
        stand = {field.name: field for field in _arrow(table.schema())}
        by = table.metadata().partition_columns
        if without is not None and sorted(without) != sorted(by):
            yield Finding("error", f"the table is partitioned by {by}", "")
        for field in columns:
            if field.name not in stand:
                yield Finding("error", f"the table has no column {field.name}", f"add it, or leave {field.name} out")
            elif field.type != stand[field.name].type:
                kind = stand[field.name].type
                yield Finding(
                    "error", f"column {field.name} is {field.type}, the table's is {kind}", f"cast it to {kind}"
                )
        needed = by if without is None else []
        for name, field in stand.items():
            if name not in columns.names and (name in needed or not field.nullable):
                yield Finding("error", f"the rows have no column {name}", f"select {name} into this sink")

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Raise what deltalake and the disk say as what the caller does next."""
        with _on_disk(self._root):
            try:
                yield
            except DeltaError as error:
                raise Retryable(f"{self._root} can't be used", why=str(error), next="start the job again") from error


def _on_disk(root: Path) -> Any:
    return disk_errors(f"{root} can't be used", "see that its disk is there, has room and lets this user write")


def _place(root: Path, id: str, number: int) -> Path:
    return root / f"{id}.{number}.parquet"


def _files(root: Path, id: str) -> list[Path]:
    """List a participant's files: their numbers have no gap."""
    return list(takewhile(Path.exists, (_place(root, id, number) for number in count())))


def _remove(root: Path, id: str) -> None:
    """Remove a participant's files, the last one first so that no gap comes up, and then its record. Idempotent."""
    for path in reversed(_files(root, id)):
        path.unlink(missing_ok=True)
    (root / _OWN / id).unlink(missing_ok=True)


def _unfit(txn: Txn, why: str, fix: str) -> Fatal:
    return Fatal(f"sink {txn.sink}: the table can't take a row", why=why, next=fix)


def _seconds(interval: str) -> int:
    found = _INTERVAL.fullmatch(interval.strip())
    return int(found[1]) * _UNITS[found[2].lower()] if found else 0


def _arrow(schema: Schema) -> pa.Schema:
    return pa.schema(schema.to_arrow())


def _columns(schema: pa.Schema) -> tuple[pa.Schema, list[Finding]]:
    """Return columns as Delta has them, and a finding for each that it can't hold."""
    fields, wrong = list[pa.Field](), list[Finding]()
    for field in schema:
        field = field.with_type(_in_utc(field.type)).remove_metadata()
        try:
            if pa.types.is_null(field.type):
                raise ValueError
            fields += _arrow(Schema.from_arrow(pa.schema([field])))
        except Exception:  # noqa: BLE001  # deltalake has no class for it
            fix = f"cast {field.name}, or leave it out"
            wrong.append(Finding("error", f"Delta has no type for column {field.name}, {field.type}", fix))
    return pa.schema(fields), wrong


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Return a type with its timestamps as Delta has them: microseconds, in UTC where they have a zone."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_in_utc(kind.key_type), kind.item_field.with_type(_in_utc(kind.item_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    return kind


def _text(value: Any) -> str | None:
    """Return a value as Delta's log has it."""
    if isinstance(value, datetime):
        utc = "" if value.tzinfo is None else "Z"
        value = value.astimezone(timezone.utc).replace(tzinfo=None) if utc else value
        return value.isoformat(timespec="microseconds") + utc
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _statistics(footer: pq.FileMetaData) -> Mapping[str, Any]:
    """Return what a file's footer knows of its columns, so that readers pass over the file.

    Left out are nested columns, and the bounds of what is ordered otherwise in Parquet (floats, for NaN) or is long.
    """
    low, high, nulls = dict[str, Any](), dict[str, Any](), dict[str, int]()
    for place in range(min(footer.num_columns, _INDEXED_COLUMNS)):
        chunks = [footer.row_group(number).column(place) for number in range(footer.num_row_groups)]
        name, known = chunks[0].path_in_schema, [chunk.statistics for chunk in chunks]
        if "." in name or not all(one is not None and one.has_null_count for one in known):
            continue
        nulls[name] = sum(one.null_count for one in known)
        filled = [one for one in known if one.num_values]
        if not filled or not all(one.has_min_max for one in filled):
            continue
        with suppress(ValueError, OverflowError):  # a date before the year 1
            least, most = min(one.min for one in filled), max(one.max for one in filled)
            if type(most) in (int, str, date, datetime) and len(str(most)) + len(str(least)) <= 2 * _LONGEST_STATISTIC:
                low[name], high[name] = (v if type(v) is int else _text(v) for v in (least, most))
    return {"numRecords": footer.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}
