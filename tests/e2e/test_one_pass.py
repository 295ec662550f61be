"""One pass over a frame: sinks share what they can, and a row's digest does not depend on how it travels."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from exactsink.job.history import JobHistory
from exactsink.protocol.votes import sum_digests
from exactsink.spark import Job
from tests.e2e.jobs import write_job

SINKS = "".join(
    f"""
[sinks.{name}]
backend = "files"
path = "{{folder}}/{name}"
{more}
"""
    for name, more in {
        "flat": "",
        "same": "",
        "struct": 'where = "true"',
        "some": 'where = "id % 2 = 0"',
        "few": 'columns = ["id", "odd.name"]',
    }.items()
)


@pytest.mark.parametrize("with_map", [False, True], ids=["columns that hash as they are", "a map, hashed as JSON"])
def test_a_row_has_one_digest_however_it_travels(spark: SparkSession, tmp_path: Path, with_map: bool) -> None:
    rows = spark.range(0, 500, 1, 3).selectExpr(
        "id",
        "CASE WHEN id % 3 = 0 THEN NULL ELSE concat('n', id) END AS `odd.name`",
        "named_struct('a', id, 'b', CASE WHEN id % 5 = 0 THEN NULL ELSE 'x' END) AS inner",
        "array(id, NULL, 7) AS list",
        *(["map('k', id) AS m"] if with_map else []),
    )
    job = Job.from_toml(write_job(tmp_path, SINKS))
    result = job.write(rows, run="r")
    assert result.rows == {"flat": 500, "same": 500, "struct": 500, "some": 250, "few": 500}

    with closing(JobHistory.of(job.config, "r").journal(lambda _: None)) as journal:
        decision = journal.read().decision
    assert decision is not None
    digests = {name: sum_digests([c.digest for c in decision.committables(name)]) for name in decision.sinks}
    assert digests["flat"] == digests["same"] == digests["struct"] != 0
    assert len({digests["flat"], digests["some"], digests["few"]}) == 3

    written = {name: ds.dataset(str(tmp_path / name), format="parquet").to_table() for name in decision.sinks}
    expected = sorted(rows.toArrow().to_pylist(), key=lambda row: row["id"])
    for name, kept in {"flat": expected, "same": expected, "struct": expected, "some": expected[::2]}.items():
        assert sorted(written[name].to_pylist(), key=lambda row: row["id"]) == kept
    assert sorted(written["few"].to_pylist(), key=lambda row: row["id"]) == [
        {"id": row["id"], "odd.name": row["odd.name"]} for row in expected
    ]
