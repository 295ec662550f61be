"""The place of one history: a streaming job's, or one batch run's. Each has its own journal and state."""

from __future__ import annotations

import errno
import hashlib
import importlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from pydantic import SecretStr

from exactsink.contract import ConfigError, FileMode, Finding
from exactsink.job.commands import Commands
from exactsink.job.config import JOURNAL_IN_A_DATABASE, JobConfig
from exactsink.observe.state import LastTimes, StateFile
from exactsink.protocol.coordinator import State
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.stores import JournalStore
from exactsink.protocol.journal.stores.local import LocalStore
from exactsink.protocol.journal.stores.objects import ObjectStore
from exactsink.toolkit.local_paths import other_owner, write_probe
from exactsink.toolkit.storage import AnyPath, ObjectPath, file_names, make_folder, storage_errors, store_findings

__all__ = ["JobHistory"]

_HASH_CHARACTERS = 10


@dataclass(frozen=True, slots=True)
class JobHistory:
    """One history's place. `job` is the name in its ids: the job's name, and for a batch run also the run's hash."""

    job: str
    folder: AnyPath
    checkpoint: AnyPath
    journal_url: SecretStr | None = None
    run: str | None = None
    file_mode: FileMode = "private"
    file: str | None = None

    @classmethod
    def of(cls, config: JobConfig, run: str | None = None) -> JobHistory:
        """Find the place of a job's stream, or of its batch run `run`. Raises ConfigError if the name is too long."""
        name, mode = config.job.name, config.job.file_mode
        if run is None:
            return cls(name, config.history, config.checkpoint, config.job.journal, None, mode, config.file)
        longest = 40 - 1 - _HASH_CHARACTERS
        if not run or len(name) > longest:
            what = f"job name {name} is too long for batch runs" if run else "a batch run needs a name"
            why = f"ids hold the job's name and the run's hash: {longest} characters are left for the name"
            raise ConfigError(what, why=why, next="fix [job] name, or the run's")
        job = f"{name}-{hashlib.sha256(run.encode()).hexdigest()[:_HASH_CHARACTERS]}"
        folder = config.history / "runs" / job
        return cls(job, folder, config.checkpoint, config.job.journal, run, mode, config.file)

    @classmethod
    def batch_runs(cls, config: JobConfig) -> Iterator[JobHistory]:
        """Find the batch runs that any call of this job has begun. `run` is empty: only a run's journal has its name.

        Raises Retryable or Fatal if they can't be listed.
        """
        runs = config.history / "runs"
        with storage_errors(runs, f"the batch runs in {runs} can't be listed"):
            try:
                found = sorted({name.partition("/")[0] for name in file_names(runs)})
            except FileNotFoundError:
                return
        for name in found:
            mode, file = config.job.file_mode, config.file
            yield cls(name, runs / name, config.checkpoint, config.job.journal, "", mode, file)

    @property
    def commands(self) -> Commands:
        """The commands for this history, ready to type."""
        return Commands(self.file, self.run)

    @property
    def journal_place(self) -> str:
        """The journal's place, without secrets."""
        if self.journal_url is None:
            return str(self.folder / "journal")
        return f"{_sql_stores().Database(self.journal_url.get_secret_value()).place}, rows of job {self.job}"

    def make(self) -> None:
        """Make the folder. Idempotent. Raises OSError."""
        if self.run is not None:
            for place in (self.folder.parent.parent, self.folder.parent):
                make_folder(place, self.file_mode)
        make_folder(self.folder, self.file_mode)

    def journal(self, wait: Callable[[int], None]) -> Journal:
        """Open the journal, without reading it. The caller must close it. `wait(attempt)` pauses between two tries."""
        return Journal(self._store(), wait=wait)

    def state(self) -> StateFile:
        """Return the file of the advisory state. `make` must be called before it is written."""
        return StateFile(self.folder / "state.json")

    def last_times(self) -> LastTimes:
        """Return the advisory file of times that an alert needs for longer than a driver runs."""
        return LastTimes(self.folder / "last.json")

    def last_state(self, before: State | None = None) -> State | None:
        """Read the state that a driver reported last. Raises Retryable or Fatal if it can't be read.

        `before` is the state from before the sinks were read. It is returned if its driver has ended since then,
        because that driver was at work while the sinks were read.
        """
        with storage_errors(self.folder, f"the job's state in {self.folder} can't be read"):
            now = self.state().read()
        if before is not None and now is not None and (now.generation, now.heartbeat) == (before.generation, 0):
            return before
        return now

    def check(self) -> Iterator[Finding]:
        """Check that journal and checkpoint can be kept in their places, by writing there. Leaves nothing behind."""
        for place, what in ((self.folder, "the job's journal and state"), (self.checkpoint, "Spark's checkpoint")):
            if isinstance(place, Path):
                yield from _unwritable(place, what)
        if isinstance(self.checkpoint, Path):
            yield from _of_another(self.checkpoint)
        if self.journal_url is None and isinstance(self.folder, ObjectPath):
            fix = f"keep it in a database: {JOURNAL_IN_A_DATABASE}"
            yield from store_findings(self.folder / "journal", "the journal", fix)
        if self.file_mode != "umask" and isinstance(self.folder, Path) and _is_open(self.folder):
            fix = f"chmod o-rwx '{self.folder}'; or, if that is intended: [job] file_mode = \"umask\""
            yield Finding("warning", f"every user of the machine can read {self.folder}", fix)

    def _store(self) -> JournalStore:
        if self.journal_url is None:
            place = self.folder / "journal"
            return ObjectStore(place) if isinstance(place, ObjectPath) else LocalStore(place, file_mode=self.file_mode)
        store: JournalStore = _sql_stores().SqlStore(self.journal_url.get_secret_value(), self.job)
        return store


