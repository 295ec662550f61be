"""The last epoch that is complete in every sink: up to it, a reader can read all targets at the same point.

It may lag behind, but never counts an epoch that is not proven complete. It relies on the records of drivers. If a
target was restored from a backup since, the next start and `exactsink verify` detect that; this module does not. Rows
that a person gave up (`resolve`, `rebase`) stay missing.
"""

from __future__ import annotations

import os
from contextlib import closing

from exactsink.job.config import load_config
from exactsink.job.history import JobHistory
from exactsink.protocol.coordinator import State
from exactsink.protocol.journal.log import Log
from exactsink.toolkit.local_paths import real_path
from exactsink.toolkit.storage import is_object_url, path_of, storage_errors
from exactsink.toolkit.waiting import backoff

__all__ = ["complete_epoch", "last_complete_epoch", "look"]


def last_complete_epoch(job_or_checkpoint: str | os.PathLike[str], run: str | None = None) -> int | None:
    """Return the last epoch that is complete in every sink, None before the first. Up to it, all sinks have the same
    rows of the source.

    Takes a job's file (`*.toml`), or its checkpoint if the journal is beside it. `run` names a batch run. Raises
    ConfigError, Retryable, and LineageError if the journal was changed.
    """
    return look(_history(os.fspath(job_or_checkpoint), run))[0]


def look(history: JobHistory) -> tuple[int | None, Log]:
    """Return the last complete epoch, and the journal's log that proves it."""
    state = history.last_state()  # before the journal, which then is at least as new
    what = f"the journal in {history.folder} can't be read"
    with storage_errors(history.folder, what), closing(history.journal(backoff)) as journal:
        log = journal.read()
    return complete_epoch(log, state), log


def complete_epoch(log: Log, state: State | None) -> int | None:
    """Return the last epoch that a journal, and a state that was read before it, prove to be complete in every sink.

    An epoch is decided once all epochs before it are complete. The last one is complete if the journal says so, or if
    the driver of the newest claim wrote so into its state. An older driver's state does not count: it may have been
    written before somebody restored the journal or a target.
    """
    decision = log.decision
    if decision is None or not decision.sinks:  # none is decided, or a person has settled every target
        return None
    claim = log.claims[-1]
    mine = state is not None and (state.generation, state.driver) == (claim.generation, claim.driver)
    said = mine and state is not None and state.complete_epoch == decision.epoch
    if said or log.is_complete or not log.decision_is_open:
        return decision.epoch
    return decision.epoch - 1 if decision.epoch > 0 else None


def _history(place: str, run: str | None) -> JobHistory:
    if place.endswith(".toml"):
        return JobHistory.of(load_config(place)[0], run)
    checkpoint = path_of(place if is_object_url(place) else real_path(place))
    return JobHistory("", checkpoint.with_name(f"{checkpoint.name}.exactsink"), checkpoint, run=run)
