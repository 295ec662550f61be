"""Check, before the first row, whether every sink and every executor can give the guarantee that the job requires.

`run` and `check` do the same: analyze the frames, check each sink, try the executors, derive the guarantee.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import exactsink
from exactsink.contract import ExactsinkError, PreflightError
from exactsink.job.config import JobConfig
from exactsink.job.side_by_side import found_together
from exactsink.operate.preflight import Found, ask_sink, column_refusals, look_at_journal, promise_refusals
from exactsink.protocol.checked import broken
from exactsink.protocol.events import Events
from exactsink.protocol.sinks import Sink, resolved
from exactsink.spark.arrow_settings import advice
from exactsink.spark.errors import quiet_loggers, task_error
from exactsink.spark.routes import Passes, Route

__all__ = ["Preflight", "check_pickles", "passes_of", "preflight", "refused_by_executors"]

_OTHER_PYTHON = (
    f"unset PYSPARK_PYTHON, or export PYSPARK_PYTHON={sys.executable}; on a cluster, have it on every machine"
)
_INSTALL = (
    "check that every executor has exactsink with the backends' extras (pip install 'exactsink[...]') for that Python, "
    "and the environment variables that the config names"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight(Found):
    """The findings, and the passes by which frames reach the sinks.

    `advice` is a setting that would make the job faster, None if it is set already.
    """

    passes: Passes
    advice: str | None = None

    def report_to(self, events: Events, sinks: Mapping[str, Sink]) -> None:
        """Report the warnings, and each sink's guarantee."""
        for name, found in self.findings.items():
            for finding in found:
                message, fix = finding.message, finding.fix
                events.report("preflight_warning", level=logging.WARNING, sink=name, message=message, fix=fix)
        for finding in self.journal:
            events.report("journal_warning", level=logging.WARNING, message=finding.message, fix=finding.fix)
        if self.advice is not None:
            events.report("setting_advised", setting=self.advice)
        for name, sink in sinks.items():
            events.report(
                "sink",
                sink=name,
                backend=sink.kind,
                strategy=sink.backend.strategy,
                guarantee=sink.backend.traits.guarantee,
                target=sink.backend.target,
            )


@quiet_loggers()
def passes_of(config: JobConfig, sinks: Mapping[str, Sink], frame: DataFrame, route: Route | None) -> Passes:
    """Analyze how frames like this one reach the sinks. Raises ConfigError."""
    return Passes(frame, sinks, route, config.job.fan_out)


def preflight(config: JobConfig, sinks: Mapping[str, Sink], frame: DataFrame, route: Route | None) -> Preflight:
    """Check everything. Raises the error of a frame or a sink that can't be checked. Changes no target."""
    passes = passes_of(config, sinks, frame, route)
    schemas = passes.schemas()
    findings = {name: ask_sink(config.job.name, sink, schemas[name]) for name, sink in sinks.items()}
    for name, finding in found_together(config, sinks):
        findings[name] = [*findings[name], finding]
    unfit, warnings = look_at_journal(config)
    refusals: list[ExactsinkError] = [*unfit, *promise_refusals(config, sinks, stream=frame.isStreaming)]
    # A batch run has no epoch before it. If all sinks allow any columns, the journal needn't be read.
    if frame.isStreaming and any(sink.backend.on_schema_change != "allow" for sink in sinks.values()):
        refusals += column_refusals(config, sinks, passes.columns())
    result = Preflight(findings, refusals, warnings, passes=passes, advice=advice(frame.sparkSession))
    if not (result.errors or result.refusals):  # the task takes a second, so only if all else is well
        try:
            _try_executors(frame.sparkSession, sinks)
        except PreflightError as refusal:
            refusals.append(refusal)
    return result


def _try_executors(spark: SparkSession, sinks: Mapping[str, Sink]) -> None:
    """Run one task that gets every backend and resolves its options. Compare versions. Raises PreflightError."""
    check_pickles(sinks)
    backends = [sink.for_tasks for sink in sinks.values()]

    def probe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            for backend in backends:
                resolved(backend, os.environ)
            yield pa.record_batch({"version": pa.array([exactsink.__version__], pa.string())})

    try:
        found = spark.range(0, 1, 1, 1).mapInArrow(probe, "version string").collect()[0]["version"]
    except (Py4JJavaError, PySparkException) as error:
        raise refused_by_executors(error) from error
    if found != exactsink.__version__:
        raise PreflightError(
            f"the executors have exactsink {found}, the driver {exactsink.__version__}",
            next=f"pip install exactsink=={exactsink.__version__} on every executor",
        )


def check_pickles(sinks: Mapping[str, Sink]) -> None:
    """Raise ContractError for a backend that can't be pickled: it holds a connection, a lock or a lambda."""
    dumps: Any = cloudpickle.dumps  # has no types
    for name, sink in sinks.items():
        try:
            dumps(sink.for_tasks)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise broken(name, sink.backend, "its backend can't be sent to the executors", why) from error


def refused_by_executors(error: Exception) -> PreflightError:
    """Return why the probing task failed, and the fix. It names another Python first, because Spark can't use two."""
    python, why = os.environ.get("PYSPARK_PYTHON", "python3"), task_error(error)
    what, fix = f"the executors can't run this job's backends with {python}", _INSTALL
    if "PYTHON_VERSION_MISMATCH" in str(error):
        what = f"the executors run another Python: PYSPARK_PYTHON is {python}"
        why = f"the driver has {platform.python_version()}, and Spark requires the same minor version"
        fix = _OTHER_PYTHON
    elif "No such file" in why and "PYSPARK_PYTHON" in os.environ:
        fix = _OTHER_PYTHON
    elif "PYSPARK_PYTHON" not in os.environ:  # a program that was started by its interpreter's path
        fix = f"export PYSPARK_PYTHON={sys.executable}, because Spark takes the first python3 of PATH; or {_INSTALL}"
    return PreflightError(what, why=why, next=fix)
