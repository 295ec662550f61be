"""The road for stores with keys and conditional writes, but without transactions: the author writes only `apply`.

Rows are staged as in `staged`, and put into the store after their epoch is decided. A small file in the staging folder
proves that an epoch is applied, or about to be, so the store holds nothing but the rows. These files are also the
sink's marks.

"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa

from exactsink.contract.backend import BackendOptions, Committer
from exactsink.contract.errors import ConfigError, Fatal, LineageError, Retryable
from exactsink.contract.model import FileMode, Finding, JobContext, Traits
from exactsink.toolkit.roads.marker import Marker
from exactsink.toolkit.roads.staged import Applier, StagedCommitter, StagingBackend
from exactsink.toolkit.roads.staging import staging_errors
from exactsink.toolkit.storage.durable import (
    create_file,
    file_names,
    make_folder,
    remove_files,
    replace_file,
    sync_folders,
)
from exactsink.toolkit.storage.objects import AnyPath, ObjectPath, path_of

__all__ = ["IdempotentBackend", "Version"]

_APPLIED, _APPLYING = ".applied", ".applying"
_PROOF_FIX = "check that the staging folder is writable and has free space"
_VERSION = re.compile(r"(\d{19})\.(\d{19})\.(\d{19})\.(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Version:
    """The version of a stored row: its epoch, that epoch's generation, and the row's place in the epoch.

    Staged rows come in a fixed order, so a row has the same version, however often and from whichever process it is
    put. `succeeds` holds the lineages that this one continues (see JobContext); it is not stored.
    """

    lineage: str
    epoch: int
    generation: int
    place: int = 0
    succeeds: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def replaces(self, stored: Version | None) -> bool:
        """Return whether a row of this version replaces the stored one: if there is none, or if its version is lower.

        Raises LineageError if another journal wrote the stored version, because versions of two journals can't be
        compared. The exception is a journal that this one continues: then this version is the higher one.
        """
        if stored is None:
            return True
        if stored.lineage != self.lineage and stored.lineage not in self.succeeds:
            raise LineageError(
                f"a row of epoch {self.epoch} has the key of a row that another journal wrote",
                why=f"the stored row's version is {stored}, this journal's lineage is {self.lineage}",
                next="restore the journal that the rows belong to, or let one job and sink alone own the keys",
            )
        return self.text > stored.text

    @property
    def text(self) -> str:
        """A text for stores that compare texts: the texts of one journal sort like its versions."""
        return f"{self.epoch:019d}.{self.generation:019d}.{self.place:019d}.{self.lineage}"

    @classmethod
    def parse(cls, text: str) -> Version:
        """Parse the text of a version. Raises ValueError."""
        found = _VERSION.fullmatch(text)
        if found is None:
            raise ValueError(f"not the text of a version: {text!r}")
        epoch, generation, place, lineage = found.groups()
        return cls(lineage, int(epoch), int(generation), int(place))

    def at(self, place: int) -> Version:
        """Return the version of the epoch's row at `place`, which counts the rows of all batches from 0."""
        return replace(self, place=place)

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Version, dict[str, Any]]]:
        """Return each row as Python values, with its own version."""
        place = 0
        for batch in batches:
            for row in batch.to_pylist():
                yield self.at(place), row
                place += 1


class IdempotentBackend(StagingBackend):
    """Stage rows, then put them by key, each only over a lower version. The author implements the abstract methods.

    Only one job and sink may write the keys, because epochs of two jobs can't be compared. While a decided epoch is
    applied, its rows become visible one by one.
    """

    def __init__(self, options: BackendOptions) -> None:
        super().__init__(options)
        if not self.keys:
            raise ConfigError(
                f"backend {type(self).__name__} is not exactly once without keys",
                why="a row that is put again finds its earlier copy by its key; without one it is doubled",
                next="name the columns that identify a row",
            )

    @property
    @abstractmethod
    def keys(self) -> Sequence[str]:
        """Name the columns that identify a row."""

    @abstractmethod
    def apply(self, version: Version, batches: Iterator[pa.RecordBatch]) -> None:
        """Put every row of the epoch durably, each only if `its version.replaces(the stored one)`. Runs in the driver.

        The store compares and puts in one atomic step, and never drops a stored version. Then the promise holds: a
        second `apply` changes nothing, even at the same time in another process, or after a stall of many epochs.
        `version.rows(batches)` yields the rows with their versions; if you use whole batches, count the places yourself
        (`version.at`). `apply` opens its connection and closes it.

        Raises Retryable if the store may answer later, Fatal if a person must fix something first.
        """

    def check(self, schema: pa.Schema) -> Iterable[Finding]:
        """Check, before the first row, that the store can take such rows. Changes nothing."""
        return ()

    def prepare(self, schema: pa.Schema) -> None:
        """Create in the store the objects that an epoch needs. Idempotent; called before each epoch's first row."""

    @property
    def traits(self) -> Traits:
        return Traits(needs_shared_staging=True, needs_epoch_order=True, marks=True, marks_in_staging=True)

    def check_batch(self, batch: pa.RecordBatch) -> None:
        """Refuse, in the task, rows without a key. An override that refuses more rows must call this one."""
        for key in self.keys:
            if key not in batch.schema.names:
                raise Fatal(
                    f"the rows have no key column {key}",
                    why=f"they have {', '.join(batch.schema.names)}",
                    next="select the column into this sink, or correct its keys",
                )
            if missing := batch.column(key).null_count:
                raise Fatal(
                    f"key column {key} is NULL in {missing} rows of a batch",
                    why="a row without a key can't be found again",
                    next=f"filter `{key} IS NOT NULL`, or fill it, before this sink",
                )

    def committer(self, ctx: JobContext) -> Committer:
        return StagedCommitter(ctx, _ProvenApplier(self, path_of(ctx.staging), ctx.succeeds, ctx.file_mode))


