"""The supported versions of Spark, their differences, and the calls for which Spark has no public interface.

Nothing else in exactsink uses a private interface of pyspark. A difference is detected in pyspark itself, not derived
from its version.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Mapping
from socketserver import BaseServer
from typing import Any

import pyarrow as pa
import pyspark
from py4j.java_gateway import JVMView
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.utils import is_remote

from exactsink.contract import ConfigError

__all__ = [
    "NEWEST",
    "OLDEST",
    "OLDEST_OF_PYTHON_3_12",
    "analyzed_plan",
    "arrow_schema",
    "arrow_table",
    "check_jvm",
    "check_query",
    "check_version",
    "context_has_stopped",
    "forget_checkpoint",
    "has_jvm",
    "has_stopped",
    "jvm_address",
    "jvm_of",
    "keep_quiet",
    "launch_jvm",
    "launched_jvm",
    "query_run_of",
    "session_of_its_own",
    "source_metrics",
    "use_jvm",
]

OLDEST = (3, 5)
NEWEST = (4, 3)
OLDEST_OF_PYTHON_3_12 = (4, 0)
"""Spark 3.5 imports distutils, which Python 3.12 no longer has."""
OLDEST_OF_JAVA_24 = (4, 2)
"""Before, Spark's Hadoop calls Java for the subject of a thread, which Java 24 no longer has. 4.1 starts nevertheless,
and then each query fails (`make matrix`)."""
_QUERY_THREAD = re.compile(r"^stream execution thread for .*\[id = (\S+), runId = (\S+)\]$", re.DOTALL)


def check_version() -> None:
    """Raise ConfigError if this process's Spark is not supported, or not on this Python."""
    oldest = OLDEST_OF_PYTHON_3_12 if sys.version_info >= (3, 12) else OLDEST
    if not oldest <= _version() <= NEWEST:
        python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
        raise ConfigError(
            f"Spark {pyspark.__version__} is not supported on {python}",
            why=f"on {python} this exactsink runs on Spark {_spelled(oldest)} to {_spelled(NEWEST)}",
            next=f"pip install 'pyspark>={_spelled(oldest)},<{_spelled((NEWEST[0], NEWEST[1] + 1))}'",
        )


def check_jvm(gateway: Any) -> None:
    """Raise ConfigError if the JVM behind a gateway has another Spark than this process, or is too new for it."""
    spark = str(gateway.jvm.org.apache.spark.package.SPARK_VERSION())
    if _numbers(spark) != _version():
        home = os.environ.get("SPARK_HOME")
        raise ConfigError(
            f"the JVM has Spark {spark}, and this Python has pyspark {pyspark.__version__}",
            why="" if home is None else f"SPARK_HOME is {home}",
            next=f"unset SPARK_HOME; or pip install 'pyspark=={_spelled(_numbers(spark))}.*'",
        )
    java = str(gateway.jvm.System.getProperty("java.specification.version"))
    if float(java) >= 24 and _version() < OLDEST_OF_JAVA_24:
        raise ConfigError(
            f"Spark {pyspark.__version__} does not run on Java {java}",
            why="its Hadoop calls getSubject, which Java 24 and newer do not support",
            next=f"name a Java 17 in JAVA_HOME; or take Spark {_spelled(OLDEST_OF_JAVA_24)} or newer",
        )


def _version() -> tuple[int, int]:
    """Return the version of this process's Spark; (0, 0) if it has no number."""
    return _numbers(pyspark.__version__)


