"""A job's running query, for the program that started it."""

from __future__ import annotations

import html
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from exactsink.contract import ConfigError, Fenced
from exactsink.protocol.events import Events
from exactsink.protocol.sinks import Sink
from exactsink.spark.epochs import Epochs
from exactsink.spark.errors import first_line, query_error
from exactsink.spark.jvm import jvm_is_gone, lost_jvm_named
from exactsink.spark.shown import sinks_table
from exactsink.spark.versions import source_metrics

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from typing_extensions import Self

__all__ = ["Query"]

_LOOK_SECONDS = 0.1
_BEHIND = {"maxOffsetsBehindLatest": "offsets", "numFilesOutstanding": "files", "numBytesOutstanding": "bytes"}
"""The metrics that sources report in Spark's progress, and their units."""
_QUIET_SECONDS = 5.0


class Query:
    """A job's streaming query, started by `Job.start`. It has the names of Spark's StreamingQuery.

    Two things differ: `stop` lets the epoch end first, and errors are exactsink's, with Spark's as their cause. As a
    context manager, it stops the query at the end of the block.
    """

    def __init__(self, streaming: StreamingQuery, epochs: Epochs, sinks: Mapping[str, Sink], events: Events) -> None:
        self._streaming = streaming
        self._epochs = epochs
        self._sinks = sinks
        self._events = events
        self._behind_at: str | None = None

    @property
    def id(self) -> str:
        """The query's id: the same after each start from its checkpoint."""
        return self._streaming.id

    @property
    def runId(self) -> str:  # noqa: N802  (Spark's name)
        """The id of this start of the query."""
        return self._streaming.runId

    @property
    def name(self) -> str:
        """The job's name, which is also the query's name in Spark."""
        return self._streaming.name

    @property
    def isActive(self) -> bool:  # noqa: N802
        """Whether the query runs."""
        return self._epochs.is_active()

    @property
    def status(self) -> dict[str, Any]:
        """The query's present work, as Spark reports it."""
        return self._streaming.status

    @property
    def lastProgress(self) -> Any:  # noqa: N802
        """Spark's report of the last batch; None before the first one."""
        return self._streaming.lastProgress

    @property
    def recentProgress(self) -> Any:  # noqa: N802
        """Spark's reports of the last batches."""
        return self._streaming.recentProgress

    @property
    def epochs(self) -> int:
        """How many epochs this query has finished since it was started."""
        return self._epochs.done

    @property
    def last_epoch(self) -> int | None:
        """The number of the last epoch that this query finished; None before the first one."""
        return self._epochs.last_epoch

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        """Wait until the query ends; with a timeout in seconds, return whether it has ended by then.

        Raises the error that ended the query: exactsink's, or the program's own from a route or a transform.
        """
        if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
            raise ConfigError(
                f"awaitTermination takes a number of seconds above 0, and got {timeout!r:.40}",
                next="query.awaitTermination(10); or query.isActive, which returns at once",
            )
        waiting: Any = timeout
        with self._ours():
            return self._streaming.awaitTermination(waiting)

    def exception(self) -> BaseException | None:
        """Return the error that `awaitTermination` raises; None while the query runs, or if it ended without one."""
        error, failure = self._streaming.exception(), self._epochs.failure
        if error is None:
            return failure if isinstance(failure, Fenced) else None
        return query_error(failure, error)

    def processAllAvailable(self) -> None:  # noqa: N802
        """Wait until all present rows of the source are committed in every sink. Raises like `awaitTermination`."""
        with self._ours():
            self._streaming.processAllAvailable()

    @contextmanager
    def _ours(self) -> Iterator[None]:
        try:
            with lost_jvm_named():
                yield
            if isinstance(self._epochs.failure, Fenced):  # Spark takes it for stopped
                raise self._epochs.failure
        except (PySparkException, Py4JJavaError) as error:  # the latter has no class in pyspark
            ours = query_error(self._epochs.failure, error)
            raise ours from (ours.__cause__ or error)

    def explain(self, extended: bool = False) -> None:
        """Print the plan of the last batch."""
        self._streaming.explain(extended)

    def stop(self) -> None:
        """Stop the query after its running epoch, once Spark has recorded it. Returns when it has ended. Idempotent.

        The next start has nothing to repeat. It is also safe to kill the process in the middle of an epoch.
        """
        self._epochs.ending = True
        while self.isActive and self.is_in_epoch():
            time.sleep(_LOOK_SECONDS)
        until = time.monotonic() + _QUIET_SECONDS
        while self.isActive and not self._is_quiet() and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)  # an interrupt in the middle of Spark's planning is logged as an error
        self.interrupt()
        self._epochs.close()

    def interrupt(self) -> None:
        """Stop the query at once, even in an epoch, which the next start finishes or aborts. Idempotent."""
        try:
            self._streaming.stop()
        except (Py4JError, OSError) as error:
            if "stopped SparkContext" not in first_line(error) and not jvm_is_gone():  # which end their queries
                raise

    def is_in_epoch(self) -> bool:
        """Return whether an epoch runs, or Spark has not recorded the last one yet."""
        return self._epochs.is_in_epoch()

    def report_behind(self) -> None:
        """Report how far the query is behind its sources, if Spark reports it: once for each of Spark's reports."""
        progress = self._streaming.lastProgress
        if progress is None or progress["timestamp"] == self._behind_at:
            return
        self._behind_at = progress["timestamp"]
        for source in progress["sources"]:
            metrics = source_metrics(source)
            for name, of in _BEHIND.items():
                with suppress(KeyError, ValueError):  # the source lacks it, or reports "null"
                    fields = {"source": source["description"], "of": of, "behind": float(metrics[name])}
                    self._events.report("source_behind", level=logging.DEBUG, **fields)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Query of job {self._events.job}: {self._state()}; sinks: {', '.join(self._sinks)}>"

    def _repr_html_(self) -> str:
        """Show the query as a table in a notebook."""
        table = sinks_table(self._sinks, self._epochs.in_doubt())
        return f"<p>Query of job <b>{html.escape(self._events.job)}</b>: {self._state()}</p>{table}"

    def _state(self) -> str:
        with suppress(Py4JError, OSError):
            running = "running" if self.isActive else "failed" if self.exception() else "ended"
            last = "no epoch yet" if self.last_epoch is None else f"last epoch {self.last_epoch}"
            return f"{running}, {last}"
        return "its JVM is gone"

    def _is_quiet(self) -> bool:
        """Return whether Spark waits for its next trigger, or its batch is parked."""
        return self._epochs.is_parked() or not self.status["isTriggerActive"]
