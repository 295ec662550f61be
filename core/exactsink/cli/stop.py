"""`exactsink stop`: request the end of a job's, or a batch run's, driver on any machine, and wait for it."""

from __future__ import annotations

import os
import platform
import time

import click

from exactsink.cli.opened import Opened
from exactsink.cli.options import command, job_file, run_name
from exactsink.contract import Retryable
from exactsink.job.config import load_config
from exactsink.job.driver import user_name
from exactsink.job.history import JobHistory
from exactsink.job.stop import StopFile, StopRequest
from exactsink.observe.state import is_ahead, is_live, last_heard
from exactsink.protocol.coordinator import State
from exactsink.reader.complete import look
from exactsink.toolkit.storage import storage_errors

__all__ = ["stop"]

_MORE_SECONDS = 45.0
"""How long a driver may take besides its epoch: to see the request on an object store, and to end Spark."""


@command()
@job_file
@run_name
@click.option("--within", type=click.FloatRange(min=0), metavar="SECONDS", help="Seconds that the epoch may take.")
def stop(job: str, run: str | None, within: float | None) -> None:
    """End a job's driver after its current epoch, on whichever machine it runs, and wait for its end.

    Without --within, the driver has the time of `[job] stop_within`. If a batch run is not decided in time, exactsink
    cancels it, and the next call of `Job.write` writes it.
    """
    config, _ = load_config(job)
    history = JobHistory.of(config, run)
    state = history.last_state()
    if state is None and (claims := look(history)[1].open_claims):
        what = f"driver {claims[-1].driver} has claimed the job, and {history.folder} has no state of it"
        why = "state.json is damaged; or the journal is in a database, and the driver's folder is elsewhere"
        fix = "`exactsink stop JOB.toml` on a machine that sees the driver's folder; or send SIGTERM to the driver"
        raise Retryable(what, why=why, next=fix)
    if state is None and run is not None:
        raise Opened.of(job, run).unknown_run()
    if state is None or _is_over(state):
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
            raise Retryable(f"{asked.driver} ended, and {state.driver} runs the job", next="exactsink stop JOB.toml")
        if _is_over(state):
            return state
        if not (is_live(state) or is_ahead(state)) or time.monotonic() > until:
            host, _, number = state.driver.rpartition(":")
            raise Retryable(
                f"driver {state.driver} has not reported its end",
                why=f"{last_heard(state)}; it hangs, was killed, or does not read {history.folder}",
                next=f"on {host}: kill {number}, or kill -9 {number}, which is also safe",
            )
        time.sleep(0.5)


def _is_over(state: State) -> bool:
    """Return whether a driver has ended: it reported that, or it is silent, and its process on this machine is gone."""
    if not state.heartbeat:
        return True
    host, _, number = state.driver.rpartition(":")
    if is_live(state) or is_ahead(state) or host != platform.node() or not number.isdigit():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return False


def _ended(state: State | None) -> str:
    if state is None:
        return "no driver ever ran"
    return f"driver {state.driver} " + (f"is dead, {last_heard(state)}" if state.heartbeat else "has ended")
