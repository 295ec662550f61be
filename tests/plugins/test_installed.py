"""Plugins as their users have them: wheels, installed beside exactsink's into a clean environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.servers.mariadb import own_mariadb
from tests.servers.redis import own_redis

ROOT = Path(__file__).parents[2]
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
options = { header = true, maxFilesPerTrigger = 1 }
[sinks.lake]
backend = "files"
path = "lake"
"""


class Clean:
    """A virtual environment with nothing but these wheels and what they need."""

    def __init__(self, folder: Path, wheels: Path) -> None:
        self.folder = folder
        self.wheels = wheels
        self.run(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"))
        self.install(*map(str, wheels.glob("*.whl")))

    def install(self, *wanted: str) -> None:
        pip = (sys.executable, "-m", "pip", "--python", str(self.folder / "venv/bin/python"))
        self.run(*pip, "install", "-q", "--no-compile", *wanted)

    def run(self, *command: str, **environment: str) -> str:
        programs = str(self.folder / "venv/bin")
        here = {**_without_python(os.environ), **environment, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        ended = subprocess.run(command, env=here, cwd=self.folder, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def ids(self, table: str) -> Counter[int]:
        """Return the ids in an Arrow table that an expression makes there."""
        return Counter(json.loads(self.run("python", "-c", f"print({table}['id'].to_pylist())")))


@dataclass(frozen=True)
class Store:
    """A plugin's store: how the kit finds it, what a job's sink says of it, and the ids that rows were put with."""

    environment: Mapping[str, str]
    options: str
    ids: Callable[[], Counter[int]]


@contextmanager
def _redis(clean: Clean) -> Iterator[Store]:
    with own_redis() as server:

        def ids() -> Counter[int]:
            puts = server.execute("HGETALL", "{orders}:count:id")
            assert len(server.execute("KEYS", "{orders}:row:*")) == len(puts)
            return Counter({int(key): int(count) for key, count in puts.items()})

        options = f'url = "{server.url}"\nprefix = "orders"\nkeys = ["id"]\ncount_by = ["id"]\n'
        yield Store({"REDIS_URL": server.url}, options, ids)


@contextmanager
def _mysql_xa(clean: Clean) -> Iterator[Store]:
    with own_mariadb() as server:
        database, url = server.new_database("orders"), f"mysql://root@localhost/%s?unix_socket={server.socket}"

        def ids() -> Counter[int]:
            return Counter(key for (key,) in server.execute("SELECT id FROM orders", database=database))

        yield Store({"MYSQL_URL": url % "mysql"}, f'url = "{url % database}"\ntable = "orders"\ncreate = true\n', ids)


@dataclass(frozen=True)
class Plugin:
    """An example: its package, its store, and the scenarios of the kit that it passes as it is installed."""

    package: str
    store: Callable[[Clean], AbstractContextManager[Store]]
    scenarios: Sequence[str] = ("killed-inside-commit", "killed-after-decide")

    @property
    def project(self) -> Path:
        return ROOT / "examples/plugins" / self.package.partition(" ")[0]


PLUGINS = {"redis": Plugin("exactsink-redis 0.1.0", _redis), "mysql_xa": Plugin("exactsink-mysql-xa 0.1.0", _mysql_xa)}
"""By backend."""


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    wheels = tmp_path_factory.mktemp("wheels")
    projects = [ROOT, *(plugin.project for plugin in PLUGINS.values())]
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(wheels), *map(str, projects)]
    subprocess.run(command, check=True)
    assert len(list(wheels.glob("*.whl"))) == len(projects)
    return Clean(tmp_path_factory.mktemp("clean"), wheels)


@pytest.mark.parametrize("backend", PLUGINS)
def test_a_wheel_is_found_and_passes_the_kit_in_a_clean_environment(clean: Clean, backend: str) -> None:
    plugin = PLUGINS[backend]
    listed = {row["name"]: row for row in json.loads(clean.run("exactsink", "backends", "--json"))}
    assert (listed[backend]["package"], listed[backend]["problem"]) == (plugin.package, "")
    options = [part for scenario in plugin.scenarios for part in ("--scenario", scenario)]
    with plugin.store(clean) as store:
        command = ("exactsink", "conformance", backend, "--jobs", "2", *options, "--json")
        results = json.loads(clean.run(*command, **store.environment))
    played = {result["target"] for result in results}
    assert Counter((result["scenario"], result["outcome"]) for result in results) == {
        (scenario, "passed"): len(played) for scenario in plugin.scenarios
    }


@pytest.mark.proof
def test_a_job_on_spark_commits_files_and_all_of_them_together(clean: Clean) -> None:
    [wheel] = clean.wheels.glob("exactsink-*.whl")
    clean.install(f"{wheel}[spark]")
    (clean.folder / "incoming").mkdir()
    for file in range(3):
        rows = "".join(f"{file * 10 + row},{'AB'[row % 2]}\n" for row in range(10))
        (clean.folder / "incoming" / f"{file}.csv").write_text(f"id,country\n{rows}")
    wanted = dict.fromkeys(range(30), 1)
    with ExitStack() as stack:
        stores = {name: stack.enter_context(plugin.store(clean)) for name, plugin in PLUGINS.items()}
        sinks = [f'[sinks.{name.replace("_", "-")}]\nbackend = "{name}"\n{at.options}' for name, at in stores.items()]
        (clean.folder / "job.toml").write_text(JOB + "".join(sinks))
        killed = "exactsink run job.toml & until [ -e checkpoint/commits/0 ]; do sleep 0.1; done; kill -9 $!; ! wait $!"
        clean.run("sh", "-c", killed)
        for _ in range(2):  # the second finds nothing to do
            clean.run("exactsink", "run", "job.toml")
            held = {name: store.ids() for name, store in stores.items()}
            held["lake"] = clean.ids("__import__('pyarrow.dataset').dataset.dataset('lake').to_table()")
            assert held == dict.fromkeys(held, wanted)
        assert json.loads(clean.run("exactsink", "status", "job.toml", "--json"))["last_complete_epoch"] == 2


def _without_python(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