def _sql_stores() -> ModuleType:
    """Import the journal's SQL store only now, because nothing else needs SQLAlchemy. Raises ConfigError."""
    try:
        return importlib.import_module("exactsink.protocol.journal.stores.sql")
    except ModuleNotFoundError as error:
        raise ConfigError(f"a journal in a database needs {error.name}", next="pip install SQLAlchemy") from error


def _unwritable(folder: Path, what: str) -> Iterator[Finding]:
    """Report a folder if no file can be written to it, or to its nearest existing parent."""
    place = next(above for above in (folder, *folder.parents) if os.path.lexists(above))
    try:
        write_probe(place)
    except OSError as error:
        message = f"{what} can't be written to {folder}: {place}: {error.strerror or error}"
        made = f"chown -R {os.getuid()}" if place == folder else f"install -d -o {os.getuid()}"  # never a parent
        fixes = {errno.EROFS: "mount its file system writable", errno.ENOSPC: "free space there"}
        fixes[errno.EDQUOT] = "free space, or raise the quota of the driver's user"
        fixes[errno.ENOTDIR] = f"move the file {place} away"
        fix = fixes.get(error.errno or 0, f"let this user write there: sudo {made} '{folder}'")
        fix += "; or set [job] checkpoint to another folder"
        yield Finding("error", message, fix)


def _of_another(checkpoint: Path) -> Iterator[Finding]:
    """Report another user's checkpoint to root: exactsink's new files get their folder's owner, Spark's don't."""
    query = checkpoint / "metadata"
    place = next(above for above in (query, checkpoint, *checkpoint.parents) if above.exists())
    if (user := other_owner(place)) is None:
        return
    fix = f"repeat the command with `sudo -u {user}` before it"
    if place == query:
        message = f"the query in {checkpoint} belongs to user {user}, who could not continue it after root:"
        fix += f"; or give the job to root: chown -R root '{checkpoint}'"
        yield Finding("error", f"{message} Spark's new files would belong to root", fix)
    else:
        message = f"{place} belongs to user {user}: if root starts the job, Spark's checkpoint belongs to root,"
        yield Finding("warning", f"{message} and only root can continue the job", fix)


def _is_open(folder: Path) -> bool:
    """Return whether all users may enter, because somebody made it, or changed its mode."""
    return folder.is_dir() and bool(stat.S_IMODE(folder.stat().st_mode) & 0o007)
