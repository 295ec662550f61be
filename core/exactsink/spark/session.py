"""The session and the source that `exactsink run` makes from a job's config."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

from pyspark import SparkConf
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from exactsink.contract import ConfigError
from exactsink.job.config import JobConfig
from exactsink.job.config.model import SourceSection
from exactsink.job.modules import search_in
from exactsink.spark.arrow_settings import UNCHECKED
from exactsink.spark.errors import first_line
from exactsink.spark.jvm import start_jvm
from exactsink.spark.modules import load_transform
from exactsink.spark.sql_transform import session_of_its_own

__all__ = ["make_session", "read_source", "refuse_cluster_mode"]


def make_session(config: JobConfig) -> SparkSession:
    """Make or get the session. Its workers find modules in the job's folders, too.

    Workers run the driver's own interpreter unless PYSPARK_PYTHON says otherwise: the `python3` they would take by
    themselves may lack this package. Arrow is spared its checks where neither the environment nor `[spark.conf]` wants
    them.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for name in ("py4j.clientserver", "DataFrameQueryContextLogger"):  # they repeat, at length, what is raised here
        logging.getLogger(name).setLevel(logging.CRITICAL)
    search_in(config.job.modules)
    conf = SparkConf().setAll(list(_settings(config).items()))
    try:
        start_jvm(conf)
        refuse_cluster_mode(SparkConf().get("spark.submit.deployMode", "client"))
        return SparkSession.builder.config(conf=conf).getOrCreate()
    except PySparkException as error:
        raise ConfigError(
            "Spark did not start", why=first_line(error), next="java -version (17 or newer), then fix [spark]"
        ) from error


def refuse_cluster_mode(mode: str | None) -> None:
    """Raise ConfigError in spark-submit's cluster mode: the job's folder would be looked for in a passing container."""
    if mode == "cluster":
        raise ConfigError(
            "a driver in spark-submit's cluster mode is not supported",
            why="the journal must outlive the driver, and paths, signals and `exactsink stop` mean its own machine",
            next="--deploy-mode client, on a machine or in a pod that keeps the job's folder "
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
    """Read the job's source as a stream, through its transform. Raises ConfigError for what can't be read."""
    if config.source is None:
        raise ConfigError("the job has no [source]", next="add one, or start the job from your own program: Job.start")
    transform = load_transform(config)
    try:
        return transform(_loaded(config.source, spark if config.transform is None else session_of_its_own(spark)))
    except AnalysisException as error:
        raise ConfigError(
            "Spark refuses the source or its transform", why=first_line(error), next="fix [source] or the transform"
        ) from error


def _loaded(source: SourceSection, spark: SparkSession) -> DataFrame:
    reader = spark.readStream.format(source.format)
    if source.schema_ is not None:
        reader = reader.schema(source.schema_)
    for key, value in source.options.items():
        reader = reader.option(key, _spelled(value))
    return reader.load(source.path) if source.path else reader.load()


def _spelled(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
