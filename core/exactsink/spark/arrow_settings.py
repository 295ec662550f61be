"""Arrow between the JVM and its Python workers: the checks that it is spared, and how large its batches are."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import is_remote

from exactsink.spark.versions import analyzed_plan, jvm_of

__all__ = ["UNCHECKED", "BatchLimit", "advice"]

UNCHECKED: Mapping[str, str] = MappingProxyType(
    {"ARROW_ENABLE_UNSAFE_MEMORY_ACCESS": "true", "ARROW_ENABLE_NULL_CHECK_FOR_GET": "false"}
)
"""What a JVM's environment says for its Arrow not to check bounds, and NULL once more, at every value that is set.

Spark asks for NULL itself, and writes by calls that make room first. A system property of the same meaning goes first.
"""

_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_UNLIMITED = str((1 << 31) - 1)
_SMALL = 8 << 20
"""Bytes of a full batch for which no limit is needed: an eighth of Spark's own."""


class BatchLimit:
    """Spark's limit of bytes for a batch, lifted while a query's rows are narrow.

    Spark measures the batch before every row, a tenth to a quarter of what the JVM does for a row, and stops that only
    for the largest limit there is; then the number of records alone bounds a batch. So the first epoch keeps the limit,
    and each later one goes by the widest rows of the one before.

    It is set in the session that Spark clones for a query, so for nobody else, and only where no other Python of the
    query's plan takes batches: how wide its rows are is not known here. A limit of the user's own stays.
    """

    def __init__(self, frame: DataFrame) -> None:
        self._may_lift = frame.isStreaming and not _runs_python(frame)
        self._lifted = False

    def adapt(self, session: SparkSession, row_bytes: float) -> None:
        """Lift the limit if a full batch of rows of so many bytes is small, else leave it, or set it again."""
        if not self._may_lift:
            return
        conf = session.conf
        if not self._lifted and conf.get(_BYTES, None) is not None:
            self._may_lift = False
            return
        records = int(conf.get(_RECORDS) or 0)
        narrow = records > 0 and records * row_bytes <= _SMALL
        if narrow and not self._lifted:
            conf.set(_BYTES, _UNLIMITED)
        elif self._lifted and not narrow:
            conf.unset(_BYTES)
        self._lifted = narrow


def _runs_python(frame: DataFrame) -> bool:
    """Return whether a frame's own plan may have a Python function in it; a generator may be one."""
    pattern = jvm_of(frame.sparkSession).org.apache.spark.sql.catalyst.trees.TreePattern
    plan = analyzed_plan(frame)
    return any(plan.containsPattern(kind) for kind in (pattern.PYTHON_UDF(), pattern.GENERATOR()))


def advice(session: SparkSession) -> str | None:
    """Return what would make the session's Python tasks faster, and can only be said before its JVMs start.

    None in Spark Connect: its server's settings are not the client's to see.
    """
    if is_remote():
        return None
    context = session.sparkContext
    name, value = next(iter(UNCHECKED.items()))
    if (context.master or "").startswith("local"):
        bounds = jvm_of(session).org.apache.arrow.memory.BoundsChecking
        checked, place = bounds.BOUNDS_CHECKING_ENABLED, "the driver's environment"
    else:
        conf = context.getConf()
        options = [conf.get(f"spark.executor.{kind}JavaOptions", "") or "" for kind in ("default", "extra")]
        place = "spark.executorEnv"
        checked = conf.get(f"{place}.{name}") != value and "enable_unsafe_memory_access=true" not in " ".join(options)
    return " ".join(f"{name}={value}" for name, value in UNCHECKED.items()) + f" in {place}" if checked else None
