"""Check a job from the driver alone, without Spark: `exactsink check --no-spark`. Changes nothing."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa

from exactsink.contract import ConfigError, ExactsinkError, Finding, PreflightError
from exactsink.job.checkpoint import Checkpoint
from exactsink.job.config import JobConfig
from exactsink.job.driver import identity_of
from exactsink.job.history import JobHistory
from exactsink.job.modules import find_module
from exactsink.job.side_by_side import found_together
from exactsink.job.source_columns import columns_of, source_columns
from exactsink.operate.asking import ask_all
from exactsink.operate.plan import planned
from exactsink.operate.preflight import Found, ask_sink, look_at_journal, promise_refusals
from exactsink.operate.reachable import import_clients, late, late_sink, other_servers
from exactsink.operate.views import SinkView, look
from exactsink.protocol.journal.log import Log
from exactsink.protocol.sinks import Sink, check_identity
from exactsink.toolkit.storage import ObjectPath
from exactsink.toolkit.waiting import backoff

__all__ = ["CHECK_SECONDS", "check_from_driver"]

CHECK_SECONDS = 4.0
"""The time for all queries, in parallel. With the process's start it is 5 s."""

_SHARE = 0.4
"""The share of that time in which the marks are read, first for the source, then for the sinks."""

_JOURNAL = "the journal"
_PACKAGES = {"prometheus": "prometheus_client", "opentelemetry": "opentelemetry"}
_SPARK = "the source's rows; Spark with its settings; the executors' packages and permissions"


@dataclass(frozen=True, slots=True)
class _History:
    """The state of journal, checkpoint and marks before the next start."""

    refusals: Sequence[ExactsinkError]
    warnings: Sequence[Finding]
    views: Sequence[SinkView] = ()


def check_from_driver(config: JobConfig, sinks: Mapping[str, Sink], *, seconds: float = CHECK_SECONDS) -> Found:
    """Query journal, checkpoint and every sink in parallel, each for at most so many seconds.

    Checks that need a sink's columns run if the job's file names all of them.
    """
    import_clients(sinks, config.job.name)
    columns, refusals = _columns(config, sinks)
    calls = {name: partial(ask_sink, config.job.name, sink, columns.get(name)) for name, sink in sinks.items()}
    history_call = partial(_look_at_history, config, sinks, seconds * _SHARE)
    others, silent = other_servers(config, seconds)
    answers = ask_all({**calls, **others, _JOURNAL: history_call}, seconds)
    history = answers[_JOURNAL] if _JOURNAL in answers else _late_journal(config, seconds)
    if isinstance(history, ExactsinkError):
        history = _History([history], [])
    given = {name: answers.get(name, late_sink(sink, seconds)) for name, sink in sinks.items()}
    away = {name: answer for name, answer in given.items() if isinstance(answer, ExactsinkError)}
    findings = {name: () if name in away else given[name] for name in sinks}
    for name, finding in found_together(config, sinks):
        findings[name] = [*findings[name], finding]
    places = list(_place_problems(config))
    refusals += [*_program_refusals(config), *promise_refusals(config, sinks, stream=config.source is not None)]
    refusals += [*history.refusals, *(PreflightError(found.message, next=found.fix) for found in places)]
    refusals += [found for name in others if isinstance(found := answers.get(name, silent[name]), ExactsinkError)]
    return Found(
        findings=findings,
        refusals=refusals,
        journal=history.warnings,
        away=away,
        not_looked_at=[*_not_looked_at(config, sinks, columns), *_unmarked(history, away), _SPARK],
    )


def _columns(
    config: JobConfig, sinks: Mapping[str, Sink]
) -> tuple[Mapping[str, pa.Schema | None], list[ExactsinkError]]:
    """Return the known columns of each sink's rows, and the errors of its backend about them."""
    source, found = source_columns(config), {}
    refusals: list[ExactsinkError] = []
    for name, sink in sinks.items():
        try:
            found[name] = columns_of(sink, source)
        except ExactsinkError as refusal:
            refusals.append(refusal)
    return found, refusals


