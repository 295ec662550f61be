"""Spark's own sinks under each fault: Kafka, JDBC, Delta, Iceberg, and two of them in one `foreachBatch`."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.e2e.jobs import PARTICIPANTS, ROWS_A_BATCH, ids, write_source
from tests.e2e.kafka_source import SPARK_VERSION, kafka_jars
from tests.servers.kafka_jars import JarSet, jars
from tests.servers.spark_versions import python_with_spark, spark_home

from benchmarks.peer_faults import held
from benchmarks.peer_faults.plays import BETWEEN, FILES, IN_BATCH, Play, Played, Stage, require
from benchmarks.peer_faults.runs import Run
from benchmarks.peer_faults.spark_tables import DELTA, ICEBERG
from benchmarks.peers.lines.tables import DELTA_CONF, ICEBERG_CONF

__all__ = ["PLAYS"]

_STARTING = "NativeCodeLoader|SparkConf|ResolveWriteToStream|Utils"
_PROBLEM = re.compile(rf"^\S+ \S+ (?:WARN|ERROR) (?!{_STARTING})(\w+: .*)$", re.MULTILINE)
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


@dataclass(frozen=True, slots=True)
class _Tables:
    """A kind of table with a sink of its own for Spark: its jars, the session's settings, and its readers."""

    name: str
    jars: JarSet
    conf: Mapping[str, str]
    at: Callable[[Stage], str]
    seen: Callable[[Stage], Counter[int]]

    def run(self, stage: Stage, **more: Any) -> Run:
        """Make the runs of a job that writes to a table, and then to what `more` names."""
        jar_files = [kafka_jars(), *(str(jar) for jar in sorted(jars(self.jars).glob("*.jar")))]
        spec = {self.name.lower(): self.at(stage), **more, "conf": {"spark.jars": ",".join(jar_files), **self.conf}}
        return _run(stage, python_with_spark(SPARK_VERSION), **spec)


_TABLES = (
    _Tables(
        "Delta",
        DELTA,
        DELTA_CONF,
        lambda stage: str(stage.folder / "delta"),
        lambda stage: stage.in_delta,
    ),
    _Tables(
        "Iceberg",
        ICEBERG,
        {**ICEBERG_CONF, "spark.sql.catalog.lake.warehouse": "{folder}/warehouse"},
        lambda stage: "lake.shop.rows",
        lambda stage: stage.in_sparks_iceberg,
    ),
)


def _table(of: _Tables, stage: Stage) -> Played:
    run = of.run(stage)
    run.killed_when(lambda: stage.holds, "a task that holds")
    reported = _whole(run)
    return Played(ids(FILES), {of.name: of.seen(stage)}, reported)


def _table_and_kafka(of: _Tables, stage: Stage) -> Played:
    """No txnAppId, as most jobs have none. With it, Delta would skip the batch's second write."""
    topic = stage.new_topic()
    held.mark(stage.folder).touch()  # no task holds
    run = of.run(stage, kafka=_to_topic(stage, topic), kill=str(stage.folder / "fired"))
    run.dies()
    ahead = of.seen(stage).total() == 2 * _ONE_EPOCH and stage.in_topic(topic).total() == _ONE_EPOCH
    require(ahead, f"{of.name} is an epoch ahead of Kafka")
    reported = _whole(run)
    return Played(ids(FILES), {of.name: of.seen(stage), "Kafka": stage.in_topic(topic)}, reported)


PLAYS = (
    Play("Spark's Kafka sink", IN_BATCH, _kafka),
    Play("Spark's JDBC append in foreachBatch", IN_BATCH, _jdbc),
    Play("Spark's Kafka and JDBC writes in one foreachBatch", BETWEEN, _kafka_and_jdbc),
    Play("Spark's Parquet and JDBC writes in one foreachBatch", BETWEEN, _files_and_jdbc),
    *(Play(f"{of.name}'s own sink on Spark {SPARK_VERSION}", IN_BATCH, partial(_table, of)) for of in _TABLES),
    *(
        Play(
            f"{of.name} and Kafka writes in one foreachBatch on Spark {SPARK_VERSION}",
            BETWEEN,
            partial(_table_and_kafka, of),
        )
        for of in _TABLES
    ),
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
