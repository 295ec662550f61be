"""`exactsink check`: check the config, the sinks and their targets, without writing a row."""

from __future__ import annotations

from typing import Any

from exactsink.cli.check_driver import report
from exactsink.operate.reachable import reachable
from exactsink.spark.job import Job
from exactsink.spark.jvm import end_session, jvm_needed
from exactsink.spark.session import make_session, read_source

__all__ = ["check"]


def check(path: str, answer: dict[str, Any], within: float) -> None:
    """Print every sink and finding. Raises the error that would stop the job."""
    job = Job.from_toml(path)
    answer["job"] = job.config.job.name
    reachable(job.config, job.sinks, seconds=within)
    spark = make_session(job.config)
    try:
        with jvm_needed():
            found = job.preflight(read_source(job.config, spark))
    finally:
        end_session(spark)
    report(job.sinks, found, answer)
