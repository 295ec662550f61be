"""The command line: what each command prints, and that every end has its own exit code."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from tests.unit.hand_job import Job

import exactsink
from exactsink.cli.main import main
from exactsink.contract import ExactsinkError, errors
from exactsink.observe.state import StateFile
from exactsink.protocol.coordinator import State
from exactsink.protocol.sinks import committer_of


@pytest.fixture(autouse=True)
def _log_levels() -> Iterator[None]:
    """The command sets the level of the whole process's log."""
    log = logging.getLogger("exactsink")
    level = log.level
    yield
    log.setLevel(level)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


# usage

USAGE = [["no-such-command"], ["status"], ["status", "a.toml", "b.toml"], ["status", "--no-such"], ["--no-such"]]


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
def test_a_usage_error_exits_2_and_says_what_is_wrong(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, "Usage: exactsink" in err, "Error: " in err) == ("", True, True)


@pytest.mark.parametrize("help", ["-h", "--help"])
def test_help_lists_the_commands(help: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([help]) == 0
    out = capsys.readouterr().out
    for command in ("run", "check", "status", "history", "recover", "adopt", "init", "backends", "script"):
        assert f"\n  {command} " in out
        assert main([command, help]) == 0


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert exactsink.__version__ in capsys.readouterr().out


# config


@pytest.mark.parametrize("command", ["status", "run", "check"])
def test_a_config_error_exits_2_with_its_line_and_the_next_command(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.toml"
    job.write_text('[job]\nnmae = "orders"\n')
    assert main([command, str(job)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("exactsink: ")
    assert "job.toml line 2: unknown key job.nmae; did you mean name?" in err
    assert "\n  next: fix job.toml" in err


def test_a_job_file_that_is_not_there_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(tmp_path / "nowhere.toml")]) == 2
    assert "nowhere.toml can't be read" in capsys.readouterr().err
    assert main(["status", str(tmp_path)]) == 2
    assert "is a directory" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "check"])
def test_without_spark_a_command_that_needs_it_says_what_to_install(command: str, job: Job) -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\nfrom exactsink.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    ended = subprocess.run([sys.executable, "-c", code, command, job.file], capture_output=True, text=True)
    assert (ended.returncode, "pip install 'exactsink[spark]'" in ended.stderr) == (2, True)


# backends


def test_backends_are_listed_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["backend", "strategies", "contract", "state"]
    assert ["files", "rename", "1", "ok"] in lines
    assert ["idempotent_upsert", "staged,", "direct", "1", "ok"] in lines


def test_backends_are_listed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends", "--json"]) == 0
    files = next(row for row in json.loads(capsys.readouterr().out) if row["name"] == "files")
    assert set(files) == {"name", "source", "contract", "strategies", "problem"}
    assert (files["source"], files["contract"], list(files["strategies"]), files["problem"]) == (
        "files",
        1,
        ["rename"],
        "",
    )


# status


