"""A job on Spark: its sinks, and its two kinds of input, a stream or batch runs."""

from __future__ import annotations

import html
import logging
import os
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import tomli_w
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from exactsink.contract import ConfigError
from exactsink.job.commands import Commands
from exactsink.job.config import JobConfig, bind_sinks, config_of, load_config
from exactsink.job.config.toml import Document, document_of
from exactsink.job.guarantees import check_batch_guarantee, check_stream_guarantee
from exactsink.job.history import JobHistory
from exactsink.job.registry import Registry, installed_plugins
from exactsink.observe import Observer
from exactsink.observe import subscribers as observers_of
from exactsink.observe.progress import EpochLines
from exactsink.protocol.events import Events, Subscriber
from exactsink.protocol.journal.journal import Journal
from exactsink.protocol.sinks import Sink
from exactsink.spark.batch import RunResult, known_run, write_run
from exactsink.spark.epochs import Epochs
from exactsink.spark.errors import query_error, refuse_connect
from exactsink.spark.frames import check_frame, run_name
from exactsink.spark.jvm import lost_jvm_named
from exactsink.spark.modules import load_route
from exactsink.spark.preflight import Preflight, preflight
from exactsink.spark.query import Query
from exactsink.spark.routes import Route
from exactsink.spark.shown import sinks_table
from exactsink.toolkit.waiting import backoff
from exactsink.watch.recent import Recent

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from typing_extensions import Self, Unpack

    from exactsink.job.config.options import JobOptions

__all__ = ["Job"]

_STARTED: WeakValueDictionary[str, Query] = WeakValueDictionary()
"""The last query of each job in this process, by the job's folder."""


