"""The oldest Spark that this Python takes, beside the newest, on every change; `make matrix` has the rest."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.servers.spark_versions import oldest_spark, python_with_spark

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(1200)  # the first run on a machine fetches 300 MB
@pytest.mark.parametrize("job", ["init", pytest.param("stateful", marks=pytest.mark.proof)])
def test_the_oldest_spark_is_killed_as_the_newest_is(job: str, tmp_path: Path) -> None:
    oldest = oldest_spark()
    python = python_with_spark(oldest)
    assert _said(python, "-c", "from importlib.metadata import version; print(version('pyspark'))") == oldest + "\n"
    plays = f"--basetemp={tmp_path / 'there'}", "tests/e2e/test_starter.py", f"-k{job}"
    assert "1 passed" in _said(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plays)


def _said(*command: object) -> str:
    own = ("PYTEST_", "PYSPARK_", "SPARK_")  # of this run's worker, and of its Spark
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-3_000:]
    return done.stdout