class _ProvenApplier(Applier):
    """Apply through the author's backend.

    A file records it before the first row, another before staged rows are dropped.
    """

    def __init__(
        self, backend: IdempotentBackend, folder: AnyPath, succeeds: frozenset[str], file_mode: FileMode
    ) -> None:
        self._backend = backend
        self._folder = folder
        self._succeeds = succeeds
        self._file_mode = file_mode

    def check(self, schema: pa.Schema) -> Iterable[Finding]:
        for key in self._backend.keys:
            if key not in schema.names:
                message = f"the keys name column {key}, the rows have {', '.join(schema.names)}"
                yield Finding("error", message, f"select {key} into this sink, or correct its keys")
        yield from self._backend.check(schema)

    def open_epoch(self, schema: pa.Schema) -> None:
        self._backend.prepare(schema)

    def last_applied(self, job: str, sink: str) -> Marker | None:
        """Return the newest proof.

        It is durable when this returns: its writer may have died before it synced the file.
        """
        proofs = self._proofs(job, sink)
        if not proofs:
            return None
        with staging_errors(self._folder):
            sync_folders([self._folder])
        return max(proofs, key=_rank)

    def put_birth(self, birth: Marker) -> Marker:
        with staging_errors(self._folder):
            make_folder(self._folder, self._file_mode)
            while (stands := self.last_applied(birth.job, birth.sink)) is None:
                create_file(self._path(birth), _dumped(birth))  # then read again: an older birth may be gone by now
        return stands

    def confirm(self, job: str, sink: str) -> None:
        """Write the newest proof again, because its writer may have died before the sync, or its sync may have failed.

        Also drops older proofs: a driver that was overtaken may have written one late.
        """
        proofs = (
            [] if isinstance(self._folder, ObjectPath) else self._proofs(job, sink)
        )  # an object store keeps every object that it shows
        if proofs:
            newest = max(proofs, key=_rank)
            with staging_errors(self._folder):
                replace_file(self._path(newest), _dumped(newest))
        self._drop_older(job, sink)

    def apply(self, marker: Marker, batches: Iterator[pa.RecordBatch]) -> bool:
        begun = replace(marker, complete=False)
        if not (self._goes_on(marker) and self._keep(begun)):
            return False
        marker = replace(marker, expected="any")  # from here on, any stored marker is this call's own
        version = Version(marker.lineage, marker.epoch, marker.generation, succeeds=self._succeeds)
        self._backend.apply(version, batches)
        if next(batches, None) is not None:
            raise TypeError(f"{type(self._backend).__name__}.apply left rows of epoch {marker.epoch} unread")
        if not (self._goes_on(marker) and self._keep(marker)):
            return False
        self._drop_older(marker.job, marker.sink)
        return True

    def close(self) -> None:
        """Do nothing: the author's `apply` closes what it opens."""

    def _goes_on(self, marker: Marker) -> bool:
        """Return whether the epoch must still be applied.

        Another driver may apply it at the same time, with the same rows.
        """
        if marker.must_apply(self.last_applied(marker.job, marker.sink)):
            return True
        self.confirm(marker.job, marker.sink)
        return False

    def _keep(self, marker: Marker) -> bool:
        """Write a proof. Return False if a driver with a newer proof has already removed the older ones."""
        try:
            replace_file(self._path(marker), _dumped(marker))
        except OSError as error:
            if not self._goes_on(marker):
                return False
            what = f"could not write in {self._folder} how far epoch {marker.epoch} is applied: {error}"
            raise Retryable(what, why="its rows are still staged, and will be put again", next=_PROOF_FIX) from error
        return True

    def _path(self, marker: Marker) -> AnyPath:
        suffix = _APPLIED if marker.complete else _APPLYING
        return self._folder / f"{marker.job}.{marker.sink}.e{marker.epoch}{suffix}"

    def _drop_older(self, job: str, sink: str) -> None:
        """Drop all proofs but the newest, which may be another driver's. A late call never goes back in time."""
        newest = max(map(_rank, self._proofs(job, sink)), default=(0, False))
        with staging_errors(self._folder):
            remove_files(self._folder, [name for name in self._names(job, sink) if _rank_of(name) < newest])

    def _names(self, job: str, sink: str) -> list[str]:
        """List the names of all proofs, including unfinished ones."""
        with staging_errors(self._folder), suppress(FileNotFoundError):  # no folder yet
            names = file_names(self._folder)
            return [name for name in names if name.startswith(f"{job}.{sink}.e") and ".appl" in name]
        return []

    def _proofs(self, job: str, sink: str) -> list[Marker]:
        found = []
        for name in self._names(job, sink):
            if not name.endswith((_APPLIED, _APPLYING)):
                continue  # unfinished
            path = self._folder / name
            try:
                with staging_errors(self._folder):
                    data = path.read_bytes()
                found.append(Marker(**json.loads(data)))
            except Retryable as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                return self._proofs(job, sink)  # a newer proof took its place, and this list may lack it
            except (ValueError, TypeError) as error:
                raise Fatal(
                    f"{path} does not say which epoch was applied: {error}",
                    why="it is the only proof of that, and was complete when it was written",
                    next="restore the file from a backup, then start the job again",
                ) from error
        return found


def _rank(proof: Marker) -> tuple[int, bool]:
    return proof.epoch, proof.complete


def _rank_of(name: str) -> tuple[int, bool]:
    _, _, epoch, suffix = name.split(".")[:4]
    return int(epoch.removeprefix("e")), f".{suffix}" == _APPLIED


def _dumped(proof: Marker) -> bytes:
    body = asdict(replace(proof, expected="any"))
    del body["expected"]
    return json.dumps(body).encode()
