"""A query that is started again with other columns: refused before a row, until the sink's option takes them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from exactsink import Job
from exactsink.contract import PreflightError, Refused
from tests.e2e.jobs import ids, in_lake, write_source


def job(folder: Path, change: str = "fail", trigger: str = "available_now") -> Job:
    lake: dict[str, Any] = {"backend": "files", "path": folder / "lake", "on_schema_change": change}
    return Job(name="orders", checkpoint=folder / "checkpoint", sinks={"lake": lake}, trigger=trigger)


def source(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema("id BIGINT, kind STRING").option("maxFilesPerTrigger", 1).json(f"{folder}/source")


def run(made: Job, frame: DataFrame) -> None:
    with closing(made):
        made.start(frame).awaitTermination()


def test_a_start_with_other_columns_is_refused_until_the_option_takes_them(spark: SparkSession, tmp_path: Path) -> None:
    write_source(tmp_path, 1)
    rows = source(spark, tmp_path)
    run(job(tmp_path), rows)
    write_source(tmp_path, 2)
    wider = rows.withColumn("note", lit("new"))
    with pytest.raises(Refused, match="its columns differ from those of epoch 0") as refused:
        run(job(tmp_path), wider)
    assert "note    -        string" in str(refused.value)
    assert not isinstance(refused.value, PreflightError)
    assert in_lake(tmp_path) == ids(1)
    run(job(tmp_path, "add_columns"), wider)
    assert in_lake(tmp_path) == ids(2)
    widths = [len(pq.read_schema(path).names) for path in (tmp_path / "lake").glob("*.parquet")]
    assert set(widths) == {2, 3}
    with pytest.raises(Refused, match='on_schema_change = "allow"'):
        run(job(tmp_path, "add_columns"), rows)  # `note` is gone again


def test_a_batch_of_other_columns_in_a_running_query_writes_no_row(spark: SparkSession, tmp_path: Path) -> None:
    write_source(tmp_path, 2)
    with closing(job(tmp_path)) as made:
        write = made.foreach_batch()

        def changed(frame: DataFrame, batch: int) -> None:
            write(frame if batch == 0 else frame.withColumn("id", frame["id"].cast("string")), batch)

        query = source(spark, tmp_path).writeStream.foreachBatch(changed).trigger(availableNow=True)
        started = query.option("checkpointLocation", f"{tmp_path}/checkpoint").start()
        with pytest.raises(Exception, match="its columns differ from those of epoch 0"):
            started.awaitTermination()
    assert in_lake(tmp_path) == ids(1)
