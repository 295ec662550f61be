"""What `exactsink init --plugin` writes is typed, linted, and passes the kit before its author has changed a line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

import pytest
from pydantic import ValidationError

from exactsink.cli.main import main
from exactsink.contract import ConfigError
from exactsink.starters.plugin import ROADS, write_plugin
from exactsink.testing import SCENARIOS, Runner

QUICK = dict.fromkeys(ROADS, ("killed-after-decide", "commits-at-once", "second-journal"))
QUICK["idempotent"] += ("commit-replayed", "births-at-once", "killed-inside-commit", "stalled-inside-commit")
"""What `make test` plays on each: most on the road that no backend of this repository takes. `make proof` plays all."""
CACHE = Path(__file__).parents[2] / ".mypy_cache/projects"
NAMES = {road: f"my_{road.replace('-', '_')}" for road in ROADS}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, road: str) -> Path:
    assert main(["init", str(tmp_path / road), "--plugin", NAMES[road], "--from", road]) == 0
    monkeypatch.syspath_prepend(tmp_path / road)
    return tmp_path / road


@pytest.fixture
def runner(project: Path) -> Iterator[Runner]:
    """A process that finds the project, too."""
    with closing(Runner()) as made:
        yield made


def play(road: str, scenario: str, runner: Runner, folder: Path) -> str:
    module = __import__(f"exactsink_{NAMES[road]}.targets", fromlist=["targets"])
    result = runner.play(scenario, module.targets()[NAMES[road]], folder)
    assert result.outcome != "failed", result.why
    return result.outcome


@pytest.mark.parametrize("road", ROADS)
def test_a_project_passes_the_kit_as_it_is_written(road: str, tmp_path: Path, runner: Runner) -> None:
    assert {play(road, scenario, runner, tmp_path / scenario) for scenario in QUICK[road]} == {"passed"}


@pytest.mark.parametrize("road", ROADS)
def test_a_relative_path_is_taken_from_the_job_files_folder(road: str, project: Path, tmp_path: Path) -> None:
    name = "".join(part.capitalize() for part in NAMES[road].split("_"))
    options = getattr(import_module(f"exactsink_{NAMES[road]}.backend"), f"{name}Options")
    given = {"path": "data/store.db", **({"keys": ["id"]} if "keys" in options.model_fields else {})}
    assert options.model_validate(given, context={"folder": str(tmp_path)}).path == f"{tmp_path}/data/store.db"
    with pytest.raises(ValidationError, match="give a path"):
        options.model_validate(given | {"path": ""})


@pytest.mark.proof
@pytest.mark.parametrize(
    ("road", "scenario"), [(road, name) for road in ROADS for name in SCENARIOS if name not in QUICK[road]]
)
def test_a_project_passes_all_of_the_kit(road: str, scenario: str, tmp_path: Path, runner: Runner) -> None:
    if play(road, scenario, runner, tmp_path / "played") == "skipped":
        pytest.skip("its traits or its target don't give what the scenario needs")


def test_projects_are_typed_and_linted(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in NAMES.values()}
    for road, name in NAMES.items():
        write_plugin(str(folders[name]), name, road)
        checked(folders[name], "ruff", "check", "--select", "E,F,I,N,B,UP,RUF")
        checked(folders[name], "ruff", "format", "--check")
    config = str(folders["my_staged"] / "pyproject.toml")
    packages = [argument for name in folders for argument in ("-p", f"exactsink_{name}")]
    checked(tmp_path, "mypy", f"--cache-dir={CACHE}", "--config-file", config, *packages, path=folders)


def checked(folder: Path, *command: str, path: Mapping[str, Path] = MappingProxyType({})) -> None:
    here = {**os.environ, "MYPYPATH": os.pathsep.join(map(str, path.values()))}
    ended = subprocess.run([sys.executable, "-m", *command], env=here, cwd=folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("name", ["Ledger", "my-store", "class", "9lives", ""])
def test_a_name_that_is_no_modules_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="can't be a backend's name") as refused:
        write_plugin(str(tmp_path), name, "staged")
    assert refused.value.next == f"exactsink init {tmp_path} --plugin my_store --from staged"
    assert not any(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    write_plugin(str(tmp_path), "ledger", "staged")
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(ConfigError, match=r"pyproject\.toml exists already"):
        write_plugin(str(tmp_path), "ledger", "two-phase")
    assert (tmp_path / "README.md").read_text() == "mine"
