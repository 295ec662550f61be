"""The last epoch that is complete in every sink: where a reader can cut all targets, and join them.

It may lag, and never leads: what nothing proves is not counted. It goes by what drivers recorded. That a target was put
back in time since is found by the next start and by `exactsink verify`, not here; and what a person gave up (`resolve`,
`rebase`) stays missing below the cut.
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
    """Return the last epoch that is complete in every sink, None before the first: rows up to it are the same rows
    of the source in all of them.

    Takes a job's file (`*.toml`), or its checkpoint where the journal stands beside it. `run` names a batch run. Raises
    ConfigError, Retryable, and LineageError for a journal that was changed.
    """
    return look(_history(os.fspath(job_or_checkpoint), run))[0]


def look(history: JobHistory) -> tuple[int | None, Log]:
    """Return the last complete epoch, and the log that says so."""
    state = history.last_state()  # before the journal, which then is at least as new
    what = f"the journal in {history.folder} can't be read"
    with storage_errors(history.folder, what), closing(history.journal(backoff)) as journal:
        log = journal.read()
    return complete_epoch(log, state), log


def complete_epoch(log: Log, state: State | None) -> int | None:
    """Return the last epoch that a journal, and a state that was read before it, prove to be complete in every sink.

    An epoch is decided once all before it are complete. Whether the last one is, too, a record of the journal says, or
    the state that the newest claim's driver wrote: an older driver's may be of before the journal or a target was put
    back.
    """
    decision = log.decision
    if decision is None or not decision.sinks:  # none is decided, or a person has said what stands in each target
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
