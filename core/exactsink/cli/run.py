"""`exactsink run`: a job in this process, from its file to its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from exactsink.cli.table import print_guarantees
from exactsink.contract import Event
from exactsink.job.registry import Registry, installed_plugins
from exactsink.protocol.events import Subscriber
from exactsink.spark.job import Job
from exactsink.spark.session import make_session, read_source
from exactsink.spark.supervise import supervise

__all__ = ["Progress", "run"]


def run(path: str, subscribers: Sequence[Subscriber] = ()) -> None:
    """Run the job of this file until its source is exhausted. Raises our errors as they are."""
    shown: tuple[Subscriber, ...] = (Progress(),) if sys.stderr.isatty() else ()
    job = Job.from_toml(path, (*shown, *subscribers))
    print_guarantees(job.sinks, Registry(installed_plugins()), sys.stderr)
    spark = make_session(job.config)
    try:
        supervise(job, lambda: read_source(job.config, spark))
    finally:
        job.close()
        spark.stop()


class Progress:
    """One line per epoch on a terminal: epoch, rows, rows per second, commit time per sink."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._commits: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        point, _, sink = event.name.partition(":")
        if point == "commit" and event.edge == "after":
            self._commits[sink] = event.fields["seconds"]
        elif event.name == "open_epoch" and event.edge == "before":
            self._began, self._commits = time.monotonic(), {}
        elif event.name == "return" and event.edge == "before":
            print(self._line(event), file=sys.stderr, flush=True)

    def _line(self, event: Event) -> str:
        rows = max(event.fields["rows"].values(), default=0)
        rate = rows / max(time.monotonic() - self._began, 1e-6)
        commits = "  ".join(f"{sink} {seconds * 1000:.0f} ms" for sink, seconds in sorted(self._commits.items()))
        return f"epoch {event.epoch:>6}  {rows:>10,} rows  {rate:>10,.0f} rows/s  commit {commits}"
