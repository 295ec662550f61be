"""`exactsink check`: the config, the sinks and their targets, without a row written."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from exactsink.cli.table import print_sinks
from exactsink.errors import PreflightError
from exactsink.spark.job import Job
from exactsink.spark.one_pass import OnePass
from exactsink.spark.preflight import check_executors, check_sinks
from exactsink.spark.session import make_session, read_source

__all__ = ["check"]


def check(path: str, as_json: bool) -> None:
    """Print every sink and finding. Raises PreflightError when one of them would stop the job."""
    job = Job.from_toml(path)
    spark = make_session(job.config, Path(path).absolute().parent)
    try:
        schemas = OnePass(read_source(job.config, spark), job.sinks).schemas()
        findings = check_sinks(job.config.job.name, job.sinks, schemas)
        check_executors(spark, job.sinks)
    finally:
        spark.stop()
    if as_json:
        body = {
            name: {
                "backend": sink.kind,
                "strategy": sink.backend.strategy,
                "guarantee": sink.backend.traits.guarantee,
                "target": sink.backend.target,
                "findings": [{"severity": f.severity, "message": f.message, "fix": f.fix} for f in findings[name]],
            }
            for name, sink in job.sinks.items()
        }
        print(json.dumps({"job": job.config.job.name, "sinks": body}, indent=1))
    else:
        print_sinks(job.sinks, sys.stdout)
        for name, found in findings.items():
            for finding in found:
                print(f"{finding.severity}: sink {name}: {finding.message}\n  mend: {finding.fix}")
    errors = sum(finding.severity == "error" for found in findings.values() for finding in found)
    if errors:
        raise PreflightError(f"{errors} findings would stop the job", next=f"mend them, then `exactsink run {path}`")
