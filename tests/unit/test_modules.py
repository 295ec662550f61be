"""Where a job's transform and route are found: in its own folders and among what is installed, nowhere else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from exactsink.contract import ConfigError
from exactsink.job.config import load_config
from exactsink.spark.modules import load_route, load_transform

JOB = '[job]\nname = "j"\ncheckpoint = "ck"\n{}\n[sinks.lake]\nbackend = "files"\npath = "out"\n'


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start somewhere, with a path of this test's own, and an installed folder before all others in it."""
    for name in ("job", "installed", "here", "shared"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "installed"), *sys.path])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setenv("PYTHONPATH", "")


def module(place: Path, name: str) -> None:
    """Write a module whose function names its place; what runs it leaves a trace."""
    file = place / f"{name.replace('.', '/')}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"open({str(place / 'ran')!r}, 'w').close()\ndef f(frame): return {place.name!r}\n")


def found(folder: Path, name: str, settings: str = "") -> object:
    (folder / "job" / "job.toml").write_text(JOB.format(f'transform = "{name}:f"\nroute = "{name}:f"\n{settings}'))
    config, _ = load_config(folder / "job" / "job.toml", {})
    route = load_route(config)
    assert route is not None
    assert route(None) == load_transform(config)(None)  # type: ignore[arg-type]
    return route(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["clean_a", "shop_a.orders"])
@pytest.mark.parametrize("place", ["job", "installed", "shared"])
def test_functions_come_from_the_jobs_folders_and_from_what_is_installed(tmp_path: Path, place: str, name: str) -> None:
    module(tmp_path / place, name)
    settings = 'modules = [".", "../shared"]' if place == "shared" else ""
    assert found(tmp_path, name, settings) == place


def test_a_finder_for_old_pythons_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, object()])
    with pytest.raises(ConfigError, match="clean_e:f can't be imported"):
        found(tmp_path, "clean_e")


def test_the_folder_in_which_a_job_is_started_is_not_searched(tmp_path: Path) -> None:
    module(tmp_path / "here", "clean_b")
    with pytest.raises(ConfigError, match="clean_b:f can't be imported") as refused:
        found(tmp_path, "clean_b")
    assert f"searched: {tmp_path / 'job'}, the installed packages and PYTHONPATH" in refused.value.why
    assert 'modules = [".", "FOLDER"]' in refused.value.next


@pytest.mark.parametrize("name", ["clean_c", "shop_c.orders", "colorsys", "sys"])
def test_a_module_that_another_one_hides_is_refused_and_neither_is_run(tmp_path: Path, name: str) -> None:
    for place in ("job", "installed") if "_" in name else ("job",):
        module(tmp_path / place, name)
    with pytest.raises(ConfigError, match="is not the module that Python finds by this name"):
        found(tmp_path, name)
    assert not list(tmp_path.rglob("ran"))
