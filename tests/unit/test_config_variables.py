"""A job's file as text: on which line a key stands, and what `${NAME}` brings in from the environment and must hide."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from pydantic import SecretStr, field_validator
from tests.unit.fakes import IdleBackend

from exactsink.contract import BackendOptions, BackendSpec, ConfigError, hookimpl
from exactsink.job.config import JobConfig, bind_sinks, load_config
from exactsink.job.config.toml import Document, KeyPath, read_document
from exactsink.job.registry import Registry
from exactsink.protocol.sinks import Sink, resolved

SECRET = "hunter2-s3cr3t"
JOB = """\
[job]
name = "orders"
checkpoint = "/data/chk"
[sinks.lake]
backend = "loud"
url = "postgres://${DB_USER:-me}:${PASSWORD}@db/shop"
"""


class LoudOptions(BackendOptions):
    """Options that report in their errors what they were given."""

    url: SecretStr
    size: int = 1
    loud: str = ""
    refused: str = ""

    @field_validator("loud")
    @classmethod
    def _report(cls, value: str) -> str:
        if value:
            raise ValueError(f"no such thing as {value}")
        return value

    @field_validator("refused")
    @classmethod
    def _refuse(cls, value: str) -> str:
        if value:
            raise ConfigError(f"refused: {value}", why=f"because of {value}", next=f"drop {value}")
        return value


class LoudBackend(IdleBackend):
    Options = LoudOptions


@hookimpl
def exactsink_backends() -> list[BackendSpec]:
    """Make this file a plugin."""
    return [BackendSpec("loud", f"{__name__}:LoudBackend", "pip install loud")]


def load(folder: Path, text: str, environ: Mapping[str, str]) -> tuple[JobConfig, Document]:
    (folder / "job.toml").write_text(text, encoding="utf-8")
    return load_config(folder / "job.toml", environ)


def bind(folder: Path, text: str, environ: Mapping[str, str]) -> dict[str, Sink]:
    config, document = load(folder, text, environ)
    return bind_sinks(config, document, Registry([EntryPoint("loud", __name__, "exactsink")]))


def url_of(sink: Sink) -> str:
    assert isinstance(sink.backend.options, LoudOptions)
    return sink.backend.options.url.get_secret_value()


# variables


def test_variables_come_from_the_environment_or_their_default(tmp_path: Path) -> None:
    environ = {"PASSWORD": SECRET, "DB_USER": "them"}
    assert url_of(bind(tmp_path, JOB, environ)["lake"]) == f"postgres://them:{SECRET}@db/shop"
    assert url_of(bind(tmp_path, JOB, {"PASSWORD": SECRET})["lake"]) == f"postgres://me:{SECRET}@db/shop"


def test_variables_are_filled_in_wherever_a_value_is_text(tmp_path: Path) -> None:
    text = JOB + 'columns = ["${A}", "b"]\n[spark]\nconf = { x = "${A}-${A}" }\npackages = ["${B:-}"]\n'
    config, _ = load(tmp_path, text.replace("orders", "${A}"), {"A": "aa", "PASSWORD": SECRET})
    assert (config.job.name, config.sinks["lake"].columns) == ("aa", ("aa", "b"))
    assert (config.spark.conf, config.spark.packages) == ({"x": "aa-aa"}, ("",))


def test_what_a_variable_holds_is_not_read_again_as_a_variable(tmp_path: Path) -> None:
    sinks = bind(tmp_path, JOB, {"PASSWORD": "${DB_USER}${NONE}"})
    assert url_of(sinks["lake"]) == "postgres://me:${DB_USER}${NONE}@db/shop"


def test_the_process_environment_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.toml").write_text(JOB.replace("orders", "${EXACTSINK_TEST_NAME}"))
    monkeypatch.setenv("EXACTSINK_TEST_NAME", "from-outside")
    monkeypatch.setenv("PASSWORD", SECRET)
    assert load_config(tmp_path / "job.toml")[0].job.name == "from-outside"


def test_a_variable_that_is_not_set_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, JOB, {})
    assert str(error.value).startswith("job.toml line 6: the environment has no PASSWORD")
    assert "export PASSWORD=" in error.value.next


@pytest.mark.parametrize("variable", ["${}", "${1X}", "${X Y}", "${X:+y}", "${X:?y}", "${X:}", "${X-y}"])
def test_what_is_no_variable_is_refused_with_its_line(tmp_path: Path, variable: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, JOB.replace("orders", variable), {"X": "x", "executor": "x", "PASSWORD": SECRET})
    assert str(error.value).startswith(f"job.toml line 2: {variable} is no variable")


MISPLACED = {
    "the job's name": ("orders", "${executor:X}"),
    "a core option": ('"loud"', '"loud"\nwhere = "${executor:X}"'),
}


@pytest.mark.parametrize(("old", "new"), MISPLACED.values(), ids=MISPLACED)
def test_an_executors_variable_stands_in_a_backends_own_options_only(tmp_path: Path, old: str, new: str) -> None:
    with pytest.raises(ConfigError, match=r"own options only|no option of the backend's own") as error:
        bind(tmp_path, JOB.replace(old, new), {"X": "x", "PASSWORD": SECRET})
    assert "job.toml line " in str(error.value)


def test_an_executors_variable_travels_unresolved_and_is_filled_in_the_task(tmp_path: Path) -> None:
    sink = bind(tmp_path, JOB.replace("${PASSWORD}", "${executor:PASSWORD}"), {"PASSWORD": SECRET})["lake"]
    assert url_of(sink) == f"postgres://me:{SECRET}@db/shop"
    travelling = pickle.dumps(sink.for_tasks)
    assert SECRET.encode() not in travelling
    assert SECRET not in repr(sink.for_tasks)
    there = pickle.loads(travelling)
    assert (
        url_of(replace(sink, backend=resolved(there, {"PASSWORD": "another one"})))
        == "postgres://me:another one@db/shop"
    )
    with pytest.raises(ConfigError, match="an executor's environment has no PASSWORD"):
        resolved(there, {})


def test_an_executors_variable_may_have_a_default_and_the_driver_needs_it_too(tmp_path: Path) -> None:
    sink = bind(tmp_path, JOB.replace("${PASSWORD}", "${executor:NONE:-open}"), {})["lake"]
    assert url_of(sink) == "postgres://me:open@db/shop"
    assert url_of(replace(sink, backend=resolved(sink.for_tasks, {}))) == "postgres://me:open@db/shop"
    with pytest.raises(ConfigError, match="the driver commits, so it needs what the executors have"):
        bind(tmp_path, JOB.replace("${PASSWORD}", "${executor:PASSWORD}"), {})


def test_without_executors_variables_the_backend_itself_travels(tmp_path: Path) -> None:
    sink = bind(tmp_path, JOB, {"PASSWORD": SECRET})["lake"]
    assert sink.for_tasks is sink.backend
    assert resolved(sink.for_tasks, {}) is sink.backend


# secrets

LEAKS = {
    "a number that is none": 'size = "${PASSWORD}"',
    "the backend's own validator": 'loud = "it is ${PASSWORD}!"',
    "an error that the backend raises itself": 'refused = "${PASSWORD}"',
    "a core option": 'distribution = "${PASSWORD}"',
    "the backend's name": 'backend = "${PASSWORD}"',
    "a number of the framework": 'max_participants = "${PASSWORD}"',
    "a list in the place of a text": 'where = ["${PASSWORD}"]',
    "a source's option": '[source]\nformat = "x"\noptions = { password = ["${PASSWORD}"] }',
    "a source's format": '[source]\nformat = ["${PASSWORD}"]',
    "the session": '[spark]\npackages = "${PASSWORD}"\nmaster = ["${PASSWORD}"]',
}


@pytest.mark.parametrize("more", LEAKS.values(), ids=LEAKS)
def test_no_error_shows_what_came_from_the_environment(tmp_path: Path, more: str) -> None:
    text = JOB.replace('backend = "loud"\n', "") if more.startswith("backend") else JOB
    with pytest.raises(ConfigError) as error:
        bind(tmp_path, text + more + "\n", {"PASSWORD": SECRET})
    shown = [str(error.value), repr(error.value), *traceback.format_exception(error.value)]
    assert not any(SECRET in line for line in shown)
    assert "job.toml line" in str(error.value) or "***" in str(error.value)


def test_a_message_keeps_what_did_not_come_from_the_environment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sinks.lake.loud: no such thing as it is \*\*\*!"):
        bind(tmp_path, JOB + 'loud = "it is ${PASSWORD}!"\n', {"PASSWORD": SECRET})


def test_a_secret_within_a_longer_one_leaves_nothing_of_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        bind(tmp_path, JOB + 'loud = "${LONG} ${PASSWORD}"\n', {"PASSWORD": SECRET, "LONG": SECRET + "-and-more"})
    assert "and-more" not in str(error.value)


def test_nothing_that_is_printed_shows_a_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = JOB + '[source]\nformat = "jdbc"\npath = "${PASSWORD}"\noptions = { password = "${PASSWORD}" }\n'
    text += '[spark]\nconf = { "spark.password" = "${PASSWORD}" }\n'
    with caplog.at_level(logging.DEBUG):
        config, document = load(tmp_path, text, {"PASSWORD": SECRET})
        sinks = bind(tmp_path, text, {"PASSWORD": SECRET})
    assert config.source is not None
    assert config.source.options == {"password": SECRET}  # it is there, and is not shown
    for value in (config, config.source, config.spark, document, sinks, sinks["lake"].backend.options):
        assert SECRET not in repr(value)
        assert SECRET not in str(value)
    assert SECRET not in caplog.text


# files and lines


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.toml can't be read: No such file"):
        load_config(tmp_path / "nowhere.toml", {})
    with pytest.raises(ConfigError, match="can't be read"):
        load_config(tmp_path, {})


@pytest.mark.parametrize("broken", ["x = \n", "[job\n", 'x = "a\n', "x = 1\nx = 2\n", "[job]\n"])
def test_broken_toml_is_named_with_its_line(tmp_path: Path, broken: str) -> None:
    with pytest.raises(ConfigError, match=r"job.toml is not TOML.*(line [78]|end of document)"):
        load(tmp_path, JOB + broken, {})


def test_a_file_that_is_not_utf_8_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_bytes(JOB.encode() + "# größe".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"job.toml line 7 is not UTF-8"):
        load_config(tmp_path / "job.toml", {})


LINES = """\
# [job] in a comment
a.b.c = 1
"quoted.key" = 2
'single' = 3
inline = { x = 1, y = { z = 2 } }

