"""`exactsink check`: the config, the sinks and their targets, without a row written."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from exactsink.cli.table import guarantees_of, print_guarantees
from exactsink.contract import PreflightError
from exactsink.job.guarantees import check_guarantee, job_guarantee
from exactsink.job.registry import Registry, installed_plugins
from exactsink.spark.job import Job
from exactsink.spark.preflight import check_executors, check_sinks
from exactsink.spark.session import load_route, make_session, read_source

__all__ = ["check"]


def check(path: str, as_json: bool) -> None:
    """Print every sink and finding. Raises PreflightError when one of them would stop the job."""
    job = Job.from_toml(path)
    spark = make_session(job.config, Path(path).absolute().parent)
    try:
        schemas = job.passes(read_source(job.config, spark), load_route(job.config.job.route)).schemas()
        findings = check_sinks(job.config.job.name, job.sinks, schemas)
        check_executors(spark, job.sinks)
    finally:
        spark.stop()
    registry = Registry(installed_plugins())
    if as_json:
        body = {
            promise.sink: {
                **asdict(promise),
                "findings": [asdict(finding) for finding in findings[promise.sink]],
            }
            for promise in guarantees_of(job.sinks, registry)
        }
        guarantee = job_guarantee(job.sinks.values())
        print(json.dumps({"job": job.config.job.name, "guarantee": guarantee, "sinks": body}, indent=1))
    else:
        print_guarantees(job.sinks, registry, sys.stdout)
        for name, found in findings.items():
            for finding in found:
                print(f"{finding.severity}: sink {name}: {finding.message}\n  fix: {finding.fix}")
    check_guarantee(job.sinks, require=job.config.job.require, allow_early_rows=job.config.job.allow_early_rows)
    errors = sum(finding.severity == "error" for found in findings.values() for finding in found)
    if errors:
        raise PreflightError(f"{errors} findings would stop the job", next=f"fix them, then `exactsink run {path}`")