class Job:
    """Sinks that are committed together, fed by one streaming query or by batch runs.

    `Job(name="orders", checkpoint="/data/orders", sinks={"lake": {"backend": "files", "path": "/data/lake"}})` takes
    the contents of a job's file, and `Job.from_toml("job.toml")` reads the file. `job.start(df)` starts the query.
    `df.writeStream.foreachBatch(job.foreach_batch())` makes the same query by hand: its `checkpointLocation` must be
    the job's checkpoint. `job.write(df, run="2026-11-20")` writes a batch run.
    """

    config: JobConfig
    sinks: Mapping[str, Sink]

    def __init__(
        self,
        *,
        name: str,
        checkpoint: str | os.PathLike[str],
        sinks: Mapping[str, Mapping[str, Any]],
        observe: Mapping[str, Any] | None = None,
        subscribers: Sequence[Subscriber] = (),
        **options: Unpack[JobOptions],
    ) -> None:
        """Check the job and bind its sinks. Starts nothing. Raises ConfigError with the place of each mistake.

        `sinks` has the table `[sinks.NAME]` of each sink, `observe` is `[observe]`, and `options` are those of `[job]`.
        """
        job = {"name": name, "checkpoint": checkpoint, **options}
        self._read({"job": job, "sinks": sinks} | ({"observe": observe} if observe else {}), subscribers)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], subscribers: Sequence[Subscriber] = ()) -> Job:
        """Read a job's file and bind its sinks. Starts nothing. Raises ConfigError with the file and line."""
        if isinstance(path, Mapping):
            raise ConfigError("from_toml takes a job's file, and got its tables", next="Job.from_dict(tables)")
        return cls.__new__(cls)._bind(*load_config(path), subscribers)

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any], subscribers: Sequence[Subscriber] = ()) -> Job:
        """Take a job's tables as a job's file has them, `{"job": {...}, "sinks": {...}}`. Otherwise like `Job`."""
        return cls.__new__(cls)._read(tables, subscribers)

    @classmethod
    def of_sinks(cls, config: JobConfig, sinks: Mapping[str, Sink], subscribers: Sequence[Subscriber] = ()) -> Job:
        """Make a job of bound sinks, even of backends that no plugin offers."""
        return cls.__new__(cls)._hold(config, sinks, subscribers)

    def to_toml(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the job as a file's text, with each `${NAME}` as it was given. With `path`, also write it there.

        Only the current user can read that file, because it holds the given values, including passwords. Raises
        ConfigError if the file exists already, or is not in the folder where the job's relative paths begin.
        """
        text = tomli_w.dumps(self._document.written)
        if path is not None:
            file = Path(path).absolute()
            if str(file.parent) != self._document.folder:
                why = f"relative paths in a file begin at its folder, and this job's begin at {self._document.folder}"
                raise ConfigError(f"the job's file can't be {file}", why=why, next="choose a name in that folder")
            try:
                with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
                    out.write(text)
            except OSError as error:
                why = str(error.strerror)
                raise ConfigError(f"{file} can't be written", why=why, next="choose a new name") from None
        return text

    def _read(self, tables: Mapping[str, Any], subscribers: Sequence[Subscriber]) -> Job:
        if not isinstance(tables, Mapping):
            raise ConfigError(
                f"the job's tables are {type(tables).__name__}",
                next='Job.from_toml("job.toml") takes a file, Job.from_dict({"job": {...}, "sinks": {...}}) its tables',
            )
        document = document_of(tables, os.environ)
        with Commands(None).named():
            return self._bind(config_of(document), document, subscribers)

    def _bind(self, config: JobConfig, document: Document, subscribers: Sequence[Subscriber]) -> Job:
        registry = Registry(installed_plugins())
        with Commands(config.file).named():
            self._hold(config, bind_sinks(config, document, registry), (registry.send, *subscribers))
        self._document = document
        return self

    def _hold(self, config: JobConfig, sinks: Mapping[str, Sink], subscribers: Sequence[Subscriber]) -> Job:
        self.config, self.sinks = config, sinks
        self._subscribers: tuple[Subscriber, ...] = (EpochLines(), Recent(JobHistory.of(config)), *subscribers)
        self._observers: tuple[Observer, ...] = ()
        self._epochs: Epochs | None = None
        self._query: Query | None = None
        return self

    def start(self, frame: DataFrame, route: Route | None = None) -> Query:
        """Check every sink, claim the job, finish the work that an earlier driver left, and start the query.

        Without `route`, every sink gets the frame. With it, each sink gets the frame that the route returns for it.
        Raises PreflightError, LineageError, ConfigError, InDoubtError or Retryable before Spark reads a row.
        """
        with Commands(self.config.file).named(), lost_jvm_named():
            refuse_connect("start")
            check_frame(frame, "start", streaming=True)
            self._refuse_second(frame)
            route = route or load_route(self.config)
            found = self._checked(frame, route)
            self.end_query()
            self._epochs = Epochs(self.config, self.sinks, self.events, route, found.passes)
            self._query = Query(self._started(self._epochs, frame), self._epochs, self.sinks, self.events)
            _STARTED[str(self.config.history)] = self._query
            return self._query

    def foreach_batch(self, route: Route | None = None, *batch: object) -> Epochs:
        """Return the function for a hand-made query. It claims the job at its first call in every run of the query.

        Raises ConfigError for a `batch`, which Spark gives if the parentheses after `job.foreach_batch` are missing.
        """
        if batch:
            raise _called_by_spark("job.foreach_batch")
        with Commands(self.config.file).named():
            refuse_connect("foreach_batch")
            check_stream_guarantee(self.sinks)
            self._observe()
            self.end_query()
            self._epochs = Epochs(self.config, self.sinks, self.events, route or load_route(self.config))
            return self._epochs

    def write(self, frame: DataFrame, run: str | date, route: Route | None = None) -> RunResult:
        """Write a frame into all sinks as the batch run of this name, exactly once. A complete run changes nothing.

        Returns when every row is durable and visible in every sink. Each run has its own history, so runs may come in
        any order, and several at the same time. Raises the errors of `start`. After any error, it is safe to call it
        again.
        """
        run = run_name(run)
        with Commands(self.config.file, run).named(), lost_jvm_named():
            check_frame(frame, "write", streaming=False)
            self._observe()
            route = route or load_route(self.config)
            history = JobHistory.of(self.config, run)
            known = known_run(history, self.sinks, frame.dtypes if route is None else None)
            if known is not None:
                level = logging.WARNING if known.missing or known.changed else logging.INFO
                missing, changed = ", ".join(known.missing), ", ".join(known.changed)
                self.events.report("run_known", level=level, run=run, missing=missing, changed=changed)
                return known
            check_batch_guarantee(self.sinks)
            passes = self._checked(frame, route).passes
            return write_run(history, self.sinks, self._events_of(history), frame, passes, self.config.job.restarts)

    def preflight(self, frame: DataFrame, route: Route | None = None) -> Preflight:
        """Check everything that could stop the job. Writes no row."""
        with Commands(self.config.file).named():
            return preflight(self.config, self.sinks, frame, route or load_route(self.config))

    def journal(self) -> Journal:
        """Open the stream's journal. The caller must close it."""
        return JobHistory.of(self.config).journal(backoff)

    @property
    def events(self) -> Events:
        """The job's events, reported to every subscriber."""
        return self._events_of(JobHistory.of(self.config))

    def end_query(self) -> None:
        """End the last query's driver, so that another query may follow. Idempotent."""
        if self._epochs is not None:
            self._epochs.close()

    def check_fenced(self) -> None:
        """Raise Fenced if another driver has claimed the job since its last query did."""
        if self._epochs is not None:
            self._epochs.check_fenced()

    def abandon(self) -> None:
        """Record that the last query's driver has ended, even in the middle of an epoch: the process ends now."""
        if self._epochs is not None:
            self._epochs.abandon()

    def close(self) -> None:
        """Stop the running query, as its `stop` does, and close everything that the job holds. Idempotent.

        `with Job(...) as job:` does so at the end of its block.
        """
        if self._query is not None and self._query.isActive:
            self._query.stop()
        self.end_query()
        observers, self._observers = self._observers, ()
        for observer in observers:
            observer.close()

    def __call__(self, *batch: object) -> None:
        """Raise ConfigError, because `foreachBatch` was given the job in place of `job.foreach_batch()`."""
        raise _called_by_spark("job")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Job {self.config.job.name}: {', '.join(f'{name} ({s.kind})' for name, s in self.sinks.items())}>"

    def _repr_html_(self) -> str:
        """Show the job as a table of its sinks in a notebook."""
        in_doubt = {} if self._epochs is None else self._epochs.in_doubt()
        return f"<p>Job <b>{html.escape(self.config.job.name)}</b></p>{sinks_table(self.sinks, in_doubt)}"

    def _started(self, epochs: Epochs, frame: DataFrame) -> StreamingQuery:
        """Start the query. If that fails, leave no driver behind."""
        try:
            return epochs.start(frame)
        except (PySparkException, Py4JJavaError) as error:
            epochs.close()
            raise query_error(None, error) from error
        except BaseException:
            epochs.close()
            raise

    def _refuse_second(self, frame: DataFrame) -> None:
        """Refuse a start while a query of this name runs, because a claim would fence it. Raises ConfigError."""
        name, query = self.config.job.name, _STARTED.get(str(self.config.history))
        here = query is not None and query.isActive  # in another session of this process, perhaps
        if here or any(query.name == name for query in frame.sparkSession.streams.active):
            raise ConfigError(
                f"a query of job {name} runs in this program already",
                why="a second start would take the job from it, and both would end",
                next="end it with its stop(), then start; if its variable is gone: "
                f"`[q.stop() for q in spark.streams.active if q.name == {name!r}]`",
            )

    def _events_of(self, history: JobHistory) -> Events:
        heard: tuple[Subscriber, ...] = (*self._subscribers, *self._observers, history.last_times())
        return Events(history.job, heard, history.commands.typed)

    def _checked(self, frame: DataFrame, route: Route | None) -> Preflight:
        self._observe()
        found = preflight(self.config, self.sinks, frame, route)
        found.refuse()
        found.report_to(self.events, self.sinks)
        return found

    def _observe(self) -> None:
        """Open the exporters that `[observe]` names, once, before the first event. Raises ConfigError."""
        if not self._observers:
            self._observers = tuple(observers_of(self.config.observe))


def _called_by_spark(given: str) -> ConfigError:
    return ConfigError(
        f"foreachBatch({given}) gives the batch to another function than exactsink's",
        why="job.foreach_batch() returns exactsink's function; no row of the batch was written",
        next="frame.writeStream.foreachBatch(job.foreach_batch()); or job.start(frame), which makes the query",
    )
