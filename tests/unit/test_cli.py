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


USAGE = ["no-such-command", "status", "status a.toml b.toml", "status --no-such", "--no-such"]


@pytest.mark.parametrize("arguments", USAGE)
def test_a_usage_error_exits_2_and_says_what_is_wrong(arguments: str, command: Command) -> None:
    ended = command(*arguments.split())
    assert (ended.code, ended.out, "Usage: exactsink" in ended.err, "Error: " in ended.err) == (2, "", True, True)


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
    assert "\nfiles              rename, multipart  1         ok\n" in command("backends").out
    (files,) = (row for row in command("backends", "--json").body if row["name"] == "files")
    assert list(files.pop("strategies")) == ["rename", "multipart"]
    assert files == {"name": "files", "source": "files", "contract": 1, "problem": ""}


def _counts(body: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
    return {name: (s["decided_in_doubt"], s["undecided"], s["foreign"]) for name, s in body["sinks"].items()}


def test_status_of_a_job_that_never_ran(job: Job, command: Command) -> None:
    lines = command("status", job.file).out.splitlines()
    assert {"job: orders", "query_id: -", "last_decided_epoch: none", "last_complete_epoch: none"} <= set(lines)
    assert lines[-1].split() == ["lake", "0", "0", "0", "-", "-"]
    ended = command("status", job.file, "--json")
    assert (ended.code, ended.body["generation"]) == (0, 0)
    assert ended.body["driver"] is ended.body["heartbeat_age_seconds"] is None
    assert os.listdir(job.folder) == ["job.toml"]  # it changed nothing


def test_status_reports_what_is_decided_and_not_committed_and_exits_3(job: Job, command: Command) -> None:
    claim, votes = job.decided()
    ended = command("status", job.file, "--json")
    assert (ended.code, _counts(ended.body)) == (3, {"lake": (2, 1, 0)})
    lake = ended.body["sinks"]["lake"]
    listed = [(p["ref"], p["state"], p["epoch"]) for p in lake["participants"]]
    states = ("decided", "decided", "undecided")
    assert sorted(listed) == sorted((vote.ref, state, 0) for vote, state in zip(votes, states, strict=True))
    assert lake["oldest_age_seconds"] >= 0
    keys = ("query_id", "generation", "driver", "last_decided_epoch", "last_complete_epoch")
    assert [ended.body[key] for key in keys] == ["query-1", 1, "host:17", 0, None]
    shown = command("status", job.file)
    assert shown.code == 3
    assert "lake  2                  1          0" in shown.out
    assert f"  lake: undecided {votes[2].ref}" in shown.out
    assert "2 decided participants are not committed yet" in shown.err
    assert f"next: exactsink run {job.file}, or exactsink recover {job.file}" in shown.err
    job.session(claim).commit(0, votes[:2])
    ended = command("status", job.file, "--json")
    assert (ended.code, _counts(ended.body)) == (0, {"lake": (0, 1, 0)})


def test_status_counts_decided_participants_of_a_sink_that_the_config_lacks(job: Job, command: Command) -> None:
    job.decided()
    text = Path(job.file).read_text()
    Path(job.file).write_text(text.replace("[sinks.lake]", "[sinks.other]"))
    ended = command("status", job.file, "--json")
    assert (ended.code, _counts(ended.body)["lake"]) == (3, (2, 0, 0))
    job.heartbeat(1000.0, complete_epoch=0)
    ended = command("status", job.file, "--json")
    assert (ended.code, list(ended.body["sinks"])) == (0, ["other"])


def test_status_reports_the_last_complete_epoch_and_how_old_that_word_is(
    job: Job, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = job.journal
    journal.claim("query-1", "host:17")
    job.decide(journal, 0)
    job.decide(journal, 1)
    keys = ("last_decided_epoch", "last_complete_epoch", "heartbeat_age_seconds")
    job.heartbeat(1000.0, complete_epoch=0)
    monkeypatch.setattr("exactsink.cli.status.time.time", lambda: 1012.34)
    ended = command("status", job.file, "--json")
    assert (ended.code, [ended.body[key] for key in keys]) == (0, [1, 0, 12.3])
    job.heartbeat(0.0)
    assert "heartbeat: none, the driver has ended" in command("status", job.file).out
    (job.history / "state.json").write_text("{")  # nonsense hides nothing else
    ended = command("status", job.file, "--json")
    assert (ended.code, [ended.body[key] for key in keys]) == (0, [1, None, None])


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch, command: Command) -> Callable[[BaseException], Ended]:
    """Let `status` end in an error."""

    def end(error: BaseException) -> Ended:
        def status(path: str, run: str | None, as_json: bool) -> None:
            raise error

        monkeypatch.setattr("exactsink.cli.status.status", status)
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


def test_verbose_reports_events_and_twice_the_points() -> None:
    for flags, level in {(): "WARNING", ("-v",): "INFO", ("-vv",): "DEBUG", ("-vvv",): "DEBUG"}.items():
        assert main([*flags, "backends", "--json"]) == 0
        assert logging.getLevelName(logging.getLogger("exactsink").level) == level
