"""Make the session and the source of `exactsink run` from a job's config."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf
from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import is_remote

from exactsink.contract import ConfigError
from exactsink.job.config import JobConfig
from exactsink.job.config.model import SourceSection
from exactsink.job.modules import search_in
from exactsink.spark.arrow_settings import UNCHECKED
from exactsink.spark.errors import REPEATING, first_line
from exactsink.spark.jvm import started_jvm
from exactsink.spark.kafka_source import with_isolation
from exactsink.spark.modules import load_transform
from exactsink.spark.versions import keep_quiet, session_of_its_own
from exactsink.toolkit.nearest import nearest

__all__ = ["make_session", "read_source", "refuse_cluster_mode"]

_NO_CLASS = ("ClassNotFoundException", "NoClassDefFoundError")
_NO_SOURCE = (*_NO_CLASS, "DATA_SOURCE_NOT_ENABLED", "DATA_SOURCE_NOT_FOUND")
_FORMATS = ("csv", "json", "orc", "parquet", "rate", "rate-micro-batch", "text")
_MODULES = {"kafka": "spark-sql-kafka-0-10", "avro": "spark-avro"}
"""Spark's own sources that its installation lacks."""


def make_session(config: JobConfig) -> SparkSession:
    """Make or get the session. Its workers also find the modules in the job's folders.

    Workers run the driver's own interpreter unless PYSPARK_PYTHON names another one, because the default `python3` may
    lack this package. Arrow's checks are off unless the environment or `[spark.conf]` sets them. Raises ConfigError if
    Spark does not start, Retryable if its JVM is killed.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if os.environ.get("LC_ALL") in ("C", "POSIX"):
        os.environ["LC_ALL"] = "C.UTF-8"  # with C, Java finds no path beyond ASCII
    for name in REPEATING:  # they repeat the raised error at length
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_no_repeat)
    search_in(config.job.modules)
    conf = SparkConf().setAll(list(_settings(config).items()))
    with started_jvm(conf):
        refuse_cluster_mode(SparkConf().get("spark.submit.deployMode", "client"))
        spark = SparkSession.builder.config(conf=conf).getOrCreate()
    if not is_remote():  # the caller refuses Spark Connect later, by its name
        keep_quiet(spark)
    return spark


def _is_no_repeat(record: logging.LogRecord) -> bool:
    """Return whether a record of the root logger is not py4j's, which repeats each raised error there."""
    return record.msg != "Exception while sending command."


def refuse_cluster_mode(mode: str | None) -> None:
    """Raise ConfigError in spark-submit's cluster mode, because the driver's container would not keep the journal."""
    if mode == "cluster":
        raise ConfigError(
            "a driver in spark-submit's cluster mode is not supported",
            why="this mode is not tested, and signals and local paths mean the driver's own machine",
            next="--deploy-mode client, on a machine or in a pod that keeps the checkpoint and journal "
            "(examples/deploy/kubernetes.yaml)",
        )


def _settings(config: JobConfig) -> Mapping[str, str]:
    settings = {"spark.app.name": config.job.name, "spark.ui.showConsoleProgress": "false"}
    for name, said in UNCHECKED.items():
        settings[f"spark.executorEnv.{name}"] = os.environ.setdefault(name, said)
    if config.spark.master is not None:
        settings["spark.master"] = config.spark.master
    if config.spark.packages:
        settings["spark.jars.packages"] = ",".join(config.spark.packages)
    return {**settings, **{key: _spelled(value) for key, value in config.spark.conf.items()}}


def read_source(config: JobConfig, spark: SparkSession) -> DataFrame:
    """Read the job's source as a stream, through its transform. Raises ConfigError if Spark refuses one of them."""
    if config.source is None:
        raise ConfigError("the job has no [source]", next="add one, or start the job from your own program: Job.start")
    transform = load_transform(config)
    try:
        return transform(_loaded(config.source, spark if config.transform is None else session_of_its_own(spark)))
    except (AnalysisException, IllegalArgumentException, ParseException) as error:
        raise _refused_source(config.source, error) from error
    except Py4JJavaError as error:
        if not any(name in first_line(error) for name in _NO_CLASS):
            raise
        raise _refused_source(config.source, error) from error


def _refused_source(source: SourceSection, error: Exception) -> ConfigError:
    """Return Spark's refusal with its fix. If Spark lacks the source, the fix is mostly to name its package."""
    why, fix = first_line(error), "fix [source] or the transform"
    if any(name in why for name in _NO_SOURCE):
        scala = "2.12" if pyspark.__version__.startswith("3.") else "2.13"
        module = f"org.apache.spark:{_MODULES.get(source.format)}_{scala}:{pyspark.__version__}"
        package = module if source.format in _MODULES else f"GROUP:NAME_{scala}:VERSION"
        near = nearest(source.format, (*_FORMATS, *_MODULES))
        fix = f'fix [source] format{near}; or name the package that has it: [spark] packages = ["{package}"]'
    elif "Schema must be specified" in why:
        fix = 'name it: [source] schema = "id BIGINT, name STRING"'
    return ConfigError("Spark refuses the source or its transform", why=why, next=fix)


def _loaded(source: SourceSection, spark: SparkSession) -> DataFrame:
    reader = spark.readStream.format(source.format)
    if source.schema_ is not None:
        reader = reader.schema(source.schema_)
    for key, value in with_isolation(source).items():
        reader = reader.option(key, _spelled(value))
    return reader.load(source.path) if source.path else reader.load()


def _spelled(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
