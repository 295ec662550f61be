"""One pass over a frame for all sinks: a struct and a hash column per sink, NULL where its `where` is not true."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from pyspark.sql.types import BinaryType, DataType, DoubleType, StructType

from exactsink.contract import Backend, ConfigError
from exactsink.protocol.checked import of_sink
from exactsink.protocol.journal.records import Columns
from exactsink.protocol.participant import SinkRows, no_probe, write_partition
from exactsink.protocol.sinks import DeferredBackend, Sink, check_one_frame, quarantines, resolved
from exactsink.protocol.votes import EpochPlan, Vote
from exactsink.protocol.wire import dump_votes, load_votes
from exactsink.spark.arrow_settings import BatchLimit
from exactsink.spark.errors import first_line
from exactsink.spark.row_hash import row_hash
from exactsink.spark.versions import arrow_schema, arrow_table
from exactsink.toolkit.spark_sql import quoted_name

__all__ = ["OnePass", "expanded"]

_STAR = re.compile(r"""(?P<kept>`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?<=[(,])\s*\*\s*(?=[,)])""")
"""A `*` that is an argument. A `*` within a name or a text is kept."""

_VOTED = StructType().add("votes", BinaryType()).add("row_bytes", DoubleType())


class OnePass:
    """Frames of one schema, shaped for every sink. The constructor analyzes, and may raise ConfigError; `write` runs.

    A quarantine among the sinks is not shaped, because tasks make its rows.
    """

    def __init__(self, frame: DataFrame, sinks: Mapping[str, Sink]) -> None:
        check_one_frame(sinks)
        self._sinks = sinks
        self._epochs = _epoch_columns(frame, sinks)
        self._shapes: dict[str, _Shape] = {}
        for name, sink in sinks.items():
            if name in quarantines(sinks):
                continue
            try:
                self._shapes[name] = _shape(frame, self._numbered(frame, 0), sink)
            except PySparkException as error:
                what, fix = "Spark refuses its columns, where or types", f"fix [sinks.{name}], or the job's transform"
                raise ConfigError(f"sink {name}: {what}", why=first_line(error), next=fix) from error
            except ConfigError as error:  # the backend does not know its sink's name
                raise of_sink(name, error) from error
        _check_distribution(frame, sinks)
        self._cuts: list[_Shape] = []
        for shape in self._shapes.values():  # sinks with the same rows share them
            if shape not in self._cuts:
                self._cuts.append(shape)
        # Made once, because each costs calls into the JVM, which would slow a small epoch down.
        self._sent = [column for index, cut in enumerate(self._cuts) for column in cut.sent(index)]
        self._hashed = [cut.hashed(index) for index, cut in enumerate(self._cuts)]
        self._limit = BatchLimit(frame)

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        """Each sink's shaped frame as an Arrow schema."""
        return {name: shape.schema for name, shape in self._shapes.items()}

    @property
    def columns(self) -> Mapping[str, Columns]:
        """Each sink's own columns, before they are shaped."""
        return {name: shape.own for name, shape in self._shapes.items()}

    def rows(self, frame: DataFrame, name: str) -> pa.Table:
        """Collect a sink's rows of a small frame, shaped for its writer."""
        shape, frame = self._shapes[name], self._numbered(frame, 0)
        kept = frame if shape.where is None else frame.where(shape.where)
        return arrow_table(kept.select(*shape.columns())).cast(shape.schema)

    def write(self, frame: DataFrame, plan: EpochPlan) -> Sequence[Vote]:
        """Run the whole frame once through the plan's sinks. Return one winning attempt's votes per partition.

        Tasks always get the columns of all sinks of the job. With fewer columns, Spark might cut the frame into other
        partitions (adaptive execution by sizes, a join by its broadcasts), and lost rows would not be in theirs.
        """
        cut = self._numbered(_distributed(frame, self._sinks), plan.epoch)
        wide = cut.select(*self._sent).select("*", *self._hashed)
        task = _Task(
            plan,
            {name: self._sinks[name].for_tasks for name in {*plan.sinks, *plan.judged}},
            {name: self._cuts.index(self._shapes[name]) for name in plan.read},
            [(cut.names, cut.where is not None) for cut in self._cuts],
        )
        rows = wide.mapInArrow(task, _VOTED).collect()
        self._limit.adapt(frame.sparkSession, max((row["row_bytes"] for row in rows), default=0.0))
        return [vote for row in rows for vote in load_votes(plan, bytes(row["votes"]))]

    def _numbered(self, frame: DataFrame, epoch: int) -> DataFrame:
        """Add the columns with the epoch's number. A replay has the same number, so it has the same hashes."""
        for name in self._epochs:
            frame = frame.withColumn(name, F.lit(epoch).cast("bigint"))
        return frame


@dataclass(frozen=True, slots=True)
class _Shape:
    """A sink's part of a frame: SQL expressions, their names, and the condition that selects the sink's rows.

    Without a condition, Spark sends the columns as they are. With one, it sends a struct that is NULL for other sinks'
    rows, so that the sink's expressions never run on these. Equal shapes are equal values.
    """

    expressions: tuple[str, ...]
    names: tuple[str, ...]
    where: str | None
    kinds: tuple[DataType, ...]
    schema: pa.Schema
    own: Columns = field(compare=False)

    def columns(self) -> list[Column]:
        return [F.expr(expression) for expression in self.expressions]

    def sent(self, index: int) -> list[Column]:
        """Return the columns that carry the sink's rows, named by place, because names may be odd, or not unique."""
        if self.where is None:
            return [column.alias(f"c{index}_{place}") for place, column in enumerate(self.columns())]
        fields = [column.alias(f"f{place}") for place, column in enumerate(self.columns())]
        return [F.when(F.expr(self.where), F.struct(*fields)).alias(f"c{index}_0")]

    def hashed(self, index: int) -> Column:
        """Hash a row on the JVM, however it is sent."""
        if self.where is None:
            sent = [F.col(f"c{index}_{place}") for place in range(len(self.names))]
        else:
            struct = F.col(f"c{index}_0")
            sent = [struct.getField(f"f{place}") for place in range(len(self.names))]
        return row_hash(self.kinds, sent).alias(f"h{index}")


@dataclass(frozen=True, slots=True)
class _Task:
    """The work of an executor, once per partition.

    `cuts` gives each sink's cut of the wide frame. `names` are each cut's columns, and whether they come as one struct.
    """

    plan: EpochPlan
    backends: Mapping[str, Backend | DeferredBackend]
    cuts: Mapping[str, int]
    names: Sequence[tuple[tuple[str, ...], bool]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        width = _Width()
        rows = (self._split(batch) for batch in width.of(batches))
        backends = {name: resolved(backend, os.environ) for name, backend in self.backends.items()}
        partition, attempt = context.partitionId(), context.taskAttemptId()
        votes = list(write_partition(self.plan, backends, partition, attempt, rows, no_probe))
        _freeze_imports()
        columns = [pa.array([dump_votes(votes)], pa.binary()), pa.array([width.widest], pa.float64())]
        yield pa.record_batch(columns, ["votes", "row_bytes"])

    def _split(self, batch: pa.RecordBatch) -> SinkRows:
        """Cut a wide batch into each sink's rows, without the rows that its `where` left NULL."""
        cuts, first = [], 0
        for index, (names, in_struct) in enumerate(self.names):
            hashes = batch.column(f"h{index}")
            if in_struct:
                rows, hashes = _there(batch.column(first), hashes)
                first += 1
            else:
                rows = batch.select(range(first, first + len(names)))
                first += len(names)
            fields = [field.with_name(name) for field, name in zip(rows.schema, names, strict=True)]
            cuts.append((pa.RecordBatch.from_arrays(rows.columns, schema=pa.schema(fields)), hashes))
        return {name: cuts[index] for name, index in self.cuts.items()}


class _Width:
    """Measure the width of rows: the mean bytes of a row, in the batch with the widest rows."""

    def __init__(self) -> None:
        self.widest = 0.0

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                self.widest = max(self.widest, batch.nbytes / batch.num_rows)
            yield batch


@cache  # once per process: even gc's own check takes 10 ms, because it counts
def _freeze_imports() -> None:
    """Exclude the imports so far from pyspark's garbage collection after every task, which wastes 50 ms on them."""
    gc.freeze()


def _there(rows: pa.Array, hashes: pa.Array) -> tuple[pa.RecordBatch, pa.Array]:
    """Return the rows of a struct column that are not NULL, and their hashes."""
    if rows.null_count:
        there = rows.is_valid()
        rows, hashes = rows.filter(there), hashes.filter(there)
    return pa.RecordBatch.from_arrays(rows.flatten(), schema=pa.schema(list(rows.type))), hashes


def _epoch_columns(frame: DataFrame, sinks: Mapping[str, Sink]) -> Sequence[str]:
    """Name the epoch columns that sinks require. Raises ConfigError if the frame already has one of them."""
    asked = {sink.epoch_column: name for name, sink in sinks.items() if sink.epoch_column is not None}
    there = {name.lower() for name in frame.columns}
    for column in asked:
        if column.lower() in there:
            raise ConfigError(
                f"sink {asked[column]}: the frame has a column {column} already",
                why="epoch_column names a column that exactsink adds, with the epoch's number",
                next="give epoch_column another name, or drop the column in the job's transform",
            )
    return sorted(asked)


def _shape(whole: DataFrame, frame: DataFrame, sink: Sink) -> _Shape:
    """Return a sink's rows in its backend's shape. A `*` in the backend's expressions means the sink's own columns.

    `frame` is the job's `whole` frame with all epoch columns. A sink gets only its own.
    """
    names = (*(sink.columns or whole.columns), *filter(None, [sink.epoch_column]))
    expressions = tuple(map(quoted_name, names))
    own = frame.select(*map(F.expr, expressions))
    wanted = sink.backend.shape(arrow_schema(own))
    if wanted is not None:
        expressions = tuple(expanded(expression, expressions) for expression in wanted)
    shaped = frame.select(*map(F.expr, expressions))
    schema = arrow_schema(shaped)
    kinds = tuple(field.dataType for field in shaped.schema.fields)
    columns = tuple((column.name, column.dataType.simpleString()) for column in own.schema.fields)
    shape = _Shape(expressions, tuple(shaped.columns), sink.where, kinds, schema, columns)
    frame.select(*shape.sent(0))  # analyzed now: a mistake in `where` is reported before the query starts
    return shape


def expanded(expression: str, columns: Sequence[str]) -> str:
    """Replace each `*` that is an argument by the sink's columns."""
    return _STAR.sub(lambda found: found["kept"] or ", ".join(columns), expression)


def _check_distribution(frame: DataFrame, sinks: Mapping[str, Sink]) -> None:
    """Refuse a distribution by columns that the frame lacks, because every epoch would fail. Raises ConfigError."""
    asking = [
        name for name, sink in sinks.items() if isinstance(sink.distribution, str) and sink.distribution != "none"
    ]
    if asking:
        try:
            _distributed(frame, sinks).schema  # noqa: B018  Spark Connect analyzes it now
        except PySparkException as error:
            what, fix = f"sink {asking[0]}: Spark refuses its distribution", "name columns of the frame in hash(...)"
            raise ConfigError(what, why=first_line(error), next=fix) from error


def _distributed(frame: DataFrame, sinks: Mapping[str, Sink]) -> DataFrame:
    """Cut the shared frame into the partitions that the sinks require, which agree (see `check_one_frame`)."""
    asked = next((s.distribution for s in sinks.values() if s.distribution != "none"), "none")
    most = min((s.max_participants for s in sinks.values() if s.max_participants is not None), default=None)
    if isinstance(asked, int):
        return frame.repartition(asked if most is None else min(asked, most))
    if asked != "none":
        keys = [
            F.col(quoted_name(key.strip().strip("`")))
            for key in asked.removeprefix("hash(").removesuffix(")").split(",")
        ]
        return frame.repartition(*keys) if most is None else frame.repartition(most, *keys)
    return frame if most is None else frame.coalesce(most)
