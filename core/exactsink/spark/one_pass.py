"""One pass over a frame for all sinks: a struct and a hash column per sink, NULL where its `where` is not true."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from exactsink.backend import Backend
from exactsink.deferred import DeferredBackend, resolved
from exactsink.errors import ConfigError
from exactsink.participant import SinkRows, vote
from exactsink.sinks import Sink, check_one_frame
from exactsink.spark.causes import first_line
from exactsink.votes import EpochPlan, Vote

__all__ = ["OnePass"]

_STAR = re.compile(r"(?<=[(,])\s*\*\s*(?=[,)])")


class OnePass:
    """Frames of one schema, shaped for every sink. Making one analyzes, and may raise ConfigError; `write` runs."""

    def __init__(self, frame: DataFrame, sinks: Mapping[str, Sink]) -> None:
        check_one_frame(sinks)
        self._sinks = sinks
        self._schema = frame.schema
        self._shapes: dict[str, _Shape] = {}
        for name, sink in sinks.items():
            try:
                self._shapes[name] = _shape(frame, sink)
            except PySparkException as error:
                raise _unshaped(name, error) from error

    def fits(self, frame: DataFrame) -> bool:
        """Say whether a frame has this schema; batches of one query have, and needn't be analyzed anew."""
        return frame.schema == self._schema

    def schemas(self) -> Mapping[str, pa.Schema]:
        """Give each sink's shaped frame as an Arrow schema."""
        return {name: shape.schema for name, shape in self._shapes.items()}

    @contextmanager
    def batch(self, frame: DataFrame, *, keeps_state: bool) -> Iterator[Callable[[EpochPlan], Sequence[Vote]]]:
        """Give the function that writes a batch. It runs the whole frame, so no state misses a batch."""
        yield lambda plan: self.write(frame, plan)

    def write(self, frame: DataFrame, plan: EpochPlan) -> Sequence[Vote]:
        """Run the whole frame once through the plan's sinks; one winning attempt's votes per partition."""
        shapes = [self._shapes[name] for name in plan.sinks]
        structs = [shape.rows.alias(f"rows_{index}") for index, shape in enumerate(shapes)]
        hashes = [_hash(f"rows_{index}", shape).alias(f"hashes_{index}") for index, shape in enumerate(shapes)]
        wide = _distributed(frame, self._sinks).select(*structs).select("*", *hashes)
        task = _Task(plan, {name: self._sinks[name].for_tasks for name in plan.sinks})
        rows = wide.mapInArrow(task, "vote binary").collect()
        return [pickle.loads(row["vote"]) for row in rows]


@dataclass(frozen=True, slots=True)
class _Shape:
    """A sink's rows as one struct, NULL where they are not for it, and the Arrow schema of its fields."""

    rows: Column
    schema: pa.Schema
    has_map: bool


@dataclass(frozen=True, slots=True)
class _Task:
    """What runs on an executor, once per partition."""

    plan: EpochPlan
    backends: Mapping[str, Backend | DeferredBackend]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        rows = (self._split(batch) for batch in batches)
        backends = {name: resolved(backend, os.environ) for name, backend in self.backends.items()}
        votes = vote(self.plan, backends, context.partitionId(), context.taskAttemptId(), rows, _no_probe)
        yield pa.record_batch({"vote": pa.array([pickle.dumps(v) for v in votes], pa.binary())})

    def _split(self, batch: pa.RecordBatch) -> SinkRows:
        """Cut a wide batch into each sink's rows, dropping those that its `where` left NULL."""
        cut = {}
        for index, name in enumerate(self.backends):
            rows, hashes = batch.column(f"rows_{index}"), batch.column(f"hashes_{index}")
            if rows.null_count:
                there = rows.is_valid()
                rows, hashes = rows.filter(there), hashes.filter(there)
            cut[name] = (pa.RecordBatch.from_arrays(rows.flatten(), schema=pa.schema(list(rows.type))), hashes)
        return cut


def _shape(frame: DataFrame, sink: Sink) -> _Shape:
    """Give a sink's rows as its backend wants them; `*` in its expressions stands for the sink's own columns."""
    names = sink.columns or tuple(frame.columns)
    columns = [F.col(_quoted(name)) for name in names]
    expressions = sink.backend.shape(_arrow_schema(frame.select(*columns)))
    if expressions is not None:
        every = ", ".join(map(_quoted, names))
        columns = [F.expr(_STAR.sub(lambda _: every, expression)) for expression in expressions]
    shaped = frame.select(*columns)
    rows = F.struct(*columns)
    if sink.where is not None:
        rows = F.when(F.expr(sink.where), rows)
        frame.select(rows)  # analyzed now: a mistake in `where` is told before the query starts
    return _Shape(rows, _arrow_schema(shaped), _has_map(shaped.schema))


def _unshaped(sink: str, error: PySparkException) -> ConfigError:
    return ConfigError(
        f"sink {sink}: Spark refuses its columns, where or types",
        why=first_line(error),
        next=f"mend [sinks.{sink}], or the job's transform",
    )


def _arrow_schema(frame: DataFrame) -> pa.Schema:
    return to_arrow_schema(frame.schema, timezone=frame.sparkSession.conf.get("spark.sql.session.timeZone"))


def _distributed(frame: DataFrame, sinks: Mapping[str, Sink]) -> DataFrame:
    """Cut the shared frame into partitions as the sinks ask; the config has made sure that they agree."""
    asked = next((s.distribution for s in sinks.values() if s.distribution != "none"), "none")
    most = min((s.max_participants for s in sinks.values() if s.max_participants is not None), default=None)
    if isinstance(asked, int):
        return frame.repartition(asked if most is None else min(asked, most))
    if asked != "none":
        keys = [
            F.col(_quoted(key.strip().strip("`"))) for key in asked.removeprefix("hash(").removesuffix(")").split(",")
        ]
        return frame.repartition(*keys) if most is None else frame.repartition(most, *keys)
    return frame if most is None else frame.coalesce(most)


def _hash(column: str, shape: _Shape) -> Column:
    """Hash a row on the JVM. xxhash64 takes no maps, whose order is undefined: those rows are hashed as JSON."""
    return F.xxhash64(F.to_json(F.col(column)) if shape.has_map else F.col(column))


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_map(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _has_map(kind.elementType)
    return isinstance(kind, MapType)


def _quoted(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"


def _no_probe(point: str, edge: str, epoch: int) -> None:
    """Faults are injected in tasks by the Spark-less runner only."""