def test_status_of_a_job_that_never_ran(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", job.file]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"job: orders", "query_id: -", "last_decided_epoch: none", "last_complete_epoch: none"} <= set(lines)
    assert lines[-1].split() == ["lake", "0", "0", "0", "-", "-"]
    code, body = job.status(capsys)
    assert (code, body["generation"], body["driver"], body["heartbeat_age_seconds"]) == (0, 0, None, None)
    assert os.listdir(job.folder) == ["job.toml"]  # it changed nothing


def test_status_reports_what_is_decided_and_not_committed_and_exits_3(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = job.journal
    claim = journal.claim("query-1", "host:17")
    votes = [job.vote(claim, 0, partition) for partition in range(3)]
    job.decide(journal, 0, *votes[:2])
    code, body = job.status(capsys)
    assert (code, _counts(body)) == (3, {"lake": (2, 1, 0)})
    listed = {p["ref"]: (p["state"], p["epoch"]) for p in body["sinks"]["lake"]["participants"]}
    assert listed == dict(zip([v.ref for v in votes], [("decided", 0), ("decided", 0), ("undecided", 0)], strict=True))
    assert body["sinks"]["lake"]["oldest_age_seconds"] >= 0
    assert (body["query_id"], body["generation"], body["driver"]) == ("query-1", 1, "host:17")
    assert (body["last_decided_epoch"], body["last_complete_epoch"]) == (0, None)
    assert main(["status", job.file]) == 3
    out, err = capsys.readouterr()
    assert "lake  2                  1          0" in out
    assert f"  lake: undecided {votes[2].ref}" in out
    assert "2 decided participants are not committed yet" in err
    assert f"next: exactsink run {job.file}, or exactsink recover {job.file}" in err
    committer_of(job.sink, "orders", claim.generation, claim.lineage).commit(0, votes[:2])
    code, body = job.status(capsys)
    assert (code, _counts(body)) == (0, {"lake": (0, 1, 0)})


def test_status_counts_decided_participants_of_a_sink_that_the_config_lacks(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = job.journal
    claim = journal.claim("query-1", "host:17")
    job.decide(journal, 0, job.vote(claim, 0, 0))
    text = Path(job.file).read_text()
    Path(job.file).write_text(text.replace("[sinks.lake]", "[sinks.other]"))
    code, body = job.status(capsys)
    assert (code, _counts(body)["lake"]) == (3, (1, 0, 0))
    StateFile(job.history / "state.json").write(State(0, 1, "host:17", heartbeat=1000.0))
    code, body = job.status(capsys)
    assert (code, list(body["sinks"])) == (0, ["other"])


def test_status_reports_the_last_complete_epoch_and_how_old_that_word_is(
    job: Job, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = job.journal
    journal.claim("query-1", "host:17")
    job.decide(journal, 0)
    job.decide(journal, 1)
    StateFile(job.history / "state.json").write(State(0, 1, "host:17", heartbeat=1000.0))
    monkeypatch.setattr("exactsink.cli.status.time.time", lambda: 1012.34)
    code, body = job.status(capsys)
    assert (code, body["last_decided_epoch"], body["last_complete_epoch"]) == (0, 1, 0)
    assert body["heartbeat_age_seconds"] == 12.3


def test_a_state_file_of_nonsense_hides_nothing_else(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    journal = job.journal
    journal.claim("query-1", "host:17")
    job.decide(journal, 0)
    (job.history / "state.json").write_text("{")
    code, body = job.status(capsys)
    assert (code, body["last_decided_epoch"], body["last_complete_epoch"]) == (0, 0, None)


def test_status_says_that_the_driver_has_ended(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.journal.claim("query-1", "host:17")
    StateFile(job.history / "state.json").write(State(None, 1, "host:17", heartbeat=0.0))
    assert main(["status", job.file]) == 0
    assert "heartbeat: none, the driver has ended" in capsys.readouterr().out


def _counts(body: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
    return {
        name: (sink["decided_in_doubt"], sink["undecided"], sink["foreign"]) for name, sink in body["sinks"].items()
    }


# exit codes


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], int]:
    """Let `status` end in an error, and give the command's exit code."""

    def end(error: BaseException) -> int:
        def status(path: str, run: str | None, as_json: bool) -> None:
            raise error

        monkeypatch.setattr("exactsink.cli.status.status", status)
        return main(["status", "job.toml"])

    return end


ENDS: dict[type[ExactsinkError], int] = {
    ExactsinkError: 1,
    errors.Retryable: 1,
    errors.Fatal: 1,
    errors.ConfigError: 2,
    errors.InDoubtError: 3,
    errors.Fenced: 4,
    errors.Refused: 5,
    errors.PreflightError: 5,
    errors.LineageError: 5,
}


@pytest.mark.parametrize(("kind", "code"), ENDS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_each_error_has_its_exit_code_and_reports_what_why_and_next(
    kind: type[ExactsinkError], code: int, ending: Callable[[BaseException], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ending(kind("it failed", why="no room", next="make room")) == code
    assert capsys.readouterr() == ("", "exactsink: it failed: no room\n  next: make room\n")


@pytest.mark.parametrize("error", [ValueError("off by one"), OSError("gone"), AssertionError("no")], ids=repr)
def test_a_bug_exits_70_with_its_traceback(
    error: Exception, ending: Callable[[BaseException], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ending(error) == 70
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert str(error) in err
    assert err.splitlines()[-1].startswith("exactsink: this is a bug")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()], ids=lambda error: type(error).__name__)
def test_an_interrupt_exits_130_and_says_that_nothing_is_lost(
    error: BaseException, ending: Callable[[BaseException], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ending(error) == 130
    err = capsys.readouterr().err.strip()
    assert err.startswith("exactsink: interrupted; nothing decided is lost")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("flags", "level"), [([], "WARNING"), (["-v"], "INFO"), (["-vv"], "DEBUG"), (["-vvv"], "DEBUG")]
)
def test_verbose_reports_events_and_twice_the_points(flags: list[str], level: str) -> None:
    assert main([*flags, "backends", "--json"]) == 0
    assert logging.getLevelName(logging.getLogger("exactsink").level) == level
