"""A job's sinks, as the coordinator sees them: a named target, its backend and the options of every sink."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from exactsink.contract import Backend, Committer, ConfigError, FileMode, JobContext, LineageError
from exactsink.contract.model import EPOCH_BUDGET_SECONDS, LONGEST_PAUSE_SECONDS
from exactsink.protocol.checked import CheckedCommitter, calling
from exactsink.protocol.journal.log import Decision, Log
from exactsink.protocol.journal.records import BoundSink, Identity

__all__ = [
    "EXECUTOR_VARIABLE",
    "DeferredBackend",
    "Sink",
    "bound_sinks",
    "check_identity",
    "check_kept_sinks",
    "check_one_frame",
    "committer_of",
    "is_bound",
    "lacking_sinks",
    "quarantines",
    "resolved",
]


EXECUTOR_VARIABLE = re.compile(r"\$\{executor:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^}]*)?\}")
"""`${executor:NAME}` or `${executor:NAME:-default}` in a sink's own options."""


@dataclass(frozen=True, slots=True)
class DeferredBackend:
    """A backend with `${executor:NAME}` still in its options. It pickles without the values of those variables."""

    backend: type[Backend]
    options: Mapping[str, Any] = field(repr=False)
    folder: str = ""

    def resolve(self, environ: Mapping[str, str]) -> Backend:
        """Make the backend from this process's environment. Raises ConfigError for a missing variable."""
        options = {key: _filled(value, environ) for key, value in self.options.items()}
        return self.backend(self.backend.Options.model_validate(options, context={"folder": self.folder}))


def resolved(backend: Backend | DeferredBackend, environ: Mapping[str, str]) -> Backend:
    """Return a task's backend, ready to write."""
    return backend.resolve(environ) if isinstance(backend, DeferredBackend) else backend


@dataclass(frozen=True, slots=True)
class Sink:
    """A named target in a job: a backend plus the options of every sink.

    `kind` is the backend's name in the config. `staging` is this sink's folder for staged rows. `distribution` is
    "none", a number of partitions, or "hash(columns)". `after` names sinks that are committed before it. The two times
    and `file_mode` are the job's (see JobContext). `epoch_column` is added to its rows. `deferred` replaces the backend
    if tasks resolve its options. `quarantine` names the sink that gets the rows which this one can't hold, at most
    `quarantine_at_most` in an epoch.
    """

    name: str
    kind: str
    backend: Backend
    staging: str
    columns: tuple[str, ...] = ()
    where: str | None = None
    distribution: str | int = "none"
    max_participants: int | None = None
    after: tuple[str, ...] = ()
    longest_pause_seconds: float = LONGEST_PAUSE_SECONDS
    epoch_budget_seconds: float = EPOCH_BUDGET_SECONDS
    deferred: DeferredBackend | None = None
    file_mode: FileMode = "private"
    epoch_column: str | None = None
    quarantine: str | None = None
    quarantine_at_most: int = 1000

    @property
    def for_tasks(self) -> Backend | DeferredBackend:
        """The backend for tasks: without the secrets that tasks resolve themselves."""
        return self.deferred or self.backend


def quarantines(sinks: Mapping[str, Sink]) -> frozenset[str]:
    """Return the sinks that get other sinks' bad rows, and no rows of a frame."""
    return frozenset(sink.quarantine for sink in sinks.values() if sink.quarantine is not None)


def committer_of(sink: Sink, job: str, log: Log | None = None) -> Committer:
    """Make a sink's committer, with checked answers: for a journal's newest claim, or without one for preflight."""
    log = log or Log()
    context = JobContext(
        job,
        sink.name,
        sink.staging,
        log.last_generation,
        log.lineage,
        distribution=sink.distribution,
        longest_pause_seconds=sink.longest_pause_seconds,
        epoch_budget_seconds=sink.epoch_budget_seconds,
        succeeds=log.succeeds,
        file_mode=sink.file_mode,
        epoch_column=sink.epoch_column,
        quarantine=sink.quarantine,
    )
    with calling(sink.name, sink.backend, "committer"):
        return CheckedCommitter(sink.name, sink.backend, sink.backend.committer(context))