[table]      # a comment
key = "a = b"
other   =   4
"with space" . sub = 5

  [table.deeper]
  key = 6

[ spaced . "dotted.name" ]
key = 7

[[list]]
key = 8
[sinks.lake-1]
options.path = 9
"""
PLACES: dict[KeyPath, int] = {
    ("a",): 2,
    ("a", "b", "c"): 2,
    ("a", "b", "other"): 1,
    ("quoted.key",): 3,
    ("single",): 4,
    ("inline", "y", "z"): 5,
    ("table",): 7,
    ("table", "key"): 8,
    ("table", "other"): 9,
    ("table", "with space", "sub"): 10,
    ("table", "missing"): 7,
    ("spaced",): 15,
    ("sinks",): 20,
    ("table", "deeper", "key"): 13,
    ("table", "deeper", "missing", 0, "x"): 12,
    ("spaced", "dotted.name", "key"): 16,
    ("list", 0, "key"): 18,
    ("sinks", "lake-1", "options", "path"): 21,
    ("sinks", "lake-1"): 20,
    ("nowhere", "at", "all"): 1,
}


@pytest.mark.parametrize(("path", "line"), PLACES.items(), ids=str)
def test_a_key_is_found_on_its_line_or_that_of_the_table_above_it(tmp_path: Path, path: KeyPath, line: int) -> None:
    (tmp_path / "job.toml").write_text(LINES)
    document = read_document(tmp_path / "job.toml", {})
    assert (document.line_of(path), document.place(path)) == (line, f"job.toml line {line}")