def _numbers(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (0, 0) if found is None else (int(found[1]), int(found[2]))


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """Return the schema in which a frame's rows reach a Python task. Runs nothing. Raises ConfigError.

    Timestamps have the session's time zone. Before 4.3, pyspark's own function leaves them in UTC.
    """
    zone = frame.sparkSession.conf.get("spark.sql.session.timeZone")
    try:
        return _arrow_schema(frame, zone)
    except (PySparkException, ValueError) as error:  # of `array()`, or an interval of months, for example
        if isinstance(error, PySparkException) and "FOR_ARROW_CONVERSION" not in str(error):
            raise
        kinds = [f"{field.name} {field.dataType.simpleString()}" for field in frame.schema.fields]
        odd = ", ".join(kind for kind in kinds if "void" in kind or "interval" in kind) or ", ".join(kinds)
        fix = "cast them in the frame, for example with CAST(x AS STRING), or CAST(array() AS ARRAY<STRING>)"
        raise ConfigError(f"rows with these columns can't leave the JVM: {odd}", why=str(error), next=fix) from error


def _arrow_schema(frame: DataFrame, zone: str | None) -> pa.Schema:
    made: Any = to_arrow_schema  # its parameters differ by version
    if "timezone" in inspect.signature(made).parameters:
        return made(frame.schema, timezone=zone)
    schema: pa.Schema = made(frame.schema)
    return pa.schema([field.with_type(_in_zone(field.type, zone)) for field in schema])


def arrow_table(frame: DataFrame) -> pa.Table:
    """Collect a small frame."""
    if hasattr(frame, "toArrow"):
        return frame.toArrow()
    collected: Any = frame  # 3.5 has it under a private name only
    batches = collected._collect_as_arrow()  # a map's values may be NULL in their schema, whatever the frame says
    return pa.Table.from_batches(batches) if batches else arrow_schema(frame).empty_table()


def source_metrics(source: Mapping[str, Any]) -> Mapping[str, str]:
    """Return a source's own metrics in a query's progress. If there are none, 3.5 leaves the key out."""
    metrics: Mapping[str, str] | None = source.get("metrics")
    return metrics or {}


def jvm_of(session: SparkSession) -> JVMView:
    """Return the session's JVM, to call classes in it."""
    jvm: JVMView = session.sparkContext._jvm
    return jvm


def query_run_of(session: SparkSession) -> tuple[str, str] | None:
    """Return the ids of the query, and of its run, if their own thread in the JVM calls; None on any other thread.

    Spark names that thread by both ids. The job group has the run's id at first, but users may set it.
    """
    name = jvm_of(session).java.lang.Thread.currentThread().getName()
    found = _QUERY_THREAD.search(name)
    return None if found is None else (found[1], found[2])


def analyzed_plan(frame: DataFrame) -> Any:
    """Return the frame's own plan in the JVM."""
    return frame._jdf.queryExecution().analyzed()


def has_stopped(session: SparkSession) -> bool:
    """Return whether the session's context has been stopped. With Spark Connect, it is not in this process: False."""
    context: Any = None if is_remote() else session.sparkContext
    return context is not None and context._jsc is None


def forget_checkpoint(frame: DataFrame) -> None:
    """Release the rows of a frame from `localCheckpoint`. Spark has no public call for it."""
    frame._jdf.queryExecution().logical().rdd().unpersist(False)


def session_of_its_own(spark: SparkSession) -> SparkSession:
    """Return a session with the same settings, functions and views. Nobody else sees a new view in it."""
    cloned: Any = spark
    return SparkSession(spark.sparkContext, cloned._jsparkSession.cloneSession())


def check_query(session: SparkSession, query: str) -> None:
    """Raise Spark's ParseException unless this text is a query and not a command. Runs nothing."""
    parsing: Any = session
    parsing._jsparkSession.sessionState().sqlParser().parseQuery(query)


def launch_jvm(conf: SparkConf, output: int) -> Any:
    """Start a JVM that prints into `output`. Return its gateway, which has the JVM's process as `proc`.

    The JVM is in its own session. So a signal to the driver's process group, or a closed terminal, reaches only the
    driver, which ends its epoch first.
    """
    launched: Any = launch_gateway  # has no types
    return launched(conf, {"stdout": output, "stderr": output, "start_new_session": True})


def keep_quiet(session: SparkSession) -> None:
    """Keep Spark's accumulator server from printing that a JVM is gone, because a call to that JVM raises the error."""
    context: Any = session.sparkContext
    server = context._accumulatorServer

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | OSError):
            BaseServer.handle_error(server, request, address)

    server.handle_error = handle_error


def use_jvm(gateway: Any) -> Any:
    """Use the JVM behind a gateway, or the JVM of spark-submit, for this process's session. Return its gateway."""
    SparkContext._ensure_initialized(gateway=gateway)
    return SparkContext._gateway


def has_jvm() -> bool:
    """Return whether this process has a JVM already."""
    return SparkContext._gateway is not None


def launched_jvm() -> Any:
    """Return the process of the JVM that this process started, None if there is none."""
    return getattr(SparkContext._gateway, "proc", None)


def jvm_address() -> tuple[str, int] | None:
    """Return where this process's JVM takes calls, None when it has no JVM."""
    gateway: Any = SparkContext._gateway
    return None if gateway is None else (gateway.gateway_parameters.address, gateway.gateway_parameters.port)


def context_has_stopped() -> bool:
    """Return whether this process's Spark context was stopped, perhaps in the JVM alone. Raises if the JVM is gone."""
    context: Any = SparkContext._active_spark_context
    return context is not None and (context._jsc is None or bool(context._jsc.sc().isStopped()))


def _spelled(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _in_zone(kind: pa.DataType, zone: str | None) -> pa.DataType:
    """Return a type with all its timestamps in this zone, at any depth."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, zone)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_zone(field.type, zone)) for field in kind.fields])
    if pa.types.is_map(kind):
        return pa.map_(_in_zone(kind.key_type, zone), _in_zone(kind.item_type, zone))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_zone(kind.value_type, zone)))
    return kind
