"""A sink's frame written by one of Spark's own file writers, where its backend votes for what these have staged.

Rows never leave the JVM. Their count, and the sum of their hashes, are metrics that Spark observes in the tasks of the
write: it takes those of one finished attempt per partition, the one whose files it keeps.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention

from exactsink.contract import ConfigError, SparkWrite
from exactsink.protocol.sinks import Sink
from exactsink.protocol.votes import EpochPlan, Vote
from exactsink.spark.one_pass import OnePass, arrow_schema, distributed
from exactsink.spark.row_hash import row_hash
from exactsink.toolkit.spark_sql import quoted_name

__all__ = ["StagedFiles", "pass_over"]

_LOCAL = re.compile(r"local(\[.*\])?")
_LOW_BITS = 0xFFFFFFFF


def pass_over(frame: DataFrame, sinks: Mapping[str, Sink]) -> OnePass | StagedFiles:
    """Return how frames like this one are written into these sinks. Raises ConfigError."""
    one_pass = OnePass(frame, sinks)
    for name, sink in sinks.items():
        write = sink.backend.spark_write(arrow_schema(_columns(frame, sink)))
        obstacle = "" if write is None else _obstacle(frame.sparkSession, sinks, sink, write)
        if write is not None and write.required and obstacle:
            raise ConfigError(
                f"sink {name}: Spark's own writers can't write its files",
                why=obstacle,
                next=f"see to that, or let the sink's own writer write them: [sinks.{name}]",
            )
        if write is not None and not obstacle:
            return StagedFiles(sink, write, one_pass)
    return one_pass


class StagedFiles:
    """Frames of one schema, all of whose columns and rows go to one sink, as its only participant."""

    def __init__(self, sink: Sink, write: SparkWrite, one_pass: OnePass) -> None:
        self._sink = sink
        self._write = write
        self._one_pass = one_pass

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        """The shaped frame as an Arrow schema: the sink's committer checks that, whoever writes."""
        return self._one_pass.schemas

    def write(self, frame: DataFrame, plan: EpochPlan) -> Sequence[Vote]:
        """Run the frame through Spark's writer, and vote for all of it.

        Single partitions, whose votes are lost, were written by the backend's own writer, and are again.
        """
        name, sink_plan = self._sink.name, plan.sinks[self._sink.name]
        if sink_plan.only is not None:
            return self._one_pass.write(frame, plan)
        backend = self._sink.backend
        staged, txn = (plan.txn(name, 0, secrets.randbits(62)) for _ in range(2))  # attempts that no task has
        rows, digest = self._run(frame, backend.spark_staging(staged, sink_plan.ticket))
        committable = backend.pre_commit_staged(txn, staged, sink_plan.ticket)
        return [Vote(name, 0, rows, None if committable is None else replace(committable, digest=digest))]

    def _run(self, frame: DataFrame, folder: str) -> tuple[int, int]:
        """Write the frame into a folder; return how many rows went there, and the sum of their hashes."""
        observed = Observation()
        rows = _columns(distributed(frame, {self._sink.name: self._sink}), self._sink)
        kinds = [field.dataType for field in rows.schema.fields]
        hashed = rows.select("*", row_hash(kinds, [F.col(quoted_name(name)) for name in rows.columns]).alias(_HASH))
        hashed = hashed.observe(observed, *_metrics(F.col(_HASH)))
        writer = hashed.drop(_HASH).write.format(self._write.format).options(**self._write.options)
        writer.partitionBy(*self._write.partition_by).save(f"file:{folder}")
        found = observed.get
        return found["rows"], ((found["low"] or 0) + ((found["high"] or 0) << 32)) % (1 << 64)


_HASH = "_exactsink_hash"


def _metrics(value: Column) -> list[Column]:
    """Count rows and sum their hashes, in two halves: Spark refuses a sum that overflows."""
    low, high = value.bitwiseAND(F.lit(_LOW_BITS)), F.shiftrightunsigned(value, 32)
    return [F.count(F.lit(1)).alias("rows"), F.sum(low).alias("low"), F.sum(high).alias("high")]


def _columns(frame: DataFrame, sink: Sink) -> DataFrame:
    return frame.select(*map(quoted_name, sink.columns or frame.columns))


def _obstacle(spark: SparkSession, sinks: Mapping[str, Sink], sink: Sink, write: SparkWrite) -> str:
    """Return what keeps Spark's own writers from a sink's rows; empty when nothing does."""
    if not _LOCAL.fullmatch(spark.sparkContext.master or ""):
        return "the driver makes their files durable, which it can for tasks of its own machine only: master = local"
    if sink.deferred is not None:
        return "its options are resolved by the tasks, and Spark's own writers can't"
    if len(sinks) > 1 or sink.where is not None:
        return "they write a whole frame, and this sink shares one, or has a where: give it its own with a route"
    for key, value in write.settings.items():
        if (is_now := spark.conf.get(key)) != value:
            return f"[spark.conf] {key} is {is_now}, and has to be {value}"
    return ""
