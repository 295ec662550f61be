"""Batch runs: a run is one epoch in a history of its own, decided once and never again."""

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
    """The result of a batch run. `already_done`: it was decided by an earlier call. `rows` by sink, as decided.

    `missing`: sinks that the job has now and that had no part in the run. They never get it; a run of another name, of
    a job with those sinks alone, fills them. `changed`: sinks for which the run had other columns than this frame has.
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
    """Return the result of a run that is complete, None when it is not.

    `sinks` are the job's, `columns` those of the frame that all of them share.
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
    """Write a run, or finish one that was decided.

    A Retryable is tried again, as often as `restarts`, with a new claim each time, until `exactsink stop` says no.
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
    """Receives, while a run is written, who asks for its end. When the time is over, its Spark jobs are cancelled."""

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
            with suppress(OSError, ExactsinkError):  # advisory: the next look tries again
                request = self._file.read()
            if request is not None and request.driver != driver_name():
                request = None
        self._events.report("stop_asked", level=logging.WARNING, by=request.by, seconds=request.within)
        if self._over.wait(request.within):
            return
        self.stopped_by = request.by
        while not self._over.wait(_CANCEL_SECONDS):  # it may be between two of them
            self._cancel(self._tag)


def _stopped(history: JobHistory, by: str) -> Retryable:
    return Retryable(
        f"batch run {history.run} was stopped",
        why=f"{by}; nothing decided is lost",
        next="call write again: it finishes a decided run, and begins an undecided one again",
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
    """Return the result of a complete run, None when it is not complete."""
    if log.decision is None or not log.is_complete:
        return None
    return RunResult(run, log.decision.epoch, True, log.decision.rows)
