"""Look before the first row whether every sink, and every executor, can give what the job asks for."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import exactsink
from exactsink.contract import Finding, PreflightError
from exactsink.protocol.sinks import Sink, committer_of
from exactsink.spark.causes import task_error

__all__ = ["check_executors", "check_sinks", "refuse_errors"]


def check_sinks(job: str, sinks: Mapping[str, Sink], schemas: Mapping[str, pa.Schema]) -> Mapping[str, list[Finding]]:
    """Let each sink look at its target. Changes nothing."""
    findings = {}
    for name, sink in sinks.items():
        committer = committer_of(sink, job)
        try:
            findings[name] = list(committer.check(schemas[name], sink.max_participants))
        finally:
            committer.close()
    return findings


def refuse_errors(findings: Mapping[str, list[Finding]]) -> None:
    """Raise PreflightError with every error finding and the statement that fixes it."""
    errors = [(sink, finding) for sink, found in findings.items() for finding in found if finding.severity == "error"]
    if errors:
        lines = [f"sink {sink}: {finding.message}\n  fix: {finding.fix}" for sink, finding in errors]
        raise PreflightError("\n".join(lines), next="fix that, then `exactsink check`")


def check_executors(spark: SparkSession, sinks: Mapping[str, Sink]) -> None:
    """Run one task that imports every backend and resolves its options, and compare versions. Raises PreflightError."""
    modules = sorted({type(sink.backend).__module__ for sink in sinks.values()})
    deferred = [sink.deferred for sink in sinks.values() if sink.deferred is not None]

    def probe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            for module in modules:
                importlib.import_module(module)
            for backend in deferred:
                backend.resolve(os.environ)
            yield pa.record_batch({"version": pa.array([exactsink.__version__], pa.string())})

    try:
        found = spark.range(0, 1, 1, 1).mapInArrow(probe, "version string").collect()[0]["version"]
    except (Py4JJavaError, PySparkException) as error:
        raise PreflightError(
            "the executors can't run this job's backends",
            why=task_error(error),
            next="see that every executor has exactsink with the backends' extras (pip install exactsink[...]), and "
            "what the config wants of its environment",
        ) from error
    if found != exactsink.__version__:
        raise PreflightError(
            f"the executors have exactsink {found}, the driver {exactsink.__version__}",
            next=f"pip install exactsink=={exactsink.__version__} on every executor",
        )
