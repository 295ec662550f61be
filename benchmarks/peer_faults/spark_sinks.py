"""Spark's own sinks under each fault: Kafka, JDBC append, and JDBC after Kafka or files in one `foreachBatch`."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from tests.e2e.jobs import PARTICIPANTS, ROWS_A_BATCH, ids, write_source

from benchmarks.peer_faults import held
from benchmarks.peer_faults.plays import BETWEEN, FILES, IN_BATCH, Play, Played, Stage, require
from benchmarks.peer_faults.runs import Run

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


PLAYS = (
    Play("Spark's Kafka sink", IN_BATCH, _kafka),
    Play("Spark's JDBC append in foreachBatch", IN_BATCH, _jdbc),
    Play("Spark's Kafka and JDBC writes in one foreachBatch", BETWEEN, _kafka_and_jdbc),
    Play("Spark's Parquet and JDBC writes in one foreachBatch", BETWEEN, _files_and_jdbc),
)


def _run(stage: Stage, **spec: Any) -> Run:
    write_source(stage.folder, FILES)
    program = [sys.executable, "-m", "benchmarks.peer_faults.spark_job", str(stage.folder), json.dumps(spec)]
    return Run(program, stage.folder, stage.jvm)


def _to_topic(stage: Stage, topic: str) -> Mapping[str, str]:
    return {"kafka.bootstrap.servers": stage.kafka.bootstrap, "topic": topic}


def _to_table(stage: Stage, table: str) -> Mapping[str, str]:
    return {**stage.postgres.jdbc, "dbtable": table}


def _whole(run: Run) -> str:
    """Run to the end; return the exit code, and what it warned of."""
    code, printed = run.whole()
    require(code == 0, f"the job ends well: {code}, {printed[-3000:]}")
    return "; ".join([f"exit {code}", *(dict.fromkeys(_PROBLEM.findall(printed)) or ["no warning"])])
