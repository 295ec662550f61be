"""One pass over a frame for all sinks: a struct and a hash column per sink, NULL where its `where` is not true."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from exactsink.backend import Backend
from exactsink.errors import ConfigError
from exactsink.participant import SinkRows, vote
from exactsink.sinks import Sink
from exactsink.votes import EpochPlan, Vote

__all__ = ["OnePass"]

_STAR = re.compile(r"(?<=[(,])\s*\*\s*(?=[,)])")


class OnePass:
    """A frame, shaped for every sink. Making one analyzes, and raises ConfigError; only `write` runs it."""

    def __init__(self, frame: DataFrame, sinks: Mapping[str, Sink]) -> None:
        self._sinks = sinks
        self._frame = frame
        self._shapes: dict[str, list[Column]] = {}
        self._schemas: dict[str, pa.Schema] = {}
        for name, sink in sinks.items():
            try:
                self._shapes[name] = _shape(frame, sink)
                self._schemas[name] = _arrow_schema(frame.select(*self._shapes[name], self._struct(name)))
            except PySparkException as error:
                raise _unshaped(name, error) from error

    def schemas(self) -> Mapping[str, pa.Schema]:
        """Give each sink's shaped frame as an Arrow schema."""
        return {name: pa.schema(list(schema)[:-1]) for name, schema in self._schemas.items()}

    def write(self, plan: EpochPlan) -> Sequence[Vote]:
        """Run the whole frame once through the plan's sinks; one winning attempt's votes per partition."""
        names = tuple(plan.sinks)
        wide = _distributed(self._frame, self._sinks).select(
            *(self._struct(name).alias(f"rows_{index}") for index, name in enumerate(names))
        )
        hashes = [_hash(f"rows_{index}", wide.schema).alias(f"hashes_{index}") for index in range(len(names))]
        task = _Task(plan, {name: self._sinks[name].backend for name in names})
        rows = wide.select("*", *hashes).mapInArrow(task, "vote binary").collect()
        return [pickle.loads(row["vote"]) for row in rows]

    def _struct(self, name: str) -> Column:
        rows = F.struct(*self._shapes[name])
        where = self._sinks[name].where
        return rows if where is None else F.when(F.expr(where), rows)


@dataclass(frozen=True, slots=True)
class _Task:
    """What runs on an executor, once per partition."""

    plan: EpochPlan
    backends: Mapping[str, Backend]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        rows = (self._split(batch) for batch in batches)
        votes = vote(self.plan, self.backends, context.partitionId(), context.taskAttemptId(), rows, _no_probe)
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


def _shape(frame: DataFrame, sink: Sink) -> list[Column]:
    """Give a sink's columns as its backend wants them; `*` in its expressions stands for the sink's own columns."""
    columns = sink.columns or tuple(frame.columns)
    selected = frame.select(*(F.col(_quoted(column)) for column in columns))
    expressions = sink.backend.shape(_arrow_schema(selected))
    if expressions is None:
        return [F.col(_quoted(column)) for column in columns]
    every = ", ".join(_quoted(column) for column in columns)
    return [F.expr(_STAR.sub(every.replace("\\", r"\\"), expression)) for expression in expressions]


def _unshaped(sink: str, error: PySparkException) -> ConfigError:
    lines = str(error).strip().splitlines()
    return ConfigError(
        f"sink {sink}: Spark refuses its columns, where or types",
        why=lines[0] if lines else type(error).__name__,
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


def _hash(column: str, schema: StructType) -> Column:
    """Hash a row on the JVM. xxhash64 takes no maps, whose order is undefined: those rows are hashed as JSON."""
    if _has_map(schema[column].dataType):
        return F.xxhash64(F.to_json(F.col(column)))
    return F.xxhash64(F.col(column))


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
