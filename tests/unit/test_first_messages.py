"""What a job's file may have wrong on a first day: each message says what, where, and what to write instead."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from tests.unit.conftest import Ended

from exactsink.cli.main import cli
from exactsink.job.config import load_config
from exactsink.spark.errors import first_line, task_error
from exactsink.spark.preflight import refused_by_executors

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Command = Callable[..., Ended]

TABLE: dict[str, Any] = tomllib.loads((Path(__file__).parent / "mistakes.toml").read_text("utf-8"))
JOB: str = TABLE["job"]
MISTAKES: dict[str, dict[str, str]] = TABLE["mistakes"]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_file_is_named_with_its_line_and_what_to_write(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    monkeypatch.setenv("EMPTY_PLACE", "")
    monkeypatch.setenv("ODD_SECRET", 's3"cr3t')
    case, file = MISTAKES[mistake], tmp_path / "job.toml"
    file.write_text(JOB.replace(case["right"], case["wrong"]))
    ended = command("status", str(file))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.replace(f"{tmp_path}/", "").startswith(f"exactsink: job.toml {case['said']}")
    assert f"\n  next: {case.get('next', '').replace('{}', str(file))}" in ended.err
    assert "cr3t" not in ended.err
    file.write_text(JOB)
    assert command("status", str(file)).code == 0


def test_settings_may_be_written_without_quotes_and_behind_an_editor_s_mark(tmp_path: Path) -> None:
    text = "\ufeff" + JOB.replace("[sinks.lake]", "options = { kafka.group.id = 'x', y = 1 }\n[sinks.lake]")
    (tmp_path / "job.toml").write_text(text + '[spark.conf]\nspark.sql.shuffle.partitions = 2\n"spark.x.y" = true\n')
    config, _ = load_config(tmp_path / "job.toml", {})
    assert config.spark.conf == {"spark.sql.shuffle.partitions": 2, "spark.x.y": True}
    assert config.source
    assert config.source.options == {"kafka.group.id": "x", "y": 1}


def test_a_file_that_is_not_there_points_to_those_that_are_and_to_init(tmp_path: Path, command: Command) -> None:
    (tmp_path / "folder.toml").mkdir()
    for there in ((), ("orders.toml", "other.toml")):
        for name in there:
            (tmp_path / name).write_text(JOB)
        ended = command("run", str(tmp_path / "job.toml"))
        files = f" ({', '.join(str(tmp_path / name) for name in there)}?)" if there else ""
        said = f"exactsink: {tmp_path}/job.toml can't be read: No such file or directory"
        assert ended.err == f"{said}\n  next: name the job's file{files}; or write a new job: exactsink init FOLDER\n"
        assert (ended.code, ended.out) == (2, "")


@pytest.mark.parametrize("group", ["", "files", "indoubt", "journal"])
def test_help_is_cut_nowhere(command: Command, monkeypatch: pytest.MonkeyPatch, group: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = command(*group.split(), "--help").out
    assert ("\nCommands:\n" if group else "\nRun it:\n") in shown
    assert "..." not in shown.replace("COMMAND [ARGS]...", "")
    assert max(map(len, shown.splitlines())) <= 80
    found = cli.get_command(click.Context(cli), group) if group else cli
    assert isinstance(found, click.Group)
    assert all(f"\n  {name} " in shown for name in found.list_commands(click.Context(found)))


def test_help_has_the_commands_in_the_order_of_use_and_every_one_once(command: Command) -> None:
    listed = re.findall(r"^  ([a-z]+)  +[A-Z]", command("--help").out.partition("Write a job:")[2], re.MULTILINE)
    assert sorted(listed) == cli.list_commands(click.Context(cli))
    first = [listed.index(name) for name in ("init", "check", "run", "watch", "status", "verify", "recover", "files")]
    assert first == sorted(first)


TYPED: dict[str, str] = TABLE["typed"]


@pytest.mark.parametrize("arguments", TYPED)
def test_a_wrong_command_line_ends_with_a_command_that_can_be_typed(
    command: Command, arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("init", ".").code == 0
    Path("folder.toml").mkdir()
    ended = command(*shlex.split(arguments))
    assert (ended.code, ended.out) == (2, "")
    assert TYPED[arguments] in ended.err.splitlines()[-1], ended.err
    assert ended.err.splitlines()[-1].startswith("  next: ")


def test_without_a_job_in_the_folder_a_missing_file_leads_to_init(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("status").err.endswith("  next: write a job, then name its file: exactsink init FOLDER\n")
    assert command("init", "my job").out.endswith(f", then exactsink run '{tmp_path}/my job/job.toml'\n")


NEAR: dict[str, str] = TABLE["near"]


@pytest.mark.parametrize("arguments", NEAR)
def test_the_nearest_name_is_asked_for(command: Command, arguments: str) -> None:
    ended = command(*arguments.split())
    assert (ended.code, ended.out, NEAR[arguments] in ended.err) == (2, "", True), ended.err


COMPLETE = """
eval "$(_EXACTSINK_COMPLETE=bash_source exactsink)"
while read -ra COMP_WORDS; do
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
    _exactsink_completion exactsink 2>&1 && echo "${COMPREPLY[@]}"
