"""Plugins as their users have them: wheels, installed beside exactsink's into a clean environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.servers.redis import own_redis

ROOT = Path(__file__).parents[2]
PLUGINS = {"redis": "exactsink-redis 0.1.0"}
JOB = """
[job]
name = "orders"
checkpoint = "checkpoint"
[spark]
master = "local[2]"
[source]
format = "csv"
schema = "id BIGINT, country STRING"
path = "incoming"
options = {{ header = true, maxFilesPerTrigger = 1 }}
[sinks.lake]
backend = "files"
path = "lake"
[sinks.cache]
backend = "redis"
url = "{url}"
prefix = "orders"
keys = ["id"]
count_by = ["country"]
"""


class Clean:
    """A virtual environment with nothing but these wheels and what they need."""

    def __init__(self, folder: Path, extra: str = "") -> None:
        self.folder = folder
        self.run(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"))
        pip = (sys.executable, "-m", "pip", "--python", str(folder / "venv/bin/python"))
        projects = [ROOT, *(ROOT / f"examples/plugins/exactsink-{name}" for name in PLUGINS)]
        self.run(*pip, "wheel", "-q", "--no-deps", "-w", str(folder / "wheels"), *map(str, projects))
        wheels = sorted((folder / "wheels").glob("*.whl"))
        assert len(wheels) == len(projects)
        named = [f"{wheel}{extra}" if wheel.name.startswith("exactsink-") else str(wheel) for wheel in wheels]
        self.run(*pip, "install", "-q", "--no-compile", *named)

    def run(self, *command: str, code: int = 0, **environment: str) -> str:
        programs = str(self.folder / "venv/bin")
        here = {**_without_python(os.environ), **environment, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        ended = subprocess.run(command, env=here, cwd=self.folder, capture_output=True, text=True)
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout


def _without_python(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


def test_wheels_are_found_and_pass_the_kit_in_a_clean_environment(tmp_path: Path) -> None:
    clean = Clean(tmp_path)
    listed = {row["name"]: row for row in json.loads(clean.run("exactsink", "backends", "--json"))}
    assert {name: listed[name]["package"] for name in PLUGINS} == PLUGINS
    assert [listed[name]["problem"] for name in PLUGINS] == [""] * len(PLUGINS)
    with own_redis() as server:
        played = "killed-inside-commit", "killed-after-decide"
        options = [part for scenario in played for part in ("--scenario", scenario)]
        command = ("exactsink", "conformance", "redis", "--jobs", "2", *options, "--json")
        results = json.loads(clean.run(*command, REDIS_URL=server.url))
    assert [(result["scenario"], result["outcome"]) for result in results] == [(name, "passed") for name in played]


@pytest.mark.proof
def test_a_job_on_spark_commits_files_and_redis_together(tmp_path: Path) -> None:
    clean = Clean(tmp_path, "[spark,files]")
    (tmp_path / "incoming").mkdir()
    for file in range(3):
        rows = "".join(f"{file * 10 + row},{'AB'[row % 2]}\n" for row in range(10))
        (tmp_path / "incoming" / f"{file}.csv").write_text(f"id,country\n{rows}")
    with own_redis() as server:
        (tmp_path / "job.toml").write_text(JOB.format(url=server.url))
        for _ in range(2):  # the second finds nothing to do
            clean.run("exactsink", "run", "job.toml")
            assert server.execute("HGETALL", "{orders}:count:country") == {"A": "15", "B": "15"}
            assert len(server.execute("KEYS", "{orders}:row:*")) == 30
        read = "import pyarrow.dataset as ds; print(ds.dataset('lake').count_rows())"
        assert clean.run("python", "-c", read) == "30\n"
        assert json.loads(clean.run("exactsink", "status", "job.toml", "--json"))["complete_epoch"] == 2
