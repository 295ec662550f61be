"""A job's file as text: on which line a key stands, and what `${NAME}` brings in from the environment and must hide."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationInfo, field_validator
from tests.unit.fakes import IdleBackend

from exactsink.contract import Backend, BackendOptions, BackendSpec, ConfigError, hookimpl
from exactsink.job.config import JobConfig, bind_sinks, load_config
from exactsink.job.config.toml import Document, KeyPath, read_document
from exactsink.job.registry import Registry
from exactsink.protocol.sinks import Sink, resolved

SECRET = "hunter2-s3cr3t"
LONGER = f"{SECRET}-and-more"
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

    @field_validator("loud", "refused")
    @classmethod
    def _report(cls, value: str, info: ValidationInfo) -> str:
        if info.field_name == "refused":
            raise ConfigError(f"refused: {value}", why=f"because of {value}", next=f"drop {value}")
        raise ValueError(f"no such thing as {value}")


class LoudBackend(IdleBackend):
    Options = LoudOptions


@hookimpl
def exactsink_backends() -> list[BackendSpec]:
    """Make this file a plugin."""
    return [BackendSpec("loud", f"{__name__}:LoudBackend", "pip install loud")]


def bind(folder: Path, text: str, environ: Mapping[str, str]) -> tuple[JobConfig, Document, dict[str, Sink]]:
    (folder / "job.toml").write_text(text, encoding="utf-8")
    config, document = load_config(folder / "job.toml", environ)
    return config, document, bind_sinks(config, document, Registry([EntryPoint("loud", __name__, "exactsink")]))


def lake(folder: Path, text: str, environ: Mapping[str, str]) -> Sink:
    return bind(folder, text, environ)[2]["lake"]


def url_of(backend: Backend) -> str:
    assert isinstance(backend.options, LoudOptions)
    return backend.options.url.get_secret_value()


ENVIRONS = {
    f"postgres://them:{SECRET}@db/shop": {"PASSWORD": SECRET, "DB_USER": "them"},
    f"postgres://me:{SECRET}@db/shop": {"PASSWORD": SECRET},
    "postgres://me:${DB_USER}${NONE}@db/shop": {"PASSWORD": "${DB_USER}${NONE}"},  # not read again as a variable
}


@pytest.mark.parametrize("url", ENVIRONS)
def test_variables_come_from_the_environment_or_their_default(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert url_of(lake(tmp_path, JOB, ENVIRONS[url]).backend) == url
    for name, value in ENVIRONS[url].items():
        monkeypatch.setenv(name, value)
    _, document = load_config(tmp_path / "job.toml")  # the process's environment is the default
    assert document == load_config(tmp_path / "job.toml", ENVIRONS[url])[1]


def test_variables_are_filled_in_wherever_a_value_is_text(tmp_path: Path) -> None:
    text = JOB + 'columns = ["${A}", "b"]\n[spark]\nconf = { x = "${A}-${A}" }\npackages = ["${B:-}"]\n'
    config, _, _ = bind(tmp_path, text.replace("orders", "${A}"), {"A": "aa", "PASSWORD": SECRET})
    assert (config.job.name, config.sinks["lake"].columns) == ("aa", ("aa", "b"))
    assert (config.spark.conf, config.spark.packages) == ({"x": "aa-aa"}, ("",))


def test_a_variable_that_is_not_set_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        bind(tmp_path, JOB, {})
    assert str(error.value).startswith("job.toml line 6: the environment has no PASSWORD")
    assert "export PASSWORD=" in error.value.next


@pytest.mark.parametrize("variable", ["${}", "${1X}", "${X Y}", "${X:+y}", "${X:?y}", "${X:}", "${X-y}"])
def test_what_is_no_variable_is_refused_with_its_line(tmp_path: Path, variable: str) -> None:
    with pytest.raises(ConfigError) as error:
        bind(tmp_path, JOB.replace("orders", variable), {"X": "x", "executor": "x", "PASSWORD": SECRET})
    assert str(error.value).startswith(f"job.toml line 2: {variable} is not a variable")


def test_an_executors_variable_stands_in_a_backends_own_options_only(tmp_path: Path) -> None:
    for text in (JOB.replace("orders", "${executor:X}"), JOB + 'where = "${executor:X}"'):
        with pytest.raises(ConfigError, match=r"job.toml line .*(own options:|not an option of the backend)"):
            bind(tmp_path, text, {"X": "x", "PASSWORD": SECRET})


def test_an_executors_variable_travels_unresolved_and_is_filled_in_the_task(tmp_path: Path) -> None:
    sink = lake(tmp_path, JOB.replace("${PASSWORD}", "${executor:PASSWORD}"), {"PASSWORD": SECRET})
    assert url_of(sink.backend) == f"postgres://me:{SECRET}@db/shop"
    travelling = pickle.dumps(sink.for_tasks)
    assert SECRET.encode() not in travelling
    assert SECRET not in repr(sink.for_tasks)
    there = pickle.loads(travelling)
    assert url_of(resolved(there, {"PASSWORD": "another one"})) == "postgres://me:another one@db/shop"
    with pytest.raises(ConfigError, match="an executor's environment has no PASSWORD"):
        resolved(there, {})


def test_an_executors_variable_may_have_a_default_and_the_driver_needs_it_too(tmp_path: Path) -> None:
    sink = lake(tmp_path, JOB.replace("${PASSWORD}", "${executor:NONE:-open}"), {})
    assert url_of(sink.backend) == url_of(resolved(sink.for_tasks, {})) == "postgres://me:open@db/shop"
    with pytest.raises(ConfigError, match="the driver commits, so it needs the executors' variables"):
        bind(tmp_path, JOB.replace("${PASSWORD}", "${executor:PASSWORD}"), {})
    plain = lake(tmp_path, JOB, {"PASSWORD": SECRET})  # without such variables the backend itself travels
    assert resolved(plain.for_tasks, {}) is plain.for_tasks is plain.backend


LEAKS = {
    "a number that is none": 'size = "${PASSWORD}"',
    "the backend's own validator": 'loud = "it is ${PASSWORD}!"',
    "an error that the backend raises itself": 'refused = "${PASSWORD}"',
    "a secret within a longer one": 'loud = "${LONG} ${PASSWORD}"',
    "a core option": 'distribution = "${PASSWORD}"',
    "the backend's name": 'backend = "${PASSWORD}"',
    "a text in the place of a list": 'columns = "${PASSWORD}"',
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
        bind(tmp_path, text + more + "\n", {"PASSWORD": SECRET, "LONG": LONGER})
    shown = [str(error.value), repr(error.value), *traceback.format_exception(error.value)]
    assert not any(SECRET in line or LONGER.removeprefix(SECRET) in line for line in shown)
    assert "job.toml line" in str(error.value) or "***" in str(error.value)
    assert "it is" not in more or "sinks.lake.loud: no such thing as it is ***!" in str(error.value)


def test_nothing_that_is_printed_shows_a_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = JOB + '[source]\nformat = "jdbc"\npath = "${PASSWORD}"\noptions = { password = "${PASSWORD}" }\n'
    text += '[spark]\nconf = { "spark.password" = "${PASSWORD}" }\n'
    with caplog.at_level(logging.DEBUG):
        config, document, sinks = bind(tmp_path, text, {"PASSWORD": SECRET})
    assert config.source is not None
    assert config.source.options == {"password": SECRET}  # it is there, and is not shown
    for value in (config, config.source, config.spark, document, sinks, sinks["lake"].backend.options):
        assert SECRET not in repr(value) + str(value)
    assert SECRET not in caplog.text


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_bytes(JOB.encode() + "# größe".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"job.toml line 7 is not UTF-8(.|\n)*next: save it as UTF-8"):
        load_config(tmp_path / "job.toml", {})
    with pytest.raises(ConfigError, match=r"nowhere.toml can't be read: No such file"):
        load_config(tmp_path / "nowhere.toml", {})
    with pytest.raises(ConfigError, match="can't be read: Is a directory"):
        load_config(tmp_path, {})


LINES = """\
# [job] in a comment
a.b.c = 1
"quoted.key" = 2
inline = { x = 1, y = { z = 2 } }
[table]      # a comment
key = "a = b"
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
PLACES: dict[KeyPath, int] = {("a", "b", "c"): 2, ("a", "b", "other"): 1, ("quoted.key",): 3, ("inline", "y", "z"): 4}
PLACES |= {("table",): 5, ("table", "key"): 6, ("table", "with space", "sub"): 7, ("table", "missing"): 5}
PLACES |= {("table", "deeper", "missing", 0, "x"): 8, ("table", "deeper", "key"): 9, ("nowhere", "at", "all"): 1}
PLACES |= {("spaced", "dotted.name", "key"): 11, ("list", 0, "key"): 12}
PLACES |= {("sinks", "lake-1"): 14, ("sinks", "lake-1", "options", "path"): 15}


def test_a_key_is_found_on_its_line_or_that_of_the_table_above_it(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(LINES)
    document = read_document(tmp_path / "job.toml", {})
    assert {path: document.line_of(path) for path in PLACES} == PLACES
    assert document.place(("table", "key")) == "job.toml line 6"
