"""Every command that a message or page names can be typed as it stands; `tests/conftest.py` holds what tests raise."""

from __future__ import annotations

import ast
import logging
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.commands import commands_in, problem_of, texts_in
from tests.unit.conftest import Ended
from tests.unit.manual_job import Job as ManualJob

from exactsink.contract import ExactsinkError, Retryable
from exactsink.job.commands import Commands
from exactsink.job.history import JobHistory
from exactsink.spark import Job

Command = Callable[..., Ended]

ROOT = Path(__file__).parents[2]
NO_ADVICE = (
    *("exactsink conformance`", "exactsink stop by ", "`exactsink run` ends", "exactsink runs on Spark"),
    *("exactsink journal`", "signals and `exactsink stop` mean", "`exactsink status` says prepared"),
)
"""What names a command, and asks nobody to type it."""


def problems(text: str, **how: bool) -> list[str]:
    return [problem for command in commands_in(text) if (problem := problem_of(command, **how))]


def test_every_command_in_a_message_can_be_typed_as_it_stands() -> None:
    wrong = []
    for path in sorted([*(ROOT / "core").rglob("*.py"), *(ROOT / "backends").rglob("*.py")]):
        for line, text in texts_in(ast.parse(path.read_text())):
            if not any(name in f"{text}`" for name in NO_ADVICE):
                wrong += [f"{path.relative_to(ROOT)}:{line}: {problem}" for problem in problems(text, values=False)]
    assert wrong == [], "\n".join(wrong)


def test_every_command_that_a_page_or_docstring_names_exists_with_its_options() -> None:
    wrong = []
    for path in sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *(ROOT / "core").rglob("*.py")]):
        for code in re.findall(r"`(exactsink [^`\n]+)`", path.read_text()):
            found = problems(f"`{code}`", named=True, values=False)
            wrong += [f"{path.relative_to(ROOT)}: {problem}" for problem in found]
    assert wrong == [], "\n".join(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "exactsink indoubt resolve job.toml --epoch 1 --sink lake --as committed",
        "exactsink indoubt resolve job.toml --epoch 1 --sink lake --as sometimes --reason TEXT",
        *("then `exactsink check`", "exactsink journal verfy job.toml", "exactsink check job.toml --run late"),
        *("exactsink rebase job.toml shows what stands there", "`exactsink status a job.toml`"),
        "exactsink status 'job.toml",
    ],
)
def test_a_command_that_fails_is_found(text: str) -> None:
    assert problems(text)


@pytest.mark.parametrize("path", ["my jobs/it's.toml", "JOB.toml"])
@pytest.mark.parametrize("run", [None, "2026 11"])
def test_a_message_gets_the_name_of_the_jobs_file_once(path: str, run: str | None) -> None:
    commands = Commands(path, run)
    error = Retryable(
        "late", why="see `exactsink check JOB.toml`", next="`exactsink run JOB.toml`; exactsink stop JOB.toml"
    )
    commands.name(error)
    commands.name(error)
    start = commands.start if run is None else "call write again, with run='2026 11'"
    assert error.why == f"see `{Commands(path).of('check')}`"
    assert error.next == f"`{start}`; {commands.of('stop')}"
    assert not any(problem_of(command) for command in commands_in(str(error)))


def test_a_message_of_a_job_made_in_python_says_once_how_to_get_its_file() -> None:
    error = Retryable("late", next="`exactsink check JOB.toml`, or exactsink stop JOB.toml")
    Commands(None).name(error)
    Commands(None).name(error)
    named = '`exactsink check JOB.toml`, or exactsink stop JOB.toml (job.to_toml("JOB.toml") writes that file)'
    assert error.next == named


@pytest.fixture
def odd_job(tmp_path: Path) -> ManualJob:
    """A job whose file needs quotes in a shell, and whose sink holds work of another journal."""
    folder = tmp_path / "it's here"
    folder.mkdir()
    job = ManualJob(folder)
    job.decided()
    shutil.rmtree(folder / "chk")
    job.vote(replace(job.journal.read().claims[0], token="f" * 12), 4, 9)
    return job


def test_the_command_line_prints_commands_that_can_be_typed(odd_job: ManualJob, command: Command) -> None:
    file = shlex.quote(odd_job.file)
    sweep = f"exactsink recover {file} --sweep-token ffffffffffff --dry-run"
    assert command("recover", odd_job.file).err.endswith(f"{sweep}\n")
    assert command("recover", odd_job.file, "--json").body["error"]["next"].endswith(sweep)
    Path(odd_job.file).write_text(Path(odd_job.file).read_text().replace("[sinks.lake]", "[sinks.pond]"))
    lacking = f"`exactsink recover {file}`"
    assert lacking in command("status", odd_job.file, "--json").body["former_sinks"][0]["problem"]["next"]
    assert lacking in command("status", odd_job.file).out
    refused = command("check", odd_job.file, "--no-spark", "--json").body["error"]
    assert f"`exactsink adopt {file}`" in refused["next"], "its checkpoint is gone"


def test_python_gets_commands_that_can_be_typed(odd_job: ManualJob, caplog: pytest.LogCaptureFixture) -> None:
    job = Job.from_toml(odd_job.file)
    journal = Path(str(JobHistory.of(job.config, "late").folder)) / "journal"
    journal.mkdir(parents=True)
    (journal / f"{0:020}.json").write_bytes(b"{")
    session = SimpleNamespace(sparkContext=SimpleNamespace(_jsc="running"))
    frame: Any = SimpleNamespace(isStreaming=False, dtypes=[], sparkSession=session)
    with pytest.raises(ExactsinkError) as refused:
        job.write(frame, run="late")
    assert f"`exactsink journal verify {shlex.quote(odd_job.file)} --run late`" in refused.value.next
    job.events.report("state_not_saved", level=logging.WARNING, error="see `exactsink stop JOB.toml`")
    assert f"`exactsink stop {shlex.quote(odd_job.file)}`" in caplog.text