def is_bound(sinks: Mapping[str, Sink], decision: Decision, name: str) -> bool:
    """Return whether the config's sink of this name has the decision's backend, strategy and target."""
    sink, decided = sinks.get(name), decision.sinks[name]
    if sink is None:
        return False
    bound = (sink.kind, sink.backend.strategy, sink.backend.target)
    return bound == (decided.backend, decided.strategy, decided.target)


def check_one_frame(sinks: Mapping[str, Sink]) -> None:
    """Refuse sinks that share one pass over one frame and set different distributions. Raises ConfigError."""
    asking = {name: sink.distribution for name, sink in sinks.items() if sink.distribution != "none"}
    if len(set(asking.values())) > 1:
        raise ConfigError(
            f"sinks {', '.join(asking)} set different distributions for one frame",
            next="set the same distribution for all, or for one sink only; or give each its frame with a route",
        )


def bound_sinks(sinks: Mapping[str, Sink]) -> tuple[BoundSink, ...]:
    """Return the part of a config's sinks that a claim keeps."""
    return tuple(BoundSink(s.name, s.kind, s.backend.strategy, s.backend.target) for s in sinks.values())


def check_identity(log: Log, mine: Identity) -> None:
    """Refuse a journal that another job or batch run has claimed, whatever its path is. Raises LineageError."""
    theirs = log.claims[-1].identity if log.claims else None
    if theirs is None or (theirs.job, theirs.run) == (mine.job, mine.run):
        return
    who, me = (f"batch run {i.run!r} of job {i.job}" if i.run else f"job {i.job}" for i in (theirs, mine))
    raise LineageError(
        f"the journal belongs to {who}, and this is {me}",
        why="ids in every sink contain the name: under another name, prepared work would stay open, and committed "
        "rows would be written again",
        next="use the old job name, or give this job its own checkpoint"
        + (" (two runs' names have the same hash: rename one)" if mine.run else ""),
    )


def check_kept_sinks(sinks: Mapping[str, Sink], log: Log, *, source_done: bool) -> None:
    """Refuse a config that lacks or changes a sink under which work may be in doubt. Raises ConfigError.

    Without its config, nobody can query its store. A clean stop, or `recover`, records in the journal that no work is
    in doubt.
    """
    for _, refusal in lacking_sinks(sinks, log, source_done=source_done):
        raise refusal


def lacking_sinks(sinks: Mapping[str, Sink], log: Log, *, source_done: bool) -> Iterator[tuple[BoundSink, ConfigError]]:
    """Yield each sink for which `check_kept_sinks` refuses a config, once for each reason, with its error."""
    mine = set(bound_sinks(sinks))
    decision = log.decision
    if decision is not None and log.decision_is_open and not source_done:
        for name, decided in decision.sinks.items():
            bound = BoundSink(name, decided.backend, decided.strategy, decided.target)
            if decided.committables and bound not in mine:
                yield bound, _lacking(bound, f"epoch {decision.epoch} may be unfinished, and holds rows")
    for claim in log.open_claims:
        for bound in claim.identity.sinks if claim.identity is not None else ():
            if bound not in mine:
                why = f"generation {claim.generation} did not end cleanly, and may have left work there"
                yield bound, _lacking(bound, why)


def _lacking(sink: BoundSink, why: str) -> ConfigError:
    return ConfigError(
        f"the config lacks sink {sink.name} as it was",
        why=f"{why}: backend {sink.backend} ({sink.strategy}), target {sink.target}",
        next=f"put [sinks.{sink.name}] back as it was, `exactsink recover JOB.toml`, then change it",
    )


def _filled(value: Any, environ: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, environ) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, environ) for item in value]
    if not isinstance(value, str):
        return value

    def fill(found: re.Match[str]) -> str:
        name, default = found["name"], found["default"]
        if environ.get(name):
            return environ[name]
        if default is not None:
            return default[2:]
        raise ConfigError(
            f"{name} is empty in an executor's environment"
            if name in environ
            else f"an executor's environment has no {name}",
            why=f"a sink's option says {found[0]}",
            next=f"set it there (spark.executorEnv.{name} in [spark] conf, or on the machine)",
        )

    return EXECUTOR_VARIABLE.sub(fill, value)
