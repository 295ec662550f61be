"""Batch runs' way in: a run is one epoch in a history of its own, decided once and never again."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from pyspark.sql import DataFrame

from exactsink.contract import Retryable
from exactsink.job.guarantees import check_batch_guarantee
from exactsink.job.history import RUN_COMPLETE, JobHistory, is_complete
from exactsink.protocol.coordinator import Batch
from exactsink.protocol.journal.log import Log
from exactsink.spark.bound import BoundJob, Driver
from exactsink.spark.routes import Passes, Route
from exactsink.spark.stream import ExplainedWrite
from exactsink.toolkit.waiting import backoff

__all__ = ["RunResult", "write_run"]


@dataclass(frozen=True, slots=True)
class RunResult:
    """What came of a batch run. `already_done`: it was decided by an earlier call. `rows` by sink, as decided."""

    run: str
    epoch: int
    already_done: bool
    rows: Mapping[str, int]


def write_run(job: BoundJob, frame: DataFrame, run: str, route: Route | None) -> RunResult:
    """Write a run, or finish one that was decided, or give the result of one that is complete.

    A Retryable is tried again, as often as the job's `restarts`, with a new claim each time.
    """
    history = JobHistory.of(job.config, run)
    with closing(history.journal(backoff)) as journal:
        known = _known(journal.read(), run)
    if known is not None:
        job.events.report("run_known", run=run)
        return known
    check_batch_guarantee(job.sinks)
    passes = job.preflight(frame, route)
    for attempt in range(job.config.job.restarts + 1):
        driver = job.driver(history, history.journal(backoff))
        try:
            with closing(driver):
                return _write(driver, frame, run, passes)
        except Retryable as error:
            job.check_standing(history, driver.coordinator.last_claim)
            if attempt == job.config.job.restarts:
                raise
            job.events.report("query_restarted", level=logging.WARNING, attempt=attempt + 1, error=str(error))
            backoff(attempt)
    raise AssertionError("a run is tried at least once")


def _write(driver: Driver, frame: DataFrame, run: str, passes: Passes) -> RunResult:
    coordinator, journal = driver.coordinator, driver.journal
    with passes.batch(frame, keeps_state=False) as write:
        coordinator.start(f"run {run}", lambda epoch: is_complete(journal.log))
        known = _known(journal.log, run)
        if known is not None:  # another process has finished it meanwhile
            return known
        fingerprint = hashlib.sha256(run.encode()).hexdigest()
        result = coordinator.run_epoch(Batch(0, fingerprint, passes.schemas(), ExplainedWrite(write)))
        journal.note(RUN_COMPLETE)
        coordinator.returned(result.epoch)
    return RunResult(run, result.epoch, result.skipped, result.rows)


def _known(log: Log, run: str) -> RunResult | None:
    """Return the result of a complete run."""
    if log.decision is None or not is_complete(log):
        return None
    return RunResult(run, log.decision.epoch, True, log.decision.rows)
