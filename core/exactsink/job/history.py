"""Where one history is kept: a streaming job's, or one batch run's. Each has a journal and a state of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from exactsink.contract import ConfigError
from exactsink.job.config import JobConfig
from exactsink.observe.state import StateFile
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.journal.stores import JournalStore
from exactsink.protocol.journal.stores.local import LocalStore

__all__ = ["JobHistory"]

_HASH_CHARACTERS = 10


@dataclass(frozen=True, slots=True)
class JobHistory:
    """One history's place. `job` is the name in its ids: the job's, for a batch run with the run's hash."""

    job: str
    folder: Path
    checkpoint: Path
    journal_url: SecretStr | None = None
    run: str | None = None

    @classmethod
    def of(cls, config: JobConfig, run: str | None = None) -> JobHistory:
        """Find the place of a job's stream, or of its batch run `run`. Raises ConfigError for names too long."""
        name = config.job.name
        if run is None:
            return cls(name, config.history, config.checkpoint, config.job.journal)
        longest = 40 - 1 - _HASH_CHARACTERS
        if not run or len(name) > longest:
            what = f"job name {name} is too long for batch runs" if run else "a batch run needs a name"
            why = f"ids hold the job's name and the run's hash: {longest} characters are left for the name"
            raise ConfigError(what, why=why, next="fix [job] name, or the run's")
        job = f"{name}-{hashlib.sha256(run.encode()).hexdigest()[:_HASH_CHARACTERS]}"
        return cls(job, config.history / "runs" / job, config.checkpoint, config.job.journal, run)

    def journal(self, wait: Callable[[int], None]) -> Journal:
        """Open the journal; `wait(attempt)` pauses between two tries."""
        return Journal(self._store(), wait=wait)

    def state(self) -> StateFile:
        """Return the advisory state's file. Writing it wants the folder made."""
        return StateFile(self.folder / "state.json")

    def _store(self) -> JournalStore:
        if self.journal_url is None:
            return LocalStore(self.folder / "journal")
        from exactsink.protocol.journal.stores.sql import SqlStore

        return SqlStore(self.journal_url.get_secret_value(), self.job)