done
"""


def test_a_shell_completes_commands_options_jobs_files_and_sinks(tmp_path: Path) -> None:
    (tmp_path / "orders.toml").write_text(JOB)
    (tmp_path / "other.txt").touch()
    completed = {
        "recov": "recover",
        "rebase orders.toml --si": "--sink",
        "status or": "orders.toml",
        "recover orders.toml --sink la": "lake",
        "indoubt resolve orders.toml --as gi": "given-up",
    }
    typed = "".join(f"exactsink {words}\n" for words in completed)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    bash = ["bash", "-c", COMPLETE]
    done = subprocess.run(
        bash, input=typed, capture_output=True, text=True, check=True, cwd=tmp_path, env={**os.environ, "PATH": path}
    )
    assert done.stdout.splitlines() == list(completed.values())


def test_executors_without_the_package_lead_to_the_drivers_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that was started by its interpreter's path: Spark takes the first python3 of PATH."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    refused = refused_by_executors(Said("ModuleNotFoundError: No module named 'exactsink_files'"))
    assert refused.next.startswith(f"export PYSPARK_PYTHON={sys.executable}, because Spark takes the first python3")
    monkeypatch.setenv("PYSPARK_PYTHON", "/no/python3")
    assert refused_by_executors(Said("java.io.IOException: No such file")).next.startswith("unset PYSPARK_PYTHON, or")


class Said(Exception):
    pass


JAVA = "An error occurred while calling o7.x.\n: org.apache.spark.SparkException: Job aborted: lost task\n\tat x\n"
NO_PROGRAM = 'java.io.IOException: Cannot run program "/no/python"'
CRASHED = "org.apache.spark.SparkException: worker crashed"
TASKS = {
    "pyspark.errors.PythonException: x\nTraceback\n  File\nValueError: off by one\n": "ValueError: off by one",
    f"{JAVA}Caused by: {NO_PROGRAM}\n\tat y": NO_PROGRAM,
    f"{JAVA}Caused by: {CRASHED}\nCaused by: java.io.EOFException\n\tat z": CRASHED,
    JAVA: "org.apache.spark.SparkException: Job aborted: lost task",
    "": "Said",
}


@pytest.mark.parametrize("text", TASKS)
def test_what_lies_behind_an_error_of_spark_s(text: str) -> None:
    assert task_error(Said(text)) == TASKS[text]
    assert first_line(Said("[NO_COLUMN] no `x`. SQLSTATE: 42703; line 1 pos 0;\n'Project")).endswith("SQLSTATE: 42703")
