"""A job on Spark that writes a Delta table and files: together, and no row once table or checkpoint went back."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pytest

from exactsink.contract import InDoubtError, LineageError
from tests.integration.delta.tables import asked, read, table

JOB = """
[job]
name = "shop"
checkpoint = "checkpoint"
[spark]
master = "local[2]"
[source]
format = "csv"
schema = "id BIGINT, country STRING, at TIMESTAMP"
path = "incoming"
options = { header = true, maxFilesPerTrigger = 1 }
[sinks.lake]
backend = "delta"
path = "table"
partition_by = ["country"]
[sinks.second]
backend = "files"
path = "files"
"""


@pytest.mark.proof  # three starts of Spark take 90 s of CPU; without Spark, test_table.py has both ways back
def test_a_job_on_spark_commits_a_table_and_files_together_and_stops_once_the_table_went_back(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "incoming").mkdir()
    for file in range(3):
        lines = "".join(f"{file * 10 + row},{'AB'[row % 2]},2026-01-02T03:04:05.{file}\n" for row in range(10))
        (tmp_path / "incoming" / f"{file}.csv").write_text(f"id,country,at\n{lines}")

    def run(code: int) -> str:
        command = [Path(sys.executable).with_name("exactsink"), "run", "job.toml"]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    run(0)
    assert read(tmp_path) == Counter(pa.dataset.dataset(tmp_path / "files").to_table()["id"].to_pylist())
    assert read(tmp_path) == Counter(range(30))
    assert asked(tmp_path, """SELECT count(*) FROM lake WHERE "at" = '2026-01-02 03:04:05.2+00'""") == [(10,)]
    table(tmp_path).restore(table(tmp_path).version() - 2)
    back = read(tmp_path)
    assert back.total() == 10
    assert "lacks rows of epochs 1 to 2" in run(InDoubtError.exit_code)
    for folder in ("checkpoint", "checkpoint.exactsink"):
        shutil.rmtree(tmp_path / folder)
    assert "another journal fed this target" in run(LineageError.exit_code)
    assert read(tmp_path) == back
