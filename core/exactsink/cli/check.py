"""`exactsink check`: the config, the sinks and their targets, without a row written."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from exactsink.cli.table import guarantees_of, print_guarantees
from exactsink.contract import PreflightError
from exactsink.job.guarantees import job_guarantee
from exactsink.job.history import JobHistory
from exactsink.job.registry import Registry, installed_plugins
from exactsink.operate.reachable import reachable
from exactsink.spark.job import Job
from exactsink.spark.jvm import end_session, jvm_needed
from exactsink.spark.session import make_session, read_source

__all__ = ["check"]


def check(path: str, answer: dict[str, Any]) -> None:
    """Print every sink and finding. Raises PreflightError when one of them would stop the job."""
    job = Job.from_toml(path)
    answer["job"] = job.config.job.name
    reachable(JobHistory.of(job.config), job.sinks)
    spark = make_session(job.config)
    try:
        with jvm_needed():
            found = job.preflight(read_source(job.config, spark))
    finally:
        end_session(spark)
    registry = Registry(installed_plugins())
    answer["guarantee"] = job_guarantee(job.sinks.values())
    answer["sinks"] = {
        guarantee.sink: {**asdict(guarantee), "findings": [asdict(f) for f in found.findings[guarantee.sink]]}
        for guarantee in guarantees_of(job.sinks, registry)
    }
    answer["journal"] = [asdict(finding) for finding in found.journal]
    print_guarantees(job.sinks, registry, sys.stdout)
    for finding in found.journal:
        print(f"{finding.severity}: {finding.message}\n  fix: {finding.fix}")
    for name, findings in found.findings.items():
        for finding in findings:
            print(f"{finding.severity}: sink {name}: {finding.message}\n  fix: {finding.fix}")
    for refusal in found.refusals:
        raise refusal
    if found.errors:
        count = len(found.errors)
        what = "1 finding would stop the job" if count == 1 else f"{count} findings would stop the job"
        raise PreflightError(what, next=f"fix {'it' if count == 1 else 'them'}, then `exactsink run {path}`")
