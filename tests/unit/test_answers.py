"""`--json`: one document on stdout, of the documented shape, however the command ends."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from docs.answers import Adopted, Checked, Problem, Ran, Recovered, Verified
from pydantic import BaseModel
from tests.unit.conftest import Ended
from tests.unit.manual_job import Job

from exactsink.cli import check as check_module
from exactsink.cli import run as run_module
from exactsink.cli.main import cli
from exactsink.contract import Event, Fatal, Finding
from exactsink.job.config import load_config
from exactsink.job.stop import Stop
from exactsink.operate.preflight import Found

Command = Callable[..., Ended]


def _answer(model: type[BaseModel], ended: Ended) -> Any:
    """Hold a command's output against its model; all fields are there unless an error came first."""
    read = model.model_validate_json(ended.out)
    assert read.error is not None or set(ended.body) == set(model.model_fields)  # type: ignore[attr-defined]
    return read


def test_recover_and_adopt_answer_with_what_came_of_it(job: Job, command: Command) -> None:
    job.decided()
    planned = _answer(Recovered, command("recover", job.file, "--dry-run", "--json"))
    done = _answer(Recovered, command("recover", job.file, "--json"))
    assert (planned.dry_run, planned.sinks, planned.epoch) == (True, done.sinks, 0)
    assert [(sink.committed, sink.swept) for sink in done.sinks] == [(2, 1)]
    shutil.rmtree(job.folder / "chk")
    adopted = _answer(Adopted, command("adopt", job.file, "--json"))
    assert (adopted.job, adopted.batch, adopted.epoch, adopted.error) == ("orders", 0, 1, None)
    assert _answer(Verified, command("journal", "verify", job.file, "--json")).entries == 9


@pytest.mark.parametrize("name", ["recover", "adopt"])
def test_an_error_is_in_the_answer_too(job: Job, command: Command, name: str) -> None:
    job.decided()
    job.checkpoint("query-1", 0)
    ended = command(name, job.file if name == "adopt" else f"{job.file}.none", "--json")
    error = _answer({"recover": Recovered, "adopt": Adopted}[name], ended).error
    assert (error.exit_code, error.kind) == (ended.code, "ConfigError")
    assert error.what in ended.err
    assert error.next != ""


