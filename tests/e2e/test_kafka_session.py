"""Kafka through Spark: what goes back, is forgotten or made again stops the job; the named command goes on."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from exactsink.cli.main import main
from exactsink.contract import ConfigError, InDoubtError, LineageError
from exactsink.spark import Job
from tests.e2e.jobs import ids, write_job, write_source
from tests.e2e.kafka_job import KafkaSink
from tests.e2e.test_gone_back import kept, put_back, run

_JOURNAL = ("checkpoint", "checkpoint.exactsink")


def written(sink: KafkaSink) -> Counter[object]:
    return Counter(json.loads(record.value or b"")["id"] for record in sink.broker.rows(sink.topic))


def forget_the_mark(sink: KafkaSink) -> None:
    group, client = f"exactsink.e2e.{sink.name}", sink.broker.admin()
    client.delete_consumer_groups([group])[group].result(30)


def test_checkpoint_and_journal_of_yesterday_stop_the_job_and_those_of_today_go_on(
    spark: SparkSession, tmp_path: Path, kafka_sink: KafkaSink
) -> None:
    path = write_job(tmp_path, kafka_sink.sink())
    for copy, batches in (("yesterday", 1), ("today", 3)):
        write_source(tmp_path, batches)
        run(spark, path)
        kept(tmp_path, copy, *_JOURNAL)
    put_back(tmp_path, "yesterday", *_JOURNAL)
    write_source(tmp_path, 4)
    with pytest.raises(LineageError, match=r"its target holds epoch 2 .*, the journal expects epoch 0") as stopped:
        run(spark, path)
    assert stopped.value.exit_code == 5
    assert (written(kafka_sink), kafka_sink.open) == (ids(3), [])
    put_back(tmp_path, "today", *_JOURNAL)
    run(spark, path)
    assert kafka_sink.amiss(tmp_path) == {}


def test_a_mark_that_is_gone_stops_the_job_and_rebase_goes_on(
    spark: SparkSession, tmp_path: Path, kafka_sink: KafkaSink, capsys: pytest.CaptureFixture[str]
) -> None:
    """A topic that is made again has none either (tests/integration/kafka/test_marks_compared.py)."""
    path, name = write_job(tmp_path, kafka_sink.sink()), kafka_sink.name
    write_source(tmp_path, 2)
    run(spark, path)
    forget_the_mark(kafka_sink)
    write_source(tmp_path, 3)
    says = rf"(?s)sink {name}: its target holds no mark, the journal expects epoch 1.*rebase \S+job\.toml"
    with pytest.raises(InDoubtError, match=says) as stopped:
        run(spark, path)
    assert stopped.value.exit_code == 3
    assert written(kafka_sink) == ids(2)
    assert main(["rebase", str(path)]) == 0
    [command] = re.findall(r"go on .*: exactsink (rebase .*) --yes", capsys.readouterr().out)
    assert command == f"rebase {path} --sink {name}=none --batch 2"
    assert main([*command.split(), "--yes", "--reason", "a test"]) == 0
    run(spark, path)
    assert (written(kafka_sink), kafka_sink.open) == (ids(3), [])


@pytest.mark.parametrize("given", ["array(named_struct('k', 'a', 'v', 'b'))", "map('a', 'b')"])
def test_headers_of_other_fields_are_refused_with_an_expression_that_spark_takes(
    spark: SparkSession, tmp_path: Path, kafka_sink: KafkaSink, given: str
) -> None:
    text = re.sub(r"(?m)^(columns|key|value_format) = .*\n", "", kafka_sink.sink())
    job = Job.from_toml(write_job(tmp_path, text))
    rows = spark.sql(f"SELECT 'row' AS value, {given} AS headers")
    with pytest.raises(ConfigError, match=r"column headers is of Arrow type .* has to be array<struct<key") as refused:
        job.write(rows, run="odd")
    job.write(rows.selectExpr("value", refused.value.next.partition("in the frame: ")[2]), run="fixed")
    assert [record.headers for record in kafka_sink.broker.rows(kafka_sink.topic)] == [(("a", b"b"),)]
