"""A journal goes on with another checkpoint: epochs never go back, and the old checkpoint is refused from then on."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from exactsink.cli.main import main
from exactsink.contract import LineageError
from exactsink.protocol.journal.records import Decide
from exactsink.spark import Job
from exactsink.spark.session import read_source
from tests.e2e.jobs import ids, in_lake, in_table, write_job, write_source
from tests.e2e.test_gone_back import run


def test_epochs_go_on_with_a_new_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    write_source(tmp_path, 2)
    path = write_job(tmp_path)
    run(spark, path)
    shutil.move(tmp_path / "checkpoint", tmp_path / "old")
    with pytest.raises(LineageError, match=r"(?s)is gone.*restore the checkpoint.*exactsink adopt"):
        run(spark, path)
    assert not (tmp_path / "checkpoint").exists(), "refused before the query started"

    assert main(["adopt", str(path)]) == 0
    write_source(tmp_path, 4)
    for batch in range(2):  # what the given-up query has read must not come again
        (tmp_path / "source" / f"{batch}.json").unlink()
    job = run(spark, path)
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(4)
    decided = [entry.record.epoch for entry in job.journal().entries() if isinstance(entry.record, Decide)]
    assert decided == [0, 1, 2, 3]
    assert run(spark, path).journal().read().next_epoch == 4, "the new query's restart finds its batches done"

    shutil.move(tmp_path / "checkpoint", tmp_path / "new")
    shutil.move(tmp_path / "old", tmp_path / "checkpoint")
    with pytest.raises(LineageError, match="belongs to query"):
        run(spark, path)
    assert in_lake(tmp_path) == in_table(tmp_path) == ids(4)


def test_a_query_that_ran_without_exactsink_is_adopted_where_it_stands(spark: SparkSession, tmp_path: Path) -> None:
    write_source(tmp_path, 2)
    path = write_job(tmp_path)
    seen: list[int] = []
    before = read_source(Job.from_toml(path).config, spark).writeStream.foreachBatch(
        lambda frame, batch: seen.extend(row.id for row in frame.collect())
    )
    before.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()
    write_source(tmp_path, 3)
    with pytest.raises(LineageError, match="the journal expects 0"):
        run(spark, path)
    assert main(["adopt", str(path)]) == 0, "though the refused start has claimed the journal for this query"
    run(spark, path)
    assert Counter(seen) + in_lake(tmp_path) == ids(3)
    assert in_lake(tmp_path) == in_table(tmp_path)
