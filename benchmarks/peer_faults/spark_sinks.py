"""Spark's own sinks under each fault: Kafka, JDBC append, and JDBC after Kafka or files in one `foreachBatch`."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.e2e.jobs import PARTICIPANTS, ROWS_A_BATCH, ids, write_source
from tests.e2e.kafka_source import SPARK_VERSION, kafka_jars
from tests.servers.kafka_jars import JarSet, jars
from tests.servers.spark_versions import python_with_spark, spark_home

from benchmarks.peer_faults import held
from benchmarks.peer_faults.plays import BETWEEN, FILES, IN_BATCH, Play, Played, Stage, require
from benchmarks.peer_faults.runs import Run

__all__ = ["PLAYS"]

_STARTING = "NativeCodeLoader|SparkConf|ResolveWriteToStream|Utils"
_PROBLEM = re.compile(rf"^\S+ \S+ (?:WARN|ERROR) (?!{_STARTING})(\w+: .*)$", re.MULTILINE)
_OF_DELTA = SPARK_VERSION
_DELTA = JarSet("delta-spark-4.0.0", ("io.delta:delta-spark_2.13:4.0.0", "io.delta:delta-storage:4.0.0"), alone=True)
_ONE_EPOCH = PARTICIPANTS * ROWS_A_BATCH


def _kafka(stage: Stage) -> Played:
    topic = stage.new_topic()
    run = _run(stage, kafka=_to_topic(stage, topic))

    def one_task_is_done() -> bool:
        return stage.holds and stage.in_topic(topic).total() >= _ONE_EPOCH + ROWS_A_BATCH

    run.killed_when(one_task_is_done, "a task that holds while another's rows are in the topic")
    reported = _whole(run)
    return Played(ids(FILES), {"Kafka": stage.in_topic(topic)}, reported)


def _jdbc(stage: Stage) -> Played:
    table = stage.new_table("spark_in_batch")
    run = _run(stage, jdbc=_to_table(stage, table))

    def one_task_is_done() -> bool:
        return stage.holds and stage.in_table(table).total() == _ONE_EPOCH + ROWS_A_BATCH

    run.killed_when(one_task_is_done, "a task that holds while another's rows are in the table")
    reported = _whole(run)
    return Played(ids(FILES), {"Postgres": stage.in_table(table)}, reported)


def _kafka_and_jdbc(stage: Stage) -> Played:
    topic = stage.new_topic()
    return _between(stage, "Kafka", lambda: stage.in_topic(topic), kafka=_to_topic(stage, topic))


def _files_and_jdbc(stage: Stage) -> Played:
    return _between(stage, "files", lambda: stage.in_files, files=str(stage.folder / "lake"))


def _between(stage: Stage, target: str, seen: Callable[[], Counter[int]], **first: Any) -> Played:
    table = stage.new_table(f"spark_{target.lower()}")
    held.mark(stage.folder).touch()  # no task holds
    run = _run(stage, **first, jdbc=_to_table(stage, table), kill=str(stage.folder / "fired"))
    run.dies()
    ahead = seen().total() == 2 * _ONE_EPOCH and stage.in_table(table).total() == _ONE_EPOCH
    require(ahead, f"{target} is an epoch ahead of Postgres")
    reported = _whole(run)
    return Played(ids(FILES), {target: seen(), "Postgres": stage.in_table(table)}, reported)


def _delta(stage: Stage) -> Played:
    run = _run(stage, python_with_spark(_OF_DELTA), delta=str(stage.folder / "delta"), conf=_delta_conf())
    run.killed_when(lambda: stage.holds, "a task that holds")
    reported = _whole(run)
    return Played(ids(FILES), {"Delta": stage.in_delta}, reported)


def _delta_and_kafka(stage: Stage) -> Played:
    """Make it without txnAppId, as most jobs do. With it, Delta would skip the batch's second write."""
    topic, fired = stage.new_topic(), str(stage.folder / "fired")
    held.mark(stage.folder).touch()  # no task holds
    spec = {"delta": str(stage.folder / "delta"), "kafka": _to_topic(stage, topic), "kill": fired}
    run = _run(stage, python_with_spark(_OF_DELTA), **spec, conf=_delta_conf())
    run.dies()
    ahead = stage.in_delta.total() == 2 * _ONE_EPOCH and stage.in_topic(topic).total() == _ONE_EPOCH
    require(ahead, "Delta is an epoch ahead of Kafka")
    reported = _whole(run)
    return Played(ids(FILES), {"Delta": stage.in_delta, "Kafka": stage.in_topic(topic)}, reported)


def _delta_conf() -> Mapping[str, str]:
    return {
        "spark.jars": ",".join([kafka_jars(), *(str(jar) for jar in sorted(jars(_DELTA).glob("*.jar")))]),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


PLAYS = (
    Play("Spark's Kafka sink", IN_BATCH, _kafka),
    Play("Spark's JDBC append in foreachBatch", IN_BATCH, _jdbc),
    Play("Spark's Kafka and JDBC writes in one foreachBatch", BETWEEN, _kafka_and_jdbc),
    Play("Spark's Parquet and JDBC writes in one foreachBatch", BETWEEN, _files_and_jdbc),
    Play(f"Delta's own sink on Spark {_OF_DELTA}", IN_BATCH, _delta),
    Play(f"Delta and Kafka writes in one foreachBatch on Spark {_OF_DELTA}", BETWEEN, _delta_and_kafka),
)


def _run(stage: Stage, python: Path | None = None, **spec: Any) -> Run:
    """Make the job's runs. Another Python has its own Spark, so it can't use the warm JVM."""
    write_source(stage.folder, FILES)
    program = ["-m", "benchmarks.peer_faults.spark_job", str(stage.folder), json.dumps(spec)]
    if python is None:
        return Run([sys.executable, *program], stage.folder, stage.jvm)
    home = [f"SPARK_HOME={spark_home(python)}", f"PYSPARK_PYTHON={python}"]
    return Run(["env", *home, str(python), *program], stage.folder)


def _to_topic(stage: Stage, topic: str) -> Mapping[str, str]:
    return {"kafka.bootstrap.servers": stage.kafka.bootstrap, "topic": topic}


def _to_table(stage: Stage, table: str) -> Mapping[str, str]:
    return {**stage.postgres.jdbc, "dbtable": table}


def _whole(run: Run) -> str:
    """Run to the end. Return the exit code, and the warnings."""
    code, printed = run.whole()
    require(code == 0, f"the job ends well: {code}, {printed[-3000:]}")
    return "; ".join([f"exit {code}", *(dict.fromkeys(_PROBLEM.findall(printed)) or ["no warning"])])
