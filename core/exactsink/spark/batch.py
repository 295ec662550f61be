"""Batch runs: each run is one epoch in its own history, decided once and never again."""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import is_remote

from exactsink.contract import ExactsinkError, Retryable
from exactsink.job.driver import Driver, identity_of
from exactsink.job.history import JobHistory
from exactsink.job.stop import StopFile, driver_name
from exactsink.protocol.coordinator import Batch
from exactsink.protocol.events import Events
from exactsink.protocol.journal.log import Log
from exactsink.protocol.journal.records import Columns, Complete
from exactsink.protocol.sinks import Sink, check_identity
from exactsink.spark.jvm import lost_session
from exactsink.spark.routes import BatchWrite, Passes
from exactsink.toolkit.waiting import backoff

__all__ = ["RunResult", "known_run", "write_run"]

_CANCEL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a batch run. `already_done`: an earlier call decided it. `rows` are the decided rows by sink.

    `missing` are sinks that the job has now, but that had no part in the run. They never get it: to fill them, write a
    run of another name, in a job with only those sinks. `changed` are sinks for which the run had other columns than
    this frame.
    """

    run: str
    epoch: int
    already_done: bool
    rows: Mapping[str, int]
    missing: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


def known_run(
    history: JobHistory, sinks: Mapping[str, Sink], columns: Sequence[tuple[str, str]] | None
) -> RunResult | None:
    """Return the result of a complete run, None if it is not complete. Changes nothing.

    `sinks` are the job's. `columns` are those of the frame that all sinks share, None if they share none.
    """
    with closing(history.journal(backoff)) as journal:
        log = journal.read()
        check_identity(log, identity_of(history))
        known, had = _known(log, history.run or ""), log.decision.sinks if log.decision else {}
        targets = {sink.target for sink in had.values()}  # a sink may have another name by now
        missing = tuple(name for name, sink in sinks.items() if name not in had and sink.backend.target not in targets)
        changed = tuple(n for n in had if n in sinks and _differs(sinks[n], had[n].columns, columns))
        return known and replace(known, missing=missing, changed=changed)


def _differs(sink: Sink, before: Columns | None, frame: Sequence[tuple[str, str]] | None) -> bool:
    if before is None or frame is None:
        return False
    types = {**dict(frame), **({sink.epoch_column: "bigint"} if sink.epoch_column is not None else {})}
    names = {*(sink.columns or dict(frame)), *filter(None, [sink.epoch_column])}
    return {name: types.get(name) for name in names} != dict(before)


def write_run(
    history: JobHistory, sinks: Mapping[str, Sink], events: Events, frame: DataFrame, passes: Passes, restarts: int
) -> RunResult:
    """Write a run, or finish a decided run. Idempotent.

    After a Retryable it tries again, up to `restarts` times, each time with a new claim, unless `exactsink stop` has
    requested its end.
    """
    hearing = _Hearing(history, events, frame.sparkSession)
    with closing(hearing):
        hearing.start()
        for attempt in range(restarts + 1):
            driver = Driver(history, sinks, events)
            try:
                with closing(driver):
                    return _write(driver, frame, history.run or "", passes)
            except Retryable as error:
                driver.check_fenced()
                if hearing.stopped_by:
                    raise _stopped(history, hearing.stopped_by) from error
                if attempt == restarts:
                    raise
                if (lost := lost_session()) is not None:
                    raise lost from error
                events.report("query_restarted", level=logging.WARNING, attempt=attempt + 1, error=str(error))
                backoff(attempt)
    raise AssertionError("a run is tried at least once")


class _Hearing:
    """Poll for a request to end while a run is written. When its time is over, cancel the run's Spark jobs."""

    def __init__(self, history: JobHistory, events: Events, session: SparkSession) -> None:
        self.stopped_by = ""
        self._file = StopFile(history.folder)
        self._events = events
        self._tag = f"exactsink-{secrets.token_hex(8)}"
        self._over = threading.Event()
        self._cancel: Callable[[str], object]
        if is_remote():
            self._add, self._remove, self._cancel = session.addTag, session.removeTag, session.interruptTag
        else:  # Spark 3.5 has the above for Spark Connect only
            jobs = session.sparkContext
            self._add, self._remove, self._cancel = jobs.addJobTag, jobs.removeJobTag, jobs.cancelJobsWithTag

    def start(self) -> None:
        with suppress(OSError, ExactsinkError):
            self._file.clear()  # a request to an earlier driver
        self._add(self._tag)
        threading.Thread(target=self._hear, name="exactsink-stop", daemon=True).start()

    def close(self) -> None:
        self._over.set()
        self._remove(self._tag)

    def _hear(self) -> None:
        request = None
        while request is None:
            if self._over.wait(self._file.look_seconds):
                return
            with suppress(OSError, ExactsinkError):  # advisory: the next poll tries again
                request = self._file.read()
            if request is not None and request.driver != driver_name():
                request = None
        self._events.report("stop_asked", level=logging.WARNING, by=request.by, seconds=request.within)
        if self._over.wait(request.within):
            return
        self.stopped_by = request.by
        while not self._over.wait(_CANCEL_SECONDS):  # it may be between two Spark jobs
            self._cancel(self._tag)


def _stopped(history: JobHistory, by: str) -> Retryable:
    return Retryable(
        f"batch run {history.run} was stopped",
        why=f"{by}; nothing decided is lost",
        next="call write again: it finishes a decided run, and writes an undecided run from the beginning",
    )


def _write(driver: Driver, frame: DataFrame, run: str, passes: Passes) -> RunResult:
    coordinator, journal = driver.coordinator, driver.journal
    with closing(BatchWrite(passes, frame, keeps_state=False)) as write:
        coordinator.start(f"run {run}", lambda epoch: journal.log.is_complete)
        known = _known(journal.log, run)
        if known is not None:  # another process has finished it meanwhile
            return known
        fingerprint = hashlib.sha256(run.encode()).hexdigest()
        schemas, columns = passes.schemas(), passes.columns()
        result = coordinator.run_epoch(Batch(journal.log.base, fingerprint, schemas, write, columns=columns))
        journal.keep(Complete(result.epoch))
        coordinator.returned(result.epoch)
    return RunResult(run, result.epoch, result.skipped, result.rows)


def _known(log: Log, run: str) -> RunResult | None:
    """Return the result of a complete run, None if it is not complete."""
    if log.decision is None or not log.is_complete:
        return None
    return RunResult(run, log.decision.epoch, True, log.decision.rows)
