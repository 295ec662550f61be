"""What a job's file may have wrong on a first day: each message says what, where, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from tests.unit.conftest import Ended

from exactsink.cli.main import cli
from exactsink.job.config import load_config
from exactsink.spark.errors import first_line, task_error

Command = Callable[..., Ended]

JOB = """\
[job]
name = "orders"
checkpoint = "chk"
[source]
format = "csv"
[sinks.lake]
backend = "files"
path = "lake"
[sinks.table]
backend = "idempotent_upsert"
url = "sqlite:///orders.db"
table = "orders"
keys = ["id"]
"""
MISTAKES = {
    "unknown key": ('keys = ["id"]', 'key = ["id"]', ("line 9: sinks.table.keys is missing\n"
        "job.toml line 13: unknown key sinks.table.key; did you mean keys?")),
    "text for a list": ('keys = ["id"]', 'keys = "id"',
        'line 13: sinks.table.keys: a list is wanted: write keys = ["id"]'),
    "number for text": ('table = "orders"', "table = 3", "line 12: sinks.table.table: text in quotes is wanted"),
    "text for a bool": ('keys = ["id"]', 'keys = ["id"]\ncreate = "maybe"',
        "line 14: sinks.table.create: true or false is wanted: write create = false"),
    "text for a number": ('chk"', 'chk"\nrestarts = "often"',
        "line 4: job.restarts: a whole number is wanted: write restarts = 10"),
    "neither": ('path = "lake"', 'path = "lake"\ndistribution = [1]',
        ("line 9: sinks.lake.distribution: a whole number is wanted, or text in quotes is wanted: "
        'write distribution = "none"')),
    "none of the words": ('keys = ["id"]', 'keys = ["id"]\nmode = "insert"',
        'line 14: sinks.table.mode: one of "upsert", "insert_if_absent", "replace" is wanted; did you mean upsert?'),
    "a name's pattern": ('name = "orders"', 'name = "My Orders"',
        'line 2: job.name: write name = "orders" (it has to match ^[a-z0-9][a-z0-9-]{0,39}$)'),
    "a sink's name": ("[sinks.lake]", '[sinks."The Lake"]',
        r"line 6: sinks.The Lake: no name of a sink, write [sinks.lake], say (it has to match"),
    "a function's pattern": ('chk"', 'chk"\ntransform = "clean"',
        r'line 4: job.transform: write transform = "shop.orders:clean" (it has to match ^[\w.]+:[\w.]+$)'),
    "a time's pattern": ('chk"', 'chk"\nlongest_pause = "1 week"',
        (r'line 4: job.longest_pause: write longest_pause = "7 days" '
        r"(it has to match ^\d+ (second|minute|hour|day)s?$)")),
    "an empty condition": ('path = "lake"', 'path = "lake"\nwhere = ""',
        'line 9: sinks.lake.where: it is empty: write where = "amount > 0"'),
    "no checkpoint": ('checkpoint = "chk"\n', "",
        'line 1: job.checkpoint is missing: write checkpoint = "/data/checkpoints/orders"'),
    "no backend of this name": ('"files"', '"file"', "line 7: no backend file is installed; did you mean files?"),
    "Spark's setting in [spark]": ("[source]", '[spark]\n"spark.sql.shuffle.partitions" = 2\n[source]',
        ("line 5: unknown key spark.spark.sql.shuffle.partitions: Spark's own settings stand in [spark.conf], under "
        "their whole names in quotes")),
    "the same without quotes": ("[source]", "[spark]\nspark.sql.shuffle.partitions = 2\n[source]",
        ("line 5: unknown key spark.spark: Spark's own settings stand in [spark.conf], under their whole names in "
        "quotes")),
    "and in [job]": ("[source]", '"spark.sql.shuffle.partitions" = 2\n[source]',
        "line 4: unknown key job.spark.sql.shuffle.partitions: Spark's own settings stand in [spark.conf]"),
    "a variable that is not set": ('"lake"', '"${LAKE_PLACE}"', "line 8: the environment has no LAKE_PLACE"),
    "an empty one": ('"lake"', '"${EMPTY_PLACE}"', "line 8: the environment's EMPTY_PLACE is empty"),
    "a bucket without a path": ('"chk"', '"s3://bucket"',
        "line 3: job.checkpoint: a URL of an object store is scheme://bucket/path"),
    "a file: URL with a host": ('"chk"', '"file://nas/chk"',
        "line 3: job.checkpoint: file://nas/ names another machine: a local folder is a path, or file:///path"),
    "somebody's home": ('"chk"', '"~nobody-here/chk"', "line 3: job.checkpoint: ~nobody-here/chk: no such user"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_file_is_named_with_its_line_and_what_to_write(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    monkeypatch.setenv("EMPTY_PLACE", "")
    right, wrong, said = MISTAKES[mistake]
    file = tmp_path / "job.toml"
    file.write_text(JOB.replace(right, wrong))
    ended = command("status", str(file))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"exactsink: job.toml {said}")
    assert "\n  next: " in ended.err
    file.write_text(JOB)
    assert command("status", str(file)).code == 0


NEXT = {
    '"${LAKE_PLACE}"': "export LAKE_PLACE=..., or write ${LAKE_PLACE:-...} for what stands in then, even nothing",
    '"${EMPTY_PLACE}"': "export EMPTY_PLACE=..., or write ${EMPTY_PLACE:-...} for what stands in then, even nothing",
    "3": "fix job.toml, then `exactsink check {}`",
}


@pytest.mark.parametrize("place", NEXT)
def test_the_next_step_is_said(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setenv("EMPTY_PLACE", "")
    (tmp_path / "job.toml").write_text(JOB.replace('"lake"', place))
    said = NEXT[place].replace("{}", str(tmp_path / "job.toml"))
    assert command("status", str(tmp_path / "job.toml")).err.endswith(f"\n  next: {said}\n")


def test_a_value_is_not_repeated_where_it_would_have_to_be_escaped(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODD_SECRET", 's3"cr3t')
    (tmp_path / "job.toml").write_text(JOB.replace('keys = ["id"]', 'keys = "${ODD_SECRET}"'))
    said = command("status", str(tmp_path / "job.toml")).err
    assert "sinks.table.keys: a list is wanted\n" in said
    assert "cr3t" not in said


def test_settings_may_be_written_without_quotes_and_behind_an_editor_s_mark(tmp_path: Path) -> None:
    text = "\ufeff" + JOB.replace("[sinks.lake]", "options = { kafka.group.id = 'x', y = 1 }\n[sinks.lake]")
    (tmp_path / "job.toml").write_text(text + '[spark.conf]\nspark.sql.shuffle.partitions = 2\n"spark.x.y" = true\n')
    config, _ = load_config(tmp_path / "job.toml", {})
    assert config.spark.conf == {"spark.sql.shuffle.partitions": 2, "spark.x.y": True}
    assert config.source
    assert config.source.options == {"kafka.group.id": "x", "y": 1}


def test_a_file_that_is_not_there_points_to_those_that_are_and_to_init(tmp_path: Path, command: Command) -> None:
    for there in ((), ("orders.toml", "other.toml")):
        for name in there:
            (tmp_path / name).write_text(JOB)
        ended = command("run", str(tmp_path / "job.toml"))
        files = f" ({', '.join(str(tmp_path / name) for name in there)}?)" if there else ""
        said = f"exactsink: {tmp_path}/job.toml can't be read: No such file or directory"
        assert ended.err == f"{said}\n  next: name the job's file{files}; or write a new job: exactsink init FOLDER\n"
        assert (ended.code, ended.out) == (2, "")


GROUPS = ("", "files", "indoubt", "journal")


@pytest.mark.parametrize("group", GROUPS)
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


TYPED = {
    ("run",): "exactsink run job.toml",
    ("status", "job.toml", "more"): "exactsink status --help",
    ("bench", "job.toml"): "exactsink bench --job job.toml",
    ("journal", "job.toml"): "exactsink journal verify job.toml",
    ("indoubt", "my job.toml"): "exactsink indoubt list 'my job.toml'",
    ("watch", "job.toml", "--every", "0"): "exactsink watch --help",
    ("watch", "job.toml", "--web", "http"): "exactsink watch job.toml --web 8080",
    ("init", "x", "--to", "kafka,postgres"): "exactsink init --help",
    ("init", "x", "--from", "staged"): "exactsink init --help",
    ("init", "x", "--plugin", "shop", "--from", "kafka"): "exactsink init --help",
    ("init", "x", "--name", "My Job"): "exactsink init --help",
    ("init",): "exactsink init --help",
    ("rum", "job.toml"): "exactsink --help",
    ("init", "/proc/x"): "exactsink init ANOTHER_FOLDER",
}


@pytest.mark.parametrize("arguments", TYPED, ids=" ".join)
def test_a_wrong_command_line_ends_with_a_command_that_can_be_typed(
    command: Command, arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("init", ".").code == 0
    ended = command(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert TYPED[arguments] in ended.err.splitlines()[-1], ended.err
    assert ended.err.splitlines()[-1].startswith("  next: ")


def test_without_a_job_in_the_folder_a_missing_file_leads_to_init(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("status").err.endswith("  next: write a job, then name its file: exactsink init FOLDER\n")


NEAR = {
    ("chekc", "job.toml"): "No such command 'chekc'. Did you mean 'check'?",
    ("run", "--jsno", "job.toml"): "No such option '--jsno'. Did you mean '--json'?",
    ("conformance", "file"): "no backend file is installed; did you mean files?",
    ("conformance", "files", "--scenario", "a_crash_after_decid"): "did you mean ",
}


@pytest.mark.parametrize("arguments", NEAR)
def test_the_nearest_name_is_asked_for(command: Command, arguments: tuple[str, ...]) -> None:
    ended = command(*arguments)
    assert (ended.code, NEAR[arguments] in ended.err) == (2, True), ended.err


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
