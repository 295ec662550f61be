"""`exactsink run`: a job in this process, from its file to its end."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from exactsink.cli.table import print_guarantees
from exactsink.job.config import load_config
from exactsink.job.registry import Registry, installed_plugins
from exactsink.observe.logs import LogContext, in_context, logs_json
from exactsink.protocol.events import Subscriber
from exactsink.spark.job import Job
from exactsink.spark.jvm import end_session
from exactsink.spark.session import make_session, read_source
from exactsink.spark.supervise import supervise

__all__ = ["run"]


def run(path: str, subscribers: Sequence[Subscriber] = ()) -> None:
    """Run the job of this file until its source is exhausted. Raises our errors as they are."""
    context = LogContext(load_config(path)[0].job.name)
    job = Job.from_toml(path, (context, *subscribers))
    with in_context(context):
        if not logs_json():  # there the events say it
            print_guarantees(job.sinks, Registry(installed_plugins()), sys.stderr)
        spark = make_session(job.config)
        try:
            supervise(job, lambda: read_source(job.config, spark))
        finally:
            job.close()
            end_session(spark)
