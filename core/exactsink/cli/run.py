"""`exactsink run`: run the job of a file in this process, until it ends."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from exactsink.cli.table import print_guarantees
from exactsink.contract import Event
from exactsink.job.config import load_config
from exactsink.job.registry import Registry, installed_plugins
from exactsink.job.stop import Stop
from exactsink.observe.logs import LogContext, in_context, logs_json
from exactsink.operate.reachable import ANSWER_SECONDS, reachable
from exactsink.protocol.events import Subscriber
from exactsink.spark.job import Job
from exactsink.spark.jvm import end_session, kill_jvm
from exactsink.spark.session import make_session, read_source
from exactsink.spark.supervise import supervise

__all__ = ["run"]


def run(
    path: str,
    subscribers: Sequence[Subscriber] = (),
    stop: Stop | None = None,
    answer: dict[str, Any] | None = None,
    within: float = ANSWER_SECONDS,
) -> None:
    """Run the job of this file until its source is exhausted, or `stop` gets a request. Raises exactsink's errors.

    Before Spark starts, each store may take `within` seconds to answer. `answer` has the totals of the finished epochs
    at any time. Once Spark has started, a line reports these totals, however the run ends.
    """
    stop, answer = stop or Stop(), {} if answer is None else answer
    began = time.monotonic()
    name = load_config(path)[0].job.name
    context = LogContext(name)
    answer |= {"job": name, "epochs": 0, "last_epoch": None, "rows": {}, "seconds": 0.0, "restarts": 0}
    answer["stopped_by"] = None
    job = Job.from_toml(path, (context, partial(_count, answer), *subscribers))
    stop.within = job.config.job.stop_within_seconds
    stop.on_asked = lambda by, seconds: job.events.report("stop_asked", level=logging.WARNING, by=by, seconds=seconds)
    ending = _Ending(job, answer, stop, began)
    stop.on_crash = [ending.report, kill_jvm, job.abandon]
    stop.watch(job.config.history)
    with in_context(context):
        if not logs_json():  # in JSON, events report it
            print_guarantees(job.sinks, Registry(installed_plugins()), sys.stderr)
        reachable(job.config, job.sinks, seconds=within)
        spark = make_session(job.config)
        try:
            stop.take_signals()  # back from the Spark context
            supervise(job, lambda: read_source(job.config, spark), stop=stop)
        finally:
            ending.report()
            job.close()
            end_session(spark)
    if stop.at_once:
        raise KeyboardInterrupt


class _Ending:
    """Report a run's totals once: at its end, or when it ends as in a crash."""

    def __init__(self, job: Job, answer: dict[str, Any], stop: Stop, began: float) -> None:
        self._job, self._answer, self._stop, self._began = job, answer, stop, began
        self._said = threading.Lock()

    def report(self) -> None:
        if not self._said.acquire(blocking=False):
            return
        self._answer["stopped_by"] = self._stop.asked or None
        self._answer["seconds"] = round(time.monotonic() - self._began, 1)
        ran = {name: value for name, value in self._answer.items() if name != "job"}
        self._job.events.report("run_ended", level=logging.DEBUG, **ran)


def _count(answer: dict[str, Any], event: Event) -> None:
    """Count a finished epoch, or a restart."""
    if event.name == "query_restarted":
        answer["restarts"] += 1
    if (event.name, event.edge) != ("return", "before"):
        return
    answer["epochs"] += 1
    answer["last_epoch"] = event.epoch
    for sink, rows in event.fields["rows"].items():
        answer["rows"][sink] = answer["rows"].get(sink, 0) + rows