def _look_at_history(config: JobConfig, sinks: Mapping[str, Sink], seconds: float) -> _History:
    """Check that the next start finds the journal, checkpoint, marks and work that the last one left."""
    history, checkpoint = JobHistory.of(config), Checkpoint(config.checkpoint)
    refusals, warnings = look_at_journal(config)
    if refusals:
        return _History(refusals, warnings)
    journal = history.journal(backoff)
    with closing(journal):
        log, views = look(history, sinks, journal.read, journal.whole, seconds=seconds)
        try:
            check_identity(log, identity_of(history))
            checkpoint.check_follows(journal.read)
        except ExactsinkError as refusal:
            return _History([refusal], warnings, views)
    try:
        planned(views, sinks, log, frozenset(), source_done=_is_done(checkpoint, log))
    except ExactsinkError as refusal:
        return _History([refusal], warnings, views)
    return _History((), warnings, views)


def _is_done(checkpoint: Checkpoint, log: Log) -> bool:
    return log.decision is not None and checkpoint.is_epoch_done(log.decision.epoch, log)


def _late_journal(config: JobConfig, seconds: float) -> ExactsinkError:
    history, checkpoint = JobHistory.of(config), config.checkpoint
    folder = str(checkpoint) if history.journal_url is None and isinstance(checkpoint, Path) else ""
    return late(_JOURNAL, f"{history.journal_place}, or the checkpoint {checkpoint},", seconds, folder=folder)


def _program_refusals(config: JobConfig) -> Iterator[ExactsinkError]:
    """Check the user's modules and query without running them."""
    job = config.job
    for key, name in (("transform", job.transform), ("route", job.route)):
        try:
            if name is not None:
                find_module(key, name, job.modules)
        except ExactsinkError as refusal:
            yield refusal
    try:
        if config.transform is not None:
            config.transform.query()
    except ExactsinkError as refusal:
        yield refusal

    packages = {"prometheus": config.observe.prometheus is not None, "opentelemetry": config.observe.opentelemetry}
    for extra, wanted in packages.items():
        if wanted and find_spec(_PACKAGES[extra]) is None:
            yield ConfigError(f"[observe] {extra}: not installed", next=f"pip install 'exactsink[{extra}]'")


def _place_problems(config: JobConfig) -> Iterator[Finding]:
    """Find local folders that can't be written or read."""
    local = [place for place in (config.checkpoint, config.history) if not isinstance(place, ObjectPath)]
    for closed in dict.fromkeys(filter(None, map(_closed, local))):
        fix = f"chmod u+rwx '{closed}', or run the driver as its owner" if closed.is_dir() else f"move {closed} away"
        fix += "; or name another [job] checkpoint"
        yield Finding("error", f"checkpoint and journal ({local[-1]}) can't be written: {closed}", fix)
    path = config.source.path if config.source is not None else None
    if path is not None and os.path.isabs(path) and not glob.has_magic(path):
        if not os.path.exists(path):
            yield Finding("error", f"[source] path {path} does not exist", f"mkdir -p '{path}', or correct the path")
        elif not os.access(path, os.R_OK):
            yield Finding("error", f"[source] path {path} can't be read", f"chmod u+rx '{path}', or correct the path")


def _closed(folder: Path) -> Path | None:
    """Return the folder that this process can't write to: this one, or the nearest parent that exists."""
    place = next(place for place in (folder, *folder.parents) if place.exists())
    return None if place.is_dir() and os.access(place, os.R_OK | os.W_OK | os.X_OK) else place


def _not_looked_at(
    config: JobConfig, sinks: Mapping[str, Sink], columns: Mapping[str, pa.Schema | None]
) -> Iterator[str]:
    if blind := [name for name in sinks if columns.get(name) is None]:
        yield f"types of the columns of {', '.join(blind)}"
    filtered = [name for name, sink in sinks.items() if sink.where is not None]
    if filtered:
        yield f"`where` of {', '.join(filtered)}"
    given = (config.job.transform, config.job.route, config.transform and config.transform.key)
    yield from (f"the effect of {name}" for name in given if name)


def _unmarked(history: _History, away: Mapping[str, ExactsinkError]) -> Iterator[str]:
    """Name the sinks that answered, but not in time for their marks and work to be read."""
    mute = [view.name for view in history.views if view.in_config and not view.asked and view.name not in away]
    if mute:
        yield f"marks of {', '.join(mute)}, which took too long"
