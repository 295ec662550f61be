"""Arrow between the JVM and its Python workers: switch off needless checks, and set the size of batches."""

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
"""Environment variables with which a JVM's Arrow checks neither bounds nor NULL at every value that is set.

Spark checks for NULL itself, and writes by calls that allocate room first. A system property of the same meaning wins.
"""

_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_UNLIMITED = str((1 << 31) - 1)
_SMALL = 8 << 20
"""A full batch of so few bytes needs no limit. It is an eighth of Spark's own limit."""


class BatchLimit:
    """Spark's limit on the bytes of a batch, lifted while a query's rows are narrow.

    Spark measures the batch before every row, which is a tenth to a quarter of the JVM's work for a row. It does not
    only for the largest possible limit. Then the number of records alone bounds a batch. So the first epoch keeps the
    limit, and each later epoch decides by the widest rows of the epoch before.

    The limit is set in the session that Spark clones for a query, so nobody else gets it. It stays if other Python code
    in the query's plan takes batches, because the width of those rows is not known here, and if the user has set it.
    """

    def __init__(self, frame: DataFrame) -> None:
        self._may_lift = frame.isStreaming and not _runs_python(frame)
        self._lifted = False

    def adapt(self, session: SparkSession, row_bytes: float) -> None:
        """Lift the limit if a full batch of rows with so many bytes is small. Otherwise leave it, or set it again."""
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
    """Return whether a frame's plan may contain a Python function. A generator may be one."""
    pattern = jvm_of(frame.sparkSession).org.apache.spark.sql.catalyst.trees.TreePattern
    plan = analyzed_plan(frame)
    return any(plan.containsPattern(kind) for kind in (pattern.PYTHON_UDF(), pattern.GENERATOR()))


def advice(session: SparkSession) -> str | None:
    """Return a setting that would make the session's Python tasks faster, but must be made before its JVMs start.

    None if it is made already, or in Spark Connect, because a client can't see the server's settings.
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
