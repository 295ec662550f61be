"""The command line: what each command prints, and that every end has its own exit code."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from tests.unit.conftest import Ended
from tests.unit.manual_job import Job

from exactsink.cli.main import main
from exactsink.contract import ExactsinkError, Fatal, Fenced, InDoubtError

Command = Callable[..., Ended]


@pytest.fixture(autouse=True)
def _log_levels() -> Iterator[None]:
    """The command sets the level of the whole process's log."""
    log = logging.getLogger("exactsink")
    level = log.level
    yield
    log.setLevel(level)


@pytest.mark.parametrize("name", ["status", "run", "check"])
def test_a_config_error_exits_2_with_its_line_and_the_next_command(name: str, tmp_path: Path, command: Command) -> None:
    (tmp_path / "job.toml").write_text('[job]\nnmae = "orders"\n')
    ended = command(name, str(tmp_path / "job.toml"))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("exactsink: ")
    assert "job.toml line 2: unknown key job.nmae; did you mean name?" in ended.err
    assert "\n  next: fix job.toml" in ended.err


@pytest.mark.parametrize("name", ["run", "check"])
def test_without_spark_a_command_that_needs_it_says_what_to_install(name: str, job: Job) -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None; from exactsink.cli.main import main as m; sys.exit(m(sys.argv[1:]))"
    )
    ended = subprocess.run([sys.executable, "-c", code, name, job.file], capture_output=True, text=True)
    assert (ended.returncode, "pip install 'exactsink[spark]'" in ended.stderr) == (2, True)


def test_backends_are_listed(command: Command) -> None:
    assert "\nfiles              rename, multipart  exactsink 0.1.0  1         ok\n" in command("backends").out
    (files,) = (row for row in command("backends", "--json").body if row["name"] == "files")
    assert list(files.pop("strategies")) == ["rename", "multipart"]
    assert files == {"name": "files", "source": "files", "package": "exactsink 0.1.0", "contract": 1, "problem": ""}


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch, command: Command) -> Callable[[BaseException], Ended]:
    """Let `status` end in an error."""

    def end(error: BaseException) -> Ended:
        def of(*given: object) -> None:
            raise error

        monkeypatch.setattr("exactsink.cli.status.Opened.of", of)
        return command("status", "job.toml")

    return end


@pytest.mark.parametrize("kind", [Fatal, Fenced, InDoubtError])
def test_an_error_exits_with_its_own_code_and_reports_what_why_and_next(
    kind: type[ExactsinkError], ending: Callable[[BaseException], Ended]
) -> None:
    ended = ending(kind("it failed", why="no room", next="make room"))
    assert ended == Ended(kind.exit_code, "", "exactsink: it failed: no room\n  next: make room\n")


@pytest.mark.parametrize("error", [ValueError("off by one"), OSError("gone")], ids=repr)
def test_a_bug_exits_70_with_its_traceback(error: Exception, ending: Callable[[BaseException], Ended]) -> None:
    ended = ending(error)
    assert (ended.code, "Traceback (most recent call last)" in ended.err, str(error) in ended.err) == (70, True, True)
    assert ended.err.splitlines()[-1].startswith("exactsink: this is a bug")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()], ids=repr)
def test_an_interrupt_exits_130(error: BaseException, ending: Callable[[BaseException], Ended]) -> None:
    ended = ending(error)
    assert (ended.code, "Traceback" in ended.err) == (130, False)
    assert ended.err.strip().startswith("exactsink: interrupted; nothing decided is lost")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_an_answer_is_an_error_and_behind_the_log_none(unbuffered: str) -> None:
    code = "import sys; from exactsink.cli.main import main; sys.exit(main())"

    def run(*arguments: str, **where: Any) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        return subprocess.run([sys.executable, "-c", code, *arguments], text=True, env=environment, **where)

    with open("/dev/full", "w") as full:
        answered = run("schema", stdout=full, stderr=subprocess.PIPE)
        assert answered.returncode == 1
        assert answered.stderr.startswith("exactsink: the answer can't be printed: No space left on device\n  next: ")
        assert run("status", "nowhere.toml", stderr=full).returncode == 2


def test_a_current_folder_that_is_gone_is_named(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deployed").mkdir()
    monkeypatch.chdir(tmp_path / "deployed")
    (tmp_path / "deployed").rmdir()
    ended = command("status", "job.toml")
    said = 'exactsink: the current folder was deleted\n  next: cd "$PWD", or into another one\n'
    assert (ended.code, ended.err) == (2, said)


def test_verbose_reports_events_and_twice_the_points() -> None:
    for flags, level in {(): "WARNING", ("-v",): "INFO", ("-vv",): "DEBUG", ("-vvv",): "DEBUG"}.items():
        assert main([*flags, "backends", "--json"]) == 0
        assert logging.getLevelName(logging.getLogger("exactsink").level) == level