@pytest.fixture
def without_spark(job: Job, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Leave out of `run` and `check` what only Spark can do."""
    config, _ = load_config(job.file)
    reported: list[tuple[str, dict[str, Any]]] = []
    found = Found({"lake": [Finding("warning", "slow", "make it fast")]})
    fake = SimpleNamespace(
        config=config,
        sinks={"lake": job.sink},
        preflight=lambda frame: found,
        close=lambda: None,
        abandon=lambda: None,
        events=SimpleNamespace(report=lambda name, **fields: reported.append((name, fields))),
        reported=reported,
        found=found,
        hears=(),
    )

    def from_toml(path: str, subscribers: Any = ()) -> SimpleNamespace:
        fake.hears = subscribers
        return fake

    for module in (run_module, check_module):
        monkeypatch.setattr(module, "Job", SimpleNamespace(from_toml=from_toml))
        for name in ("make_session", "read_source", "end_session"):
            monkeypatch.setattr(module, name, lambda *_: None)
    return fake


def test_run_answers_with_the_epochs_that_it_finished(
    job: Job, command: Command, without_spark: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def supervise(fake: SimpleNamespace, *_: object, **__: object) -> None:
        print("from the job's own transform")
        for epoch in (4, 5):
            for subscriber in fake.hears:
                subscriber(Event("return", "orders", "before", epoch, {"rows": {"lake": 3}}))
                subscriber(Event("return", "orders", "after", epoch, {}))
                subscriber(Event("query_restarted", "orders", "", None, {"attempt": 1}))
        raise Fatal("a key comes twice", next="look")

    monkeypatch.setattr(run_module, "supervise", supervise)
    ended = command("run", job.file, "--json")
    ran = _answer(Ran, ended)
    assert (ran.epochs, ran.last_epoch, ran.rows, ran.restarts, ran.stopped_by) == (2, 5, {"lake": 6}, 2, None)
    assert [(name, fields["epochs"], fields["rows"]) for name, fields in without_spark.reported] == [
        ("run_ended", 2, {"lake": 6})
    ]
    assert (ended.code, ran.error.exit_code, ran.error.next) == (1, 1, "look")
    assert "own transform" in ended.err


def test_a_run_that_is_cut_off_says_once_what_it_did(
    job: Job, command: Command, without_spark: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: object, stop: Stop, **__: object) -> None:
        stop.asked = "SIGTERM"
        stop.crash("SIGINT after SIGTERM")

    monkeypatch.setattr(run_module, "supervise", cut_off)
    monkeypatch.setattr(run_module, "kill_jvm", lambda: None)
    said_at_exit = []

    def end(code: int) -> None:
        said_at_exit.extend(without_spark.reported)
        sys.exit(code)

    monkeypatch.setattr("exactsink.job.stop.os._exit", end)
    with pytest.raises(SystemExit):
        command("run", job.file)
    assert said_at_exit == without_spark.reported
    [(name, fields)] = said_at_exit
    assert (name, fields["epochs"], fields["stopped_by"]) == ("run_ended", 0, "SIGTERM")


def test_check_answers_with_findings_and_refusals(job: Job, command: Command, without_spark: SimpleNamespace) -> None:
    checked = _answer(Checked, command("check", job.file, "--json"))
    assert (checked.guarantee, checked.sinks["lake"].findings[0].fix) == ("exactly once", "make it fast")
    without_spark.found.findings["lake"].append(Finding("error", "closed", "open it"))
    ended = command("check", job.file, "--json")
    assert (ended.code, json.loads(ended.out)["error"]["kind"]) == (5, "PreflightError")


def _with_json(group: click.Group, *before: str) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _with_json(command, *before, name)
        elif command is not None and any("--json" in parameter.opts for parameter in command.params):
            yield (*before, name)


JSON_COMMANDS = [" ".join(path) for path in _with_json(cli)]


@pytest.mark.parametrize("trouble", ["missing file", "wrong file", "damaged journal", "no such option"])
@pytest.mark.parametrize("name", JSON_COMMANDS)
def test_every_command_prints_one_document_whatever_happens(
    name: str, trouble: str, job: Job, command: Command
) -> None:
    assert len(JSON_COMMANDS) >= 14
    job.decided()
    more = ["--no-spark"] if name == "check" else []
    path = job.file
    if trouble == "missing file":
        path = f"{job.folder}/none.toml"
    elif trouble == "wrong file":
        Path(job.file).write_text("[job]\nname = 3\n[sinks")
    elif trouble == "damaged journal":
        for entry in (job.history / "journal").iterdir():
            entry.write_bytes(b"{}")
    else:
        more = ["--no-such"]
    if name == "run" and trouble == "damaged journal":
        pytest.skip("it starts Spark first")
    ended = command(*name.split(), path, "--json", *more)
    if ended.code == 0 or isinstance(ended.body, list):
        assert trouble == "damaged journal", ended.out
        return
    error = Problem.model_validate(ended.body["error"])
    assert error.exit_code == ended.code
    assert error.what in ended.err
    assert ended.code != 70, error


def test_status_has_the_error_that_ends_it_and_leads_to_json_behind_it(job: Job, command: Command) -> None:
    job.decided()
    ended = command("status", job.file, "--json", "--within", "60")
    assert (ended.code, ended.body["error"]["exit_code"], ended.body["exit_code"]) == (3, 3, 3)
    assert "not proven committed" in ended.body["error"]["what"]
    ended, right = command("--json", "status", job.file), f"exactsink status {job.file} --json"
    assert (ended.code, ended.body["error"]["next"], f"  next: {right}\n" in ended.err) == (2, right, True)
