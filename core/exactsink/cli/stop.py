"""`exactsink stop`: ask the driver of a job, or of a batch run, to end wherever it runs, and wait until it has."""

from __future__ import annotations

import platform
import time

from exactsink.cli.opened import Opened
from exactsink.contract import Retryable, storage_errors
from exactsink.job.config import load_config
from exactsink.job.driver import user_name
from exactsink.job.history import JobHistory
from exactsink.job.stop import StopFile, StopRequest
from exactsink.operate.actions import LIVE_SECONDS
from exactsink.protocol.coordinator import State

__all__ = ["stop"]

_LOOK_SECONDS = 0.5
_MORE_SECONDS = 45.0
"""How long a driver may take beside its epoch: to see the request on an object store, and to end Spark."""


def stop(path: str, run: str | None, within: float | None) -> None:
    """Ask, and wait. Raises Retryable when the driver has not ended in time, or another one runs by then.

    A stream's ends after its epoch. A batch run has one: that ends, or is given up undecided once the time is over.
    """
    config, _ = load_config(path)
    history = JobHistory.of(config, run)
    state = history.last_state()
    if state is None and run is not None:
        raise Opened.of(path, run).unknown_run()
    if state is None or not _lives(state):
        print(f"nothing to stop: {_ended(state)}")
        return
    seconds = config.job.stop_within_seconds if within is None else within
    by = f"exactsink stop by {user_name()} on {platform.node()}"
    with storage_errors(history.folder, f"the request in {history.folder} can't be written"):
        StopFile(history.folder).write(StopRequest(state.driver, seconds, by))
    what = "end after its epoch," if run is None else f"finish batch run {run}, or give it up,"
    print(f"asked {state.driver} to {what} within {seconds:.0f} s", flush=True)
    last = _wait(history, state, time.monotonic() + seconds + _MORE_SECONDS)
    epoch = "no epoch is complete" if last.complete_epoch is None else f"epoch {last.complete_epoch} is complete"
    print(f"stopped: {_ended(last)}; {epoch}")


def _wait(history: JobHistory, asked: State, until: float) -> State:
    while True:
        state = history.last_state() or asked
        if state.driver != asked.driver:
            why = f"{state.driver} has claimed the job since"
            raise Retryable(f"{asked.driver} has ended, and the job runs", why=why, next="stop that one, too")
        if not _lives(state):
            return state
        if time.monotonic() > until:
            raise Retryable(
                f"driver {asked.driver} has not ended",
                why="it does not look at this job's folder, or it hangs",
                next="send it SIGTERM on its own machine; SIGKILL is safe, too",
            )
        time.sleep(_LOOK_SECONDS)


def _lives(state: State) -> bool:
    return time.time() - state.heartbeat < LIVE_SECONDS


def _ended(state: State | None) -> str:
    if state is None:
        return "no driver ever ran"
    if not state.heartbeat:
        return f"driver {state.driver} has ended"
    return f"driver {state.driver} is dead, its last heartbeat is {time.time() - state.heartbeat:.0f} s old"
